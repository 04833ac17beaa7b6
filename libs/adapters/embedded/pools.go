package embedded

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// Pools is the queues of pools in this process.
type Pools struct {
	bell *pools.Bell

	mu  sync.Mutex
	all map[pools.Pool]*pool
}

var _ pools.Queue = (*Pools)(nil)

// pool is what there is of one pool.
type pool struct {
	tasks map[string]*pooled
	bytes int
	// waiting holds the ids of what waits, by handler and priority, the earliest first.
	waiting map[line][]*pooled
	taken   map[string]*pooled
	// running counts what is taken by handler; held are the handlers of which limits kept tasks back.
	running map[string]int
	held    map[string]bool
	turn    int64
	polls   map[string]taking
	workers map[string]pools.Worker
	addedAt time.Time
}

type line struct {
	handler  string
	priority job.Priority
}

// pooled is a task; until is the end of its time if it is taken.
type pooled struct {
	id    string
	task  *pools.Task
	lease *pools.Lease
	bytes int
	until time.Time
}

// taking is what a poll has taken.
type taking struct {
	ids []string
	at  time.Time
}

// NewPools returns pools without tasks.
func NewPools() *Pools { return &Pools{bell: pools.NewBell(), all: map[pools.Pool]*pool{}} }

// Bell implements pools.Queue.
func (q *Pools) Bell() *pools.Bell { return q.bell }

// of returns a pool, after making it if there is none.
func (q *Pools) of(p pools.Pool) *pool {
	at := q.all[p]
	if at == nil {
		at = &pool{
			tasks: map[string]*pooled{}, waiting: map[line][]*pooled{}, taken: map[string]*pooled{}, polls: map[string]taking{}, workers: map[string]pools.Worker{},
			running: map[string]int{}, held: map[string]bool{},
		}
		q.all[p] = at
	}
	return at
}

// Add implements pools.Queue.
func (q *Pools) Add(_ context.Context, t *pools.Task, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.of(t.Pool())
	one, bytes := p.tasks[t.ID()], len(t.Fire.Target.Body)+taskOverhead
	if ref := t.Fire.Target.BodyRef; ref != nil {
		bytes += len(ref.URL)
	}
	if one == nil {
		if len(p.tasks) >= pools.MaxTasks || p.bytes+bytes > pools.MaxBytes {
			return pools.ErrFull
		}
		one = &pooled{id: t.ID()}
		p.tasks[one.id] = one
	} else if p.taken[one.id] != nil {
		if now.Before(one.until) {
			return nil
		}
		q.free(t.Pool(), one)
		one.lease = nil
	} else {
		p.leave(one)
	}
	p.bytes += bytes - one.bytes
	one.task, one.bytes, p.addedAt = t, bytes, now
	p.wait(one)
	q.bell.Ring(t.Pool(), t.Fire.Target.Handler, 1)
	return nil
}

// taskOverhead is roughly what a task takes beside its body.
const taskOverhead = 1 << 10

func (o *pooled) line() line { return line{o.task.Fire.Target.Handler, pools.PriorityOf(o.task)} }

// compare orders what waits.
func compare(a, b *pooled) int {
	return cmp.Or(a.task.Fire.DueAt.Compare(b.task.Fire.DueAt), cmp.Compare(a.id, b.id))
}

func (p *pool) wait(one *pooled) {
	l := one.line()
	at, _ := slices.BinarySearchFunc(p.waiting[l], one, compare)
	p.waiting[l] = slices.Insert(p.waiting[l], at, one)
}

func (p *pool) leave(one *pooled) {
	l := one.line()
	if at, found := slices.BinarySearchFunc(p.waiting[l], one, compare); found {
		p.waiting[l] = slices.Delete(p.waiting[l], at, at+1)
	}
	if len(p.waiting[l]) == 0 {
		delete(p.waiting, l)
	}
}

// Take implements pools.Queue.
func (q *Pools) Take(_ context.Context, name pools.Pool, t pools.Take) (taken pools.Taken, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.all[name]
	if p == nil {
		return taken, nil
	}
	maps.DeleteFunc(p.polls, func(_ string, k taking) bool { return t.Now.Sub(k.at) > pools.PollKept })
	if k, ok := p.polls[t.Poll]; ok {
		for _, id := range k.ids {
			if one := p.taken[id]; one != nil {
				taken.Tasks = append(taken.Tasks, one.give())
			}
		}
		taken.Again = true
		return taken, nil
	}
	room, of := t.Limits.Room(t.Most, len(p.taken), t.Handlers, func(h string) int { return p.running[h] })
	var ids []string
	for len(ids) < room {
		one := p.next(t.Handlers, of)
		if one == nil {
			break
		}
		p.leave(one)
		one.until = t.Now.Add(pools.TakenFor)
		p.taken[one.id] = one
		handler := one.line().handler
		of[handler]--
		p.running[handler]++
		ids, taken.Tasks = append(ids, one.id), append(taken.Tasks, one.give())
	}
	for _, h := range t.Handlers {
		if len(ids) < t.Most && (len(ids) == room || of[h] == 0) && p.waits(h) && len(p.held) < pools.MaxHeld {
			p.held[h] = true
		}
	}
	if len(ids) > 0 {
		p.polls[t.Poll] = taking{ids, t.Now}
	}
	return taken, nil
}

// free takes a task from whom has it, and rings for those that limits kept from taking others.
func (q *Pools) free(name pools.Pool, one *pooled) {
	p, handler := q.all[name], one.line().handler
	delete(p.taken, one.id)
	if p.running[handler]--; p.running[handler] == 0 {
		delete(p.running, handler)
	}
	for h := range p.held {
		if p.waits(h) {
			q.bell.Ring(name, h, 1)
		} else {
			delete(p.held, h)
		}
	}
}

// waits reports whether a task waits for a handler.
func (p *pool) waits(handler string) bool {
	return len(p.waiting[line{handler, job.PriorityHigh}])+len(p.waiting[line{handler, job.PriorityNormal}])+len(p.waiting[line{handler, job.PriorityLow}]) > 0
}

// next returns the task that is next in turn for some handlers, of those with room.
func (p *pool) next(handlers []string, room map[string]int) *pooled {
	for _, priority := range pools.Turn(p.turn) {
		var first *pooled
		for _, h := range handlers {
			if list := p.waiting[line{h, priority}]; len(list) > 0 && room[h] > 0 && (first == nil || compare(list[0], first) < 0) {
				first = list[0]
			}
		}
		if first != nil {
			p.turn++
			return first
		}
	}
	return nil
}

// give returns the task as the port does.
func (o *pooled) give() *pools.Task {
	t := *o.task
	t.Lease = o.lease
	return &t
}

// Bind implements pools.Queue.
func (q *Pools) Bind(_ context.Context, name pools.Pool, id string, l *pools.Lease, now time.Time) (ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.all[name]
	if p == nil || p.taken[id] == nil {
		return false, nil
	}
	one := p.taken[id]
	if !now.Before(one.until) || !l.Follows(one.lease) {
		return false, nil
	}
	bound := *l
	one.lease, one.until = &bound, l.Until
	return true, nil
}

// Leases implements pools.Queue.
func (q *Pools) Leases(_ context.Context, name pools.Pool, ids []string) ([]*pools.Lease, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	leases := make([]*pools.Lease, len(ids))
	if p := q.all[name]; p != nil {
		for i, id := range ids {
			if one := p.taken[id]; one != nil && one.lease != nil {
				l := *one.lease
				leases[i] = &l
			}
		}
	}
	return leases, nil
}

// Remove implements pools.Queue.
func (q *Pools) Remove(_ context.Context, name pools.Pool, id string, fence job.Fence, number int64) (removed bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.all[name]
	if p == nil || p.taken[id] == nil {
		return false, nil
	}
	one := p.taken[id]
	if !one.lease.Is(fence, number) {
		return false, nil
	}
	q.free(name, one)
	delete(p.tasks, id)
	p.bytes -= one.bytes
	return true, nil
}

// Forget implements pools.Queue.
func (q *Pools) Forget(_ context.Context, name pools.Pool, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.all[name]; p != nil && p.tasks[id] != nil && p.taken[id] == nil {
		one := p.tasks[id]
		p.leave(one)
		delete(p.tasks, id)
		p.bytes -= one.bytes
	}
	return nil
}

// Lapsed implements pools.Queue.
func (q *Pools) Lapsed(_ context.Context, name pools.Pool, now time.Time) (leases []*pools.Lease, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.all[name]
	if p == nil {
		return nil, nil
	}
	for _, id := range slices.Sorted(maps.Keys(p.taken)) {
		one := p.taken[id]
		if now.Before(one.until) || len(leases) == pools.MaxLapsed {
			continue
		}
		if one.lease == nil {
			q.free(name, one)
			p.wait(one)
			q.bell.Ring(name, one.line().handler, 1)
			continue
		}
		l := *one.lease
		leases = append(leases, &l)
	}
	return leases, nil
}

// Pools implements pools.Queue.
func (q *Pools) Pools(_ context.Context, now time.Time) (list []pools.Pool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, p := range q.all {
		if len(p.tasks) == 0 && now.Sub(p.addedAt) > pools.UnusedFor && len(p.alive(now)) == 0 {
			delete(q.all, name)
		} else if !p.addedAt.IsZero() {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, func(a, b pools.Pool) int { return cmp.Compare(a.String(), b.String()) })
	return list[:min(len(list), pools.MaxPools)], nil
}

// alive forgets the workers that were not seen for long, and returns the others.
func (p *pool) alive(now time.Time) (list []pools.Worker) {
	maps.DeleteFunc(p.workers, func(_ string, w pools.Worker) bool { return now.Sub(w.SeenAt) > pools.WorkerKept })
	for _, name := range slices.Sorted(maps.Keys(p.workers)) {
		list = append(list, p.workers[name])
	}
	return list
}

// See implements pools.Queue.
func (q *Pools) See(_ context.Context, name pools.Pool, w *pools.Worker) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all[name] == nil && len(q.all) >= pools.MaxPools {
		return nil
	}
	p := q.of(name)
	before, there := p.workers[w.Name]
	switch {
	case there:
		p.workers[w.Name] = w.After(&before)
	case len(p.workers) < pools.MaxWorkers || len(p.alive(w.SeenAt)) < pools.MaxWorkers:
		p.workers[w.Name] = w.After(nil)
	}
	return nil
}

// Show implements pools.Queue.
func (q *Pools) Show(_ context.Context, name pools.Pool, now time.Time) (*pools.State, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &pools.State{Waiting: map[string]map[job.Priority]int{}, Running: map[string]int{}}
	p := q.all[name]
	if p == nil {
		return s, nil
	}
	for l, list := range p.waiting {
		if s.Waiting[l.handler] == nil {
			s.Waiting[l.handler] = map[job.Priority]int{}
		}
		s.Waiting[l.handler][l.priority] = len(list)
	}
	s.Taken, s.Running, s.Workers = len(p.taken), maps.Clone(p.running), p.alive(now)
	return s, nil
}
