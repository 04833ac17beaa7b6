package bucketloader

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// counting counts the reads of the cold store, each of which takes a moment, and records which minutes of which partitions
// were read, in order.
type counting struct {
	jobstore.Pending
	reads atomic.Int64
	took  time.Duration

	mu      sync.Mutex
	minutes [][2]int64
}

func (c *counting) FirstOpen(ctx context.Context, partition int, from, to int64) (int64, bool, error) {
	c.reads.Add(1)
	time.Sleep(c.took)
	return c.Pending.FirstOpen(ctx, partition, from, to)
}

func (c *counting) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	c.reads.Add(1)
	time.Sleep(c.took)
	c.mu.Lock()
	c.minutes = append(c.minutes, [2]int64{int64(partition), minute})
	c.mu.Unlock()
	return c.Pending.Scan(ctx, partition, minute, after, limit)
}

// loading is a loader of all partitions on embedded adapters in memory.
type loading struct {
	*Service
	cold *counting
}

func newLoading(t *testing.T, partitions int) *loading {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: partitions, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	log, err := embedded.NewLog(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &loading{cold: &counting{Pending: embedded.NewPending(db)}}
	l.Service, err = New(DefaultConfig(), Deps{
		Pending: l.cold, Hot: embedded.NewHotBuckets(db.Incarnation(), partitions, 0), Records: records, Log: log,
		Coord: embedded.NewCoordinator(db), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	owners := make([]coord.Owner, partitions)
	for p := range owners {
		owners[p] = coord.Owner{Role: coord.RoleLoader, Partition: p, Epoch: 1}
	}
	l.assign(owners)
	return l
}

// put writes an entry of a partition, due at an instant.
func (l *loading) put(t *testing.T, partition, n int, due time.Time) job.Locator {
	t.Helper()
	return l.putOf(t, partition, n, due, "def_01M7ZJW5E6D77SAJPXRZ65CMZZ")
}

// putOf is put for an entry of a definition.
func (l *loading) putOf(t *testing.T, partition, n int, due time.Time, definitionID string) job.Locator {
	t.Helper()
	e := job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: partition, DueAt: due, ExecutionID: fmt.Sprintf("exe_01M7ZJW5E6D77SAJP%09d-s1", n), Attempt: 1,
			DefinitionID: definitionID,
		},
		JobID: fmt.Sprintf("job_01M7ZJW5E6D77SAJP%09d", n), NominalAt: due, ScheduledFor: due, Ordinal: 1, WrittenAt: time.Now(),
	}, due)
	if err := l.deps.Pending.Put(t.Context(), []job.Entry{e}); err != nil {
		t.Fatal(err)
	}
	return e.Locator
}

func TestSweepCostsTheSameAfterAHoldOfADay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		l.put(t, 0, 0, time.Now()) // it is held, and so not done
		cost := func() int64 {
			l.cold.reads.Store(0)
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(4 * time.Second) {
				l.round(t.Context())
			}
			return l.cold.reads.Load()
		}
		first, last := int64(0), int64(0)
		for minute := range 24 * 60 {
			// Two of three minutes have an entry, which is done a little later.
			if minute%3 != 0 {
				locator := l.put(t, 0, minute, time.Now())
				if err := l.deps.Pending.MarkDone(t.Context(), []job.Locator{locator}); err != nil {
					t.Fatal(err)
				}
			}
			last = cost()
			if minute == 20 {
				first = last
			}
		}
		least := last
		for range 12 { // from time to time it checks whether the empty buckets still are
			least = min(least, cost())
		}
		t.Logf("a minute of sweeps took %d reads after twenty minutes, %d after a day", first, least)
		if least > first+first/2 {
			t.Errorf("a minute of sweeps took %d reads after twenty minutes, %d after a day", first, least)
		}
	})
}

func TestWhatIsDueSoonComesFirstInAllPartitions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const partitions = 64
		l := newLoading(t, partitions)
		l.cold.took = 5 * time.Millisecond
		began := time.Now()
		for p := range partitions {
			for minute := range 60 {
				l.put(t, p, p*100+minute, began.Add(time.Duration(minute)*time.Minute+30*time.Second))
			}
		}
		l.round(t.Context())
		took := time.Since(began)
		soon, later := 0, false
		for _, m := range l.cold.minutes {
			if m[1] > job.Minute(began)+2 {
				later = true
			} else if !later {
				soon++
			}
		}
		if soon < 2*partitions {
			t.Errorf("%d of %d buckets of the next two minutes were read before any later one", soon, 2*partitions)
		}
		sequential := time.Duration(l.cold.reads.Load()) * l.cold.took
		t.Logf("%d reads took %s, one after the other they would take %s", l.cold.reads.Load(), took, sequential)
		if took > sequential/8 {
			t.Errorf("%d reads took %s", l.cold.reads.Load(), took)
		}
	})
}

// shrinking is a log whose end moves back to its real one: it lost more records.
type shrinking struct {
	dispatch.Log
	more int64
}

func (l *shrinking) End(ctx context.Context, topic string) (dispatch.Position, error) {
	end, err := l.Log.End(ctx, topic)
	for p := range end.Offsets {
		end.Offsets[p] += l.more
	}
	return end, err
}

func TestEntryComesBackAlthoughTheLogLostItsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		log := &shrinking{Log: l.deps.Log, more: 5}
		l.deps.Log = log
		l.round(t.Context())
		entry := l.put(t, 0, 1, time.Now()) // it is in no hot bucket
		rounds := func(n int) {
			for range n {
				time.Sleep(time.Second)
				l.round(t.Context())
			}
		}
		absent := func() bool {
			gone, err := l.deps.Hot.Absent(t.Context(), []*job.Entry{{Locator: entry}})
			if err != nil {
				t.Fatal(err)
			}
			return len(gone) == 1
		}
		rounds(120)
		if !absent() {
			t.Fatal("it came back before the settlers had passed what was noted")
		}
		log.more = 0
		rounds(30)
		if absent() {
			t.Error("it waits for records that the log has lost")
		}
	})
}

// behind is a log whose executors never reach the end of the fires.
type behind struct{ dispatch.Log }

func (l behind) End(ctx context.Context, topic string) (dispatch.Position, error) {
	end, err := l.Log.End(ctx, topic)
	if topic == dispatch.TopicFires {
		end.Offsets[0]++
	}
	return end, err
}

// An entry that is put back again and again waits longer each time. Failed updates have each left an entry for the same
// instant; the entry of the update that prevailed does not wait for them.
func TestEntryDoesNotWaitBecauseThoseOfOtherDefinitionsWerePutBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		l.deps.Log = behind{l.deps.Log}
		l.round(t.Context())
		due := time.Now()
		for n := range 6 {
			l.putOf(t, 0, 1, due, fmt.Sprintf("def_01M7ZJW5E6D77SAJPXRZ65CMZ%d", n))
		}
		rounds := func(n int) {
			for range n {
				time.Sleep(time.Second)
				l.round(t.Context())
			}
		}
		rounds(120)
		last := l.put(t, 0, 1, due)
		rounds(120)
		gone, err := l.deps.Hot.Absent(t.Context(), []*job.Entry{{Locator: last}})
		if err != nil {
			t.Fatal(err)
		}
		if len(gone) > 0 {
			t.Error("it was not put back within two minutes")
		}
	})
}
