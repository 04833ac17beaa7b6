package schedulerworker

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/job"
)

// A worker that stalled dispatches an entry that another one dispatched meanwhile, and writes its successor again. That was skipped, and done, and
// its bucket was closed; the hot tier had no room for the outcome.
func TestOccurrenceThatEndedBeforeItsBucketWasClosedIsNotDecidedAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		inLine bool
		send   func(f *fixture, t *task) error
	}{
		{"by its policies", false, func(f *fixture, t *task) error { return f.sendAside(f.t.Context(), t, f.deps.Clock.Now()) }},
		{"in its turn", true, func(f *fixture, t *task) error { return f.sendInTurn(f.t.Context(), t) }},
		{"by a stop", false, func(f *fixture, t *task) error {
			f.row.Status, f.row.EndsAt = job.StatusCancelled, f.entry.NominalAt
			_, err := f.refuse(f.t.Context(), t, job.VerdictCancelled, &f.row)
			return err
		}},
	} {
		for _, closed := range []bool{false, true} {
			f := newFixture(t)
			one := f.overdue(c.inLine, closed)
			f.must(c.send(f, one))

			if told := f.log.fires + len(f.log.events); (told > 0) == closed {
				t.Errorf("%s, its bucket closed: %t: %d fires, and told %+v", c.name, closed, f.log.fires, f.log.events)
			}
			runs, err := f.deps.Jobs.Runs(t.Context(), f.row.ID)
			f.must(err)
			if closed && len(runs) > 0 {
				t.Errorf("%s: in progress are %v", c.name, runs)
			}
			absent, err := f.deps.Hot.Absent(t.Context(), []*job.Entry{one.entry})
			f.must(err)
			if len(absent) != 1 {
				t.Errorf("%s, its bucket closed: %t: the entry stays in the hot bucket", c.name, closed)
			}
		}
	}
}

// overdue returns the task of an entry of an hour ago that another one follows. Its row is open; if its bucket was closed, it was written
// after that.
func (f *fixture) overdue(inLine, closed bool) *task {
	f.t.Helper()
	ctx, now := f.t.Context(), f.deps.Clock.Now()
	at := now.Add(-time.Hour).Truncate(time.Minute)
	f.row.Status, f.row.PausedAt, f.row.Definition.Overlap = job.StatusActive, time.Time{}, job.OverlapBufferOne
	f.row.Definition.EffectiveAt, f.row.Definition.Schedule.StartAt = at, at
	f.must(f.deps.Jobs.Create(ctx, f.row, false))
	f.entry.DueAt, f.entry.NominalAt, f.entry.ScheduledFor = at, at, at
	f.entry.Minute, f.entry.ExecutionID = job.Minute(at), job.ScheduleExecutionID(f.row.ID, at)
	f.entry.Chained = inLine
	f.row.Definition.Mark(&f.entry)
	one := f.task()
	one.stops = stopsOf(f.row.State())
	next, _ := one.series.Successor(&f.entry, one.series.OnTime(&f.entry), now)
	f.must(f.deps.Pending.Put(ctx, []job.Entry{f.entry, next}))
	if closed {
		f.must(f.deps.Pending.MarkDone(ctx, []job.Locator{f.entry.Locator, next.Locator}))
		f.must(f.deps.Pending.Close(ctx, f.entry.Partition, f.entry.Minute+1))
		f.must(f.deps.Pending.Put(ctx, []job.Entry{f.entry, next}))
	}
	f.must(f.deps.Hot.Add(ctx, []job.Entry{f.entry}))
	one.from.reads.own([]coord.Owner{f.owner})
	one.from.reads.accept([]coord.Owner{f.owner}, now, make([]time.Time, 1))
	return one
}
