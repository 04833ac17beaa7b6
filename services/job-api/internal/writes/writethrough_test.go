package writes

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// distant is a hot tier that is away at first, which a client notices after a second as its own time limits have it, and then takes a while
// for each answer.
type distant struct {
	hotbucket.Buckets
	away  atomic.Bool
	takes time.Duration
	added atomic.Int64
}

func (d *distant) Horizons(ctx context.Context, partitions []int) ([]time.Time, error) {
	if d.away.Load() {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(d.takes)
	return slices.Repeat([]time.Time{time.Now().Add(time.Hour)}, len(partitions)), nil
}

func (d *distant) Add(_ context.Context, entries []job.Entry) error {
	time.Sleep(d.takes)
	d.added.Add(int64(len(entries)))
	return nil
}

// One by one they would take two answers each: longer than until they are due.
func TestWhatTheHotTierMissedFollowsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		hot := &distant{takes: 5 * time.Millisecond}
		hot.away.Store(true)
		ws := New(Config{MaxWriteThroughs: n}, Deps{Hot: hot, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		go ws.Run(ctx)
		for range n {
			ws.Near(t.Context(), []job.Entry{{Locator: job.Locator{DueAt: time.Now().Add(10 * time.Second)}}})
		}
		hot.away.Store(false)
		time.Sleep(2 * time.Second) // a look that was under way, and the pause after it
		if added := hot.added.Load(); added != n {
			t.Errorf("%d of %d entries are in their hot buckets", added, n)
		}
		stop()
		synctest.Wait()
	})
}
