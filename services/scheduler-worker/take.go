package worker

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
)

// task is an entry that a shard holds: read, prepared, and waiting for its instant.
type task struct {
	entry    *job.Entry // shared with the hot tier, never changed
	owner    hotbucket.Owner
	line     *occurrence.Line
	tenantID string
	labels   map[string]string
	// incarnation of the hot tier, read before the job row was.
	incarnation string
	takenAt     time.Time
	// judgedAt is when the read of the job row began by which the entry was judged.
	judgedAt time.Time
	// rejudged: it was judged once more because that was too long ago.
	rejudged bool
	// at is when the task is looked at next: its due instant, or the next recheck while it is held back.
	at time.Time
	// queued: it stands in the shard's queue, once.
	queued bool
	// heldBack: the job row is on its way.
	heldBack bool
	// published: the fire is durable, only the removal from the hot bucket is missing.
	published bool
	// bare: publish the fire alone, without chain or policy; it was dispatched before.
	bare bool
	// aside is what is to be done with the task instead of firing it.
	aside aside
	// waitsSince is since when its lane has had less room than entries; zero if it had room.
	waitsSince time.Time
	// sameSince is when the hot tier's present incarnation was first seen. What waited before that may be another's by now.
	sameSince time.Time
	// fresh: its row was read, or it was parked; it was not dispatched before it was taken.
	fresh bool
	// park: its lane has no room, so it is attended to and parked instead of published; parked: it was.
	park, parked bool
	// markAt is when a parked entry is marked on its row, zero for never; markNow: at once, there are too many to remember.
	markAt  time.Time
	markNow bool
	// busy: a goroutine works on the task, the loop leaves it alone. dropped: it was to be forgotten meanwhile.
	busy, dropped bool
}

// aside is work on a task instead of firing it. It gives the instant at which the task is to be looked at again; the
// zero time means that nothing is left to do.
type aside func(ctx context.Context) (again time.Time, err error)

// Bounds of what a shard has under way at once, beside one read.
const (
	maxPreparing = 2
	maxFiring    = 8
	maxAside     = 64
)

// shard is one loop over a share of the owned partitions. The loop alone touches the shard's state, and only keeps the
// time: whatever waits for a store or the log happens in goroutines, which send back what is to be done about it.
type shard struct {
	s      *Service
	wakeup chan struct{}
	// back has room for everything that is under way; a batch may be launched in two parts.
	back                                     chan func()
	reading, preparing, firing, settingAside int
	marking                                  bool

	mu       sync.Mutex
	owners   []hotbucket.Owner
	newOwned bool

	held  map[job.Locator]*task
	queue taskQueue
	// fresh are to be prepared, waiting are to be worked on aside; oldest first.
	fresh, waiting []*task
	// forgotten are those that were forgotten since the present read began: it may bring them once more.
	forgotten map[job.Locator]bool
	nextRead  time.Time
	// lastRead is when the last read began, lastAccepted when the last one that the store accepted did.
	lastRead, lastAccepted time.Time
	hinted                 bool
	// again: what was given before is asked for again, because an answer was lost or something was dropped.
	again bool
	// incarnations are those of the owned partitions, and since when.
	incarnations map[int]incarnation
	// backlog are the lanes of which more is due than there is room for, and since when.
	backlog map[uint32]time.Time
	// empty counts, for each of them, the reads of some of its partitions that brought nothing.
	empty map[uint32]int
	// marks are parked entries, and when each is marked on its row.
	marks    map[job.Locator]time.Time
	nextMark time.Time
}

func newShard(s *Service) *shard {
	return &shard{
		s: s, wakeup: make(chan struct{}, 1), back: make(chan func(), 1+maxPreparing+maxFiring+1+maxAside+1),
		held: map[job.Locator]*task{}, forgotten: map[job.Locator]bool{},
		incarnations: map[int]incarnation{}, backlog: map[uint32]time.Time{}, empty: map[uint32]int{}, marks: map[job.Locator]time.Time{}, again: true,
	}
}

// own replaces what the shard owns.
func (sh *shard) own(owners []hotbucket.Owner) {
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

func (sh *shard) owned() []hotbucket.Owner {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.newOwned {
		sh.newOwned = false
		sh.drop()
		// Of what waits in partitions that another owned until now, nothing is known.
		clear(sh.backlog)
		clear(sh.empty)
		clear(sh.incarnations)
		clear(sh.marks)
	}
	return sh.owners
}

func (sh *shard) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			for sh.reading+sh.preparing+sh.firing+sh.settingAside > 0 || sh.marking {
				(<-sh.back)()
			}
			return
		case <-sh.wakeup:
			sh.hinted = true
		case then := <-sh.back:
			then()
		case <-timer.C:
			sh.hinted = sh.hinted || len(sh.backlog) > 0 && sh.s.lanes.open(sh.backlog)
		}
		sh.dispatch(ctx)
		if !sh.s.deps.Clock.Now().Before(sh.readAt()) {
			sh.read(ctx)
		}
		sh.prepare(ctx)
		sh.mark(ctx)
		timer.Reset(sh.pause())
	}
}

// restrictedPoll is the pause between two reads while a lane is read only up to now.
const restrictedPoll = 200 * time.Millisecond

// backlogEvery is the pause between two looks whether a lane with a backlog has room again.
const backlogEvery = 25 * time.Millisecond

// readAt is when the hot buckets are read next.
func (sh *shard) readAt() time.Time {
	if sh.hinted {
		return sh.lastRead.Add(sh.s.cfg.ReadGap)
	}
	return sh.nextRead
}

// pause is the time until the next thing to do. What is under way comes back by itself.
func (sh *shard) pause() time.Duration {
	now := sh.s.deps.Clock.Now()
	next := now.Add(sh.s.cfg.PollInterval)
	if sh.reading == 0 {
		next = sh.readAt()
	}
	if len(sh.backlog) > 0 && next.After(now.Add(backlogEvery)) {
		next = now.Add(backlogEvery)
	}
	if len(sh.queue) > 0 && sh.firing < maxFiring && !sh.lapsed() && sh.queue[0].at.Before(next) {
		next = sh.queue[0].at
	}
	return max(sh.s.deps.Clock.Until(next), 0)
}

// read takes what is due before now + lookahead.
func (sh *shard) read(ctx context.Context) {
	if sh.reading > 0 {
		return
	}
	owners := sh.owned()
	began := sh.s.deps.Clock.Now()
	sh.lastRead, sh.nextRead, sh.hinted = began, began.Add(sh.s.cfg.PollInterval), false
	if len(owners) == 0 {
		return
	}
	ask, ok := sh.ask(began, len(owners))
	if !ok {
		return
	}
	sh.reading++
	sh.again = false
	clear(sh.forgotten)
	go func() {
		given, err := sh.s.deps.Hot.Due(ctx, owners, ask)
		stale := errors.Is(err, hotbucket.ErrStaleEpoch)
		if stale {
			owners = sh.s.reclaim(ctx, owners)
		}
		sh.back <- func() {
			sh.reading--
			if err == nil {
				sh.take(given, owners, began, &ask)
				return
			}
			sh.again = true // what the answer held is set aside
			if stale || sh.lapsed() {
				sh.drop()
			}
			if stale {
				sh.keepOwned(owners)
			}
			if ctx.Err() == nil {
				sh.s.deps.Logger.Warn("cannot read hot buckets", "error", err)
			}
		}
	}()
}

// ask is what is read: ahead of the clock, or, where a shard holds as much as it may, what is due now; nothing when it holds
// twice as much.
func (sh *shard) ask(now time.Time, owners int) (ask hotbucket.Ask, ok bool) {
	until := now.Add(sh.s.cfg.Lookahead)
	switch {
	case len(sh.held) >= 2*sh.s.cfg.MaxHeld:
		return ask, false
	case len(sh.held) >= sh.s.cfg.MaxHeld:
		until = now
	}
	ask = sh.s.lanes.ask(sh.s.cfg.Shards, owners, now, until, sh.backlog)
	ask.Again = sh.again
	for lane, of := range ask.Lanes {
		if of.Attended && sh.backlog[lane].IsZero() {
			sh.backlog[lane] = now
		}
		if of.Until.Before(until) { // what is due next in it is not read ahead
			sh.nextRead = now.Add(min(restrictedPoll, sh.s.cfg.PollInterval))
		}
	}
	return ask, true
}

// reclaim is for a hot tier that refuses an epoch: it has forgotten it, and gets it again, or it has seen a greater one,
// and the partition is another's.
func (s *Service) reclaim(ctx context.Context, owners []hotbucket.Owner) (kept []hotbucket.Owner) {
	for _, o := range owners {
		if err := s.deps.Hot.SetEpoch(ctx, o); !errors.Is(err, hotbucket.ErrStaleEpoch) {
			kept = append(kept, o)
		}
	}
	return kept
}

// keepOwned gives up what reclaim did not get, unless there is a new assignment.
func (sh *shard) keepOwned(owners []hotbucket.Owner) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.newOwned {
		sh.owners = owners
	}
}

// take keeps what a read brought and is not held already.
func (sh *shard) take(given []hotbucket.Given, owners []hotbucket.Owner, began time.Time, ask *hotbucket.Ask) {
	sh.lastAccepted = began
	byPartition := make(map[int]hotbucket.Owner, len(owners))
	for _, o := range owners {
		byPartition[o.Partition] = o
	}
	got := map[int]map[uint32]int{} // by partition and lane
	for _, g := range given {
		if got[g.Partition] == nil {
			got[g.Partition] = map[uint32]int{}
		}
		got[g.Partition][g.Lane]++
		if _, ok := sh.held[g.Locator]; ok || sh.forgotten[g.Locator] {
			continue
		}
		t := &task{
			entry: g.Entry, owner: byPartition[g.Partition], takenAt: began, at: g.DueAt, waitsSince: sh.backlog[g.Lane],
			park: ask.Of(g.Partition, g.Lane).Attended, markNow: len(sh.marks) >= maxMarks,
		}
		t.bare = g.Parked && began.Sub(g.DueAt) < parkedFor
		t.fresh = t.bare
		delete(sh.marks, g.Locator)
		sh.keep(t)
		sh.fresh = append(sh.fresh, t)
	}
	sh.followBacklog(got, began, ask)
}

// followBacklog notes of which lanes more is due than was read, and of which no more. Such a lane is read again as soon as it
// has room.
func (sh *shard) followBacklog(got map[int]map[uint32]int, began time.Time, ask *hotbucket.Ask) {
	more := map[uint32]bool{}
	for partition, lanes := range got {
		all := 0
		for _, n := range lanes {
			all += n
		}
		for lane, n := range lanes {
			of := ask.Of(partition, lane)
			// A read that was full may have left out any lane, one with two lanes or more half of it.
			if n >= of.Limit || all >= ask.Room() || n >= ask.Room()/2 {
				more[lane] = true
			}
			if n > 0 {
				delete(sh.empty, lane)
			}
			if more[lane] && sh.backlog[lane].IsZero() {
				sh.backlog[lane] = began
			}
		}
		sh.hinted = sh.hinted || all >= ask.Room()/2
	}
	for lane := range sh.backlog {
		of, named := ask.Lanes[lane]
		// A lane of which not every partition was asked may have more in the others, until each had its turn.
		closed := named && of.Attended
		if !more[lane] && !closed && (!named || of.Every <= 1 || sh.passed(lane, of.Every)) {
			delete(sh.backlog, lane)
			delete(sh.empty, lane)
		}
	}
	sh.hinted = sh.hinted || len(sh.backlog) > 0 && sh.s.lanes.open(sh.backlog)
}

// incarnation of the part of the hot tier that holds a partition, and when this shard saw it first.
type incarnation struct {
	name  string
	since time.Time
}

// recognise notes under which incarnation a task was prepared. Of a partition of which none is known nothing was dispatched since
// the shard owns it, so it does not matter how long it has had this one.
func (sh *shard) recognise(t *task) {
	known := sh.incarnations[t.entry.Partition]
	if known.name != t.incarnation {
		if known.name != "" {
			known.since = t.judgedAt
		}
		known.name = t.incarnation
		sh.incarnations[t.entry.Partition] = known
	}
	t.sameSince = known.since
}

// passed counts reads of a lane, one partition in so many each, that brought nothing of it, and reports whether they have been
// twice as many as it takes to ask each.
func (sh *shard) passed(lane uint32, every int) bool {
	sh.empty[lane]++
	return sh.empty[lane] > 2*every
}

// drop forgets what is held, except for what only waits to be removed: publishing that again would be a duplicate that
// no crash excuses. What a goroutine works on is forgotten when it comes back.
func (sh *shard) drop() (dropped int) {
	for l, t := range sh.held {
		switch {
		case t.busy:
			t.dropped = true
		case !t.published:
			delete(sh.held, l) // and what stands of it in the queue is passed over
			sh.s.lanes.dropped(t.entry.Lane)
			dropped++
		}
	}
	sh.fresh, sh.waiting = nil, nil
	sh.s.metrics.held.Sub(float64(dropped))
	if dropped > 0 {
		sh.s.metrics.abandoned.Inc()
		sh.again = true
	}
	return dropped
}

// keep remembers that the task is held.
func (sh *shard) keep(t *task) {
	if _, ok := sh.held[t.entry.Locator]; !ok {
		sh.s.metrics.held.Inc()
		if !t.published {
			sh.s.lanes.took(t.entry.Lane)
		}
	}
	sh.held[t.entry.Locator] = t
}

// pull takes at most n tasks from the front of a list, which lets go of them.
func pull(list *[]*task, n int) []*task {
	n = min(n, len(*list))
	tasks := slices.Clone((*list)[:n])
	clear((*list)[:n])
	*list = (*list)[n:]
	return tasks
}

// hold keeps a task until it is looked at again.
func (sh *shard) hold(t *task, at time.Time) {
	sh.keep(t)
	t.at = at
	if t.queued {
		heap.Init(&sh.queue)
		return
	}
	t.queued = true
	heap.Push(&sh.queue, t)
}

func (sh *shard) forget(t *task) {
	if _, ok := sh.held[t.entry.Locator]; ok {
		sh.s.metrics.held.Dec()
		delete(sh.held, t.entry.Locator)
		if !t.published {
			sh.s.lanes.dropped(t.entry.Lane)
		}
	}
	if sh.reading > 0 && !t.parked { // what is parked may be given right now, as what it is
		sh.forgotten[t.entry.Locator] = true
	}
}

// taskQueue is a heap by the instant at which a task is looked at next.
type taskQueue []*task

func (q taskQueue) Len() int           { return len(q) }
func (q taskQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q taskQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *taskQueue) Push(x any) { *q = append(*q, x.(*task)) }

// Pop implements heap.Interface.
func (q *taskQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return t
}
