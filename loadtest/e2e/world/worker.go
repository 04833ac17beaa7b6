package world

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Worker is a worker of a pool. What it is handed is on record among the calls of the targets.
type Worker struct {
	W          *World
	Pool, Name string
	Handlers   []string
	polls      atomic.Int64
}

// Task is a task that a worker has.
type Task struct {
	ID, Execution, Token string
	Attempt              int
	Payload, Progress    any
	// Reference is the SHA-256 of the object that is in the place of the payload; "" for none.
	Reference string
	worker    *Worker
	n         int
}

// NewWorker returns a worker.
func (w *World) NewWorker(pool, name string, handlers ...string) *Worker {
	return &Worker{W: w, Pool: pool, Name: name, Handlers: handlers}
}

// Poll fetches tasks, and returns which of those that run are cancelled.
func (x *Worker) Poll(most int, wait string, running ...*Task) (tasks []*Task, cancelled []string) {
	x.W.T.Helper()
	ids := []string{}
	for _, t := range running {
		ids = append(ids, t.ID)
	}
	poll := fmt.Sprintf("%s-poll-%04d", strings.ReplaceAll(x.Name, "/", "-"), x.polls.Add(1))
	status, answer := x.W.Do(http.MethodPost, "/pools/"+x.Pool+"/poll", map[string]any{
		"poll_id": poll, "worker": x.Name, "handlers": x.Handlers, "max": most, "wait": wait, "running": ids,
	})
	if status != http.StatusOK {
		x.W.T.Errorf("a poll was answered %d: %v", status, answer)
		return nil, nil
	}
	for _, one := range answer["tasks"].([]any) {
		m := one.(map[string]any)
		t := &Task{
			ID: m["task_id"].(string), Execution: m["execution_id"].(string), Token: m["fencing_token"].(string), Attempt: int(m["attempt"].(float64)),
			Payload: m["payload"], Progress: m["progress"], worker: x,
		}
		if ref, ok := m["payload_ref"].(map[string]any); ok {
			t.Reference = ref["sha256"].(string)
		}
		scheduled, _ := time.Parse(time.RFC3339Nano, m["scheduled_for"].(string))
		t.n = x.W.Targets.Took(&ledger.Call{
			Host: "pool " + x.Pool, JobID: m["job_id"].(string), ExecutionID: t.Execution, Key: m["idempotency_key"].(string), Attempt: t.Attempt,
			ScheduledFor: scheduled, Token: t.Token, At: time.Now(), CheckedAt: time.Now(),
		})
		tasks = append(tasks, t)
	}
	for _, id := range answer["cancelled"].([]any) {
		cancelled = append(cancelled, id.(string))
	}
	return tasks, cancelled
}

func (t *Task) say(verb string, body map[string]any) (status int, answer map[string]any) {
	body["fencing_token"] = t.Token
	return t.worker.W.Do(http.MethodPost, "/pools/"+t.worker.Pool+"/tasks/"+t.ID+"/"+verb, body)
}

// Complete ends the task with success, and returns the status of the answer.
func (t *Task) Complete(result any) int {
	status, _ := t.say("complete", map[string]any{"result": result})
	t.worker.W.Targets.ended(t.n, false)
	return status
}

// Fail ends the task with a failure.
func (t *Task) Fail(retryable bool) int {
	status, _ := t.say("fail", map[string]any{"error": "it did not work", "retryable": retryable})
	t.worker.W.Targets.ended(t.n, retryable)
	return status
}

// Release gives the task back.
func (t *Task) Release() int {
	status, _ := t.say("release", map[string]any{})
	t.worker.W.Targets.givenBack(t.n)
	return status
}

// Beat keeps the task; progress nil tells none. ok is false if the worker has lost it.
func (t *Task) Beat(progress any) (cancelled, ok bool) {
	body := map[string]any{}
	if progress != nil {
		body["progress"] = progress
	}
	status, answer := t.say("heartbeat", body)
	cancelled, _ = answer["cancelled"].(bool)
	return cancelled, status == http.StatusOK
}

// Lost notes that the worker was lost with the task: another attempt follows.
func (t *Task) Lost() { t.worker.W.Targets.ended(t.n, true) }
