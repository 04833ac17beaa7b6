package writes

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// distant is a hot tier that is away at first, which a client notices after a second as its own time limits have it, and then takes a while
// for each answer.
type distant struct {
	hotbucket.Buckets
	away  atomic.Bool
	takes time.Duration
	added atomic.Int64

	mu sync.Mutex
	// entries are those that were added, if they are to be known.
	entries map[job.Locator]bool
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
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range entries {
		if d.entries != nil {
			d.entries[entries[i].Locator] = true
		}
	}
	return nil
}

// stored is a cold store that holds entries by bucket.
type stored struct {
	jobstore.Pending
	mu   sync.Mutex
	rows map[bucketOf][]job.PendingRow
}

func (s *stored) put(e job.Entry, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := bucketOf{e.Partition, e.Minute}
	s.rows[b] = append(s.rows[b], job.PendingRow{Entry: e, Done: done})
}

func (s *stored) Scan(_ context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.rows[bucketOf{partition, minute}]
	if after != nil {
		rows = rows[1+slices.IndexFunc(rows, func(r job.PendingRow) bool { return r.Locator == *after }):]
	}
	return rows[:min(limit, len(rows))], nil
}

// What found no room would be called half a minute after its minute.
func TestWhatFoundNoRoomInTheBackgroundIsReadAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const room, n, partitions = 100, 3000, 4
		hot := &distant{takes: 5 * time.Millisecond, entries: map[job.Locator]bool{}}
		hot.away.Store(true)
		cold := &stored{rows: map[bucketOf][]job.PendingRow{}}
		missed := prometheus.NewCounter(prometheus.CounterOpts{})
		ws := New(Config{MaxWriteThroughs: room}, Deps{Hot: hot, Pending: cold, Missed: missed, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		go ws.Run(ctx)
		now := time.Now()
		want := map[job.Locator]bool{}
		for i := range n {
			due := now.Add(10*time.Second + time.Duration(i)*20*time.Millisecond)
			e := job.Entry{Locator: job.Locator{Partition: i % partitions, Minute: job.Minute(due), DueAt: due, ExecutionID: fmt.Sprint(i)}}
			cold.put(e, false)
			want[e.Locator] = true
			ws.Near(t.Context(), []job.Entry{e})
		}
		over := job.Entry{Locator: job.Locator{Minute: job.Minute(now), DueAt: now.Add(time.Second), ExecutionID: "past due"}}
		done := job.Entry{Locator: job.Locator{Minute: job.Minute(now), DueAt: now.Add(20 * time.Second), ExecutionID: "done"}}
		cold.put(over, false)
		cold.put(done, true)
		ws.Near(t.Context(), []job.Entry{over})
		ws.behind.mu.Lock()
		if len(ws.behind.buckets) == 0 {
			t.Error("there was room for all")
		}
		ws.behind.mu.Unlock()
		time.Sleep(2 * time.Second)
		hot.away.Store(false)
		time.Sleep(3 * time.Second)
		stop()
		synctest.Wait()
		if !maps.Equal(hot.entries, want) {
			t.Errorf("%d entries are in their hot buckets, want %d: all that are ahead, and no other", len(hot.entries), len(want))
		}
	})
}

// One by one they would take two answers each: longer than until they are due.
func TestWhatTheHotTierMissedFollowsTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
