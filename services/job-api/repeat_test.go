package api_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	api "github.com/minutehand/minutehand/services/job-api"
)

// stalls stands still between a batch's entries and its rows, for longer than the grace. Meanwhile workers drop the entries, which
// have no job; then the rows are written, and the process dies.
type stalls struct {
	jobstore.Jobs
	jobstore.Pending
	t       *testing.T
	written []job.Entry
	died    bool
}

func (s *stalls) Put(ctx context.Context, entries []job.Entry) error {
	s.written = append(s.written, entries...)
	return s.Pending.Put(ctx, entries)
}

func (s *stalls) CreateMany(ctx context.Context, rows []job.Job) error {
	if s.died {
		return s.Jobs.CreateMany(ctx, rows)
	}
	s.died = true
	time.Sleep(3 * time.Minute)
	var dropped []job.Locator
	for _, e := range s.written {
		dropped = append(dropped, e.Locator)
	}
	if err := s.MarkDone(ctx, dropped); err != nil {
		s.t.Error(err)
	}
	if err := s.Jobs.CreateMany(ctx, rows); err != nil {
		s.t.Error(err)
	}
	return errFlaky
}

func TestBatchThatIsRepeatedAfterAStallHasAnEntryForEveryJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &stalls{t: t}
		s := newServer(t, func(c *api.Config, d *api.Deps) {
			store.Jobs, store.Pending = d.Jobs, d.Pending
			d.Jobs, d.Pending = store, store
			c.Grace = 2 * time.Minute
		})
		s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs:batch", batchOf(10), "Idempotency-Key", "k")
		for i, r := range s.batch(batchOf(10), "Idempotency-Key", "k").Results {
			id, alive := r.Job["job_id"], 0
			for _, e := range store.written {
				row, err := s.pending.Row(t.Context(), e.Locator)
				if err != nil {
					t.Fatal(err)
				}
				if e.JobID == id && !row.Done {
					alive++
				}
			}
			if r.Status != http.StatusCreated || alive != 1 {
				t.Errorf("job %d was answered with %d, and has %d entries that will fire", i, r.Status, alive)
			}
		}
	})
}

// diesAfter fails after so many letters were marked.
type diesAfter struct {
	jobstore.History
	marks int
}

func (h *diesAfter) MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) error {
	if h.marks--; h.marks == -1 {
		return errFlaky
	}
	return h.History.MarkRedriven(ctx, d, executionID)
}

func TestRedriveThatIsRepeatedNamesTheSameExecutions(t *testing.T) {
	for marks := range 4 {
		synctest.Test(t, func(t *testing.T) {
			var letters jobstore.History
			store := &slow{}
			s := newServer(t, func(_ *api.Config, d *api.Deps) {
				letters, store.Jobs, store.Pending = d.History, d.Jobs, d.Pending
				d.History, d.Pending = &diesAfter{letters, marks}, store
			})
			for i := range 4 {
				id := s.create(everySecond)
				now := job.Instant(time.Now().Add(time.Duration(i) * time.Second))
				e := job.Event{TenantID: "default", Type: job.EventAttempt, Entry: job.Entry{
					Locator: job.Locator{ExecutionID: job.ScheduleExecutionID(id, now), Attempt: 1}, JobID: id, NominalAt: now,
				}}
				if err := letters.PutDeadLetter(t.Context(), job.DeadLetter{Event: e, Reason: "permanent", At: now}); err != nil {
					t.Fatal(err)
				}
			}
			store.puts = nil
			s.answer(http.StatusServiceUnavailable, http.MethodPost, "/dead-letters:redrive", `{}`, "Idempotency-Key", "k")
			time.Sleep(time.Second)
			m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{}`, "Idempotency-Key", "k")
			answered, written := map[string]bool{}, map[string]bool{}
			for _, x := range m["executions"].([]any) {
				answered[fmt.Sprint(x.(map[string]any)["execution_id"])] = true
			}
			for _, e := range store.puts {
				written[e.ExecutionID] = true
			}
			if len(answered) != 4 || !maps.Equal(answered, written) {
				t.Errorf("it died after %d marks; then it answered %v, and wrote entries of %v", marks,
					slices.Sorted(maps.Keys(answered)), slices.Sorted(maps.Keys(written)))
			}
		})
	}
}
