package worker

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

// prepared is what becomes of a task: it is looked at again at an instant, or worked on aside.
type prepared struct {
	at    time.Time
	aside aside
	err   error
}

// prepare has the job rows of fresh tasks read. What cannot be read now is forgotten, so the next read brings it again.
func (sh *shard) prepare(ctx context.Context) {
	for sh.preparing < maxPreparing && len(sh.fresh) > 0 {
		tasks := pull(&sh.fresh, sh.s.cfg.Batch)
		sh.preparing++
		begin(tasks)
		go func() {
			results := sh.s.prepare(ctx, tasks)
			sh.back <- func() {
				sh.preparing--
				for i, t := range tasks {
					sh.ready(ctx, t, results[i])
				}
			}
		}()
	}
}

func (sh *shard) ready(ctx context.Context, t *task, p prepared) {
	t.busy = false
	switch {
	case p.err != nil:
		sh.forget(t)
		if ctx.Err() == nil {
			sh.s.deps.Logger.Warn("cannot prepare an entry", "execution_id", t.entry.ExecutionID, "error", p.err)
		}
	case t.dropped:
		sh.forget(t)
	case p.aside != nil:
		sh.setAside(t, p.aside)
	default:
		sh.hold(t, p.at)
	}
}

// prepare says of each entry what becomes of it, by its job row.
func (s *Service) prepare(ctx context.Context, tasks []*task) []prepared {
	results := make([]prepared, len(tasks))
	incarnation, err := s.deps.Hot.Incarnation(ctx)
	var rows map[string]*job.Job
	if err == nil {
		rows, err = s.deps.Jobs.GetMany(ctx, jobIDs(tasks))
	}
	for i, t := range tasks {
		if err != nil {
			results[i].err = err
			continue
		}
		t.incarnation = incarnation
		row, found := rows[t.entry.JobID]
		results[i] = s.judge(ctx, t, row, found)
	}
	return results
}

func jobIDs(tasks []*task) []string {
	seen := make(map[string]bool, len(tasks))
	ids := make([]string, 0, len(tasks))
	for _, t := range tasks {
		if !seen[t.entry.JobID] {
			seen[t.entry.JobID] = true
			ids = append(ids, t.entry.JobID)
		}
	}
	return ids
}

// judge applies the rules of step 4 to one entry and its job row.
func (s *Service) judge(ctx context.Context, t *task, row *job.Job, found bool) prepared {
	if !found {
		return s.await(t)
	}
	t.tenantID, t.labels = row.TenantID, row.Labels
	state := row.State()
	verdict := state.Judge(t.entry)
	if verdict == job.AheadOfRow {
		return s.await(t)
	}
	line, err := s.line(ctx, row, t.entry)
	if errors.Is(err, jobstore.ErrNotFound) && t.entry.FirstOfSchedule() && time.Since(t.entry.NominalAt) < jobstore.HistoryTTL {
		// Everything that stood in the row is kept before the row moves on, and for HistoryTTL after it, which is later
		// than every instant of its own: this definition never stood there. Its update lost against another, or was cut
		// short and repeated.
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return time.Time{}, s.finish(ctx, t) }}
	}
	if errors.Is(err, jobstore.ErrNotFound) {
		return prepared{aside: func(ctx context.Context) (time.Time, error) {
			return time.Time{}, s.giveUp(ctx, t, "the definition it began with is no longer kept")
		}}
	}
	if err != nil {
		return prepared{err: err}
	}
	t.line = line
	if verdict != job.Proceed {
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return s.refuse(ctx, t, verdict, state) }}
	}
	if state.Stops(t.entry.ExecutionID) {
		// The executor refuses it by the stop record, which may be gone: it is older than the take.
		if err := s.deps.Records.SetStop(ctx, row.ID, state); err != nil {
			return prepared{err: err}
		}
	}
	return prepared{at: t.entry.DueAt}
}

// line is the definition under which the entry runs, compiled.
func (s *Service) line(ctx context.Context, row *job.Job, e *job.Entry) (*occurrence.Line, error) {
	l := &occurrence.Line{JobID: row.ID, Def: &row.Definition}
	if e.DefinitionID != row.Definition.ID {
		d, next, err := s.deps.Jobs.Definition(ctx, row.ID, e.DefinitionID)
		if err != nil {
			return nil, err
		}
		l.Def, l.EndsAt = &d, row.Definition.EffectiveAt
		if next != nil {
			l.EndsAt = next.EffectiveAt
		}
	}
	if !e.FirstOfSchedule() || l.Def.Schedule.Type == job.OneShot {
		return l, nil // no successor will follow, so the schedule is not asked
	}
	plan, err := schedule.Compile(l.Def.Schedule, row.ID)
	if err != nil {
		return nil, err
	}
	l.Plan = plan
	return l, nil
}

// await holds an entry whose job row, or whose definition's row, is on its way. A row that has not come when the grace
// is over, and that a serial read does not see either, never will: the entry is dropped.
func (s *Service) await(t *task) prepared {
	if time.Since(t.entry.WrittenAt) > s.cfg.Grace {
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return s.lookFor(ctx, t) }}
	}
	t.heldBack = true
	return prepared{at: time.Now().Add(s.cfg.HoldRecheck)}
}

// lookFor reads the row that an entry waits for a last time.
func (s *Service) lookFor(ctx context.Context, t *task) (again time.Time, err error) {
	row, err := s.deps.Jobs.GetSerial(ctx, t.entry.JobID)
	switch {
	case errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Definition.ID < t.entry.DefinitionID:
		s.metrics.refused.WithLabelValues("orphan").Inc()
		return time.Time{}, s.finish(ctx, t)
	case err != nil:
		return time.Time{}, err
	}
	t.heldBack = true
	return time.Now(), nil
}

// finish marks an entry done that needs no settling, and removes it.
func (s *Service) finish(ctx context.Context, t *task) error {
	if err := s.deps.Pending.MarkDone(ctx, []job.Locator{t.entry.Locator}); err != nil {
		return err
	}
	return s.remove(ctx, t)
}

func (s *Service) remove(ctx context.Context, t *task) error {
	return s.deps.Hot.Remove(ctx, []job.Locator{t.entry.Locator})
}

// refuse carries a refusal out. Whatever finds a lease or an outcome was dispatched before: its fire is published
// bare, and the row is left to settle.
func (s *Service) refuse(ctx context.Context, t *task, v job.Verdict, state job.State) (again time.Time, err error) {
	key := dedupe.KeyOf(t.entry)
	// Where someone holds the attempt its fire is published all the same, under the present incarnation of the hot tier.
	// The stop record may be gone with the one before, and an executor would find nothing that stops it.
	if err := s.deps.Records.SetStop(ctx, t.entry.JobID, state); err != nil {
		return time.Time{}, err
	}
	if !v.HasDisposition() {
		records, err := s.deps.Records.Lookup(ctx, []dedupe.Key{key})
		if err != nil {
			return time.Time{}, err
		}
		if records[0].Exists {
			return fireBare(t), nil
		}
		s.metrics.refused.WithLabelValues("outdated").Inc()
		return time.Time{}, s.finish(ctx, t)
	}
	now := job.Instant(time.Now())
	outcome := job.Refusal(v, t.entry)
	outcome.Timeline.Completed = now
	rec, stored, err := s.deps.Records.Refuse(ctx, key, outcome, now)
	if err != nil {
		return time.Time{}, err
	}
	if !stored {
		if rec.Outcome == nil || rec.Outcome.Kind != outcome.Kind {
			return fireBare(t), nil
		}
		outcome = *rec.Outcome
	}
	s.metrics.refused.WithLabelValues(string(outcome.Kind)).Inc()
	events := []job.Event{job.AttemptEvent(t.fire(), outcome, now)}
	if v == job.StoppedByPause && t.line.Plan != nil && !t.entry.Chained {
		r, ok, err := s.pausedRange(ctx, t, state.PausedAt, now)
		if err != nil {
			return time.Time{}, err
		}
		if ok {
			events = append(events, job.SkippedEvent(t.entry, t.tenantID, r, job.SkippedPaused, now))
		}
	}
	if err := s.publishEvents(ctx, events); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, s.remove(ctx, t)
}

// pausedRange is what else of the definition the pause skips: the entry's chain ends here unless its successor was
// written before, which then gets its own refusal.
func (s *Service) pausedRange(ctx context.Context, t *task, pausedAt, now time.Time) (job.SkippedRange, bool, error) {
	exists, err := s.successorExists(ctx, t, now)
	if err != nil || exists {
		return job.SkippedRange{}, false, err
	}
	r, ok := t.line.PausedRange(t.entry, pausedAt)
	return r, ok, nil
}

func (s *Service) successorExists(ctx context.Context, t *task, now time.Time) (bool, error) {
	next, ok := t.line.Successor(t.entry, t.line.OnTime(t.entry), now)
	if !ok {
		return false, nil
	}
	_, err := s.deps.Pending.Row(ctx, next.Locator)
	if errors.Is(err, jobstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// fireBare makes the task publish its fire at its instant, without chain or policy.
func fireBare(t *task) time.Time {
	t.bare = true
	return t.entry.DueAt
}

// giveUp ends an entry that cannot be carried out any more as a permanent failure, on record.
func (s *Service) giveUp(ctx context.Context, t *task, why string) error {
	now := job.Instant(time.Now())
	o := job.Outcome{Kind: job.Failed, Disposition: job.Fired, Error: why, Timeline: job.Timeline{Completed: now}}
	t.line = &occurrence.Line{Def: &job.Definition{}}
	if err := s.publishEvents(ctx, []job.Event{job.AttemptEvent(t.fire(), o, now)}); err != nil {
		return err
	}
	return s.remove(ctx, t)
}
