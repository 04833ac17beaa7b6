// Package hotbuckettest is the conformance suite of the hot buckets.
package hotbuckettest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entryAt(partition int, at time.Time) job.Entry {
	id := job.JobPrefix + ulid.Make().String()
	return job.NewEntry(job.Entry{
		Locator: job.Locator{Partition: partition, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1, DefinitionID: "def_1"},
		JobID:   id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
	}, at)
}

// Run runs the suite; the buckets that open gives have at least 4 partitions and are empty.
func Run(t *testing.T, open func(t *testing.T) hotbucket.Buckets) {
	now := job.Instant(time.Now())
	worker := func(partition int, epoch int64) hotbucket.Owner {
		return hotbucket.Owner{Role: hotbucket.RoleWorker, Partition: partition, Epoch: epoch}
	}
	t.Run("what is due is read in order and stays until it is removed", func(t *testing.T) {
		b := open(t)
		must(t, b.SetEpoch(t.Context(), worker(1, 1)))
		second, first, later := entryAt(1, now.Add(2*time.Second)), entryAt(1, now.Add(time.Second)), entryAt(1, now.Add(time.Hour))
		must(t, b.Add(t.Context(), []job.Entry{second, first, later}))
		must(t, b.Add(t.Context(), []job.Entry{first}))
		for range 2 {
			due, err := b.Due(t.Context(), []hotbucket.Owner{worker(1, 1)}, now.Add(2*time.Second), 10)
			must(t, err)
			if len(due) != 2 || due[0] != first || due[1] != second {
				t.Fatalf("due: %v", due)
			}
		}
		must(t, b.Remove(t.Context(), []job.Locator{first.Locator}))
		due, err := b.Due(t.Context(), []hotbucket.Owner{worker(1, 1)}, now.Add(2*time.Second), 1)
		must(t, err)
		if len(due) != 1 || due[0] != second {
			t.Errorf("due: %v", due)
		}
	})
	t.Run("removing an occurrence leaves the same execution at another instant", func(t *testing.T) {
		b := open(t)
		e := entryAt(2, now)
		again := e
		again.DueAt = now.Add(time.Second)
		must(t, b.Add(t.Context(), []job.Entry{e, again}))
		must(t, b.Remove(t.Context(), []job.Locator{e.Locator}))
		absent, err := b.Absent(t.Context(), []job.Locator{e.Locator, again.Locator})
		must(t, err)
		if len(absent) != 1 || absent[0] != e.Locator {
			t.Errorf("absent: %v", absent)
		}
	})
	t.Run("an owner without the present epoch is refused everywhere", func(t *testing.T) {
		b := open(t)
		stale := func(err error, what string) {
			t.Helper()
			if !errors.Is(err, hotbucket.ErrStaleEpoch) {
				t.Errorf("%s gave %v", what, err)
			}
		}
		_, err := b.Due(t.Context(), []hotbucket.Owner{worker(1, 5)}, now, 1)
		stale(err, "reading without an epoch")
		must(t, b.SetEpoch(t.Context(), worker(1, 5)))
		must(t, b.SetEpoch(t.Context(), worker(1, 6)))
		stale(b.SetEpoch(t.Context(), worker(1, 5)), "taking over with an old epoch")
		_, err = b.Due(t.Context(), []hotbucket.Owner{worker(1, 5)}, now, 1)
		stale(err, "reading")
		_, err = b.Claim(t.Context(), worker(1, 5), []hotbucket.Claim{{ExecutionID: "x"}})
		stale(err, "claiming")
		stale(b.SetHorizon(t.Context(), worker(1, 5), now), "setting the horizon")
	})
	t.Run("of concurrent claims all see the one that stands", func(t *testing.T) {
		b := open(t)
		must(t, b.SetEpoch(t.Context(), worker(1, 1)))
		var mu sync.Mutex
		seen := map[int]bool{}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				standing, err := b.Claim(t.Context(), worker(1, 1), []hotbucket.Claim{{ExecutionID: "x", Decision: job.Decision{NextOrdinal: i + 1}}})
				if err != nil || len(standing) != 1 {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				seen[standing[0].NextOrdinal] = true
			})
		}
		wg.Wait()
		if len(seen) != 1 {
			t.Errorf("%d different decisions were seen", len(seen))
		}
	})
	t.Run("the horizon is zero until it is published", func(t *testing.T) {
		b := open(t)
		h, err := b.Horizon(t.Context(), 1)
		must(t, err)
		if !h.IsZero() {
			t.Errorf("horizon is %s", h)
		}
		must(t, b.SetEpoch(t.Context(), hotbucket.Owner{Role: hotbucket.RoleLoader, Partition: 1, Epoch: 1}))
		must(t, b.SetHorizon(t.Context(), hotbucket.Owner{Role: hotbucket.RoleLoader, Partition: 1, Epoch: 1}, now))
		h, err = b.Horizon(t.Context(), 1)
		must(t, err)
		if !h.Equal(now) {
			t.Errorf("horizon is %s, want %s", h, now)
		}
	})
	t.Run("a hot tier that was made anew has another incarnation", func(t *testing.T) {
		one, err := open(t).Incarnation(t.Context())
		must(t, err)
		two, err := open(t).Incarnation(t.Context())
		must(t, err)
		if one == "" || one == two {
			t.Errorf("incarnations %q and %q", one, two)
		}
	})
}
