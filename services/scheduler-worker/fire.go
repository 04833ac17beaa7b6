package schedulerworker

import (
	"container/heap"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/libs/wire"
)

// dispatch sends off, in batches, everything that is due, and starts the work aside.
func (sh *shard) dispatch(ctx context.Context) {
	if sh.lapsed() {
		// Another may own these partitions by now. What is still there returns with the next accepted read.
		if sh.dropLapsed() > 0 {
			sh.restartMarks()
			sh.nextRead = sh.s.deps.Clock.Now()
		}
		return
	}
	for c := range classes {
		for sh.firing[c] < maxFiring[c] {
			now := sh.s.deps.Clock.Now()
			batch := sh.due(now, c)
			if len(batch) == 0 {
				break
			}
			fires, late, changes := sh.separate(batch, now)
			sh.launch(ctx, c, changes, func() error { return sh.s.sendChanges(ctx, changes, now) })
			sh.launch(ctx, c, fires, func() error { return sh.s.send(ctx, fires, now) })
			sh.launch(ctx, c, late, func() error { return sh.s.sendLateOneShots(ctx, late, now) })
		}
	}
	for q := range sides {
		sh.workAside(ctx, q)
	}
}

// workAside starts the work aside of a queue.
func (sh *shard) workAside(ctx context.Context, q side) {
	for sh.settingAside[q] < maxAside && len(sh.waiting[q]) > 0 {
		tasks := pull(&sh.waiting[q], 1)
		t := tasks[0]
		if sh.tasks[t.entry.Locator] != t {
			continue
		}
		if sh.stale(t) && !t.rejudged {
			t.rejudged = true // once: a store that is always slow must not keep it for ever
			sh.renew(t)
			continue
		}
		sh.settingAside[q]++
		begin(tasks)
		go func() {
			again, err := t.aside(ctx)
			sh.back <- func() {
				sh.settingAside[q]--
				sh.settled(ctx, tasks, again, err)
			}
		}()
	}
}

// lapsed reports whether another may own one of these partitions by now, because its last accepted read is too old.
func (sh *shard) lapsed() bool {
	return sh.reads.stale(sh.s.deps.Clock.Now(), sh.s.cfg.OwnerTTL)
}

// lapsed reports whether another may own the task's partition by now, because the last accepted read of it is too old.
func (t *task) lapsed(now time.Time, ttl time.Duration) bool {
	return now.Sub(job.Later(t.takenAt, t.from.reads.last(t.owner))) > ttl
}

// stale reports whether an entry was judged by a job row too old to decide about missed runs, because a store was slow: the
// job may have been paused and resumed since.
func (sh *shard) stale(t *task) bool { return sh.s.deps.Clock.Since(t.judgedAt) > sh.s.cfg.OwnerTTL }

// launch dispatches tasks together in a goroutine while the clock goes on.
func (sh *shard) launch(ctx context.Context, c class, tasks []*task, work func() error) {
	if len(tasks) == 0 {
		return
	}
	sh.firing[c]++
	begin(tasks)
	go func() {
		err := work()
		sh.back <- func() {
			sh.firing[c]--
			sh.settled(ctx, tasks, time.Time{}, err)
		}
	}()
}

func begin(tasks []*task) {
	for _, t := range tasks {
		t.busy = true
	}
}

// settled takes tasks back from a goroutine. They are looked at again at an instant, or are done with if that is zero.
func (sh *shard) settled(ctx context.Context, tasks []*task, again time.Time, err error) {
	if later := (errLater{}); errors.As(err, &later) {
		again, err = later.at, nil
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errStopped) && !errors.Is(err, errRefused) {
		sh.s.deps.Logger.Warn("dispatch failed, entries stay in the hot bucket", "entries", len(tasks), "error", err)
	}
	for _, t := range tasks {
		t.busy, t.aside = false, nil
		if t.parked && err == nil {
			sh.reads.returned(t.owner, t.entry.DueAt)
			if sh.reading > 0 { // its answer may not know of it yet
				sh.hint(t.owner.Partition)
			}
			sh.markLater(t)
			sh.again = sh.again || t.regiven
		}
		switch {
		case err == nil && again.IsZero() && t.stays:
			sh.keepPublished(t)
		case err == nil && again.IsZero() || t.dropped && !t.published:
			sh.again = sh.again || t.dropped && !t.published && !t.parked
			sh.forget(t)
		case err == nil:
			sh.wakeAt(t, again)
		default:
			t.waitsForRow = !t.published && !t.bare // its job may have changed meanwhile
			sh.wakeAt(t, sh.s.deps.Clock.Now().Add(sh.s.cfg.HoldRecheck))
		}
	}
}

// setAside runs work on a task while the clock goes on.
func (sh *shard) setAside(t *task, work aside) {
	t.aside = work
	q := seldom
	switch {
	case t.alone():
		q = overlapping
	case t.inLine():
		q = inTurn
	}
	sh.waiting[q] = append(sh.waiting[q], t)
}

// due takes up to a batch of tasks whose time has come from a queue.
func (sh *shard) due(now time.Time, c class) []*task {
	var batch []*task
	queue, bytes := &sh.queue[c], int64(0)
	for len(*queue) > 0 && len(batch) < sh.s.cfg.Batch && !(*queue)[0].at.After(now) {
		bytes += (*queue)[0].bytes()
		if c == heavy && bytes > batchBytes && len(batch) > 0 {
			break
		}
		t := heap.Pop(queue).(*task)
		t.queued = false
		if sh.tasks[t.entry.Locator] == t {
			batch = append(batch, t)
		}
	}
	return batch
}

// separate returns the tasks to fire now, the one_shots that are late, and the changes to publish. Tasks that waited for
// their job row are prepared again, and other late tasks are set aside.
func (sh *shard) separate(batch []*task, now time.Time) (fires, lateOneShots, changes []*task) {
	hold := sh.s.hold.Load()
	for _, t := range batch {
		switch {
		case t.waitsForRow:
			t.waitsForRow = false
			sh.count(t)
			sh.renew(t)
		case t.entry.Change != nil:
			changes = append(changes, t)
		case !t.published && hold.Holds(t.tenant, t.labels):
			sh.setAside(t, func(ctx context.Context) (time.Time, error) { return time.Time{}, sh.s.postpone(ctx, t) })
		case t.alone():
			sh.parkIfCrowded(t, now)
			if t.heldVersion == 0 && t.untold == 0 { // otherwise it came before, and waited for its own stop record
				t.missed = t.late(now)
			}
			sh.setAside(t, func(ctx context.Context) (time.Time, error) {
				return time.Time{}, sh.s.sendAside(ctx, t, sh.s.deps.Clock.Now())
			})
		case t.inLine():
			sh.parkIfCrowded(t, now)
			sh.uncount(t) // it takes no room in its lane while it waits
			sh.setAside(t, func(ctx context.Context) (time.Time, error) { return time.Time{}, sh.s.sendInTurn(ctx, t) })
		case t.late(now) && t.series.Plan == nil:
			lateOneShots = append(lateOneShots, t)
		case t.late(now):
			sh.setAside(t, func(ctx context.Context) (time.Time, error) {
				return time.Time{}, sh.s.sendAside(ctx, t, sh.s.deps.Clock.Now())
			})
		case !t.published && t.ahead && t.entry.DueAt.After(now) && !sh.s.lanes.roomAhead(t.entry.Lane):
			sh.wakeAt(t, t.entry.DueAt)
		default:
			sh.parkIfCrowded(t, now)
			fires = append(fires, t)
		}
	}
	return fires, lateOneShots, changes
}

// parkIfCrowded parks a heavy task whose lane was read before it was known how few of these it takes.
func (sh *shard) parkIfCrowded(t *task, now time.Time) {
	if t.class() != heavy || t.park || t.bare || t.published || !sh.s.lanes.crowded(t.entry.Lane) {
		return
	}
	t.park = true
	if sh.backlog[t.entry.Lane].IsZero() {
		sh.backlog[t.entry.Lane] = now
	}
}

// send carries out step 5 of services/README.md for a batch whose time has come: successors, fires, removal, in this order.
// A crash after any of them leaves the entries in the hot bucket (or, if that is lost, not done in the cold store), so that
// they are dispatched again: the successors have the same keys, the fires the same execution ids.
func (s *Service) send(ctx context.Context, batch []*task, now time.Time) error {
	batch, err := s.clearUp(ctx, batch, now)
	if err != nil {
		return err
	}
	decisions, err := s.claim(ctx, batch)
	if err != nil {
		return err
	}
	onTime := batch[:0:0]
	for _, t := range batch {
		if d, ok := decisions[t]; ok && (!d.Fire || d.Skipped != nil) {
			// The missed-run policy decided about it before, and the decision was not fully carried out.
			if err := s.deps.Pending.Decide(ctx, t.entry.Locator, d); err != nil {
				return err
			}
			if err := s.carryOutLate(ctx, t, d, now); err != nil {
				return err
			}
			continue
		}
		onTime = append(onTime, t)
	}
	return s.carryOut(ctx, onTime, decisions, now)
}

// claim fixes the next instant of every recurring entry in the hot tier, so that a worker that dispatches the entry again
// later chains to the same successor.
func (s *Service) claim(ctx context.Context, tasks []*task) (map[*task]job.Decision, error) {
	byOwner := map[coord.Owner][]*task{}
	for _, t := range tasks {
		if !t.published && t.series.Plan != nil && !t.bare && t.entry.FirstOfSchedule() && !t.entry.Chained {
			byOwner[t.owner] = append(byOwner[t.owner], t)
		}
	}
	owners := slices.SortedFunc(maps.Keys(byOwner), byPartition)
	standing := make([][]job.Decision, len(owners))
	err := run.Each(len(owners), hotbucket.AtOnce, func(i int) (err error) {
		tasks := byOwner[owners[i]]
		claims := make([]hotbucket.Claim, len(tasks))
		for i, t := range tasks {
			claims[i] = claimOf(t, t.series.OnTime(t.entry))
		}
		standing[i], err = s.deps.Hot.Claim(ctx, owners[i], claims)
		return err
	})
	if err != nil {
		return nil, err
	}
	decisions := map[*task]job.Decision{}
	for i, owner := range owners {
		for j, t := range byOwner[owner] {
			decisions[t] = standing[i][j]
		}
	}
	return decisions, nil
}

func claimOf(t *task, d job.Decision) hotbucket.Claim {
	return hotbucket.Claim{ExecutionID: t.entry.ExecutionID, DefinitionID: t.entry.DefinitionID, Decision: d}
}

func (s *Service) carryOut(
	ctx context.Context, tasks []*task, decisions map[*task]job.Decision, now time.Time,
) error {
	var successors []job.Entry
	var soon []*task
	for _, t := range tasks {
		d, decided := decisions[t]
		if !decided {
			continue
		}
		if next, ok := t.series.Successor(t.entry, d, job.Instant(now)); ok {
			successors = append(successors, next)
			if next.DueAt.Before(now.Add(hotbucket.HintWithin)) {
				soon = append(soon, t)
			}
		}
	}
	if err := s.chain(ctx, successors, now); err != nil {
		return err
	}
	for _, t := range soon { // a lost hint must not make a schedule of every second miss an instant
		t.from.hint(t.owner.Partition)
	}
	var parking, publishing []*task
	for _, t := range tasks {
		if t.park {
			parking = append(parking, t)
		} else {
			publishing = append(publishing, t)
		}
	}
	if err := s.publish(ctx, publishing); err != nil {
		return err
	}
	return s.parkUntilRoom(ctx, parking, decisions, now)
}

// errLapsed: the partition may have another owner by now.
type errLapsed struct{}

func (errLapsed) Error() string { return "no read was accepted for too long; the entry is taken again" }

// publish hands fires to the log and then takes the entries that are due out of the hot buckets. An entry whose fire is ahead of its
// instant stays there until that is over: a loader that takes the partition over meanwhile would otherwise add it again. A crash
// in between leaves it to the next owner, which publishes it again; executors recognise the second fire. The steps before may have taken long, so
// it checks once more whether the partition may have another owner (I3). If it stalls after that, every fire has the same
// execution id as the new owner's.
func (s *Service) publish(ctx context.Context, tasks []*task) error {
	if len(tasks) == 0 {
		return nil
	}
	var records []dispatch.Message
	var spans []oteltrace.Span
	var fresh []*task
	now := s.deps.Clock.Now()
	for _, t := range tasks {
		if t.published {
			continue
		}
		if t.lapsed(now, s.cfg.OwnerTTL) {
			return errLapsed{}
		}
		fresh = append(fresh, t)
		fire := t.fire(job.Instant(now))
		if trace.On() {
			spans = append(spans, traced(ctx, fire))
		}
		records = append(records, wire.FireMessage(fire))
	}
	err := s.deps.Log.Publish(ctx, dispatch.TopicFires, records)
	for _, span := range spans {
		span.End()
	}
	if err != nil {
		return err
	}
	s.metrics.dispatched.Add(float64(len(records)))
	s.lanes.published(fresh)
	durable := s.deps.Clock.Now()
	entries := make([]*job.Entry, 0, len(tasks))
	for _, t := range tasks {
		if !t.published && t.entry.FirstOfSchedule() && !t.waited {
			s.metrics.behind.Observe(max(durable.Sub(t.entry.DueAt), 0).Seconds())
		}
		t.published = true
		if t.stays = t.entry.DueAt.After(durable); !t.stays {
			entries = append(entries, t.entry)
		}
	}
	return s.deps.Hot.Remove(ctx, entries)
}

// errLateWrite: the successors were written so late that their bucket may have closed.
type errLateWrite struct{}

func (errLateWrite) Error() string { return "a write came back too late; the entry is taken again" }

// chain makes successors durable and hot. They are hot before the parent's fire is published, so a schedule of every second
// keeps its pace.
func (s *Service) chain(ctx context.Context, successors []job.Entry, began time.Time) error {
	if len(successors) == 0 {
		return nil
	}
	if err := s.deps.Pending.Put(ctx, successors); err != nil {
		return err
	}
	if s.deps.Clock.Since(began) > s.cfg.LateWrite {
		return errLateWrite{}
	}
	return s.addNear(ctx, successors)
}

// addNear makes successors hot that are durable.
func (s *Service) addNear(ctx context.Context, successors []job.Entry) error {
	err := hotbucket.AddNear(ctx, s.deps.Hot, successors)
	if errors.Is(err, hotbucket.ErrFull) {
		// They are durable; the loader's sweeps bring them to the hot bucket once there is room.
		s.deps.Logger.Warn("cannot add successors to the hot bucket", "entries", len(successors), "error", err)
		return nil
	}
	return err // the parents are taken again: otherwise a schedule of every second would stand still until the closing sweep
}

// traced begins the span of a fire's dispatch, and makes it the fire's parent.
func traced(ctx context.Context, f *job.Fire) oteltrace.Span {
	parent := f.Trace
	if parent == "" {
		parent = trace.OfExecution(f.ExecutionID)
	}
	ctx, span := trace.Start(ctx, "dispatch", parent, oteltrace.SpanKindProducer, attribute.String("minutehand.execution_id", f.ExecutionID),
		attribute.String("minutehand.tenant", f.Tenant.String()),
		attribute.Int("minutehand.attempt", f.Attempt))
	f.Trace = trace.Of(ctx)
	return span
}

func (s *Service) publishEvents(ctx context.Context, events []job.Event) error {
	records := make([]dispatch.Message, len(events))
	for i := range events {
		records[i] = wire.EventMessage(&events[i])
	}
	return s.deps.Log.Publish(ctx, dispatch.TopicEvents, records)
}
