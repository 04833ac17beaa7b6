package sim

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

var (
	opAddTask     = newOp("hot", "AddTask", Write, often)
	opTakeTasks   = newOp("hot", "TakeTasks", Write, steadily)
	opBindLease   = newOp("hot", "BindLease", Write, often)
	opLeases      = newOp("hot", "Leases", Read, steadily)
	opRemoveTask  = newOp("hot", "RemoveTask", Write, often)
	opForgetTask  = newOp("hot", "ForgetTask", Write, rarely)
	opLapsedTasks = newOp("hot", "LapsedTasks", Write, always)
	opListPools   = newOp("hot", "ListPools", Read, always)
	opSeeWorker   = newOp("hot", "SeeWorker", Write, always)
)

// ofPools are the operations of queues.
func ofPools() []*Op {
	return []*Op{opAddTask, opTakeTasks, opBindLease, opLeases, opRemoveTask, opForgetTask, opLapsedTasks, opListPools, opSeeWorker}
}

// queues are the tasks of pools.
type queues struct {
	*client
	pools.Queue
}

func (c queues) Add(ctx context.Context, t *pools.Task, now time.Time) error {
	return do(ctx, c.p, opAddTask, t.ID(), func(ctx context.Context) error { return c.Queue.Add(ctx, t, now) })
}

func (c queues) Take(ctx context.Context, p pools.Pool, t pools.Take) (pools.Taken, error) {
	return through(ctx, c.p, opTakeTasks, c.p.name, func(ctx context.Context) (pools.Taken, error) { return c.Queue.Take(ctx, p, t) })
}

func (c queues) Bind(ctx context.Context, p pools.Pool, id string, l *pools.Lease, now time.Time) (bool, error) {
	l = new(*l)
	return through(ctx, c.p, opBindLease, id, func(ctx context.Context) (bool, error) { return c.Queue.Bind(ctx, p, id, l, now) })
}

func (c queues) Leases(ctx context.Context, p pools.Pool, ids []string) ([]*pools.Lease, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return through(ctx, c.p, opLeases, first(ids, same), func(ctx context.Context) ([]*pools.Lease, error) { return c.Queue.Leases(ctx, p, ids) })
}

func (c queues) Remove(ctx context.Context, p pools.Pool, id string, fence job.Fence, number int64) (bool, error) {
	return through(ctx, c.p, opRemoveTask, id, func(ctx context.Context) (bool, error) { return c.Queue.Remove(ctx, p, id, fence, number) })
}

func (c queues) Forget(ctx context.Context, p pools.Pool, id string) error {
	return do(ctx, c.p, opForgetTask, id, func(ctx context.Context) error { return c.Queue.Forget(ctx, p, id) })
}

func (c queues) Lapsed(ctx context.Context, p pools.Pool, now time.Time) ([]*pools.Lease, error) {
	return through(ctx, c.p, opLapsedTasks, c.p.name, func(ctx context.Context) ([]*pools.Lease, error) { return c.Queue.Lapsed(ctx, p, now) })
}

func (c queues) Pools(ctx context.Context, now time.Time) ([]pools.Pool, error) {
	return through(ctx, c.p, opListPools, c.p.name, func(ctx context.Context) ([]pools.Pool, error) { return c.Queue.Pools(ctx, now) })
}

func (c queues) See(ctx context.Context, p pools.Pool, w *pools.Worker) error {
	return do(ctx, c.p, opSeeWorker, w.Name, func(ctx context.Context) error { return c.Queue.See(ctx, p, w) })
}
