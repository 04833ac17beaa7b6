package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

const (
	// endFor is how long a worker tries to tell how a task ended.
	endFor = 2 * time.Minute
	// beatsInTimeout is how many heartbeats there are in a heartbeat timeout.
	beatsInTimeout = 3
	maxError       = 4096 // bytes of an error's text
)

type fenced struct {
	FencingToken string          `json:"fencing_token"`
	Progress     json.RawMessage `json:"progress,omitzero"`
	Result       any             `json:"result,omitempty"`
	Error        string          `json:"error,omitzero"`
	Retryable    *bool           `json:"retryable,omitzero"`
	RetryAfter   sdk.Duration    `json:"retry_after,omitzero"`
}

// run runs a task and tells how it ended; handling ends when it was cancelled or lost, alive with the worker.
func (w *Worker) run(handling, alive context.Context, t *Task) {
	beating, rest := context.WithCancel(alive)
	var beat sync.WaitGroup
	beat.Go(func() { t.beats.run(beating) })
	defer beat.Wait()
	defer rest()
	err := w.call(handling, t)
	cause := context.Cause(handling)
	end := fenced{FencingToken: t.FencingToken}
	switch {
	case errors.Is(cause, ErrLost):
		w.settings.Logger.Warn("a task was lost", "task_id", t.ID, "error", err)
	case err == nil:
		end.Result = t.result
		w.end(alive, t, "complete", end)
	case errors.Is(cause, ErrDrained):
		w.end(alive, t, "release", end)
	default:
		var f failure
		if errors.As(err, &f) {
			retryable := !f.permanent
			end.Retryable, end.RetryAfter = &retryable, sdk.Duration(f.after.Truncate(time.Millisecond))
		}
		end.Error = err.Error()
		end.Error = end.Error[:min(len(end.Error), maxError)]
		w.end(alive, t, "fail", end)
	}
}

// call calls a handler; a panic is an error.
func (w *Worker) call(ctx context.Context, t *Task) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.settings.Logger.Error("a handler panicked", "task_id", t.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()
	return w.handlers[t.Handler](ctx, t)
}

// end tells how a task ended, until it is answered. Its heartbeats go on meanwhile. The server knows by the fencing token whether the task is
// still this worker's, so it is told even if it may be lost.
func (w *Worker) end(ctx context.Context, t *Task, how string, body fenced) {
	ctx, stop := context.WithTimeout(ctx, endFor)
	defer stop()
	for tries := 0; ; tries++ {
		err := w.client.Do(ctx, http.MethodPost, w.path("/tasks/"+t.ID+"/"+how), body, nil)
		if err == nil {
			return
		}
		if refused(err) || ctx.Err() != nil {
			w.settings.Logger.Warn("cannot tell how a task ended", "task_id", t.ID, "operation", how, "error", err)
			return
		}
		pause(ctx, firstPause<<min(tries, 10))
	}
}

// beats are the heartbeats of a task.
type beats struct {
	worker *Worker
	task   *Task
	stop   context.CancelCauseFunc // ends the handler's context
	now    chan struct{}           // asks for one now

	mu    sync.Mutex // one at a time
	until time.Time  // by when the task is lost, unless it is heard
}

func newBeats(w *Worker, t *Task, stop context.CancelCauseFunc) *beats {
	return &beats{worker: w, task: t, stop: stop, now: make(chan struct{}, 1), until: time.Now().Add(t.timeout)}
}

// look asks for a heartbeat at once.
func (b *beats) look() {
	select {
	case b.now <- struct{}{}:
	default:
	}
}

// run sends heartbeats until ctx ends or the task is lost.
func (b *beats) run(ctx context.Context) {
	tick := time.NewTicker(b.task.timeout / beatsInTimeout)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.now:
		case <-ctx.Done():
			return
		}
		if err := b.beat(ctx, nil); errors.Is(err, ErrLost) {
			return
		}
	}
}

// beat sends a heartbeat, and ends the handler's context if the answer says so, or if there is none for too long.
func (b *beats) beat(ctx context.Context, progress json.RawMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	began := time.Now()
	ctx, end := context.WithDeadline(ctx, b.until)
	defer end()
	var a struct {
		Cancelled bool   `json:"cancelled"`
		Reason    string `json:"reason"`
	}
	err := b.worker.client.Do(ctx, http.MethodPost, b.worker.path("/tasks/"+b.task.ID+"/heartbeat"),
		fenced{FencingToken: b.task.FencingToken, Progress: progress}, &a)
	switch {
	case sdk.HasStatus(err, http.StatusConflict), sdk.HasStatus(err, http.StatusNotFound), err != nil && !time.Now().Before(b.until):
		b.stop(ErrLost)
		return errors.Join(ErrLost, err)
	case err != nil:
		return err
	case a.Cancelled && a.Reason == "timeout":
		b.stop(ErrTimeout)
	case a.Cancelled:
		b.stop(ErrCancelled)
	}
	b.until = began.Add(b.task.timeout)
	return nil
}
