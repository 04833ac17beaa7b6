package schedulerworker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
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
	def := t.series.Def
	most := def.MostWaiting()
	if def.TakesPlace() { // also with terminate_other, for which MostWaiting is 0: what it cancels takes a moment to end
		most = job.MaxWaiting
	}
	place, err := s.inProgress().Enter(ctx, t.entry, most, s.deps.Clock.Now(), nil)
	if t.entered = err == nil && !place.Full; err != nil || len(place.Before) == 0 {
		return place, err
	}
	row, err := s.deps.Jobs.Get(ctx, t.entry.JobID)
	if err != nil {
		return place, err
	}
	verdict, err := s.verdict(ctx, &row, t.entry)
	if err != nil {
		return place, err
	}
	if verdict != job.VerdictProceed {
		return place, errStopped
	}
	state := row.State()
	if slices.ContainsFunc(place.Before, state.Ends) {
		stopped, err := s.stopped(ctx, t, state)
		if err != nil {
			return place, err
		}
		place, err = s.inProgress().Enter(ctx, t.entry, most, s.deps.Clock.Now(), stopped)
		if t.entered = err == nil && !place.Full; err != nil {
			return place, err
		}
	}
	switch {
	case !def.TakesPlace():
	case state.Ends(t.entry.ExecutionID): // its executor refuses it
		place = overlap.Place{}
	default:
		giveWayToLater(&place, t.entry.NominalAt)
	}
	return place, nil
}

// giveWayToLater lets an execution of an instant go if one of a later instant is in progress, which began under another definition, or while
// this one was kept from being decided about: nothing takes the place of a later one.
func giveWayToLater(p *overlap.Place, nominal time.Time) {
	for i, x := range p.Before {
		if ref, err := job.ParseExecutionID(x); err == nil && ref.NominalAt.After(nominal) {
			p.Before, p.Full = p.Before[:i+1], true
			return
		}
	}
}

// verdict judges an entry by its job's row as it stands.
func (s *Service) verdict(ctx context.Context, row *job.Job, e *job.Entry) (job.Verdict, error) {
	state := row.State()
	verdict := state.Judge(e, time.Time{})
	if verdict != job.VerdictSuperseded {
		return verdict, nil
	}
	series, err := s.series(ctx, row, e)
	if err != nil {
		return verdict, err
	}
	return state.Judge(e, series.EndsAt), nil
}

// errLater: a task is to be looked at again at an instant, and nothing is wrong with it.
type errLater struct{ at time.Time }

func (errLater) Error() string { return "what it asked for is not ready yet" }

// held returns errLater until a stop record holds that was stored just now: while a server that was replaced may accept last checks without
// it, that takes holdsIn, and then it is stored once more.
func (t *task) held(version int64, holdsIn time.Duration, now time.Time) error {
	if holdsIn == 0 || t.heldVersion == version && !now.Before(t.heldAt) {
		return nil
	}
	if t.heldVersion != version {
		t.heldVersion, t.heldAt = version, now.Add(holdsIn)
	}
	return errLater{t.heldAt}
}

// stopped stores a job's stop record, and returns what tells of which executions no attempt can begin any more.
func (s *Service) stopped(ctx context.Context, t *task, state job.State) (func(executionID string) bool, error) {
	holdsIn, err := s.deps.Stops.SetStop(ctx, t.entry.JobID, state)
	if err == nil {
		err = t.held(state.Version, holdsIn, s.deps.Clock.Now())
	}
	return state.Ends, err
}

// displace cancels the executions of earlier instants, the last of which is that of other: the task's, which has entered and was decided
// about, takes their place. A crash after this leaves them cancelled; the next owner finds the decision and comes to the same. If its own
// job was changed since, or it was cancelled itself, so that it will not be called, nothing is cancelled. When displace returns, nothing
// that it stopped can begin any more, and executors cut off within a second what runs.
func (s *Service) displace(ctx context.Context, t *task, other time.Time) error {
	changed, err := s.change.Change(ctx, t.tenant, t.entry.JobID, jobchange.Edit{
		Operation: "cancelExecution", Object: job.ScheduleExecutionID(t.entry.JobID, other), By: job.Author{Subject: "scheduler-worker", Role: job.SystemRole},
		Most: job.MaxWorkerChanges,
		Apply: func(ctx context.Context, j *job.Job) error {
			verdict, err := s.verdict(ctx, j, t.entry)
			if err != nil {
				return err
			}
			if verdict != job.VerdictProceed || j.State().Stops(t.entry.ExecutionID) || !j.StoppedBefore.Before(t.entry.NominalAt) {
				return jobchange.ErrNoChange
			}
			j.StoppedBefore = t.entry.NominalAt
			return nil
		},
	})
	if errors.Is(err, jobchange.ErrUntold) {
		t.untold++
		return errLater{s.deps.Clock.Now().Add(min(time.Duration(t.untold)*time.Second, mostBetweenLooks))}
	}
	if err != nil {
		return err
	}
	if err := hotbucket.AddNear(ctx, s.deps.Hot, changed.Entries); err != nil && !errors.Is(err, hotbucket.ErrFull) {
		return err
	}
	t.stops = stopsOf(changed.State())
	now := s.deps.Clock.Now()
	if t.lapsed(now, s.cfg.OwnerTTL) {
		return errLapsed{} // another owner may have gone on
	}
	return t.held(changed.Version, changed.HoldsIn, now)
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

// note puts the row of a task that is called although it has not entered on the list, so that others wait for it.
func (s *Service) note(ctx context.Context, t *task) error {
	if !t.alone() || t.entered {
		return nil
	}
	return overlap.Note(ctx, s.deps.Jobs, t.entry)
}

// inLine reports whether the task waits for its turn, or did before its target deferred it.
func (t *task) inLine() bool { return t.entry.InLine() && !t.published && !t.bare }

// turn returns the execution for which a task waits, and "" if it is its turn. If it was cancelled, or its attempt was dispatched before,
// under another row, its executor finds that: it has no place in line any more. The lease of an entry of another definition says nothing
// about whose turn it is: its executor may find that it must not begin.
func (s *Service) turn(ctx context.Context, t *task, now time.Time) (before string, err error) {
	records, err := s.deps.Outcomes.Lookup(ctx, []attempts.Key{attempts.KeyOf(t.entry)})
	if err != nil {
		return "", err
	}
	rec := &records[0]
	dispatched := rec.Of(t.entry.DefinitionID) && (rec.Running || rec.Alive(now))
	if rec.Outcome != nil || dispatched || t.stops.Ends(t.entry.ExecutionID) {
		return "", nil
	}
	before, err = s.inProgress().Turn(ctx, t.entry, now, nil)
	if err != nil || before == "" || !t.stops.Ends(before) {
		return before, err
	}
	stopped, err := s.stopped(ctx, t, *t.stops)
	if err != nil {
		return "", err
	}
	return s.inProgress().Turn(ctx, t.entry, now, stopped)
}

// sendInTurn publishes a fire if all executions before it have ended, and looks at it later otherwise. Nobody is put in line before it, so
// once it is its turn, it stays its turn: a worker that stalls here and publishes late is right to do so, and after a crash the next one
// publishes the same fire.
func (s *Service) sendInTurn(ctx context.Context, t *task) error {
	_, settled, err := s.row(ctx, t)
	if err != nil {
		return err
	}
	if settled {
		return s.remove(ctx, t)
	}
	t.fresh = true
	now := s.deps.Clock.Now()
	before, err := s.turn(ctx, t, now)
	if err != nil {
		return err
	}
	if before != "" {
		return s.lookLater(ctx, t, now)
	}
	t.bare, t.waited = true, true
	return s.carryOut(ctx, []*task{t}, nil, s.deps.Clock.Now())
}

// lookLater sets an entry aside in the hot tier until it is to be asked again whether it is its turn.
func (s *Service) lookLater(ctx context.Context, t *task, now time.Time) error {
	later := min(max(now.Sub(t.entry.ScheduledFor)/lookShare, firstLook), mostBetweenLooks)
	return s.deps.Hot.Postpone(ctx, t.owner, []*job.Entry{t.entry}, now.Add(later))
}
