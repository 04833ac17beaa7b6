//go:build servers

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// chain registers a job that is called every three seconds, n times, nine more that follow one another, and one that follows five of these ten, and
// returns their ids in this order.
func (f *platform) chain(n int) (ids []string) {
	f.t.Helper()
	one := func(body map[string]any) {
		body["target"] = map[string]any{"kind": "http_webhook", "url": f.sink.url + "/chain"}
		a, err := f.ask(f.t.Context(), len(ids)%2, http.MethodPost, "/jobs", body)
		f.must(err)
		var row struct {
			ID string `json:"job_id"`
		}
		if err := json.Unmarshal(a.body, &row); err != nil || a.status != http.StatusCreated {
			f.t.Fatalf("a job of a chain was answered %d: %s", a.status, a.body)
		}
		ids = append(ids, row.ID)
	}
	one(map[string]any{"name": "first", "type": "interval", "every": "3s", "max_occurrences": n, "missed_run_policy": "backfill"})
	for i := range 9 {
		one(map[string]any{"name": fmt.Sprint("link ", i), "type": "after", "after": []any{map[string]any{"job": ids[i]}}})
	}
	var five []any
	for _, i := range []int{1, 3, 5, 7, 9} {
		five = append(five, map[string]any{"job": ids[i], "on": "any"})
	}
	one(map[string]any{"name": "join", "type": "after", "after": five, "after_mode": "all"})
	return ids
}

// wantChain adds the jobs of a chain to those whose executions follow others, and checks that each has as many as the first one.
func (f *platform) wantChain(a *ledger.Account, ids []string) {
	f.t.Helper()
	for _, id := range ids[1:] {
		a.Followers = append(a.Followers, ledger.Follower{JobID: id, AckedAt: job.ULIDTime(id[len(job.JobPrefix):])})
	}
	executions := map[string]map[string]bool{}
	for i := range a.Events {
		if e := &a.Events[i]; e.Type == job.EventAttempt {
			if executions[e.Entry.JobID] == nil {
				executions[e.Entry.JobID] = map[string]bool{}
			}
			executions[e.Entry.JobID][e.Entry.ExecutionID] = true
		}
	}
	first := len(executions[ids[0]])
	f.t.Logf("the first job of a chain has %d executions, the last %d, and what joins five of them %d", first, len(executions[ids[9]]), len(executions[ids[10]]))
	if last, joined := len(executions[ids[9]]), len(executions[ids[10]]); last < first-4 || joined != last || last > first {
		f.t.Error("those are too many, or too few")
	}
}
