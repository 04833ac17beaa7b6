package servers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// queue is what a server holds of one pool. It holds few tasks, so they are found by looking at all of them.
type queue struct {
	tasks   map[string]pooled
	polls   map[string]polled
	turn    int64
	workers map[string]pools.Worker
	addedAt time.Time
	// held are the handlers of which limits kept tasks back.
	held map[string]bool
}

// pooled is a task. What it points to is never changed.
type pooled struct {
	task  *pools.Task
	lease *pools.Lease
	taken bool
	until time.Time // when it is taken no longer
}

// polled is what a poll has taken.
type polled struct {
	ids []string
	at  time.Time
}

func (q *queue) clone() *queue {
	c := *q
	c.tasks, c.polls, c.workers, c.held = maps.Clone(q.tasks), maps.Clone(q.polls), maps.Clone(q.workers), maps.Clone(q.held)
	return &c
}

func (p pooled) bytes() int { return len(p.task.Fire.Target.Body) + 1<<10 }

// give returns the task as the port does.
func (p pooled) give() *pools.Task {
	t := *p.task
	t.Lease = p.lease
	return &t
}

// Pools returns the queues of pools as the process sees them. Each pool lies with the partition of its name.
func (c *HotClient) Pools() pools.Queue { return &Pools{c} }

// Pools implements pools.Queue.
type Pools struct{ client *HotClient }

// Bell implements pools.Queue.
func (p *Pools) Bell() *pools.Bell { return p.client.bell }

// ring rings at every process, as each of them hears it.
func (p *Pools) ring(at pools.Pool, handlers ...string) {
	tier := p.client.tier
	tier.mu.Lock()
	defer tier.mu.Unlock()
	for _, handler := range handlers {
		for _, b := range tier.bells {
			b.Ring(at, handler, 1)
		}
	}
}

// PartitionOf returns the partition with which a pool lies.
func (h *Hot) PartitionOf(p pools.Pool) int { return bucket.Partition(p.String(), len(h.parts)) }

// on does something with a pool at the server that answers the process.
func (p *Pools) on(at pools.Pool, do func(q *queue)) {
	s := p.client.at(p.client.tier.PartitionOf(at))
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.state.pools[at]
	if q == nil {
		q = &queue{tasks: map[string]pooled{}, polls: map[string]polled{}, workers: map[string]pools.Worker{}, held: map[string]bool{}}
		s.state.pools[at] = q
	}
	do(q)
}

// Add implements pools.Queue.
func (p *Pools) Add(_ context.Context, t *pools.Task, now time.Time) (err error) {
	rings, held := false, []string(nil)
	p.on(t.Pool(), func(q *queue) {
		one, there := q.tasks[t.ID()]
		if there && one.taken && now.Before(one.until) {
			return
		}
		bytes := 0
		for _, other := range q.tasks {
			bytes += other.bytes()
		}
		added := pooled{task: t}
		if !there && (len(q.tasks) >= pools.MaxTasks || bytes+added.bytes() > pools.MaxBytes) {
			err = pools.ErrFull
			return
		}
		q.tasks[t.ID()], q.addedAt, rings = added, now, true
		if one.taken {
			held = q.kept()
		}
	})
	if rings {
		p.ring(t.Pool(), append(held, t.Fire.Target.Handler)...)
	}
	return err
}

// kept returns the handlers of which limits kept tasks back that wait.
func (q *queue) kept() []string {
	maps.DeleteFunc(q.held, func(h string, _ bool) bool { return !q.waits(h) })
	return slices.Sorted(maps.Keys(q.held))
}

// waits reports whether a task waits for a handler.
func (q *queue) waits(handler string) bool {
	for _, one := range q.tasks {
		if !one.taken && one.task.Fire.Target.Handler == handler {
			return true
		}
	}
	return false
}

// running counts the tasks that somebody has; for "" those of all handlers.
func (q *queue) running(handler string) (n int) {
	for _, one := range q.tasks {
		if one.taken && (handler == "" || handler == one.task.Fire.Target.Handler) {
			n++
		}
	}
	return n
}

// Take implements pools.Queue.
func (p *Pools) Take(_ context.Context, at pools.Pool, t pools.Take) (taken pools.Taken, err error) {
	p.on(at, func(q *queue) {
		maps.DeleteFunc(q.polls, func(_ string, before polled) bool { return t.Now.Sub(before.at) > pools.PollKept })
		var before polled
		if before, taken.Again = q.polls[t.Poll]; taken.Again {
			for _, id := range before.ids {
				if one := q.tasks[id]; one.taken {
					taken.Tasks = append(taken.Tasks, one.give())
				}
			}
			return
		}
		room, of := t.Limits.Room(t.Most, q.running(""), t.Handlers, q.running)
		var ids []string
		for len(ids) < room {
			id, ok := q.next(t.Handlers, of)
			if !ok {
				break
			}
			one := q.tasks[id]
			of[one.task.Fire.Target.Handler]--
			one.taken, one.until = true, t.Now.Add(pools.TakenFor)
			q.tasks[id] = one
			ids, taken.Tasks = append(ids, id), append(taken.Tasks, one.give())
		}
		for _, h := range t.Handlers {
			if len(ids) < t.Most && (len(ids) == room || of[h] == 0) && q.waits(h) {
				q.held[h] = true
			}
		}
		if len(ids) > 0 {
			q.polls[t.Poll] = polled{ids, t.Now}
		}
	})
	return taken, nil
}

// next returns the task that is next in turn for some handlers, of those with room.
func (q *queue) next(handlers []string, room map[string]int) (id string, ok bool) {
	order := slices.SortedFunc(maps.Keys(q.tasks), func(a, b string) int {
		return cmp.Or(q.tasks[a].task.Fire.DueAt.Compare(q.tasks[b].task.Fire.DueAt), cmp.Compare(a, b))
	})
	for _, priority := range pools.Turn(q.turn) {
		for _, id := range order {
			one := q.tasks[id]
			if !one.taken && pools.PriorityOf(one.task) == priority && slices.Contains(handlers, one.task.Fire.Target.Handler) && room[one.task.Fire.Target.Handler] > 0 {
				q.turn++
				return id, true
			}
		}
	}
	return "", false
}

// Bind implements pools.Queue.
func (p *Pools) Bind(_ context.Context, at pools.Pool, id string, l *pools.Lease, now time.Time) (ok bool, err error) {
	p.on(at, func(q *queue) {
		one := q.tasks[id]
		if !one.taken || !now.Before(one.until) || !l.Follows(one.lease) {
			return
		}
		bound := *l
		one.lease, one.until, ok = &bound, l.Until, true
		q.tasks[id] = one
	})
	return ok, nil
}

// Leases implements pools.Queue.
func (p *Pools) Leases(_ context.Context, at pools.Pool, ids []string) ([]*pools.Lease, error) {
	leases := make([]*pools.Lease, len(ids))
	p.on(at, func(q *queue) {
		for i, id := range ids {
			if one := q.tasks[id]; one.taken && one.lease != nil {
				l := *one.lease
				leases[i] = &l
			}
		}
	})
	return leases, nil
}

// Remove implements pools.Queue.
func (p *Pools) Remove(_ context.Context, at pools.Pool, id string, fence job.Fence, number int64) (removed bool, err error) {
	var held []string
	p.on(at, func(q *queue) {
		if one := q.tasks[id]; one.taken && one.lease.Is(fence, number) {
			delete(q.tasks, id)
			held, removed = q.kept(), true
		}
	})
	p.ring(at, held...)
	return removed, nil
}

// Forget implements pools.Queue.
func (p *Pools) Forget(_ context.Context, at pools.Pool, id string) error {
	p.on(at, func(q *queue) {
		if !q.tasks[id].taken {
			delete(q.tasks, id)
		}
	})
	return nil
}

// Lapsed implements pools.Queue.
func (p *Pools) Lapsed(_ context.Context, at pools.Pool, now time.Time) (leases []*pools.Lease, err error) {
	var again []string
	p.on(at, func(q *queue) {
		for _, id := range slices.Sorted(maps.Keys(q.tasks)) {
			one := q.tasks[id]
			if !one.taken || now.Before(one.until) || len(leases) == pools.MaxLapsed {
				continue
			}
			if one.lease == nil {
				q.tasks[id] = pooled{task: one.task}
				again = append(append(again, one.task.Fire.Target.Handler), q.kept()...)
				continue
			}
			l := *one.lease
			leases = append(leases, &l)
		}
	})
	p.ring(at, again...)
	return leases, nil
}

// Pools implements pools.Queue. No run lasts for UnusedFor.
func (p *Pools) Pools(context.Context, time.Time) (list []pools.Pool, err error) {
	for n := range p.client.tier.parts {
		s := p.client.at(n)
		s.mu.Lock()
		for at, q := range s.state.pools {
			if !q.addedAt.IsZero() {
				list = append(list, at)
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b pools.Pool) int { return cmp.Compare(a.String(), b.String()) })
	return list, nil
}

// See implements pools.Queue.
func (p *Pools) See(_ context.Context, at pools.Pool, w *pools.Worker) error {
	p.on(at, func(q *queue) {
		before, there := q.workers[w.Name]
		switch {
		case there:
			q.workers[w.Name] = w.After(&before)
		case len(q.alive(w.SeenAt)) < pools.MaxWorkers:
			q.workers[w.Name] = w.After(nil)
		}
	})
	return nil
}

// alive returns the workers that were seen lately.
func (q *queue) alive(now time.Time) (list []pools.Worker) {
	for _, name := range slices.Sorted(maps.Keys(q.workers)) {
		if w := q.workers[name]; now.Sub(w.SeenAt) <= pools.WorkerKept {
			list = append(list, w)
		}
	}
	return list
}

// Show implements pools.Queue.
func (p *Pools) Show(_ context.Context, at pools.Pool, now time.Time) (*pools.State, error) {
	s := &pools.State{Waiting: map[string]map[job.Priority]int{}, Running: map[string]int{}}
	p.on(at, func(q *queue) {
		for _, one := range q.tasks {
			handler := one.task.Fire.Target.Handler
			switch {
			case one.taken:
				s.Taken++
				s.Running[handler]++
			case s.Waiting[handler] == nil:
				s.Waiting[handler] = map[job.Priority]int{pools.PriorityOf(one.task): 1}
			default:
				s.Waiting[handler][pools.PriorityOf(one.task)]++
			}
		}
		s.Workers = q.alive(now)
	})
	return s, nil
}
