package executor

import (
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
	// checkedAhead is how long before its instant the last check of a fire is made that has come ahead of it; it is less than twice that
	// for one that is not on a tick. A stop that comes after the check comes too late, as it does between any check and its call.
	checkedAhead = 10 * time.Millisecond
	// checkTick is the pause between the instants at which these checks begin, so that they share wake-ups and requests.
	checkTick = 5 * time.Millisecond
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
	// begunAt is when the task got its place at the host, or its instant if that was later.
	begunAt time.Time
	// queuedAt is when it began to wait for its host, notBefore when a delayed task is looked at again.
	queuedAt, notBefore time.Time
	// place is its index among the delayed tasks.
	place int
	// early is set while it waits for its instant, to which it came ahead.
	early bool
}

// isEarly reports whether the fire must still wait before it may begin. From then on only its call waits for its instant (I5).
func (w *task) isEarly(now time.Time) bool { return now.Before(w.begins()) }

// begins returns when a fire begins that has come ahead of its instant.
func (w *task) begins() time.Time { return w.fire.DueAt.Add(-checkedAhead).Truncate(checkTick) }

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

	mu     sync.Mutex
	byName map[string]*host
	paces  map[uint32]*pace // by lane
	// ready holds, for each precision, the hosts with something to start, in turn; started counts what was.
	ready   [job.Precisions][]*host
	started int
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
	idle       chan struct{}
	// sooner is told when a delayed task must be looked at before all others.
	sooner chan struct{}
	// stirred and waits are told when a task begins to wait for its host: the loops that look at the queues sleep until then.
	stirred, waits chan struct{}
}

// host holds what waits and runs for one target host. What is of the same precision is one lane.
type host struct {
	name  string
	lanes [job.Precisions]hostLane
	bytes int64 // waiting in the queues and running
	// movedAt is when the last call that did not take long ended.
	movedAt time.Time
}

type hostLane struct {
	id      uint32
	queue   []*task
	running int
	listed  bool // in ready
}

// running returns how many calls of the host are running.
func (at *host) running() (n int) {
	for i := range at.lanes {
		n += at.lanes[i].running
	}
	return n
}

// waiting returns how many fires wait in the host's queues.
func (at *host) waiting() (n int) {
	for i := range at.lanes {
		n += len(at.lanes[i].queue)
	}
	return n
}

// lane returns the lane of a task.
func (at *host) lane(w *task) *hostLane { return &at.lanes[w.fire.Precision] }

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
		at != nil && (len(at.lane(w).queue) >= h.cfg.HostWaiting || at.bytes+w.bytes > ofHost) {
		return false
	}
	if at == nil {
		at = &host{name: w.host}
		h.byName[w.host] = at
	}
	w.queuedAt = h.clock.Now()
	lane := at.lane(w)
	lane.id, lane.queue = w.fire.Lane, append(lane.queue, w)
	at.bytes += w.bytes
	h.count(1, w.bytes)
	h.list(at)
	tell(h.stirred)
	tell(h.waits)
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
	if at.running() >= h.cfg.HostConcurrency {
		return
	}
	for p := range at.lanes {
		if lane := &at.lanes[p]; !lane.listed && len(lane.queue) > 0 {
			lane.listed = true
			h.ready[p] = append(h.ready[p], at)
		}
	}
}

// leastEvery is how often the least precise is started first, so that nothing keeps it waiting for ever.
const leastEvery = 8

// nextReady takes the host that is next in turn: of the highest precision, or of the lowest every [leastEvery] times.
func (h *hosts) nextReady() (at *host, lane *hostLane) {
	for i := range h.ready {
		p := i
		if h.started%leastEvery != 0 {
			p = len(h.ready) - 1 - i
		}
		if len(h.ready[p]) > 0 {
			at = h.ready[p][0]
			h.ready[p] = h.ready[p][1:]
			lane = &at.lanes[p]
			lane.listed = false
			return at, lane
		}
	}
	return nil, nil
}

// next takes the next task that may run; nil when none may.
func (h *hosts) next() *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.inFlight < h.cfg.MaxRunning && !h.closed {
		at, lane := h.nextReady()
		if at == nil {
			return nil
		}
		if len(lane.queue) == 0 || at.running() >= h.cfg.HostConcurrency {
			h.forget(at)
			continue
		}
		w := lane.queue[0]
		lane.queue[0] = nil
		lane.queue = lane.queue[1:]
		lane.running++
		w.begunAt, w.called = job.Later(h.clock.Now(), w.fire.DueAt), true
		h.started++
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
	if h.paces[w.fire.Lane] == nil {
		h.paces[w.fire.Lane] = &pace{}
	}
	if w.called { // otherwise it was put aside
		took := max(h.clock.Since(w.begunAt), 0)
		h.paces[w.fire.Lane].count(took, w.bytes)
		if took < h.cfg.MaxQueueWait {
			at.movedAt = h.clock.Now()
		}
	}
	at.lane(w).running--
	at.bytes -= w.bytes
	h.bytes -= w.bytes
	h.inFlight--
	h.list(at)
	h.forget(at)
	h.signal()
}

// forget drops a host that has nothing left to do.
func (h *hosts) forget(at *host) {
	for i := range at.lanes {
		if lane := &at.lanes[i]; lane.running > 0 || len(lane.queue) > 0 || lane.listed {
			return
		}
	}
	delete(h.byName, at.name)
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
		for i := range at.lanes {
			overdue = append(overdue, h.takeBefore(at, &at.lanes[i], before)...)
		}
		h.forget(at)
	}
	return overdue
}

// takeBefore takes what has waited in a lane since before an instant.
func (h *hosts) takeBefore(at *host, lane *hostLane, before time.Time) (taken []*task) {
	n := 0
	var stay []*task
	for ; n < len(lane.queue) && lane.queue[n].queuedAt.Before(before); n++ {
		w := lane.queue[n]
		if w.untold != nil { // it only ends its attempt, and nobody else can
			stay = append(stay, w)
			continue
		}
		h.count(-1, -w.bytes)
		at.bytes -= w.bytes
		taken = append(taken, w)
	}
	lane.queue = append(stay, lane.queue[n:]...)
	return taken
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
