package bulk

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/operations"
)

// other makes a job beside the fixture's.
func (f *fixture) other(id string, status job.Status) {
	f.t.Helper()
	j, err := f.Jobs.Get(f.t.Context(), jobID)
	f.must(err)
	j.ID, j.Status, j.Definition.ID = id, status, "def_"+id[len(job.JobPrefix):]
	f.must(f.Jobs.Create(f.t.Context(), j, true))
}

// letter stores a dead letter of a job and returns its execution.
func (f *fixture) letter(id string, n int, change func(d *job.DeadLetter)) string {
	f.t.Helper()
	at := f.began.Add(time.Duration(-1-n) * time.Minute)
	e := job.Entry{JobID: id, Tenant: tenant, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at}
	e.ExecutionID, e.Attempt = job.ScheduleExecutionID(id, at), 1
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeFailed}, at)
	d := job.DeadLetter{Event: event, Reason: "permanent", At: at}
	if change != nil {
		change(&d)
	}
	f.must(f.History.PutDeadLetter(f.t.Context(), d))
	if d.RedrivenBy != "" {
		f.must(f.History.MarkRedriven(f.t.Context(), d, d.RedrivenBy))
	}
	return e.ExecutionID
}

const (
	secondJob    = "job_01M7ZJW5E6D77SAJPXRW35C2CB"
	cancelledJob = "job_01M7ZJW5E6D77SAJPXRW35C2CC"
	goneJob      = "job_01M7ZJW5E6D77SAJPXRW35C2CD"
)

// letters stores dead letters of two jobs, which it returns, and some that a redrive of what was given up as permanent leaves out.
func (f *fixture) letters(n int) (want []string) {
	f.t.Helper()
	f.other(secondJob, job.StatusPaused)
	f.other(cancelledJob, job.StatusCancelled)
	for i := range n {
		want = append(want, f.letter([]string{jobID, secondJob}[i%2], i, nil))
	}
	f.letter(cancelledJob, 1, nil)
	f.letter(goneJob, 1, nil)
	f.letter(jobID, n+1, func(d *job.DeadLetter) { d.Reason = "window" })
	f.letter(jobID, n+2, func(d *job.DeadLetter) { d.RedrivenBy = "exe_before" })
	f.letter(jobID, n+3, func(d *job.DeadLetter) { d.At = f.began.Add(time.Hour) }) // after the request
	slices.Sort(want)
	return want
}

func (f *fixture) redrive(rate int) string {
	f.t.Helper()
	return f.begin(0, rate, func(o *operations.Operation) {
		o.Type, o.JobID, o.DefinitionID, o.Total = operations.TypeRedrive, "", "", 0
		o.From, o.GivenUpFor, o.Order = f.began.Add(-24*time.Hour), "permanent", operations.NewestFirst
	})
}

// wantsRedriven checks that an operation wrote one row for each of the dead letters, at a rate, and marked exactly these.
func (f *fixture) wantsRedriven(id string, want []string, rate int) {
	f.t.Helper()
	rows := f.rows(id)
	slices.SortFunc(rows, func(a, b job.PendingRow) int { return a.DueAt.Compare(b.DueAt) })
	by := map[string]string{}
	for i, row := range rows {
		of, err := job.ParseExecutionID(row.Note.Source)
		f.must(err)
		by[row.Note.Source] = row.ExecutionID
		if row.JobID != of.JobID || row.ExecutionID != job.RedriveExecutionID(of.JobID, id[3:], row.Note.Source) ||
			row.Partition != bucket.Partition(of.JobID, partitions) || !row.Note.Occurrence.Equal(of.NominalAt) ||
			row.Tenant != tenant || row.Trigger != job.TriggerRedrive || row.By == nil || row.Lane == 0 || row.DefinitionID == "" {
			f.t.Errorf("row %d is %+v", i, row)
		}
		if i > 0 && row.DueAt.Sub(rows[i-1].DueAt) < time.Second/time.Duration(rate)-time.Millisecond {
			f.t.Errorf("row %d is due %s after the one before", i, row.DueAt.Sub(rows[i-1].DueAt))
		}
	}
	if got := slices.Sorted(maps.Keys(by)); !slices.Equal(got, want) || len(rows) != len(want) {
		f.t.Errorf("%d rows redrive %d dead letters, want %d of as many", len(rows), len(got), len(want))
	}
	letters, _, err := f.History.DeadLetters(f.t.Context(), tenant, "", 500)
	f.must(err)
	for _, d := range letters {
		source := d.Event.Entry.ExecutionID
		if d.RedrivenBy != by[source] && d.RedrivenBy != "exe_before" {
			f.t.Errorf("%s is marked as redriven by %q, want %q", source, d.RedrivenBy, by[source])
		}
	}
	if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != len(want) || !o.Settled() {
		f.t.Errorf("the operation is %+v", o)
	}
}

func TestEachDeadLetterIsRedrivenOnceAtTheRate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		want := f.letters(300)
		id := f.redrive(20)
		f.rounds(5 * time.Second)
		if n := len(f.rows(id)); n < 80 || n > 8*20+1 {
			t.Errorf("%d rows were written within five seconds", n)
		}
		f.rounds(30 * time.Second)
		f.wantsRedriven(id, want, 20)
		again := f.redrive(20)
		f.rounds(5 * time.Second)
		if o := f.operation(again); o.Status != operations.StatusDone || o.HandedOut != 0 || len(f.rows(again)) != 0 {
			t.Errorf("another operation is %+v", o)
		}
	})
}

func TestRedriveThatDiesAtAnyWriteLeavesEachExecutionOnce(t *testing.T) {
	eachDeath(t, []string{"note", "put", "mark"}, func(f *fixture) func() {
		want := f.letters(220)
		id := f.redrive(20)
		return func() { f.wantsRedriven(id, want, 20) }
	})
}

func TestTwoRedrivesAtOnceRedriveEachDeadLetterOnce(t *testing.T) {
	for _, rates := range [][2]int{{10, 10}, {10, 50}} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			want := f.letters(150)
			one := f.redrive(rates[0])
			f.rounds(2 * time.Second)
			other := f.redrive(rates[1])
			f.rounds(time.Minute)
			seen := map[string]bool{}
			for _, row := range append(f.rows(one), f.rows(other)...) {
				if seen[row.Note.Source] {
					t.Errorf("%s is redriven twice", row.Note.Source)
				}
				seen[row.Note.Source] = true
			}
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
				t.Errorf("%d dead letters are redriven, want %d", len(got), len(want))
			}
		})
	}
}

// What was noted before the runner died, and not written, may have been redriven by others when the next one comes.
func TestRedriveLeavesAloneWhatWasRedrivenWhileNobodyCarriedItOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		want := f.letters(20)
		id := f.redrive(1000)
		h := f.hinder()
		ctx, die := context.WithTimeout(t.Context(), time.Minute)
		h.before = func(what string, _ int) error {
			if what == "put" {
				die()
				return errDied
			}
			return nil
		}
		f.Run(ctx)
		h.before = nil
		time.Sleep(5 * time.Minute)
		letters, _, err := f.History.DeadLetters(t.Context(), tenant, "", 500)
		f.must(err)
		for i := range letters {
			if slices.Contains(want[:5], letters[i].Event.Entry.ExecutionID) {
				f.must(f.History.MarkRedriven(t.Context(), letters[i], "exe_before"))
			}
		}
		f.rounds(time.Minute)
		f.wantsRedriven(id, want[5:], 1000)
	})
}

func TestPauseOfARedriveMarksWhatWasWrittenAndLeavesTheRestToOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.letters(20)
		id := f.redrive(1000)
		h := f.hinder()
		ctx, die := context.WithTimeout(t.Context(), time.Minute)
		h.after = func(what string, _ int) error {
			if what == "put" {
				die()
				return errDied
			}
			return nil
		}
		f.Run(ctx)
		h.after = nil
		pause := func(s operations.Status) {
			f.change(id, func(o *operations.Operation) { o.Status = s })
		}
		pause(operations.StatusPaused)
		time.Sleep(5 * time.Minute)
		f.rounds(10 * time.Second)
		letters, _, err := f.History.DeadLetters(t.Context(), tenant, "", 500)
		f.must(err)
		marked := 0
		for i := range letters {
			if by := letters[i].RedrivenBy; by != "" && by != "exe_before" {
				marked++
			}
		}
		if o := f.operation(id); marked != 20 || o.HandedOut != 20 || o.Chunk != nil || o.Status != operations.StatusPaused {
			t.Errorf("%d letters are marked; the operation is %+v", marked, o)
		}
		pause(operations.StatusRunning)
		f.rounds(10 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != 20 || len(f.rows(id)) != 20 {
			t.Errorf("the operation is %+v", o)
		}
	})
}

// The clock of who gave a letter up may be ahead of that of who was asked.
func TestRedriveTakesWhatAClockThatIsAheadGaveUpBeforeIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var want []string
		for n, ahead := range []time.Duration{0, clock.MaxDifference - time.Millisecond, clock.MaxDifference, time.Minute} {
			source := f.letter(jobID, n, func(d *job.DeadLetter) { d.At = f.began.Add(ahead) })
			if ahead < clock.MaxDifference {
				want = append(want, source)
			}
		}
		slices.Sort(want)
		id := f.redrive(10)
		f.letter(jobID, 9, func(d *job.DeadLetter) { // by the operation itself, and given up at once
			d.At, d.Event.Entry.Note = f.began.Add(time.Second), &job.Note{Operation: id}
		})
		f.rounds(10 * time.Second)
		f.wantsRedriven(id, want, 10)
	})
}

// What another operation has noted, and then gives up, is not lost to one that came by meanwhile.
func TestRedriveWaitsForWhatAnotherHasNoted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		want := f.letters(20)
		noted := f.redrive(1000)
		f.notes()
		f.change(noted, func(o *operations.Operation) { o.End(operations.StatusCancelled, "", time.Now()) })
		time.Sleep(5 * time.Minute)
		id := f.redrive(1000)
		f.rounds(10 * time.Second)
		f.wantsRedriven(id, want, 1000)
	})
}

// A process of a release that does not know redrives leaves out what it does not know when it notes the tenant's operations.
func TestRedriveOfWhichAPartIsMissingFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.redrive(10)
		f.change(id, func(o *operations.Operation) {
			o.Chunk = &operations.Chunk{NotedAt: time.Now(), DueAt: time.Now(), Rate: 10, At: []int64{1}, Sources: []string{"exe_1"}}
		})
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusFailed || o.Reason == "" || !o.Settled() || len(f.rows(id)) != 0 {
			t.Errorf("the operation is %+v", o)
		}
	})
}

// The last page of a turn may be the last of all. Its cursor is then the one with which the walk began.
func TestRedriveThatFindsNothingEndsHoweverManyPagesThereAre(t *testing.T) {
	for _, pages := range []int{0, 1, mostPages, 2 * mostPages} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			for n := range max(0, pages*lettersRead-1) { // the last page is not full
				f.letter(jobID, n, func(d *job.DeadLetter) { d.Reason = "window" })
			}
			id := f.redrive(10)
			f.rounds(10 * time.Second)
			if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != 0 {
				t.Errorf("of %d pages, the operation is %+v", pages, o)
			}
		})
	}
}

func TestRedriveOfAJobTakesThoseOfTheJob(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		want := slices.DeleteFunc(f.letters(40), func(id string) bool {
			of, err := job.ParseExecutionID(id)
			return err != nil || of.JobID != secondJob
		})
		id := f.begin(0, 50, func(o *operations.Operation) {
			o.Type, o.JobID, o.DefinitionID, o.Total = operations.TypeRedrive, secondJob, "", 0
			o.From, o.Order = f.began.Add(-24*time.Hour), operations.NewestFirst
		})
		f.rounds(10 * time.Second)
		f.wantsRedriven(id, want, 50)
	})
}
