package tasks

import (
	"context"
	"fmt"
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

// knownHold is what operators keep from being dispatched, as it was read.
type knownHold struct {
	hold   *job.DispatchHold
	readAt time.Time
}

func (h *knownHold) fresh(ts *Tasks) bool { return h != nil && ts.deps.Clock.Since(h.readAt) < heldFor }

// hold returns what operators keep from being dispatched, as it was up to a second ago. While one caller reads it, all others go by what was
// known before, which also stands while it cannot be read. A caller that gives up meanwhile has it read all the same.
func (ts *Tasks) hold(ctx context.Context) (*job.DispatchHold, error) {
	known := ts.known.Load()
	if known.fresh(ts) {
		return known.hold, nil
	}
	select {
	case ts.reading <- struct{}{}:
	default:
		if known != nil {
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
		return again.hold, nil
	}
	asked := ts.deps.Clock.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldLimit)
	defer cancel()
	_, read, err := ts.deps.Holds(ctx)
	switch {
	case err == nil:
		known = &knownHold{&read, asked}
	case known == nil:
		return nil, err
	default:
		known = &knownHold{known.hold, asked}
	}
	ts.known.Store(known)
	return known.hold, nil
}

// heldAmong returns the jobs among those of tasks that are held by a label. Their tasks are judged again, so that their entries wait for the end
// of the hold.
func (ts *Tasks) heldAmong(ctx context.Context, h *job.DispatchHold, tenant job.Tenant, list []*pools.Task) (map[string]bool, error) {
	held := map[string]bool{}
	if len(list) == 0 || len(h.Labels)+len(h.Tenants[tenant].Labels) == 0 {
		return held, nil
	}
	ids := make([]string, len(list))
	for i, t := range list {
		ids[i] = t.Fire.JobID
	}
	rows, err := ts.deps.Jobs.GetMany(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read the labels of jobs: %w", err)
	}
	for id, j := range rows {
		held[id] = h.Holds(tenant, j.Labels)
	}
	return held, nil
}
