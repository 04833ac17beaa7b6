package e2e

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

func TestAnyNumberOfOverdueEntriesDrainsByPolicyInBoundedMemory(t *testing.T) {
	const jobs, share = 4000, 100 // in each partition may wait to be put back, and again in its hot bucket
	account := world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = func(c *platform.Config) {
			calm(c)
			c.Loader.MaxCandidates = 1
		}
		w.Start()
		due := time.Now().Add(30 * time.Minute)
		createBatches(w, jobs/2, map[string]any{"type": "one_shot", "run_at": due, "missed_run_policy": "skip"})
		createBatches(w, jobs/2, map[string]any{"type": "one_shot", "run_at": due, "missed_run_policy": "fire_once"})
		w.Stop()
		world.Until(due.Add(time.Hour))
		w.Start()
		began := time.Now()
		time.Sleep(5 * time.Second)
		ready := httptest.NewRecorder()
		w.Platform.API.Handler().ServeHTTP(ready, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		if ready.Code != http.StatusOK {
			t.Errorf("after 5 s it is not ready: %s", ready.Body)
		}
		for len(w.Targets.Calls()) < jobs/2 && time.Since(began) < 10*time.Minute {
			if n := w.Gauge("minutehand_bucket_loader_put_back_candidates"); n > world.Partitions*share {
				t.Fatalf("%.0f entries wait to be put back, want at most %d", n, world.Partitions*share)
			}
			if n := w.Platform.Adapters.Hot.Entries(); n > 2*world.Partitions*share {
				t.Fatalf("%d entries are hot, want at most %d", n, 2*world.Partitions*share)
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("caught up within %s", time.Since(began).Round(time.Second))
		if !w.Log.Says("catching up with what is overdue") {
			t.Error("the log tells nothing of the progress")
		}
		time.Sleep(2 * time.Minute)
	})
	skipped := 0
	for i := range account.Events {
		if account.Events[i].Disposition == job.DispositionSkippedMissed {
			skipped++
		}
	}
	if n := len(account.Calls); n != jobs/2 || skipped != jobs/2 {
		t.Errorf("%d were fired and %d skipped, want %d each", n, skipped, jobs/2)
	}
}

// createBatches creates n identical jobs, 1,000 per request.
func createBatches(w *world.World, n int, members map[string]any) {
	w.T.Helper()
	for range n / 1000 {
		batch := make([]any, 1000)
		for i := range batch {
			batch[i] = world.Job("overdue", "ok", members)
		}
		answer := w.Must(http.StatusOK, http.MethodPost, "/jobs:batch", map[string]any{"jobs": batch})
		for _, r := range answer["results"].([]any) {
			w.Adopt(r.(map[string]any)["job"].(map[string]any)["job_id"].(string))
		}
	}
}

func TestOverdueEntriesThatAreHeldKeepNoOthersWaiting(t *testing.T) {
	t.Parallel()
	const held, free = 3000, 1000
	world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = func(c *platform.Config) {
			calm(c)
			c.Loader.MaxCandidates = 1
		}
		w.Start()
		due := time.Now().Add(30 * time.Minute)
		createBatches(w, held, map[string]any{"type": "one_shot", "run_at": due, "labels": map[string]any{"team": "pay"}})
		createBatches(w, free, map[string]any{"type": "one_shot", "run_at": due.Add(time.Minute)})
		w.Must(http.StatusOK, http.MethodPost, "/dispatch/pause", map[string]any{"label": "team=pay"})
		w.Stop()
		world.Until(due.Add(time.Hour))
		w.Start()
		time.Sleep(5 * time.Minute)
		if n := len(w.Targets.Calls()); n != free {
			t.Errorf("while the others are held, %d were called, want %d", n, free)
		}
		w.Must(http.StatusOK, http.MethodPost, "/dispatch/resume", map[string]any{"label": "team=pay"})
		time.Sleep(5 * time.Minute)
		if n := len(w.Targets.Calls()); n != held+free {
			t.Errorf("when nothing is held any more, %d were called, want %d", n, held+free)
		}
	})
}
