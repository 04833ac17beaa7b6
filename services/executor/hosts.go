package executor

import (
	"container/heap"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// taskOverhead is roughly what a task costs in memory besides its message, in bytes.
	taskOverhead = 1024
	// heavyFire is the size from which a fire must leave room for others, in bytes.
	heavyFire = 16 << 10
	// maxRejected is how many fires without room may wait to be deferred before consuming pauses.
	maxRejected = 10_000
	// patience is how many times Config.MaxQueueWait a fire waits for a host whose calls go on.
	patience = 6
)

// task is a fire on its way through the executor.
type task struct {
	// fire is the message's own, and is never changed.
	fire *job.Fire
	// window, partition and offset are its place in the log.
	window     *window
	partition  int
	offset     int64
	host       string
	bytes      int64
	consumedAt time.Time
	// incarnation is the one of the hot tier that is known to have forgotten nothing that concerns the fire. At first the
	// worker knew this, later the executor has asked.
	incarnation string
	knownSince  time.Time
	// called is set if the target was called, or the attempt ended without a call; behind, while another task or process has
	// the attempt.
	called, behind bool
	// shed is set if the fire is here without its payload: its attempt can be followed or deferred, but not begun.
	shed bool
	// untold is the outcome of the task's own call, while another executor has the attempt and has not ended it.
	untold *job.Outcome
	// begunAt is when the task got its place at the host.
	begunAt time.Time
	// queuedAt is when it began to wait for its host, notBefore when a delayed task is looked at again.
	queuedAt, notBefore time.Time
	// place is its index among the delayed tasks.
	place int
	// early is set while it waits for its instant, to which it came ahead.
	early bool
}

// isEarly reports whether the fire's instant is still to come: its target is not called before that (I5).
func (w *task) isEarly(now time.Time) bool { return now.Before(w.fire.DueAt) }

// lighten drops a large fire's payload. The message's own fire stays as it is.
func (w *task) lighten() {
	if w.bytes > heavyFire {
		fire := *w.fire
		fire.Target.Body, fire.Target.Headers = nil, nil
		w.fire, w.shed = &fire, true
	}
}

// hosts holds the fires that wait and run, by target host. Each host has its own queue and limit, so a host that hangs
// fills only its own.
type hosts struct {
	cfg     Config
	clock   clock.Clock
	metrics *metrics

	mu      sync.Mutex
	byName  map[string]*host
	paces   map[uint32]*pace // by lane
	ready   []*host          // hosts with something to start, in turn
	delayed delayed
	// behind are the delayed tasks that wait for another task here to be done with their attempt.
	behind   map[attempts.Key][]*task
	rejected []*task
	waiting  int
	inFlight int
	// bytes is the size of everything that waits and runs.
	bytes int64
	// early counts the fires among them that came ahead of their instants, earlyBytes is their size. They never keep out one that is
	// due, so they do not count where room is looked for.
	early      int
	earlyBytes int64
	closed     bool
	idle       chan struct{} // sooner is told when a delayed task must be looked at before all others.
	// stirred and waits are told when a task begins to wait for its host: the loops that look at the queues sleep until
	// then.
	sooner chan struct{}
	// stirred and waits are told when a task begins to wait for its host: the loops that look at the queues sleep until then.
	stirred, waits chan struct{}
}

type host struct {
	name    string
	lane    uint32
	queue   []*task
	running int
	bytes   int64 // waiting in the queue and running
	listed  bool  // in ready
	// movedAt is when the last call that did not take long ended.
	movedAt time.Time
}

func newHosts(cfg Config, c clock.Clock, m *metrics) *hosts {
	return &hosts{
		cfg: cfg, clock: c, metrics: m, byName: map[string]*host{}, paces: map[uint32]*pace{}, behind: map[attempts.Key][]*task{},
		idle: make(chan struct{}), sooner: make(chan struct{}, 1),
		stirred: make(chan struct{}, 1), waits: make(chan struct{}, 1),
	}
}

// enqueue queues a task at its host; it returns false if there is no room.
func (h *hosts) enqueue(w *task) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.byName[w.host]
	ofHost, ofAll := h.cfg.room(w.bytes)
	taken := h.bytes - h.earlyBytes
	if h.waiting-h.early >= h.cfg.MaxWaiting || taken > 0 && taken+w.bytes > ofAll ||
		at != nil && (len(at.queue) >= h.cfg.HostWaiting || at.bytes+w.bytes > ofHost) {
		return false
	}
	if at == nil {
		at = &host{name: w.host, lane: w.fire.Lane}
		h.byName[w.host] = at
	}
	w.queuedAt = h.clock.Now()
	at.queue = append(at.queue, w)
	at.bytes += w.bytes
	h.count(1, w.bytes)
	h.list(at)
	tell(h.stirred)
	tell(h.waits)
	return true
}

// earlyShare is the share of the bounds that fires ahead of their instants may take. What comes beyond it is treated as if it were due.
const earlyShare = 4

// waitFor keeps a fire until its instant, if it has come ahead of that and there is room for it.
func (h *hosts) waitFor(w *task) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !w.isEarly(h.clock.Now()) || h.early >= h.cfg.MaxWaiting/earlyShare || h.earlyBytes+w.bytes > h.cfg.MaxBytes/earlyShare {
		return false
	}
	w.early = true
	h.early++
	h.earlyBytes += w.bytes
	h.keepAside(w, w.fire.DueAt)
	tell(h.stirred)
	return true
}

// room returns how much of MaxBytes a fire of this size may take, with what is there before it: of its host, and of all.
func (c *Config) room(bytes int64) (host, all int64) {
	if bytes > heavyFire {
		return c.MaxBytes / 4, c.MaxBytes / 4 * 3
	}
	return c.MaxBytes / 2, c.MaxBytes
}

// overfull reports whether so many fires found no room that they must be deferred before more are consumed.
func (h *hosts) overfull() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rejected) >= maxRejected
}

// tell wakes the goroutine that waits on the channel, or lets its next wait return at once.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// quiet reports whether nothing waits that may become overdue.
func (h *hosts) quiet() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting == len(h.delayed) && len(h.rejected) == 0
}

func (h *hosts) count(n int, bytes int64) {
	h.waiting += n
	h.bytes += bytes
	h.metrics.waiting.Set(float64(h.waiting))
}

func (h *hosts) list(at *host) {
	if !at.listed && len(at.queue) > 0 && at.running < h.cfg.HostConcurrency {
		at.listed = true
		h.ready = append(h.ready, at)
	}
}

// next takes the next task that may run, visiting hosts in turn; nil when none may.
func (h *hosts) next() *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.ready) > 0 && h.inFlight < h.cfg.MaxRunning && !h.closed {
		at := h.ready[0]
		h.ready = h.ready[1:]
		at.listed = false
		if len(at.queue) == 0 || at.running >= h.cfg.HostConcurrency {
			h.forget(at)
			continue
		}
		w := at.queue[0]
		at.queue[0] = nil
		at.queue = at.queue[1:]
		at.running++
		w.begunAt, w.called = h.clock.Now(), true
		h.inFlight++
		h.count(-1, 0)
		h.list(at)
		return w
	}
	return nil
}

// release ends a task that next returned.
func (h *hosts) release(w *task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.byName[w.host]
	if h.paces[at.lane] == nil {
		h.paces[at.lane] = &pace{}
	}
	if w.called { // otherwise it was put aside
		took := h.clock.Since(w.begunAt)
		h.paces[at.lane].count(took, w.bytes)
		if took < h.cfg.MaxQueueWait {
			at.movedAt = h.clock.Now()
		}
	}
	at.running--
	at.bytes -= w.bytes
	h.bytes -= w.bytes
	h.inFlight--
	h.list(at)
	h.forget(at)
	h.signal()
}

// forget drops a host that has nothing left to do.
func (h *hosts) forget(at *host) {
	if at.running == 0 && len(at.queue) == 0 && !at.listed {
		delete(h.byName, at.name)
	}
}

func (h *hosts) signal() {
	if h.closed && h.inFlight == 0 {
		select {
		case <-h.idle:
		default:
			close(h.idle)
		}
	}
}

// reject keeps a task without room until the next takeOverdue, without its payload if it is large. Their number is bounded
// by maxRejected plus the fires of one poll.
func (h *hosts) reject(w *task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.lighten()
	h.rejected = append(h.rejected, w)
	tell(h.waits)
}

// delay keeps a task aside until its instant. It counts as waiting, but always has room because it was let in before.
func (h *hosts) delay(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.behind = false
	h.keepAside(w, until)
}

// delayForOther keeps a task aside until an instant, because another process has its attempt.
func (h *hosts) delayForOther(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.behind = true
	h.keepAside(w, until)
}

// delayBehind keeps a task aside until another task here is done with its attempt, or until an instant.
func (h *hosts) delayBehind(w *task, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := attempts.KeyOf(&w.fire.Entry)
	h.behind[key] = append(h.behind[key], w)
	w.behind = true
	h.keepAside(w, until)
}

func (h *hosts) keepAside(w *task, until time.Time) {
	w.notBefore, w.called = until, false
	heap.Push(&h.delayed, w)
	h.count(1, w.bytes)
	if h.delayed[0] == w {
		h.rouse()
	}
}

// wake lets the tasks go on that wait for an attempt, because no task here has it any more.
func (h *hosts) wake(k attempts.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.behind[k] {
		w.notBefore = h.clock.Now()
		heap.Fix(&h.delayed, w.place)
		h.rouse()
	}
	delete(h.behind, k)
}

func (h *hosts) rouse() { tell(h.sooner) }

// takeDelayed takes the tasks whose instant has come, and returns the next task's instant; zero when there is none.
func (h *hosts) takeDelayed(now time.Time) (due []*task, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.delayed) > 0 {
		if now.Before(h.delayed[0].notBefore) {
			return due, h.delayed[0].notBefore
		}
		w := heap.Pop(&h.delayed).(*task)
		key := attempts.KeyOf(&w.fire.Entry)
		if list := slices.DeleteFunc(h.behind[key], func(other *task) bool { return other == w }); len(list) > 0 {
			h.behind[key] = list
		} else {
			delete(h.behind, key)
		}
		due = append(due, w)
		h.count(-1, -w.bytes)
		if w.early {
			w.early = false
			h.early--
			h.earlyBytes -= w.bytes
		}
	}
	return due, time.Time{}
}

// delayed is a heap ordered by the instant at which a task is looked at next.
type delayed []*task

func (d delayed) Len() int           { return len(d) }
func (d delayed) Less(i, j int) bool { return d[i].notBefore.Before(d[j].notBefore) }
func (d delayed) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

// Push implements heap.Interface.
func (d *delayed) Push(x any) {
	w := x.(*task)
	w.place = len(*d)
	*d = append(*d, w)
}

// Pop implements heap.Interface.
func (d *delayed) Pop() any {
	old := *d
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return w
}

// takeOverdue takes the rejected tasks and those that have waited too long for their host. A host whose calls go on has
// patience times as long: what waits there is called sooner than a later fire would be, which costs much more.
func (h *hosts) takeOverdue() []*task {
	h.mu.Lock()
	defer h.mu.Unlock()
	overdue := h.rejected
	h.rejected = nil
	long := h.clock.Now().Add(-h.cfg.MaxQueueWait)
	for _, name := range slices.Sorted(maps.Keys(h.byName)) {
		at, before := h.byName[name], long
		if at.movedAt.After(long) {
			before = long.Add(-(patience - 1) * h.cfg.MaxQueueWait)
		}
		n := 0
		var stay []*task
		for ; n < len(at.queue) && at.queue[n].queuedAt.Before(before); n++ {
			w := at.queue[n]
			if w.untold != nil { // it only ends its attempt, and nobody else can
				stay = append(stay, w)
				continue
			}
			h.count(-1, -w.bytes)
			at.bytes -= w.bytes
			overdue = append(overdue, w)
		}
		at.queue = append(stay, at.queue[n:]...)
		h.forget(at)
	}
	return overdue
}

// close stops more tasks from starting.
func (h *hosts) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.signal()
}

// wait waits at most limit until nothing runs; it reports whether that happened.
func (h *hosts) wait(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-h.idle:
		return true
	case <-t.C:
		return false
	}
}

func (h *hosts) running() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inFlight
}
