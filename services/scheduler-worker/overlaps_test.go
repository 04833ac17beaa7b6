package schedulerworker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const leaseTTL = 10 * time.Second

// held returns the task of an occurrence whose attempt an executor acquired, that long ago, for an entry of the definition that an update has
// replaced. The occurrence was decided to be skipped as missed.
func (f *fixture) held(ago time.Duration) (one *task, token job.Token, missed job.Decision) {
	f.t.Helper()
	one = f.overdue(false, false)
	missed = job.Decision{Next: one.entry.NominalAt.Add(time.Minute), NextOrdinal: 7}
	return one, f.acquire(one, "def_0", f.deps.Clock.Now().Add(-ago)), missed
}

func (f *fixture) acquire(one *task, definitionID string, now time.Time) job.Token {
	f.t.Helper()
	h := attempts.Holder{Name: "executor of " + definitionID, DefinitionID: definitionID, Start: 1}
	rec, ok, err := f.records.Acquire(f.t.Context(), attempts.KeyOf(one.entry), h, now, now.Add(leaseTTL))
	f.must(err)
	if !ok {
		f.t.Fatalf("its record is %+v", rec)
	}
	return rec.Token
}

// puts notes what was in progress before entries were written.
type puts struct {
	jobstore.Pending
	jobs       jobstore.Jobs
	inProgress [][]job.Locator
}

func (p *puts) Put(ctx context.Context, entries []job.Entry) error {
	runs, err := p.jobs.Runs(ctx, entries[0].JobID)
	if err != nil {
		return err
	}
	p.inProgress = append(p.inProgress, runs)
	return p.Pending.Put(ctx, entries)
}

// An executor that was given the fire of an entry which an update has replaced holds the attempt, and lets it go when it has found that.
func TestOccurrenceThatIsMissedIsNotCalledBecauseAnotherDefinitionHadItsAttempt(t *testing.T) {
	f := newFixture(t)
	one, token, missed := f.held(0)
	pending := &puts{Pending: f.deps.Pending, jobs: f.deps.Jobs}
	f.deps.Pending = pending

	if err := f.carryOutLate(t.Context(), one, missed, f.deps.Clock.Now()); !errors.As(err, new(errLater)) {
		t.Errorf("while its attempt is held: %v", err)
	}
	if len(pending.inProgress) > 0 || f.log.fires > 0 {
		t.Errorf("while its attempt is held, %d entries follow it, and %d fires were published", len(pending.inProgress), f.log.fires)
	}
	f.must(f.records.Release(t.Context(), attempts.KeyOf(one.entry), token, false, ""))
	f.must(f.carryOutLate(t.Context(), one, missed, f.deps.Clock.Now()))
	if events := f.log.events; len(events) != 1 || events[0].Disposition != job.DispositionSkippedMissed || f.log.fires > 0 {
		t.Errorf("once its attempt is free, %+v was told, and %d fires were published", events, f.log.fires)
	}
	if len(pending.inProgress) != 1 || len(pending.inProgress[0]) > 0 {
		t.Errorf("before the entries that follow it were written, in progress were %v", pending.inProgress)
	}
}

// The executor that held the attempt has died, so no skip can be stored.
func TestOccurrenceThatIsCalledAgainstItsDecisionIsInProgressBeforeTheNext(t *testing.T) {
	f := newFixture(t)
	one, _, missed := f.held(2 * leaseTTL)
	pending := &puts{Pending: f.deps.Pending, jobs: f.deps.Jobs}
	f.deps.Pending = pending

	f.must(f.carryOutLate(t.Context(), one, missed, f.deps.Clock.Now()))
	if f.log.fires != 1 || len(f.log.events) > 0 {
		t.Errorf("%d fires were published, and told was %+v", f.log.fires, f.log.events)
	}
	if n := pending.inProgress; len(n) != 1 || len(n[0]) != 1 || n[0][0].ExecutionID != one.entry.ExecutionID {
		t.Errorf("before the entries that follow it were written, in progress were %v", pending.inProgress)
	}
}

func TestOccurrenceKeepsWaitingWhileAnotherDefinitionHasItsAttempt(t *testing.T) {
	f := newFixture(t)
	one, token, _ := f.held(0)
	first := *one.entry
	first.NominalAt = first.NominalAt.Add(-time.Minute)
	first.ExecutionID = job.ScheduleExecutionID(f.row.ID, first.NominalAt)
	f.must(f.deps.Pending.Put(t.Context(), []job.Entry{first}))
	f.must(f.deps.Jobs.SwapRuns(t.Context(), f.row.ID, nil, []job.Locator{first.Locator, one.entry.Locator}))

	if before, err := f.turn(t.Context(), one, f.deps.Clock.Now()); err != nil || before != first.ExecutionID {
		t.Errorf("it waits for %q (%v), want the first", before, err)
	}
	// An executor that holds it for an entry of its own definition was told that it is its turn.
	f.must(f.records.Release(t.Context(), attempts.KeyOf(one.entry), token, false, ""))
	f.acquire(one, one.entry.DefinitionID, f.deps.Clock.Now())
	if before, err := f.turn(t.Context(), one, f.deps.Clock.Now()); err != nil || before != "" {
		t.Errorf("it waits for %q (%v), although it was dispatched", before, err)
	}
}
