package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// remembered is how far back what is on record is looked for: what comes before it may be forgotten.
const remembered = jobstore.HistoryTTL / 30 * 29

// recordsRead is how many events are read at once, and mostRecords how many, to find the last that is about the schedule.
const recordsRead, mostRecords = 50, 5000

// onRecord returns the last instant of the schedule of which the history tells; zero for none. known is false if it tells of too much else.
func (a *Audit) onRecord(ctx context.Context, s *subject) (last time.Time, known bool, err error) {
	var before jobstore.Cursor
	oldest := a.Clock.Now().Add(-remembered)
	for range mostRecords / recordsRead {
		events, err := a.History.Executions(ctx, jobstore.OfJob(s.job), before, oldest, recordsRead)
		if err != nil {
			return last, false, fmt.Errorf("read the history of job %s: %w", s.job.ID, err)
		}
		for i := range events {
			x := &events[i]
			before = jobstore.Cursor{NominalAt: x.Entry.NominalAt, ExecutionID: x.Entry.ExecutionID}
			if x.Type == job.EventReleased || x.Entry.Trigger != job.TriggerSchedule {
				continue
			}
			if last = job.Later(last, x.Entry.NominalAt); x.Skipped != nil {
				last = job.Later(last, x.Skipped.To)
			}
		}
		if !last.IsZero() || len(events) < recordsRead {
			return last, true, nil
		}
		before = before.Schedules(s.job.ID)
	}
	return last, false, nil
}

// revive returns the entry from which a schedule without any goes on: the first instant of which neither the history nor a row tells. ok is
// false if the history is behind the log, so that it does not tell of all that has ended.
func (a *Audit) revive(ctx context.Context, s *subject) (e job.Entry, ok bool, err error) {
	whole, err := run.HasRead(ctx, a.Log, dispatch.TopicEvents, dispatch.GroupHistory, historyWaits)
	if err != nil {
		return e, false, err
	}
	last, known, err := a.onRecord(ctx, s)
	if last.IsZero() && known && err == nil {
		known, err = a.isAnswered(ctx, s.job)
	}
	if err != nil {
		return e, false, err
	}
	if !whole || !known {
		a.Metrics.undecided.Inc()
		return e, false, nil
	}
	now := job.Instant(a.Clock.Now())
	from := now.Add(-remembered)
	if !last.IsZero() { // if it is, rows that are done were dropped
		from = job.Later(from, job.Later(last, s.seen).Add(time.Millisecond))
	}
	e, ok = s.series.Resume(s.partition(a.Partitions), from, now)
	return e, ok, nil
}

// isAnswered reports whether the registration of a job was answered that nobody has changed, and that nothing is on record of: its creation is on
// record then. Otherwise its row may have come too late for its entry, which was dropped; whoever repeats the registration writes it anew.
func (a *Audit) isAnswered(ctx context.Context, j *job.Job) (bool, error) {
	oldest := a.Clock.Now().Add(-remembered)
	if j.Version > 1 || j.CreatedAt.Before(oldest) {
		return true, nil
	}
	events, err := a.History.Executions(ctx, jobstore.Of{ID: job.ChangesOf(j.ID)}, jobstore.Cursor{}, oldest, 1)
	if err != nil {
		return false, fmt.Errorf("read the changes of job %s: %w", j.ID, err)
	}
	return len(events) > 0, nil
}

// historyWaits is how many seconds the audit waits for the history.
const historyWaits = 10

// mostMoves is how many minutes behind its own an entry is written at most.
const mostMoves = 2

// mend writes entries, and adds them to the hot tier. Where a row was deleted, a store may let no other have its key, so a write that left
// nothing is repeated a minute later, as the repetition of that row which it would be if that is there after all.
func (a *Audit) mend(ctx context.Context, entries []job.Entry) error {
	now := job.Minute(a.Clock.Now())
	for i := range entries { // what was noted long ago may be written yet by whoever noted it; this repeats it in a bucket that is open
		if e := &entries[i]; e.Minute < now-1 {
			e.Repeats, e.Minute = e.Minute, now
		}
	}
	for move := 0; len(entries) > 0; move++ {
		there, err := a.write(ctx, entries)
		if err != nil {
			return err
		}
		a.tell(ctx, there)
		entries = slices.DeleteFunc(slices.Clone(entries), func(e job.Entry) bool {
			return slices.ContainsFunc(there, func(t job.Entry) bool { return t.JobID == e.JobID })
		})
		for i := range entries {
			e := &entries[i]
			if move == mostMoves {
				a.Metrics.undecided.Inc()
				a.Logger.Error("the entry of a schedule was written, and is not there; was it deleted again and again?", "tenant", e.Tenant, "job_id", e.JobID)
				continue
			}
			if e.Repeats == 0 {
				e.Repeats = e.Minute
			}
			e.Minute++
		}
		if move == mostMoves {
			return nil
		}
	}
	return nil
}

// write writes entries, and returns those of them that are there then. Each is noted before, so that it has one key whoever writes it.
func (a *Audit) write(ctx context.Context, entries []job.Entry) (there []job.Entry, err error) {
	p := a.progress
	p.Mends = nil
	for i := range entries {
		p.Mends = append(p.Mends, wire.MarshalEntry(&entries[i]))
	}
	began := a.Clock.Now()
	if err := a.note(ctx, p); err != nil {
		return nil, err
	}
	if a.Clock.Since(began) > lateWrite {
		return nil, errLate
	}
	if err := a.Pending.Put(ctx, entries); err != nil {
		return nil, fmt.Errorf("write entries: %w", err)
	}
	locators := make([]job.Locator, len(entries))
	for i := range entries {
		locators[i] = entries[i].Locator
	}
	rows, err := a.Pending.Rows(ctx, locators)
	if err != nil {
		return nil, fmt.Errorf("read what was written: %w", err)
	}
	if a.Clock.Since(began) > lateWrite {
		return nil, errLate
	}
	for i := range entries {
		if _, found := rows[locators[i]]; found {
			there = append(there, entries[i])
		}
	}
	return there, nil
}

// tell makes entries hot, and says that they were lost.
func (a *Audit) tell(ctx context.Context, entries []job.Entry) {
	for i := range entries {
		e := &entries[i]
		a.Metrics.mended.Inc()
		a.Logger.Warn("a schedule had lost its next entry, and goes on", "tenant", e.Tenant, "job_id", e.JobID, "from", e.NominalAt)
	}
	if err := hotbucket.AddNear(ctx, a.Hot, entries); err != nil && ctx.Err() == nil {
		a.Logger.Warn("cannot add entries to the hot bucket, the sweeps will", "entries", len(entries), "error", err)
	}
}

// errLate: entries were looked for so long ago that others may have written them since, or were written so late that their buckets may have
// closed. The page is looked at again.
var errLate = errors.New("a look or a write came back too late")
