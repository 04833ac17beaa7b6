package writes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// hotWithin is how long an answer waits for the hot tier, which it does not need: the write goes on after the answer.
	hotWithin = 250 * time.Millisecond
	// hotPause is how long answers do not wait for the hot tier at all, after one has waited in vain.
	hotPause = time.Second
	// nearSwept is how far ahead of its instant every entry is seen by a near sweep that has not begun yet, with time to spare for a loader
	// that is late.
	nearSwept = 5 * time.Minute
)

// Near adds entries to their hot buckets if they are due before the horizon. It reads the horizon after the entries
// were acknowledged: a loader that has published a later one reads the buckets afterwards and finds the entries there. A
// failure is repaired in the background, entry by entry or, if there are too many, by reading their buckets again. The entries are durable
// all the same, and the loader's closing sweep would find them half a minute after their minute.
func (ws *Writes) Near(ctx context.Context, entries []job.Entry) {
	now := ws.deps.Clock.Now().UnixNano()
	if ws.hotAgain.Load() <= now {
		short, cancel := context.WithTimeout(ctx, hotWithin)
		err := ws.addNear(short, entries)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, hotbucket.ErrFull) {
			ws.hotAgain.Store(now + int64(hotPause))
		}
	}
	var left []job.Entry
	soon := ws.deps.Clock.Now().Add(nearSwept)
	for _, e := range entries {
		if e.DueAt.After(soon) {
			continue // the loader's near sweep brings it in time
		}
		select {
		case ws.notThrough <- e:
		default:
			left = append(left, e)
		}
	}
	if len(left) > 0 {
		ws.deps.Missed.Add(float64(len(left)))
		ws.behind.add(left)
	}
}

// addNear adds the entries that are due before the horizon to their hot buckets.
func (ws *Writes) addNear(ctx context.Context, entries []job.Entry) error {
	if err := hotbucket.AddNear(ctx, ws.deps.Hot, entries); err != nil {
		return fmt.Errorf("add %d entries to their hot buckets: %w", len(entries), err)
	}
	return nil
}

// throughAtOnce is how many entries are written through together in the background. One by one, what a hot tier that was away for a
// moment has left behind would take longer than until it is due.
const throughAtOnce = 2000

// writeThroughLoop repeats write-throughs that failed until ctx ends. Once it has come to the end of those that had room, it reads the
// buckets of the others.
func (ws *Writes) writeThroughLoop(ctx context.Context) {
	for {
		var entries []job.Entry
		select {
		case e := <-ws.notThrough:
			entries = append(entries, e)
		case <-ws.behind.some:
		case <-ctx.Done():
			return
		}
		for len(entries) < throughAtOnce && len(ws.notThrough) > 0 {
			entries = append(entries, <-ws.notThrough) // nobody else takes from it
		}
		err := run.Retry(ctx, ws.deps.Logger, "write entries through", func(ctx context.Context) error { return ws.addNear(ctx, entries) })
		if err == nil && len(ws.notThrough) == 0 {
			err = ws.catchUp(ctx, ws.behind.take())
		}
		if err != nil {
			return
		}
	}
}
