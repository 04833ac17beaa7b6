package jobapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// told counts what is published.
type told struct {
	dispatch.Log
	records int
}

func (l *told) Publish(_ context.Context, _ string, records []dispatch.Message) error {
	l.records += len(records)
	return nil
}

// dies is a hot tier that does not answer any more when a task is to be removed.
type dies struct{ pools.Queue }

func (dies) Remove(context.Context, pools.Pool, string, job.Fence) error {
	return errors.New("connection refused")
}

// Otherwise the worker would repeat the end to a hot tier that may be back without the task, and be told that it is lost, although it succeeded.
func TestEndThatIsOnTheLogIsAnsweredAlthoughItsTaskCannotBeRemoved(t *testing.T) {
	log := &told{}
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log, d.Pools = log, dies{d.Pools} })
	now := job.Instant(time.Now())
	fire := &job.Fire{
		Entry: job.Entry{
			Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1893492000000", Attempt: 1, DueAt: now},
			JobID:   "job_01M7ZJW5E6D77SAJPXRW35C2CA", WrittenAt: now, Tenant: job.DefaultTenant,
		},
		Target: job.Target{Kind: job.TargetPool, Pool: "work", Handler: "do", Timeout: time.Hour, Heartbeat: 30 * time.Second},
	}
	memory, err := s.deps.Records.Memory(t.Context(), fire.JobID)
	if err != nil {
		t.Fatal(err)
	}
	task := &pools.Task{Fire: fire, Holder: attempts.Holder{Name: "task"}, Incarnation: memory.Incarnation, KnownSince: now}
	if err := s.deps.Pools.Add(t.Context(), task, now); err != nil {
		t.Fatal(err)
	}
	w := s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"poll-0001","worker":"w","handlers":["do"]}`)
	var answer struct {
		Tasks []struct {
			ID    string `json:"task_id"`
			Token string `json:"fencing_token"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Tasks) != 1 {
		t.Fatalf("the poll was answered %d: %s", w.Code, w.Body)
	}
	got := answer.Tasks[0]
	w = s.do(http.MethodPost, "/pools/work/tasks/"+got.ID+"/complete", `{"fencing_token":"`+got.Token+`"}`)
	if w.Code != http.StatusNoContent || log.records != 1 {
		t.Errorf("the end was answered %d with %d records on the log: %s", w.Code, log.records, w.Body)
	}
}
