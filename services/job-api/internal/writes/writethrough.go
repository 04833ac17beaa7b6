package writes

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// writeThrough adds an entry to its hot bucket when it is due before the horizon. The horizon is read after the entry
// was acknowledged: a loader that has published a later one reads the bucket afterwards and finds the entry there.
// A failure is made good in the background; the entry is durable all the same, and the loader's sweeps would find it.
func (ws *Writes) writeThrough(ctx context.Context, e job.Entry) {
	ws.writeThroughAll(ctx, []job.Entry{e})
}

const (
	// heatWithin is how long an answer waits for the hot tier, which it does not need: it goes on behind the answer.
	heatWithin = 250 * time.Millisecond
	// heatPause is how long answers do not wait for it at all after one has waited in vain.
	heatPause = time.Second
)

// writeThroughAll is writeThrough for many.
func (ws *Writes) writeThroughAll(ctx context.Context, entries []job.Entry) {
	now := ws.deps.Clock.Now().UnixNano()
	if ws.heatAgain.Load() <= now {
		short, cancel := context.WithTimeout(ctx, heatWithin)
		err := ws.heat(short, entries)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, hotbucket.ErrFull) {
			ws.heatAgain.Store(now + int64(heatPause))
		}
	}
	for _, e := range entries {
		select {
		case ws.cold <- e:
		default: // the loader's sweeps find it
		}
	}
}

func (ws *Writes) heat(ctx context.Context, entries []job.Entry) error {
	near, err := hotbucket.Near(ctx, ws.deps.Hot, entries)
	if err != nil || len(near) == 0 {
		return err
	}
	return ws.deps.Hot.Add(ctx, near)
}

func (ws *Writes) writeThroughLoop(ctx context.Context) {
	for {
		select {
		case e := <-ws.cold:
			err := run.Patiently(ctx, ws.deps.Logger, "write an entry through", func(ctx context.Context) error {
				return ws.heat(ctx, []job.Entry{e})
			})
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
