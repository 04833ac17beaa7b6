package schedulerworker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

// prepared says what becomes of a task: it is looked at again at an instant, or worked on aside.
type prepared struct {
	at    time.Time
	aside aside
	err   error
	// ahead is set if the fire may be published ahead of its instant: the executor asks, at the instant, whether it was stopped.
	ahead bool
}

// prepare reads the job rows of fresh tasks in a goroutine. Tasks that cannot be read now are forgotten, so the next read
// returns them.
func (sh *shard) prepare(ctx context.Context) {
	for c := range classes {
		for sh.preparing[c] < maxPreparing[c] && len(sh.fresh[c]) > 0 {
			first := sh.fresh[c][:min(len(sh.fresh[c]), sh.s.cfg.Batch)]
			tasks := pull(&sh.fresh[c], sh.s.budget.reserve(first, c, sh.room))
			if len(tasks) == 0 {
				break // there is no room in memory; the shard is told when there is
			}
			sh.preparing[c]++
			begin(tasks)
			go func() {
				results := sh.s.judgeAll(ctx, tasks)
				sh.back <- func() {
					sh.preparing[c]--
					for i, t := range tasks {
						sh.ready(ctx, t, results[i])
					}
				}
			}()
		}
	}
}

func (sh *shard) ready(ctx context.Context, t *task, p prepared) {
	t.busy = false
	switch {
	case p.err != nil && !t.dropped:
		t.waitsForRow = true
		sh.wakeAt(t, sh.s.deps.Clock.Now().Add(sh.s.cfg.HoldRecheck))
		sh.restartMarks()
		if ctx.Err() == nil {
			sh.s.deps.Logger.Warn("cannot prepare an entry", "tenant", t.entry.Tenant, "execution_id", t.entry.ExecutionID, "error", p.err)
		}
	case t.dropped:
		sh.forget(t)
		sh.again = true
	case p.aside != nil:
		sh.setAside(t, p.aside)
	case p.ahead && t.class() == light && !t.park:
		t.ahead = true
		sh.wakeAt(t, sh.publishAt(t))
	default:
		sh.wakeAt(t, p.at)
	}
	if t.waitsForRow { // a task that waits for its job row must not keep others out
		sh.uncount(t)
		sh.s.budget.release(t)
	}
}

// judgeAll reads the job rows of tasks, and decides from them what becomes of each task.
func (s *Service) judgeAll(ctx context.Context, tasks []*task) []prepared {
	results := make([]prepared, len(tasks))
	began := s.deps.Clock.Now()
	incarnations, err := s.incarnations(ctx, tasks)
	var rows map[string]*job.Job
	if err == nil {
		s.cold.Begin(began)
		if rows, err = s.deps.Jobs.GetMany(ctx, jobIDs(tasks)); err == nil {
			s.cold.Done()
		}
	}
	for i, t := range tasks {
		if err != nil {
			results[i].err = err
			continue
		}
		t.incarnation, t.judgedAt = incarnations[t.entry.Partition], began
		row, found := rows[t.entry.JobID]
		results[i] = s.judge(ctx, t, row, found)
	}
	return results
}

// incarnations returns those of the tasks' partitions.
func (s *Service) incarnations(ctx context.Context, tasks []*task) (map[int]string, error) {
	of := map[int]string{}
	for _, t := range tasks {
		of[t.entry.Partition] = ""
	}
	partitions := slices.Sorted(maps.Keys(of))
	list, err := s.deps.Hot.Incarnations(ctx, partitions)
	for i, incarnation := range list {
		of[partitions[i]] = incarnation
	}
	return of, err
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

// judge applies the rules of step 4 in services/README.md to one entry and its job row.
func (s *Service) judge(ctx context.Context, t *task, row *job.Job, found bool) prepared {
	if found && row.IsVoid() { // its entries come from a request that another has overtaken
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return time.Time{}, s.finish(ctx, t) }}
	}
	if t.entry.Change != nil {
		return s.judgeChange(t, row, found)
	}
	if !found {
		return s.await(t)
	}
	t.tenant, t.labels, t.followed = row.Tenant, row.Labels, row.Followed
	state := row.State()
	verdict := state.Judge(t.entry, time.Time{})
	if verdict == job.VerdictAheadOfRow {
		return s.await(t)
	}
	series, err := s.series(ctx, row, t.entry)
	if errors.Is(err, jobstore.ErrNotFound) && t.entry.FirstOfSchedule() && s.deps.Clock.Since(t.entry.NominalAt) < jobstore.HistoryTTL {
		// Every definition that was ever in the row is kept before the row moves on, and for HistoryTTL after that, which is
		// later than every instant of its own. So this definition was never in the row: its update lost against another, or
		// was cut short and repeated.
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
	t.series = series
	if verdict == job.VerdictSuperseded {
		verdict = state.Judge(t.entry, series.EndsAt)
	}
	if verdict != job.VerdictProceed {
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return s.refuse(ctx, t, verdict, row) }}
	}
	if resumed(t, row) {
		if err := s.recall(ctx, t); err != nil {
			return prepared{err: err}
		}
	}
	if t.stopped = state.Stops(t.entry.ExecutionID) || state.Displaced(t.entry); t.stopped {
		// The executor refuses it because of the stop record, which may be gone: it is older than the take.
		if _, err := s.deps.Stops.SetStop(ctx, row.ID, state); err != nil {
			return prepared{err: err}
		}
	}
	if t.entry.Alone {
		t.stops = stopsOf(state)
	}
	return prepared{at: t.entry.DueAt, ahead: !t.alone() && !t.inLine()}
}

// stopsOf returns a copy; a pointer to the state itself would move it to the heap for every entry.
func stopsOf(state job.State) *job.State { return &state }

// recallReach is how long after a pause an instant may still have been called: clocks differ, and the pause took up to that
// long to reach its row.
const recallReach = time.Minute

// resumed reports whether the entry is one of those with which a resume began, so that the paused definition may have fired
// it.
func resumed(t *task, row *job.Job) bool {
	return t.entry.FirstOfSchedule() && !row.PausedAt.IsZero() &&
		t.series.Def.EffectiveAt.Equal(row.PausedAt.Add(time.Millisecond)) && t.entry.NominalAt.Sub(row.PausedAt) <= recallReach
}

// recall gives the hot tier back the outcome that another definition's entry had for the same instant. The hot tier forgets
// outcomes after an hour, or with everything else, and a pause may last longer.
func (s *Service) recall(ctx context.Context, t *task) error {
	events, err := s.deps.History.Execution(ctx, t.entry.ExecutionID)
	if err != nil {
		return err
	}
	for i := range events {
		e := &events[i]
		if e.Type != job.EventAttempt || e.Entry.Attempt != t.entry.Attempt || !e.Outcome.Invoked() || e.Entry.DefinitionID == t.entry.DefinitionID {
			continue
		}
		outcome := e.Outcome
		outcome.DefinitionID = e.Entry.DefinitionID
		_, _, err := s.deps.Outcomes.Refuse(ctx, attempts.KeyOf(t.entry), outcome, job.Instant(s.deps.Clock.Now()))
		return err
	}
	return nil
}

// series returns the definition under which the entry runs, compiled.
func (s *Service) series(ctx context.Context, row *job.Job, e *job.Entry) (*occurrence.Series, error) {
	l := &occurrence.Series{JobID: row.ID, Tenant: row.Tenant, Def: &row.Definition}
	if e.DefinitionID != row.Definition.ID {
		d, endsAt, err := s.deps.Jobs.Definition(ctx, row.ID, e.DefinitionID)
		if err != nil {
			return nil, err
		}
		l.Def, l.EndsAt = &d, row.Definition.EndOf(endsAt)
	}
	if !e.FirstOfSchedule() || l.Def.Schedule.Type == job.ScheduleOneShot {
		return l, nil // no successor will follow, so the schedule is not compiled
	}
	plan, err := schedule.Compile(l.Def.Schedule, row.ID)
	if err != nil {
		return nil, err
	}
	l.Plan = plan
	return l, nil
}

// await holds an entry whose job row, or whose definition's row, is on its way. If the grace is over and even a serial read
// does not see the row, the row will never come: the entry is dropped.
func (s *Service) await(t *task) prepared {
	if s.deps.Clock.Since(t.entry.WrittenAt) > s.cfg.Grace {
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return s.lookFor(ctx, t) }}
	}
	t.waitsForRow = true
	return prepared{at: s.deps.Clock.Now().Add(s.cfg.HoldRecheck)}
}

// lookFor reads, one last time, the row that an entry waits for.
func (s *Service) lookFor(ctx context.Context, t *task) (again time.Time, err error) {
	row, err := s.deps.Jobs.GetSerial(ctx, t.entry.JobID)
	if c := t.entry.Change; err == nil && (row.Definition.ID < t.entry.DefinitionID || c != nil && row.Version < c.Version) {
		// The update that wrote the entry may still be on its way to the row, and would leave the job without any entry. It
		// expects the version that it read. Because it finds another, it starts over.
		row.Version++
		if err := s.deps.Jobs.Replace(ctx, row); err != nil {
			return time.Time{}, err
		}
		s.metrics.refused.WithLabelValues("orphan").Inc()
		return time.Time{}, s.finish(ctx, t)
	}
	switch {
	case errors.Is(err, jobstore.ErrNotFound):
		s.metrics.refused.WithLabelValues("orphan").Inc()
		return time.Time{}, s.finish(ctx, t)
	case err != nil:
		return time.Time{}, err
	}
	t.waitsForRow = true
	return s.deps.Clock.Now(), nil
}

// finish marks done an entry that needs no settling, and removes it.
func (s *Service) finish(ctx context.Context, t *task) error {
	if err := s.deps.Pending.MarkDone(ctx, []job.Locator{t.entry.Locator}); err != nil {
		return err
	}
	return s.remove(ctx, t)
}

func (s *Service) remove(ctx context.Context, t *task) error {
	return s.deps.Hot.Remove(ctx, []*job.Entry{t.entry})
}

// refuse carries out a refusal. An entry with a lease or an outcome was dispatched before: its fire is published bare, and
// the row is left to be settled.
func (s *Service) refuse(ctx context.Context, t *task, v job.Verdict, row *job.Job) (again time.Time, err error) {
	entry, settled, err := s.row(ctx, t)
	if err != nil {
		return time.Time{}, err
	}
	if settled {
		return time.Time{}, s.remove(ctx, t)
	}
	// If the attempt is held, its fire is published all the same, under the current incarnation of the hot tier. The stop
	// record may be gone with the one before, and an executor would find nothing that stops the fire.
	if _, err := s.deps.Stops.SetStop(ctx, t.entry.JobID, row.State()); err != nil {
		return time.Time{}, err
	}
	if !v.HasDisposition() {
		return s.dropOutdated(ctx, t)
	}
	return s.refuseOnRecord(ctx, t, v, row, entry)
}

// dropOutdated ends an entry whose instant belongs to another definition, without a disposition.
func (s *Service) dropOutdated(ctx context.Context, t *task) (again time.Time, err error) {
	records, err := s.deps.Outcomes.Lookup(ctx, []attempts.Key{attempts.KeyOf(t.entry)})
	if err != nil {
		return time.Time{}, err
	}
	if records[0].Exists {
		return fireBare(t), nil
	}
	s.metrics.refused.WithLabelValues("outdated").Inc()
	return time.Time{}, s.finish(ctx, t)
}

// refuseOnRecord gives its disposition to an entry stopped by a pause or a cancel, and ends its chain if the stop does.
func (s *Service) refuseOnRecord(ctx context.Context, t *task, v job.Verdict, row *job.Job, entry job.PendingRow) (again time.Time, err error) {
	now := job.Instant(s.deps.Clock.Now())
	outcome := job.Refusal(v, t.entry)
	rest := outcome.Disposition // of the instants that follow
	decision, err := s.decided(ctx, entry)
	if err != nil {
		return time.Time{}, err
	}
	if decision != nil && !decision.Fire && !decision.Refuses() { // it stood before the stop, and was shown
		outcome = job.Outcome{Kind: job.OutcomeSkipped, Disposition: decision.Unfired(), GaveWayTo: decision.GaveWayTo}
	}
	outcome.Timeline.Completed = now
	rec, stored, err := s.deps.Outcomes.Refuse(ctx, attempts.KeyOf(t.entry), outcome, now)
	if err != nil {
		return time.Time{}, err
	}
	begun := !stored && (rec.Outcome == nil || rec.Outcome.Disposition == job.DispositionFired)
	if begun && rec.Of(t.entry.DefinitionID) {
		return fireBare(t), nil
	}
	var events []job.Event
	if !begun {
		if !stored { // an earlier refusal, for instance by the pause before the cancel
			if outcome = *rec.Outcome; refused(&outcome) {
				rest = outcome.Disposition
			}
		}
		s.metrics.refused.WithLabelValues(string(outcome.Kind)).Inc()
		events = append(events, job.AttemptEvent(t.fire(now), t.target(), outcome, now))
	}
	if t.series.Plan != nil && !t.entry.Chained {
		end := row.EndsAt
		if v == job.VerdictPaused {
			end = row.PausedAt.Add(time.Millisecond)
		}
		following, err := s.following(ctx, t, entry, end, rest, now)
		if err != nil {
			return time.Time{}, err
		}
		events = append(events, following...)
	}
	if err := s.publishEvents(ctx, events); err != nil {
		return time.Time{}, err
	}
	if begun { // under another definition, whose chain is not this entry's
		return fireBare(t), nil
	}
	return time.Time{}, s.remove(ctx, t)
}

// following ends the chain of a refused entry, and publishes which instants up to end it stops: those after the entry. If a
// successor is or will be there, that gets its own refusal instead. An earlier owner may have decided before and not yet
// written the successor; the claim settles which decision stands. If it is that owner's, it is carried out here; otherwise
// that owner finds that the chain has ended.
func (s *Service) following(
	ctx context.Context, t *task, row job.PendingRow, end time.Time, d job.Disposition, now time.Time,
) (events []job.Event, err error) {
	onTime := t.series.OnTime(t.entry)
	decision, err := s.decided(ctx, row)
	if err != nil {
		return nil, err
	}
	if decision == nil {
		exists, err := s.successorExists(ctx, t, onTime, now)
		if err != nil || exists {
			return nil, err
		}
		if err := s.stillOpen(ctx, t); err != nil {
			return nil, err
		}
		var last job.Decision
		if r, ok := t.series.From(onTime, end); ok {
			last = job.Decision{Skipped: &r, Disposition: d}
		}
		standing, err := s.deps.Hot.Claim(ctx, t.owner, []hotbucket.Claim{claimOf(t, last)})
		if err != nil {
			return nil, err
		}
		if decision = &standing[0]; decision.Skipped != nil {
			// A pause may become a cancel before the entry is done: instants are reported once, in one way.
			if err := s.deps.Pending.Decide(ctx, t.entry.Locator, *decision); err != nil {
				return nil, err
			}
		}
	}
	if decision.Skipped != nil {
		events = append(events, job.SkippedEvent(t.ours(), t.target(), *decision.Skipped, decision.Disposition, now))
	}
	if !decision.Next.IsZero() {
		exists, err := s.successorExists(ctx, t, *decision, now)
		if next, ok := t.series.Successor(t.entry, *decision, now); ok && !exists && err == nil {
			err = s.chainRefused(ctx, t, next)
		}
		return events, err
	}
	return events, nil
}

// chainRefused makes the successor of a refused entry durable and hot. If the entry was settled meanwhile, what was written lies in a bucket
// that may be closed, where nobody reads it: made hot, it would be taken for an entry from which nothing followed yet.
func (s *Service) chainRefused(ctx context.Context, t *task, next job.Entry) error {
	if err := s.deps.Pending.Put(ctx, []job.Entry{next}); err != nil {
		return err
	}
	if err := s.stillOpen(ctx, t); err != nil {
		return err
	}
	return s.addNear(ctx, []job.Entry{next})
}

// errSettled makes the worker take the entry again, and find it settled.
var errSettled = errors.New("the entry was settled meanwhile")

// stillOpen reads an entry's row again. While it is not done, its bucket and its successor's are open, so that a successor which was not found
// before does not exist, and one that was written before is there. Once it is done both may be gone, although the successor was there.
func (s *Service) stillOpen(ctx context.Context, t *task) error {
	_, settled, err := s.row(ctx, t)
	if err == nil && settled {
		return errSettled
	}
	return err
}
