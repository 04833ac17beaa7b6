package schedulerworker

import (
	"container/heap"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// shard is one loop over a share of the owned partitions. Only the loop touches the shard's state, and it does nothing but
// keep the time. Everything that waits for a store or the log runs in goroutines, which send back what the loop must do
// about the result.
type shard struct {
	s      *Service
	wakeup chan struct{}
	// back has room for everything in flight; a batch may be launched in three parts.
	back              chan func()
	reading           int
	settingAside      [sides]int
	preparing, firing [classes]int
	marking           bool
	// room is told when the worker's budget has room again.
	room chan struct{}

	mu       sync.Mutex
	owners   []coord.Owner
	newOwned bool
	hints    map[int]bool // partitions

	tasks map[job.Locator]*task
	queue [classes]taskQueue
	// fresh holds the tasks to prepare, waiting those to work on aside; oldest first.
	fresh   [classes][]*task
	waiting [sides][]*task
	// forgotten holds the entries forgotten since the current read began: it may bring them once more.
	forgotten map[job.Locator]bool
	nextRead  time.Time
	// lastRead is when the last read began.
	lastRead time.Time
	// reads is what the shard knows of its partitions from the reads that the store accepted.
	reads reads
	// hinted is set to read soon: the partitions in hints, and those that have something of a lane that has room again.
	hinted bool
	// again is set to ask once more for what was given before, because an answer was lost or something was dropped.
	again bool
	// backlog holds the lanes in which more is due than there is room for, and since when.
	backlog map[uint32]time.Time
	// heldBack is how many of these are counted in the metrics.
	heldBack int
	// empty counts, for each of them, the reads of some of its partitions that left nothing that is due.
	empty map[uint32]int
	// turn counts the whole reads, so that lanes with little room are read in different partitions each time.
	turn int
	// backlogAt is when those lanes are looked at next, if that is later than usual.
	backlogAt time.Time
	// marks holds parked entries, and when each is marked on its row; markQueue orders them by that instant.
	marks     map[job.Locator]time.Time
	markQueue markQueue
	nextMark  time.Time
}

func newShard(s *Service) *shard {
	return &shard{
		s: s, hints: map[int]bool{}, wakeup: make(chan struct{}, 1), back: make(chan func(), 1+allPreparing+allFiring+2*len(maxFiring)+int(sides)*maxAside+1),
		room: make(chan struct{}, 1), tasks: map[job.Locator]*task{}, forgotten: map[job.Locator]bool{},
		backlog: map[uint32]time.Time{}, empty: map[uint32]int{}, marks: map[job.Locator]time.Time{}, again: true,
	}
}

// own replaces what the shard owns.
func (sh *shard) own(owners []coord.Owner) {
	sh.mu.Lock()
	sh.owners, sh.newOwned = owners, true
	sh.mu.Unlock()
	sh.nudge()
}

func (sh *shard) nudge() {
	select {
	case sh.wakeup <- struct{}{}:
	default:
	}
}

func (sh *shard) owned() []coord.Owner {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.newOwned {
		sh.newOwned = false
		sh.drop()
		// Nothing is known of what waits in partitions that another owned until now.
		clear(sh.backlog)
		sh.countHeldBack(sh.s.deps.Clock.Now())
		clear(sh.empty)
		sh.reads.own(sh.owners)
		mine := map[int]bool{}
		for _, o := range sh.owners {
			mine[o.Partition] = true
		}
		maps.DeleteFunc(sh.marks, func(l job.Locator, _ time.Time) bool { return !mine[l.Partition] })
	}
	return sh.owners
}

func (sh *shard) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			for sh.reading+sh.preparing[light]+sh.preparing[heavy]+sh.firing[light]+sh.firing[heavy]+sh.settingAside[seldom]+sh.settingAside[overlapping]+sh.settingAside[inTurn] > 0 || sh.marking {
				(<-sh.back)()
			}
			return
		case <-sh.wakeup:
			sh.hinted = true
		case then := <-sh.back:
			then()
		case <-sh.room:
		case <-timer.C:
			sh.hinted = sh.hinted || sh.backlogOpen()
		}
		sh.dispatch(ctx)
		if !sh.s.deps.Clock.Now().Before(sh.readAt()) {
			sh.read(ctx)
		}
		sh.prepare(ctx)
		sh.markDue(ctx)
		timer.Reset(sh.pause())
	}
}

// restrictedPoll is the pause between two reads while a lane is read only up to now.
const restrictedPoll = 200 * time.Millisecond

// backlogEvery is the pause between two checks whether a lane with a backlog has room again. fruitlessPause is the pause
// after a read that returned nothing from such a lane.
const (
	backlogEvery   = 25 * time.Millisecond
	fruitlessPause = 100 * time.Millisecond
)

// readAt returns when the hot buckets are read next.
func (sh *shard) readAt() time.Time {
	if sh.hinted {
		return sh.lastRead.Add(sh.s.cfg.ReadGap)
	}
	return sh.nextRead
}

// pause returns the time until the next thing to do. Work in flight comes back by itself.
func (sh *shard) pause() time.Duration {
	now := sh.s.deps.Clock.Now()
	next := now.Add(sh.s.cfg.PollInterval)
	if sh.reading == 0 {
		next = sh.readAt()
	}
	if at := job.Later(now.Add(backlogEvery), sh.backlogAt); len(sh.backlog) > 0 && next.After(at) {
		next = at
	}
	for c, queue := range sh.queue {
		if len(queue) > 0 && sh.firing[c] < maxFiring[c] && !sh.lapsed() && queue[0].at.Before(next) {
			next = queue[0].at
		}
	}
	return max(sh.s.deps.Clock.Until(next), 0)
}

// read takes the entries due before now + lookahead, of the partitions that have some.
func (sh *shard) read(ctx context.Context) {
	if sh.reading > 0 {
		return
	}
	owners := sh.owned()
	began := sh.s.deps.Clock.Now()
	regular := !began.Before(sh.nextRead)
	sh.lastRead, sh.hinted = began, false
	if regular {
		sh.nextRead = sh.s.tick(began, sh.s.cfg.PollInterval).Add(sh.s.cfg.PollInterval)
	}
	owners, quiet, whole := sh.worthReading(owners, began, regular)
	if whole {
		sh.turn++
	}
	ask := sh.ask(began, max(len(owners), 1))
	ask.Quiet = quiet
	if len(owners) == 0 { // nothing is due
		sh.followBacklog(nil, began, &ask, whole)
		return
	}
	if !regular && !sh.again {
		if owners = sh.inTurn(owners, &ask); len(owners) == 0 {
			sh.hinted = true // others are in the next turn
			return
		}
	}
	sh.unhint(owners)
	sh.reading++
	sh.again = false
	clear(sh.forgotten)
	sh.s.hot.Begin(began)
	go func() {
		given, next, err := sh.s.deps.Hot.Due(ctx, owners, ask)
		stale := errors.Is(err, hotbucket.ErrStaleEpoch)
		if err == nil || stale {
			sh.s.hot.Done()
		}
		var lost []coord.Owner
		if stale {
			lost = sh.s.reclaim(ctx, owners)
		}
		sh.back <- func() {
			sh.reading--
			if err == nil {
				sh.reads.accept(owners, began, next)
				sh.take(given, owners, began, &ask, whole)
				return
			}
			sh.again = true // what the answer held is set aside
			sh.restartMarks()
			if sh.lapsed() {
				sh.dropLapsed()
			} else if stale {
				sh.drop()
			}
			sh.giveUp(lost)
			if ctx.Err() == nil {
				sh.s.deps.Logger.Warn("cannot read hot buckets", "error", err)
			}
		}
	}()
}

// ask returns what to read: ahead of the clock; only what is due now, if the shard holds as much as it may; nothing, if it
// holds twice as much.
func (sh *shard) ask(now time.Time, owners int) (ask hotbucket.Ask) {
	until := now.Add(sh.s.cfg.Lookahead)
	switch {
	case len(sh.tasks) >= 2*sh.s.cfg.MaxTasks:
		return ask // nothing, but an accepted read keeps what was taken
	case len(sh.tasks) >= sh.s.cfg.MaxTasks:
		until = now
	}
	sh.countHeldBack(now)
	ask = sh.s.lanes.ask(question{
		shards: sh.s.cfg.Shards, partitions: owners, turn: sh.turn, now: now, until: until, poll: sh.s.cfg.PollInterval, backlog: sh.backlog,
	})
	ask.Again = sh.again
	for lane, of := range ask.Lanes {
		if of.Attended && sh.backlog[lane].IsZero() {
			sh.backlog[lane] = now
		}
		if at := now.Add(restrictedPoll); !of.Until.After(now) && at.Before(sh.nextRead) { // what is due next in it is not read ahead
			sh.nextRead = at
		}
	}
	return ask
}

// reclaim handles a hot tier that refuses an epoch. Either the hot tier has forgotten the epoch, and is given it again, or
// it has seen a greater one, and the partition has another owner, which is lost.
func (s *Service) reclaim(ctx context.Context, owners []coord.Owner) (lost []coord.Owner) {
	refused := make([]bool, len(owners))
	_ = run.Each(len(owners), reclaimAtOnce, func(i int) error {
		refused[i] = errors.Is(s.deps.Hot.SetEpoch(ctx, owners[i]), hotbucket.ErrStaleEpoch)
		return nil // the next read shows what could not be asked
	})
	for i, o := range owners {
		if refused[i] {
			lost = append(lost, o)
		}
	}
	return lost
}

// reclaimAtOnce is how many partitions are claimed side by side.
const reclaimAtOnce = 16

// giveUp gives up partitions that have another owner, unless there is a new assignment.
func (sh *shard) giveUp(lost []coord.Owner) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.newOwned && len(lost) > 0 {
		sh.owners = slices.DeleteFunc(slices.Clone(sh.owners), func(o coord.Owner) bool { return slices.Contains(lost, o) })
		sh.reads.own(sh.owners)
	}
}

// take keeps the entries that a read returned, unless they are here already.
func (sh *shard) take(given []hotbucket.Given, owners []coord.Owner, began time.Time, ask *hotbucket.Ask, whole bool) {
	byPartition := make(map[int]coord.Owner, len(owners))
	for _, o := range owners {
		byPartition[o.Partition] = o
	}
	got := map[int]map[uint32]brought{} // by partition and lane
	for _, g := range given {
		if got[g.Partition] == nil {
			got[g.Partition] = map[uint32]brought{}
		}
		b := got[g.Partition][g.Lane]
		got[g.Partition][g.Lane] = brought{b.n + 1, job.Later(b.last, g.DueAt)}
		if t := sh.tasks[g.Locator]; t != nil {
			t.regiven = t.regiven || g.Parked
			continue
		} else if sh.forgotten[g.Locator] {
			continue
		}
		t := &task{
			entry: g.Entry, from: sh, owner: byPartition[g.Partition], takenAt: began, at: g.DueAt, waitsSince: sh.backlog[g.Lane],
			park: ask.Of(g.Partition, g.Lane).Attended, markNow: len(sh.marks) >= maxMarks,
		}
		t.bare = g.Parked && began.Sub(g.DueAt) < parkedFor
		sh.keep(t)
		if t.class() == heavy && t.at.Sub(began) > heavyAhead {
			t.waitsForRow = true
			sh.wakeAt(t, t.at.Add(-heavyAhead))
			continue
		}
		sh.renew(t)
	}
	sh.followBacklog(got, began, ask, whole)
}

// drop forgets all tasks, except those that only wait to be removed: publishing them again would be a duplicate that no
// crash excuses. A task that a goroutine works on is forgotten when it comes back.
func (sh *shard) drop() (dropped int) {
	for l, t := range sh.tasks {
		switch {
		case t.busy:
			t.dropped = true
		case !t.published:
			delete(sh.tasks, l) // and its place in the queue is skipped
			t.series = nil
			sh.uncount(t)
			sh.s.budget.release(t)
			dropped++
		}
	}
	sh.fresh, sh.waiting = [classes][]*task{}, [sides][]*task{}
	sh.s.metrics.readAhead.Sub(float64(dropped))
	if dropped > 0 {
		sh.again = true
	}
	return dropped
}

// dropLapsed drops what the shard holds because its last accepted read is too old.
func (sh *shard) dropLapsed() (dropped int) {
	if dropped = sh.drop(); dropped > 0 {
		sh.s.metrics.abandoned.Inc()
	}
	return dropped
}

// keep remembers a task.
func (sh *shard) keep(t *task) {
	if _, ok := sh.tasks[t.entry.Locator]; !ok {
		sh.s.metrics.readAhead.Inc()
		sh.count(t)
	}
	sh.tasks[t.entry.Locator] = t
}

// count makes a task take up room in its lane; uncount gives the room back.
func (sh *shard) count(t *task) {
	if !t.counted && !t.published {
		t.counted = true
		sh.s.lanes.add(t.entry.Lane, 1)
	}
}

func (sh *shard) uncount(t *task) {
	if t.counted {
		t.counted = false
		sh.s.lanes.add(t.entry.Lane, -1)
	}
}

// renew drops what a task's job row said, so that the row is read again.
func (sh *shard) renew(t *task) {
	t.series, t.labels, t.fresh = nil, nil, false
	sh.s.budget.release(t)
	sh.fresh[t.class()] = append(sh.fresh[t.class()], t)
}

// pull takes at most n tasks from the front of a list and removes them from it.
func pull(list *[]*task, n int) []*task {
	n = min(n, len(*list))
	tasks := slices.Clone((*list)[:n])
	clear((*list)[:n])
	*list = (*list)[n:]
	return tasks
}

// wakeAt keeps a task until an instant, and then looks at it again.
func (sh *shard) wakeAt(t *task, at time.Time) {
	sh.keep(t)
	t.at = at
	if t.queued {
		heap.Init(&sh.queue[t.class()])
		return
	}
	t.queued = true
	heap.Push(&sh.queue[t.class()], t)
}

func (sh *shard) forget(t *task) {
	if _, ok := sh.tasks[t.entry.Locator]; ok {
		sh.s.metrics.readAhead.Dec()
		delete(sh.tasks, t.entry.Locator)
		sh.uncount(t)
	}
	sh.s.budget.release(t)
	if !t.parked {
		delete(sh.marks, t.entry.Locator)
	}
	if sh.reading > 0 && !t.parked { // a parked entry may be given as parked right now
		sh.forgotten[t.entry.Locator] = true
	}
}
