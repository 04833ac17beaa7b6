package executor

import (
	"context"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/run"
)

// napFrom is how long before an instant a nap takes the place of a Go timer.
const napFrom = 2 * time.Millisecond

// alarm wakes goroutines at instants more exactly than Go timers do. Instants are whole milliseconds, and one goroutine sleeps for all
// that wait for the same one, so at most a handful of threads sleep at a time.
type alarm struct {
	clock clock.Clock
	// nap sleeps for about that long, at most [napFrom].
	nap func(time.Duration)

	mu sync.Mutex
	at map[int64]chan struct{}
}

func newAlarm(c clock.Clock, nap func(time.Duration)) *alarm {
	return &alarm{clock: c, nap: nap, at: map[int64]chan struct{}{}}
}

// wait returns at an instant, never before it by this machine's clock, or with an error when ctx ends.
func (a *alarm) wait(ctx context.Context, until time.Time) error {
	if d := a.clock.Until(until) - napFrom; d > 0 {
		if err := run.Sleep(ctx, d); err != nil {
			return err
		}
	}
	if !a.clock.Now().Before(until) {
		return ctx.Err()
	}
	key := until.UnixMilli()
	a.mu.Lock()
	rings, asleep := a.at[key]
	if !asleep {
		rings = make(chan struct{})
		a.at[key] = rings
	}
	a.mu.Unlock()
	if asleep {
		select {
		case <-rings:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	for d := a.clock.Until(until); d > 0; d = a.clock.Until(until) { // a signal ends a nap early
		a.nap(min(d, napFrom))
	}
	a.mu.Lock()
	delete(a.at, key)
	a.mu.Unlock()
	close(rings)
	return ctx.Err()
}
