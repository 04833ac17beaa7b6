package worker

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
)

// task is an entry that a shard holds: read, prepared, and waiting for its instant.
type task struct {
	entry    job.Entry
	owner    hotbucket.Owner
	line     *occurrence.Line
	tenantID string
	// incarnation of the hot tier, read before the job row was.
	incarnation string
	takenAt     time.Time
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
}

// shard is one loop over a share of the owned partitions.
type shard struct {
	s      *Service
	wakeup chan struct{}

	mu       sync.Mutex
	owners   []hotbucket.Owner
	newOwned bool

	held     map[job.Locator]*task
	queue    taskQueue
	nextRead time.Time
	// lastAccepted is when the last read that the store accepted began.
	lastAccepted time.Time
	hinted       bool
}

func newShard(s *Service) *shard {
	return &shard{s: s, wakeup: make(chan struct{}, 1), held: map[job.Locator]*task{}}
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
	}
	return sh.owners
}

func (sh *shard) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sh.wakeup:
			sh.hinted = true
		case <-timer.C:
		}
		now := time.Now()
		if !now.Before(sh.nextRead) || sh.hinted && now.Sub(sh.lastAccepted) >= sh.s.cfg.ReadGap {
			sh.read(ctx)
		}
		sh.dispatch(ctx)
		timer.Reset(sh.pause())
	}
}

// pause is the time until the next thing to do.
func (sh *shard) pause() time.Duration {
	next := sh.nextRead
	if sh.hinted {
		next = sh.lastAccepted.Add(sh.s.cfg.ReadGap)
	}
	if len(sh.queue) > 0 && sh.queue[0].at.Before(next) {
		next = sh.queue[0].at
	}
	return max(time.Until(next), 0)
}

// read takes what is due before now + lookahead. Entries that are held already are recognised; new ones are prepared.
func (sh *shard) read(ctx context.Context) {
	owners := sh.owned()
	began := time.Now()
	sh.nextRead = began.Add(sh.s.cfg.PollInterval)
	sh.hinted = false
	if len(owners) == 0 {
		return
	}
	entries, err := sh.s.deps.Hot.Due(ctx, owners, began.Add(sh.s.cfg.Lookahead), sh.s.cfg.MaxHeld)
	if err != nil {
		if errors.Is(err, hotbucket.ErrStaleEpoch) || time.Since(sh.lastAccepted) > sh.s.cfg.OwnerTTL {
			sh.drop()
		}
		if ctx.Err() == nil {
			sh.s.deps.Logger.Warn("cannot read hot buckets", "error", err)
		}
		return
	}
	sh.lastAccepted = began
	byPartition := make(map[int]hotbucket.Owner, len(owners))
	for _, o := range owners {
		byPartition[o.Partition] = o
	}
	var fresh []*task
	for i := range entries {
		if _, ok := sh.held[entries[i].Locator]; !ok {
			e := entries[i]
			fresh = append(fresh, &task{entry: e, owner: byPartition[e.Partition], takenAt: began, at: e.DueAt})
		}
	}
	for len(fresh) > 0 {
		n := min(len(fresh), prepareChunk)
		sh.prepare(ctx, fresh[:n])
		fresh = fresh[n:]
		sh.dispatch(ctx) // what is due meanwhile does not wait for the rest to be prepared
	}
}

// prepareChunk is how many entries are prepared before the shard looks at the clock again: about a millisecond's work.
const prepareChunk = 64

// drop forgets what is held, except for what only waits to be removed: publishing that again would be a duplicate that
// no crash excuses.
func (sh *shard) drop() {
	dropped := 0
	for l, t := range sh.held {
		if !t.published {
			delete(sh.held, l) // and what stands of it in the queue is passed over
			dropped++
		}
	}
	sh.s.metrics.held.Sub(float64(dropped))
	if dropped > 0 {
		sh.s.metrics.abandoned.Inc()
	}
}

func (sh *shard) hold(t *task, at time.Time) {
	if _, ok := sh.held[t.entry.Locator]; !ok {
		sh.s.metrics.held.Inc()
	}
	sh.held[t.entry.Locator] = t
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
