package tasks

import (
	"context"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

const (
	// heardEvery is the pause between two heartbeats of a worker that this process notes: one that polls is noted as often at least.
	heardEvery = MaxWait
	// maxNoted bounds the workers of which it is known when they were noted. Those that are forgotten are noted once more.
	maxNoted = 10_000
)

// heard notes the worker of a lease, which may have no room for more tasks, and so does not poll. It is only shown.
func (ts *Tasks) heard(ctx context.Context, l *pools.Lease) {
	p, now := poolOf(l), ts.deps.Clock.Now()
	if !ts.beats.due(noticed{p, l.Worker}, now) {
		return
	}
	w := &pools.Worker{Name: l.Worker, Handlers: []string{l.Fire.Target.Handler}, Running: 1, SeenAt: job.Instant(now), Beats: true}
	if err := ts.deps.Queue.See(ctx, p, w); err != nil && ctx.Err() == nil {
		ts.deps.Logger.Warn("cannot note a worker", "error", err)
	}
}

// noticed names a worker of a pool.
type noticed struct {
	pool   pools.Pool
	worker string
}

// noted remembers when workers were noted by their heartbeats.
type noted struct {
	mu sync.Mutex
	at map[noticed]time.Time
}

// due reports whether a worker is to be noted now, and takes it that it is.
func (n *noted) due(w noticed, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, known := n.at[w]; known && now.Sub(at) < heardEvery {
		return false
	}
	if n.at == nil || len(n.at) >= maxNoted {
		n.at = map[noticed]time.Time{}
	}
	n.at[w] = now
	return true
}
