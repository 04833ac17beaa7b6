package worker

import (
	"container/heap"
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// dispatch sends off everything that is due, in batches.
func (sh *shard) dispatch(ctx context.Context) {
	for {
		now := time.Now()
		batch := sh.due(now)
		if len(batch) == 0 {
			return
		}
		if now.Sub(sh.lastAccepted) > sh.s.cfg.OwnerTTL {
			// Another may own these partitions by now. What is still there comes again with the next accepted read.
			sh.drop()
			sh.nextRead = now
			return
		}
		if err := sh.send(ctx, batch, now); err != nil {
			if ctx.Err() == nil {
				sh.s.deps.Logger.Warn("dispatch failed, entries stay in the hot bucket", "entries", len(batch), "error", err)
			}
			for _, t := range batch {
				if _, ok := sh.held[t.entry.Locator]; ok {
					sh.hold(t, now.Add(sh.s.cfg.HoldRecheck))
				}
			}
			return
		}
	}
}

// due takes up to a batch of tasks from the queue whose time has come.
func (sh *shard) due(now time.Time) []*task {
	var batch []*task
	for len(sh.queue) > 0 && len(batch) < sh.s.cfg.Batch && !sh.queue[0].at.After(now) {
		t := heap.Pop(&sh.queue).(*task)
		t.queued = false
		if sh.held[t.entry.Locator] == t {
			batch = append(batch, t)
		}
	}
	return batch
}

// send carries out step 5 for a batch whose time has come: successors, fires, removal, in this order. A crash behind
// any of them leaves the entries in the hot bucket (or, when that is lost, not done in the cold store), so that they
// are dispatched again: the successors have the same keys, the fires the same execution ids.
func (sh *shard) send(ctx context.Context, batch []*task, now time.Time) error {
	var fires []*task
	var held, late []*task
	for _, t := range batch {
		switch {
		case t.heldBack:
			t.heldBack = false
			held = append(held, t)
		case !t.published && !t.bare && t.entry.Late(now, t.line.Def.CatchUpWindow):
			late = append(late, t)
		default:
			fires = append(fires, t)
		}
	}
	if len(held) > 0 {
		sh.prepare(ctx, held)
	}
	for _, t := range late {
		if err := sh.sendLate(ctx, t, now); err != nil {
			return err
		}
	}
	decisions, err := sh.claim(ctx, fires)
	if err != nil {
		return err
	}
	return sh.carryOut(ctx, fires, decisions, now)
}

// claim fixes the next instant of every recurring entry in the hot tier, so that whoever dispatches it again later
// chains to the same successor.
func (sh *shard) claim(ctx context.Context, tasks []*task) (map[*task]job.Decision, error) {
	byOwner := map[hotbucket.Owner][]*task{}
	for _, t := range tasks {
		if t.line.Plan != nil && !t.bare && !t.published && t.entry.FirstOfSchedule() && !t.entry.Chained {
			byOwner[t.owner] = append(byOwner[t.owner], t)
		}
	}
	decisions := map[*task]job.Decision{}
	for owner, tasks := range byOwner {
		claims := make([]hotbucket.Claim, len(tasks))
		for i, t := range tasks {
			claims[i] = hotbucket.Claim{ExecutionID: t.entry.ExecutionID, Decision: t.line.OnTime(&t.entry)}
		}
		standing, err := sh.s.deps.Hot.Claim(ctx, owner, claims)
		if err != nil {
			return nil, err
		}
		for i, t := range tasks {
			decisions[t] = standing[i]
		}
	}
	return decisions, nil
}

func (sh *shard) carryOut(
	ctx context.Context, tasks []*task, decisions map[*task]job.Decision, now time.Time,
) error {
	var successors []job.Entry
	for t, d := range decisions {
		if next, ok := t.line.Successor(&t.entry, d, job.Instant(now)); ok {
			successors = append(successors, next)
		}
	}
	if err := sh.chain(ctx, successors, now); err != nil {
		return err
	}
	var records []dispatch.Record
	for _, t := range tasks {
		if !t.published {
			records = append(records, dispatch.Record{Key: t.entry.JobID, Value: wire.MarshalFire(t.fire())})
		}
	}
	if err := sh.s.deps.Log.Publish(ctx, dispatch.TopicFires, records); err != nil {
		return err
	}
	sh.s.metrics.dispatched.Add(float64(len(records)))
	durable := time.Now()
	locators := make([]job.Locator, len(tasks))
	for i, t := range tasks {
		if !t.published && t.entry.FirstOfSchedule() {
			sh.s.metrics.behind.Observe(durable.Sub(t.entry.DueAt).Seconds())
		}
		t.published = true
		locators[i] = t.entry.Locator
	}
	if err := sh.s.deps.Hot.Remove(ctx, locators); err != nil {
		return err
	}
	for _, t := range tasks {
		sh.forget(t)
	}
	return nil
}

// errLateWrite: the successors were written so late that their bucket may have closed.
type errLateWrite struct{}

func (errLateWrite) Error() string { return "a write came back too late; the entry is taken again" }

// chain makes successors durable and hot. They are hot before the parent's fire is published, so a schedule of every
// second keeps its pace.
func (sh *shard) chain(ctx context.Context, successors []job.Entry, began time.Time) error {
	if len(successors) == 0 {
		return nil
	}
	if err := sh.s.deps.Pending.Put(ctx, successors); err != nil {
		return err
	}
	if time.Since(began) > sh.s.cfg.LateWrite {
		return errLateWrite{}
	}
	var near []job.Entry
	for _, e := range successors {
		horizon, err := sh.s.deps.Hot.Horizon(ctx, e.Partition)
		if err != nil {
			return err
		}
		if e.DueAt.Before(horizon) {
			near = append(near, e)
		}
	}
	if err := sh.s.deps.Hot.Add(ctx, near); err != nil {
		// It is durable; the loader's sweeps bring it to the hot bucket.
		sh.s.deps.Logger.Warn("cannot add successors to the hot bucket", "entries", len(near), "error", err)
	}
	return nil
}

// fire is the message for the task's attempt.
func (t *task) fire() *job.Fire {
	return &job.Fire{
		Entry: t.entry, TenantID: t.tenantID, Target: t.line.Def.Target, Retry: t.line.Def.Retry,
		Incarnation: t.incarnation, Epoch: t.owner.Epoch, TakenAt: job.Instant(t.takenAt),
		PublishedAt: job.Instant(time.Now()),
	}
}

func (sh *shard) publishEvents(ctx context.Context, events []job.Event) error {
	records := make([]dispatch.Record, len(events))
	for i := range events {
		records[i] = dispatch.Record{Key: events[i].Entry.JobID, Value: wire.MarshalEvent(&events[i])}
	}
	return sh.s.deps.Log.Publish(ctx, dispatch.TopicEvents, records)
}
