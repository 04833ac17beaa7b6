package schedulerworker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/overlap"
)

const (
	// firstLook is how long after its instant an occurrence that waits for others is looked at again. Then lookShare of the time for which it
	// has waited passes until the next look, mostBetweenLooks at most. The settler of what it waits for makes it sooner.
	firstLook        = time.Second
	lookShare        = 4
	mostBetweenLooks = 30 * time.Second
)

// errStopped makes the worker judge the entry again: its job was changed since.
var errStopped = errors.New("the job was changed meanwhile")

func (s *Service) inProgress() overlap.Stores {
	return overlap.Stores{Jobs: s.deps.Jobs, Rows: s.deps.Pending, Records: s.deps.Outcomes}
}

// enter adds the task's execution to those in progress of its job, and returns its place. It does so before anything is decided, so a worker
// that finds a decision to fire knows that the execution is on the list. The entry may have been judged well before its instant: a fire is
// asked about once more by its executor, and here what is not fired now. An execution that was cancelled between two attempts is over once
// the stop record says so and no attempt runs, however late the next one is due.
func (s *Service) enter(ctx context.Context, t *task) (overlap.Place, error) {
	most := t.series.Def.MostWaiting()
	place, err := s.inProgress().Enter(ctx, t.entry, most, s.deps.Clock.Now(), nil)
	if t.entered = err == nil && !place.Full; err != nil || len(place.Before) == 0 {
		return place, err
	}
	row, err := s.deps.Jobs.Get(ctx, t.entry.JobID)
	if err != nil {
		return place, err
	}
	state := row.State()
	verdict := state.Judge(t.entry, time.Time{})
	if verdict == job.VerdictSuperseded {
		series, err := s.series(ctx, &row, t.entry)
		if err != nil {
			return place, err
		}
		verdict = state.Judge(t.entry, series.EndsAt)
	}
	if verdict != job.VerdictProceed {
		return place, errStopped
	}
	if !slices.ContainsFunc(place.Before, state.Stops) {
		return place, nil
	}
	if _, err := s.deps.Stops.SetStop(ctx, row.ID, state); err != nil {
		return place, err
	}
	place, err = s.inProgress().Enter(ctx, t.entry, most, s.deps.Clock.Now(), state.Stops)
	t.entered = err == nil && !place.Full
	return place, err
}

// putInLine lets an occurrence that has entered wait until the execution of another instant has ended. From now on it is an attempt that was
// deferred: the settler writes it a row in which nothing follows from it and no policy for missed runs applies, and puts that in the place
// of the entry's. A crash before the removal repeats this, under the same event id and for a row that is done.
func (s *Service) putInLine(ctx context.Context, t *task, other time.Time) error {
	now := job.Instant(s.deps.Clock.Now())
	e := job.WaitingEvent(t.fire(now), t.target(), other, now.Add(firstLook), now)
	if err := s.publishEvents(ctx, []job.Event{e}); err != nil {
		return err
	}
	return s.remove(ctx, t)
}

// inLine reports whether the task waits for its turn, or did before its target deferred it.
func (t *task) inLine() bool { return t.entry.InLine() && !t.published && !t.bare }

// turn returns the execution for which a task waits, and "" if it is its turn. If it was cancelled, or its attempt was dispatched before,
// under another row, its executor finds that: it has no place in line any more.
func (s *Service) turn(ctx context.Context, t *task, now time.Time) (before string, err error) {
	records, err := s.deps.Outcomes.Lookup(ctx, []attempts.Key{attempts.KeyOf(t.entry)})
	if err != nil || records[0].Exists || t.stops.Stops(t.entry.ExecutionID) {
		return "", err
	}
	before, err = s.inProgress().Turn(ctx, t.entry, now, nil)
	if err != nil || before == "" || !t.stops.Stops(before) {
		return before, err
	}
	if _, err = s.deps.Stops.SetStop(ctx, t.entry.JobID, *t.stops); err != nil {
		return "", err
	}
	return s.inProgress().Turn(ctx, t.entry, now, t.stops.Stops)
}

// sendInTurn publishes a fire if all executions before it have ended, and looks at it later otherwise. Nobody is put in before it, so
// whoever dies or stalls after this has found what the next one finds.
func (s *Service) sendInTurn(ctx context.Context, t *task) error {
	row, err := s.deps.Pending.Row(ctx, t.entry.Locator)
	if errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Done {
		return s.remove(ctx, t)
	}
	if err != nil {
		return err
	}
	t.fresh = true
	now := s.deps.Clock.Now()
	before, err := s.turn(ctx, t, now)
	if err != nil {
		return err
	}
	if before != "" {
		later := min(max(now.Sub(t.entry.ScheduledFor)/lookShare, firstLook), mostBetweenLooks)
		return s.deps.Hot.Postpone(ctx, t.owner, []*job.Entry{t.entry}, now.Add(later))
	}
	t.bare, t.waited = true, true
	return s.carryOut(ctx, []*task{t}, nil, s.deps.Clock.Now())
}
