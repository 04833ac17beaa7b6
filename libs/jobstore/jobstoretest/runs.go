package jobstoretest

import (
	"errors"
	"fmt"
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
	if err := s.SwapRuns(t.Context(), id, []job.Locator{runOf(id, 9)}, []job.Locator{runOf(id, 0)}); !errors.Is(err, jobstore.ErrConflict) {
		t.Fatalf("a swap of what was never there: %v, want ErrConflict", err)
	}
	var group sync.WaitGroup
	for n := range writers {
		group.Go(func() {
			for {
				standing, err := s.Runs(t.Context(), id)
				if err == nil {
					err = s.SwapRuns(t.Context(), id, standing, append(standing[:len(standing):len(standing)], runOf(id, n)))
				}
				if err == nil {
					return
				}
				if !errors.Is(err, jobstore.ErrConflict) {
					t.Errorf("swap runs: %v", err)
					return
				}
			}
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
	if err := s.SwapRuns(t.Context(), id, runs[1:], runs[:1]); !errors.Is(err, jobstore.ErrConflict) {
		t.Fatalf("a swap of others: %v, want ErrConflict", err)
	}
	must(t, s.SwapRuns(t.Context(), id, runs, runs[:1]))
	again, err := s.Runs(t.Context(), id)
	must(t, err)
	same(t, "runs", again, runs[:1])
}

func runsAreRemoved(t *testing.T, s jobstore.Jobs) {
	j := newJob()
	must(t, s.Create(t.Context(), j, true))
	must(t, s.SwapRuns(t.Context(), j.ID, nil, []job.Locator{runOf(j.ID, 1)}))
	must(t, s.Remove(t.Context(), j.Tenant, j.ID))
	runs, err := s.Runs(t.Context(), j.ID)
	must(t, err)
	same(t, "runs of a removed job", len(runs), 0)
}
