package bulk

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/schedule"
)

// zonedJob is the id of a job that was made when a bubble begins.
func zonedJob(n int) string { return fmt.Sprintf("job_00VHNCZB006D77SAJPXRW35%03d", n) }

// zoned makes a job of Berlin's midnights, whose next entry lies an hour from where it belongs if moved is set, as other data would have
// planned it.
func (f *fixture) zoned(n int, moved bool, change func(j *job.Job)) {
	f.t.Helper()
	j := job.Job{
		ID: zonedJob(n), Tenant: tenant, Status: job.StatusActive, Version: 1, CreatedAt: f.began, UpdatedAt: f.began,
		Definition: job.Definition{
			ID: "def_" + zonedJob(n)[len(job.JobPrefix):], EffectiveAt: f.began, FirstOrdinal: 1,
			Schedule: job.Schedule{Type: job.ScheduleCron, CronExpr: "0 0 * * *", Timezone: "Europe/Berlin"}, Target: job.Target{URL: "http://a.example/"},
		},
	}
	if change != nil {
		change(&j)
	}
	f.must(f.Jobs.Create(f.t.Context(), j, true))
	e, ok := f.series(&j).First(bucket.Partition(j.ID, partitions), f.began)
	if !ok {
		f.t.Fatal("the job has no instant ahead")
	}
	if moved {
		at := e.NominalAt.Add(time.Hour)
		e.NominalAt, e.ScheduledFor, e.DueAt, e.ExecutionID = at, at, at, job.ScheduleExecutionID(j.ID, at)
		e = job.NewEntry(e, f.began)
	}
	f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
}

func (f *fixture) series(j *job.Job) *occurrence.Series {
	f.t.Helper()
	plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
	f.must(err)
	return &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &j.Definition, Plan: plan}
}

func (f *fixture) replans(rate int) string {
	f.t.Helper()
	return f.begin(0, rate, func(o *operations.Operation) {
		o.Type, o.JobID, o.DefinitionID, o.Total, o.From, o.To, o.Order = operations.TypeReplan, "", "", 0, o.CreatedAt, o.CreatedAt, operations.NewestFirst
	})
}

// wantsReplanned checks that an operation planned these of n zoned jobs, each once, and no other, and that each has the entry of its next instant.
func (f *fixture) wantsReplanned(id string, n int, want map[int]bool) {
	f.t.Helper()
	for i := range n {
		j, err := f.Jobs.Get(f.t.Context(), zonedJob(i))
		f.must(err)
		if planned := j.Version > 1; planned != want[i] || j.Version > 2 {
			f.t.Errorf("job %d has version %d", i, j.Version)
		}
		if !want[i] {
			continue
		}
		s := f.series(&j)
		at, _ := s.NextRun(time.Now())
		c := &candidate{job: &j, series: s}
		row, err := f.Pending.Row(f.t.Context(), f.entryAt(c, at))
		if err != nil || row.Done || row.Tenant != tenant {
			f.t.Fatalf("job %d has no entry at %s under %s: %v", i, at, j.Definition.ID, err)
		}
		if _, _, err := f.Jobs.Definition(f.t.Context(), j.ID, "def_"+zonedJob(i)[len(job.JobPrefix):]); err != nil {
			f.t.Errorf("the definition before is not kept: %v", err)
		}
		stops, err := f.Stops.StopsOf(f.t.Context(), []string{j.ID})
		if f.must(err); stops[j.ID].Version != 2 {
			f.t.Errorf("the stop record of job %d is %+v", i, stops[j.ID])
		}
	}
	if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != len(want) || !o.Settled() {
		f.t.Errorf("the operation is %+v", o)
	}
}

func every(n, of int) map[int]bool {
	want := map[int]bool{}
	for i := 0; i < n; i += of {
		want[i] = true
	}
	return want
}

func TestEachJobThatOtherDataPlannedIsPlannedOnceAndNoOtherIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const n = 900 // more than a page
		want := every(n, 4)
		for i := range n {
			f.zoned(i, want[i], nil)
		}
		id := f.replans(20)
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.HandedOut < 80 || o.HandedOut > 120 || o.Status != operations.StatusRunning {
			t.Errorf("within five seconds: %+v", o)
		}
		f.rounds(30 * time.Second)
		f.wantsReplanned(id, n, want)
		again := f.replans(20)
		f.rounds(5 * time.Second)
		if o := f.operation(again); o.Status != operations.StatusDone || o.HandedOut != 0 {
			t.Errorf("another operation is %+v", o)
		}
	})
}

func TestReplanThatDiesAtAnyWriteCountsEachJobOnce(t *testing.T) {
	eachDeath(t, []string{"note", "put", "row", "stop"}, func(f *fixture) func() {
		const n = 60
		want := every(n, 2)
		for i := range n {
			f.zoned(i, want[i], nil)
		}
		id := f.replans(5)
		return func() { f.wantsReplanned(id, n, want) }
	})
}

// An entry that waits, is late by one occurrence or is moved by jitter is where it belongs, and what is not active has none. A schedule that has
// no instant left by this data, but ends later, may have one by the other.
func TestReplanLeavesAloneWhatIsInItsPlace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		changes := []func(j *job.Job){
			func(j *job.Job) { j.Definition.Schedule.Timezone = "UTC" },
			func(j *job.Job) { j.Definition.Schedule.Timezone = "" },
			func(j *job.Job) { j.Status, j.PausedAt = job.StatusPaused, f.began },
			func(j *job.Job) { j.Status = job.StatusCancelled },
			func(j *job.Job) { j.Deleted = true },
			func(j *job.Job) { j.Tenant = tenant + 1 },
		}
		for n, change := range changes {
			f.zoned(n, true, change)
		}
		n := len(changes)
		minutely := func(j *job.Job) { j.Definition.Schedule.CronExpr = "* * * * *" }
		f.zoned(n, false, minutely)
		f.zoned(n+1, false, func(j *job.Job) {
			minutely(j)
			j.Definition.Schedule.Jitter = 50 * time.Second
		})
		next, err := f.Jobs.Get(t.Context(), zonedJob(n))
		f.must(err)
		at, _ := f.series(&next).NextRun(f.began)
		time.Sleep(time.Until(at) + time.Second)
		f.zoned(n+2, true, func(j *job.Job) { j.Definition.Schedule.EndAt = f.began.Add(90 * 24 * time.Hour) })
		f.zoned(n+3, false, func(j *job.Job) {
			j.Definition.Schedule.CronExpr, j.Definition.Schedule.EndAt = "* * * * *", at.Add(30*time.Second)
		})
		ended, err := f.Jobs.Get(t.Context(), zonedJob(n+3))
		f.must(err)
		f.must(f.Pending.MarkDone(t.Context(), []job.Locator{f.entryAt(&candidate{job: &ended, series: f.series(&ended)}, at)}))
		id := f.replans(100)
		f.rounds(10 * time.Second)
		want := map[int]bool{n + 2: true}
		var got []int
		for i := range n + 4 {
			j, err := f.Jobs.Get(t.Context(), zonedJob(i))
			if f.must(err); j.Version > 1 {
				got = append(got, i)
			}
		}
		// The last one has no instant left before its end.
		if want[n+3] = true; !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("jobs %v are planned, want %v", got, slices.Sorted(maps.Keys(want)))
		}
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != len(want) {
			t.Errorf("the operation is %+v", o)
		}
	})
}

func TestReplanThatIsPausedOrCancelledPlansNothingMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const n = 60
		want := every(n, 1)
		for i := range n {
			f.zoned(i, true, nil)
		}
		id := f.replans(5)
		f.rounds(3 * time.Second)
		f.change(id, func(o *operations.Operation) { o.Status = operations.StatusPaused })
		f.rounds(2 * time.Second)
		before := f.operation(id).HandedOut
		f.rounds(time.Minute)
		if o := f.operation(id); o.HandedOut != before || o.Chunk != nil || before == 0 || before > 30 {
			t.Errorf("%d were planned at the pause: %+v", before, o)
		}
		f.change(id, func(o *operations.Operation) { o.Status, o.Rate = operations.StatusRunning, 50 })
		f.rounds(10 * time.Second)
		f.wantsReplanned(id, n, want)
		for i := range n {
			f.zoned(n+i, true, nil)
		}
		id = f.replans(5)
		f.rounds(3 * time.Second)
		f.change(id, func(o *operations.Operation) { o.End(operations.StatusCancelled, "", time.Now()) })
		f.rounds(time.Minute)
		if o := f.operation(id); o.Status != operations.StatusCancelled || o.HandedOut == 0 || o.HandedOut > 30 || !o.Settled() {
			t.Errorf("the cancelled one is %+v", o)
		}
	})
}

// A job that somebody changes while it is about to be planned is planned by that.
func TestReplanLeavesAloneWhatWasChangedSinceItWasRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.zoned(0, true, nil)
		read, err := f.Jobs.Get(t.Context(), zonedJob(0))
		f.must(err)
		changed := read
		changed.Version, changed.Definition.ID = 2, "def_01M7ZJW5E6D77SAJPXRZ65CMZZ" // a later one
		f.must(f.Jobs.Replace(t.Context(), changed))
		o := f.operation(f.replans(5))
		_, err = f.replanJob(t.Context(), &o, &read, true)
		f.must(err)
		if j, err := f.Jobs.Get(t.Context(), zonedJob(0)); err != nil || j.Version != 2 {
			t.Errorf("the job is %+v: %v", j, err)
		}
	})
}
