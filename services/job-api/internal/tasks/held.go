package tasks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

const (
	// heldFor is how long it is remembered what operators keep from being dispatched.
	heldFor = time.Second
	// heldLimit bounds a look at that.
	heldLimit = 2 * time.Second
)

// knownHold is what operators keep from being dispatched, as it was read, or why it could never be read.
type knownHold struct {
	hold   *job.DispatchHold
	err    error
	readAt time.Time
}

func (h *knownHold) fresh(ts *Tasks) bool { return h != nil && ts.deps.Clock.Since(h.readAt) < heldFor }

// hold returns what operators keep from being dispatched, as it was up to a second ago. While one caller reads it, all others go by what was
// known before, which also stands while it cannot be read. A caller that gives up meanwhile has it read all the same.
func (ts *Tasks) hold(ctx context.Context) (*job.DispatchHold, error) {
	known := ts.known.Load()
	if known.fresh(ts) {
		return known.hold, known.err
	}
	select {
	case ts.reading <- struct{}{}:
	default:
		if known != nil && known.err == nil {
			return known.hold, nil
		}
		select {
		case ts.reading <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer func() { <-ts.reading }()
	if again := ts.known.Load(); again.fresh(ts) {
		return again.hold, again.err
	}
	asked := ts.deps.Clock.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldLimit)
	defer cancel()
	_, read, err := ts.deps.Holds(ctx)
	switch {
	case err == nil:
		known = &knownHold{hold: &read, readAt: asked}
	case known == nil || known.err != nil: // those who waited for it share the failure
		known = &knownHold{err: err, readAt: ts.deps.Clock.Now()}
	default:
		known = &knownHold{hold: known.hold, readAt: asked}
	}
	ts.known.Store(known)
	return known.hold, known.err
}

// beginAll lets attempts begin, but for those that are held and have not begun, which are judged again. What is returned for one is nil if it has
// not begun.
func (ts *Tasks) beginAll(ctx context.Context, hold *job.DispatchHold, list []*pools.Task, worker string, asked *pools.Take) ([]*task, []error) {
	begun, errs := make([]*task, len(list)), make([]error, len(list))
	held, failed := ts.heldAmong(ctx, hold, list)
	var all sync.WaitGroup
	for i, t := range list {
		all.Go(func() {
			switch {
			case t.Lease == nil && failed != nil:
				errs[i] = failed
			case t.Lease == nil && held[t.Fire.JobID]:
				errs[i] = ts.again(ctx, t)
			default:
				begun[i], errs[i] = ts.begin(ctx, t, worker, asked)
			}
		})
	}
	all.Wait()
	return begun, errs
}

// heldAmong returns the jobs that are held among those of a tenant's tasks that have not begun. Their tasks are judged again, so that their
// entries wait for the end of the hold.
func (ts *Tasks) heldAmong(ctx context.Context, h *job.DispatchHold, list []*pools.Task) (map[string]bool, error) {
	held := map[string]bool{}
	var ids []string
	tenant := list[0].Fire.Tenant
	all, labels := h.Holds(tenant, nil), len(h.Labels)+len(h.Tenants[tenant].Labels) > 0
	for _, t := range list {
		switch {
		case t.Lease != nil:
		case all:
			held[t.Fire.JobID] = true
		case labels:
			ids = append(ids, t.Fire.JobID)
		}
	}
	if len(ids) == 0 {
		return held, nil
	}
	ctx, cancel := context.WithTimeout(ctx, heldLimit)
	defer cancel()
	rows, err := ts.deps.Jobs.GetMany(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read the labels of jobs: %w", err)
	}
	for id, j := range rows {
		held[id] = h.Holds(tenant, j.Labels)
	}
	return held, nil
}
