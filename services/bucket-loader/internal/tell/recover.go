package tell

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/notices"
)

// recover owes a recovery that has come, in place of the one that waited for it.
func (t *Teller) recover(ctx context.Context, x *notices.Notice, j *job.Job) error {
	to := recipient(x, j)
	switch age := t.Clock.Since(x.At); {
	case to == nil:
		return t.end(ctx, x, dropped)
	case age > t.Recovery, age > t.GiveUp && (j.Status == job.StatusCancelled || j.Definition.Schedule.Type == job.ScheduleOneShot):
		return t.end(ctx, x, dropped)
	}
	at, execution, err := t.succeeded(ctx, x, j)
	if err != nil || at.IsZero() {
		return err
	}
	r := notices.Of(j.ID, to, job.CauseRecovered, at)
	r.ExecutionID, r.Hops, r.Reason = execution, x.Hops, "An execution has succeeded, after one that had failed for good."
	if err := t.store().Owe(ctx, &r); err != nil {
		return err
	}
	return t.store().Remove(ctx, x) // a crash before it owes the same again
}

// eventsRead is how many events of a job are read at once to find a success, and mostEvents how many in all: of those whose executions have the
// latest nominal instants. Those up to soon after a failure are looked through first: a recovery is known by when the first success came, and what
// is owed a second time must come to the same, however much has happened since.
const eventsRead, mostEvents, soon = 200, 1000, 10 * time.Minute

// succeeded returns when an execution of a job first succeeded after a notice's instant; zero for none.
func (t *Teller) succeeded(ctx context.Context, x *notices.Notice, j *job.Job) (at time.Time, execution string, err error) {
	between := x.At.Add(soon)
	at, execution, err = t.first(ctx, x, j, x.At.Add(-t.GiveUp), jobstore.Cursor{NominalAt: between})
	// Nothing is called before its instant.
	if err != nil || !at.IsZero() && !at.After(between) || t.Clock.Now().Before(between) {
		return at, execution, err
	}
	later, other, err := t.first(ctx, x, j, between, jobstore.Cursor{})
	if !later.IsZero() && (at.IsZero() || later.Before(at)) {
		at, execution = later, other
	}
	return at, execution, err
}

// first is succeeded for executions with nominal instants from one on, before another.
func (t *Teller) first(ctx context.Context, x *notices.Notice, j *job.Job, from time.Time, before jobstore.Cursor) (at time.Time, execution string, err error) {
	for range mostEvents / eventsRead {
		events, err := t.History.Executions(ctx, jobstore.OfJob(j), before, from, eventsRead)
		if err != nil {
			return at, "", err
		}
		full := len(events) == eventsRead
		if last := len(events) - 1; full && events[0].Entry.ExecutionID != events[last].Entry.ExecutionID { // there may be more of the last one
			for cut := events[last].Entry.ExecutionID; events[last].Entry.ExecutionID == cut; last-- {
				events = events[:last]
			}
		}
		for n := range events {
			e := &events[n]
			before = jobstore.Cursor{NominalAt: e.Entry.NominalAt, ExecutionID: e.Entry.ExecutionID}
			if e.Type != job.EventAttempt || e.Outcome.Kind != job.OutcomeSucceeded || e.Entry.Elsewhere() != nil || !e.Outcome.Timeline.Completed.After(x.At) {
				continue
			}
			if at.IsZero() || e.Outcome.Timeline.Completed.Before(at) {
				at, execution = e.Outcome.Timeline.Completed, e.Entry.ExecutionID
			}
		}
		if !full {
			break
		}
	}
	return at, execution, nil
}
