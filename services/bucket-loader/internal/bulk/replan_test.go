package bulk

import (
	"fmt"
	"strings"
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
	j := f.unplanned(n, change)
	e, ok := f.series(j).First(bucket.Partition(j.ID, partitions), f.began)
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

// unplanned makes a job of Berlin's midnights without an entry.
func (f *fixture) unplanned(n int, change func(j *job.Job)) *job.Job {
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
	return &j
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
		o.TZData = schedule.TZDataVersion()
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
		row, err := f.Pending.Row(f.t.Context(), f.entryAt(&candidate{job: &j, series: s}, at))
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

// put writes the entry of an instant of a zoned job, which is due by the whole jitter, however near the next instant is by this data.
func (f *fixture) put(n int, at time.Time) {
	f.t.Helper()
	j, err := f.Jobs.Get(f.t.Context(), zonedJob(n))
	f.must(err)
	due := at
	if s := j.Definition.Schedule; s.Jitter > 0 {
		alone, err := schedule.Compile(job.Schedule{Type: job.ScheduleOneShot, RunAt: at, Jitter: s.Jitter}, j.ID)
		f.must(err)
		due = alone.ScheduledFor(at)
	}
	e := job.NewEntry(job.Entry{
		Locator: f.entryDue(&candidate{job: &j, series: f.series(&j)}, at, due), JobID: j.ID, Tenant: tenant, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: due, Ordinal: 1,
	}, f.began)
	f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
}

// An entry that waits is where it belongs, and what is not active has none that counts. What is behind, because it is held for example, has none
// ahead. An occurrence that runs for long hides nothing, nor does an instant that other data has just before the end.
func TestReplanFindsWhatLiesElsewhereAndLeavesAloneWhatIsInItsPlaceOrBehind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		minutely := func(j *job.Job) { j.Definition.Schedule.CronExpr = "* * * * *" }
		long := func(j *job.Job) { j.Definition.CatchUpWindow = time.Hour }
		cases := []struct {
			name   string
			change func(j *job.Job)
			// moved is whether its first entry lies elsewhere, done whether that was executed since, none whether there is none; more are entries
			// besides.
			moved, done, none bool
			more              []time.Duration
			want              bool
		}{
			{name: "utc", change: func(j *job.Job) { j.Definition.Schedule.Timezone = "UTC" }, moved: true},
			{name: "no zone", change: func(j *job.Job) { j.Definition.Schedule.Timezone = "" }, moved: true},
			{name: "paused", change: func(j *job.Job) { j.Status, j.PausedAt = job.StatusPaused, f.began }, moved: true},
			{name: "cancelled", change: func(j *job.Job) { j.Status = job.StatusCancelled }, moved: true},
			{name: "deleted", change: func(j *job.Job) { j.Deleted = true }, moved: true},
			{name: "another tenant's", change: func(j *job.Job) { j.Tenant = tenant + 1 }, moved: true},
			{name: "in its place"},
			{name: "moved", moved: true, want: true},
			{name: "behind", change: minutely},
			{name: "late by one and planned", change: minutely, more: []time.Duration{3 * time.Minute}},
			{name: "moved by jitter", change: func(j *job.Job) { minutely(j); j.Definition.Schedule.Jitter = 50 * time.Second }, done: true, more: []time.Duration{3 * time.Minute}},
			{name: "runs, and moved", change: func(j *job.Job) { long(j); j.Definition.Schedule.CronExpr = "0 1 * * *" }, more: []time.Duration{25 * time.Hour}, want: true},
			{name: "past the end", change: func(j *job.Job) {
				j.Definition.Schedule.CronExpr, j.Definition.Schedule.EndAt = "0 1 * * *", f.began.Add(20*time.Hour)
			}, done: true, more: []time.Duration{time.Hour}, want: true},
			{name: "executed today by other data", change: func(j *job.Job) { j.Definition.Schedule.CronExpr = "0 2 * * *" }, none: true, more: []time.Duration{24 * time.Hour}, want: true},
			{name: "jitter beyond the shift", change: func(j *job.Job) {
				j.Definition.Schedule.CronExpr, j.Definition.Schedule.Jitter = "0 9 * * *", 2*time.Hour
			}, none: true, more: []time.Duration{7 * time.Hour}, want: true},
			{name: "ended", change: func(j *job.Job) {
				j.Definition.Schedule.CronExpr, j.Definition.Schedule.EndAt = "0 1 * * *", f.began.Add(20*time.Hour)
			}, done: true},
		}
		for n, c := range cases {
			if c.none {
				f.unplanned(n, c.change)
			} else {
				f.zoned(n, c.moved, c.change)
			}
			if c.done {
				j, err := f.Jobs.Get(t.Context(), zonedJob(n))
				f.must(err)
				at, _ := f.series(&j).NextRun(f.began)
				f.must(f.Pending.MarkDone(t.Context(), []job.Locator{f.entryAt(&candidate{job: &j, series: f.series(&j)}, at)}))
			}
			for _, d := range c.more {
				f.put(n, f.began.Add(d))
			}
		}
		time.Sleep(2*time.Minute + time.Second)
		id, planned := f.replans(100), 0
		f.rounds(10 * time.Second)
		for n, c := range cases {
			j, err := f.Jobs.Get(t.Context(), zonedJob(n))
			f.must(err)
			if planned += int(j.Version) - 1; (j.Version > 1) != c.want {
				t.Errorf("%s: it has version %d", c.name, j.Version)
			}
		}
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != planned {
			t.Errorf("%d are planned; the operation is %+v", planned, o)
		}
	})
}

// A job that cannot be planned for now is tried again until the operation is cancelled, and no other waits for it.
func TestJobThatCannotBePlannedHoldsUpNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for n := range 4 {
			f.zoned(n, true, nil)
		}
		h := f.hinder()
		h.fails = zonedJob(3) // the first that is listed
		id := f.replans(1)
		f.rounds(10 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusRunning || o.HandedOut != 3 {
			t.Errorf("the operation is %+v", o)
		}
		other := f.begin(10, 1000, nil)
		f.rounds(10 * time.Second)
		f.wants(other, 10, 1000)
		f.change(id, func(o *operations.Operation) { o.End(operations.StatusCancelled, "", time.Now()) })
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.HandedOut != 3 || !o.Settled() {
			t.Errorf("the cancelled one is %+v", o)
		}
		h.fails = ""
		id = f.replans(100)
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != 1 {
			t.Errorf("another one is %+v", o)
		}
	})
}

// A process with other data than that by which an operation was asked for would move jobs back.
func TestReplanByOtherDataFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.zoned(0, true, nil)
		id := f.replans(10)
		f.change(id, func(o *operations.Operation) {
			o.TZData = "2099z"
			o.Chunk = &operations.Chunk{NotedAt: time.Now(), DueAt: time.Now(), Rate: 10, Sources: []string{zonedJob(0)}}
		})
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusFailed || !strings.Contains(o.Reason, "2099z") || o.HandedOut != 0 || !o.Settled() {
			t.Errorf("the operation is %+v", o)
		}
		if j, err := f.Jobs.Get(t.Context(), zonedJob(0)); err != nil || j.Version != 1 {
			t.Errorf("the job is %+v: %v", j, err)
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
