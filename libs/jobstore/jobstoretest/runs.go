package jobstoretest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func runOf(jobID string, n int) job.Locator {
	at := jobsBegin.Add(time.Duration(n) * time.Minute)
	return job.Locator{
		Partition: 7, Minute: job.Minute(at), DueAt: at, ExecutionID: job.ScheduleExecutionID(jobID, at), Attempt: n + 1, DefinitionID: fmt.Sprint("def_", n),
	}
}

func runsChain(t *testing.T, s jobstore.Jobs) {
	id := newJobID()
	runs, err := s.Runs(t.Context(), id)
	if err != nil || len(runs) > 0 {
		t.Fatalf("runs of a job without any: %v, %v", runs, err)
	}
	swapConflicts(t, s, id, []job.Locator{runOf(id, 9)}, []job.Locator{runOf(id, 0)})
	var group sync.WaitGroup
	for n := range writers {
		group.Go(func() {
			addRun(t, s, id, runOf(id, n))
		})
	}
	group.Wait()
	runs, err = s.Runs(t.Context(), id)
	must(t, err)
	seen := map[job.Locator]bool{}
	for _, l := range runs {
		seen[l] = true
	}
	for n := range writers {
		if !seen[runOf(id, n)] || len(runs) != writers {
			t.Fatalf("runs after %d changes: %v, run %d is missing", writers, runs, n)
		}
	}
	swapConflicts(t, s, id, runs[1:], runs[:1])
	again, err := s.Runs(t.Context(), id)
	must(t, err)
	same(t, "runs", again, runs)
}

// addRun adds a run to those of a job. A change that was not answered may have taken effect.
func addRun(t *testing.T, s jobstore.Jobs, id string, l job.Locator) {
	t.Helper()
	for unanswered := 0; unanswered < mostUnanswered; {
		standing, err := s.Runs(t.Context(), id)
		if err == nil && slices.Contains(standing, l) {
			return
		}
		if err == nil {
			err = s.SwapRuns(t.Context(), id, standing, append(standing[:len(standing):len(standing)], l))
		}
		if err == nil {
			return
		}
		if !errors.Is(err, jobstore.ErrConflict) {
			unanswered++
		}
	}
	t.Errorf("%d changes of runs were not answered", mostUnanswered)
}

// swapConflicts checks that a swap is refused.
func swapConflicts(t *testing.T, s jobstore.Jobs, id string, old, runs []job.Locator) {
	t.Helper()
	var err error
	for range mostUnanswered {
		if err = s.SwapRuns(t.Context(), id, old, runs); err == nil || errors.Is(err, jobstore.ErrConflict) {
			break
		}
	}
	if !errors.Is(err, jobstore.ErrConflict) {
		t.Fatalf("a swap of others: %v, want ErrConflict", err)
	}
}

func runsAreRemoved(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, true))
	addRun(t, s, j.ID, runOf(j.ID, 1))
	must(t, s.Remove(t.Context(), j.Tenant, j.ID))
	runs, err := s.Runs(t.Context(), j.ID)
	must(t, err)
	same(t, "runs of a removed job", len(runs), 0)
}
