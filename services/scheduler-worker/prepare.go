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

// prepare reads the job rows of freshly read entries and says of each what becomes of it. What cannot be read now is
// forgotten, so the next read brings it again.
func (sh *shard) prepare(ctx context.Context, tasks []*task) {
	incarnation, err := sh.s.deps.Hot.Incarnation(ctx)
	var rows map[string]job.Job
	if err == nil {
		rows, err = sh.s.deps.Jobs.GetMany(ctx, jobIDs(tasks))
	}
	for _, t := range tasks {
		taskErr := err
		if err == nil {
			t.incarnation = incarnation
			row, found := rows[t.entry.JobID]
			taskErr = sh.judge(ctx, t, row, found)
		}
		if taskErr != nil {
			sh.forget(t)
			if ctx.Err() == nil {
				sh.s.deps.Logger.Warn("cannot prepare an entry", "execution_id", t.entry.ExecutionID, "error", taskErr)
			}
		}
	}
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
func (sh *shard) judge(ctx context.Context, t *task, row job.Job, found bool) error {
	if !found {
		return sh.await(ctx, t)
	}
	t.tenantID = row.TenantID
	verdict := row.State().Judge(&t.entry)
	if verdict == job.AheadOfRow {
		return sh.await(ctx, t)
	}
	line, err := sh.line(ctx, &row, &t.entry)
	if errors.Is(err, jobstore.ErrNotFound) {
		return sh.giveUp(ctx, t, "the definition it began with is no longer kept")
	}
	if err != nil {
		return err
	}
	t.line = line
	if verdict != job.Proceed {
		return sh.refuse(ctx, t, verdict, row.State())
	}
	sh.hold(t, t.entry.DueAt)
	return nil
}

// line is the definition under which the entry runs, compiled.
func (sh *shard) line(ctx context.Context, row *job.Job, e *job.Entry) (*occurrence.Line, error) {
	l := &occurrence.Line{JobID: row.ID, Def: &row.Definition}
	if e.DefinitionID != row.Definition.ID {
		d, next, err := sh.s.deps.Jobs.Definition(ctx, row.ID, e.DefinitionID)
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
func (sh *shard) await(ctx context.Context, t *task) error {
	now := time.Now()
	if now.Sub(t.entry.WrittenAt) > sh.s.cfg.Grace {
		row, err := sh.s.deps.Jobs.GetSerial(ctx, t.entry.JobID)
		switch {
		case errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Definition.ID < t.entry.DefinitionID:
			sh.s.metrics.refused.WithLabelValues("orphan").Inc()
			return sh.finish(ctx, t)
		case err != nil:
			return err
		}
	}
	t.heldBack = true
	sh.hold(t, now.Add(sh.s.cfg.HoldRecheck))
	return nil
}

// finish marks an entry done that needs no settling, and removes it.
func (sh *shard) finish(ctx context.Context, t *task) error {
	if err := sh.s.deps.Pending.MarkDone(ctx, []job.Locator{t.entry.Locator}); err != nil {
		return err
	}
	return sh.remove(ctx, t)
}

func (sh *shard) remove(ctx context.Context, t *task) error {
	if err := sh.s.deps.Hot.Remove(ctx, []job.Locator{t.entry.Locator}); err != nil {
		return err
	}
	sh.forget(t)
	return nil
}

// refuse carries a refusal out. Whatever finds a lease or an outcome was dispatched before: its fire is published
// bare, and the row is left to settle.
func (sh *shard) refuse(ctx context.Context, t *task, v job.Verdict, state job.State) error {
	key := dedupe.KeyOf(&t.entry)
	if !v.HasDisposition() {
		records, err := sh.s.deps.Records.Lookup(ctx, []dedupe.Key{key})
		if err != nil {
			return err
		}
		if records[0].Exists {
			return sh.publishBare(t)
		}
		sh.s.metrics.refused.WithLabelValues("outdated").Inc()
		return sh.finish(ctx, t)
	}
	now := job.Instant(time.Now())
	outcome := job.Refusal(v, &t.entry)
	outcome.Timeline.Completed = now
	rec, stored, err := sh.s.deps.Records.Refuse(ctx, key, outcome, now)
	if err != nil {
		return err
	}
	if !stored && (rec.Outcome == nil || rec.Outcome.Kind != outcome.Kind) {
		return sh.publishBare(t)
	}
	sh.s.metrics.refused.WithLabelValues(string(outcome.Kind)).Inc()
	events := []job.Event{job.AttemptEvent(t.fire(), outcome, now)}
	if v == job.StoppedByPause && t.line.Plan != nil {
		r, ok, err := sh.pausedRange(ctx, t, state.PausedAt, now)
		if err != nil {
			return err
		}
		if ok {
			events = append(events, job.SkippedEvent(&t.entry, t.tenantID, r, job.SkippedPaused, now))
		}
	}
	if err := sh.publishEvents(ctx, events); err != nil {
		return err
	}
	return sh.remove(ctx, t)
}

// pausedRange is what else of the definition the pause skips: the entry's chain ends here unless its successor was
// written before, which then gets its own refusal.
func (sh *shard) pausedRange(ctx context.Context, t *task, pausedAt, now time.Time) (job.SkippedRange, bool, error) {
	exists, err := sh.successorExists(ctx, t, now)
	if err != nil || exists {
		return job.SkippedRange{}, false, err
	}
	r, ok := t.line.PausedRange(&t.entry, pausedAt)
	return r, ok, nil
}

func (sh *shard) successorExists(ctx context.Context, t *task, now time.Time) (bool, error) {
	next, ok := t.line.Successor(&t.entry, t.line.OnTime(&t.entry), now)
	if !ok {
		return false, nil
	}
	_, err := sh.s.deps.Pending.Row(ctx, next.Locator)
	if errors.Is(err, jobstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// publishBare makes the task publish its fire at once, without chain or policy.
func (sh *shard) publishBare(t *task) error {
	t.bare = true
	sh.hold(t, t.entry.DueAt)
	return nil
}

// giveUp ends an entry that cannot be carried out any more as a permanent failure, on record.
func (sh *shard) giveUp(ctx context.Context, t *task, why string) error {
	now := job.Instant(time.Now())
	o := job.Outcome{Kind: job.Failed, Disposition: job.Fired, Error: why, Timeline: job.Timeline{Completed: now}}
	t.line = &occurrence.Line{Def: &job.Definition{}}
	if err := sh.publishEvents(ctx, []job.Event{job.AttemptEvent(t.fire(), o, now)}); err != nil {
		return err
	}
	return sh.remove(ctx, t)
}
