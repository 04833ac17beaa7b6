package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

const (
	// endFor is how long a worker tries to tell how a task ended.
	endFor = 2 * time.Minute
	// beatsInTimeout is how many heartbeats there are in a heartbeat timeout.
	beatsInTimeout = 3
	maxError       = 12 << 10 // bytes of an error's text
	maxResult      = 64 << 10 // bytes of a result
	endTry         = 15 * time.Second
)

type fenced struct {
	FencingToken string          `json:"fencing_token"`
	Progress     json.RawMessage `json:"progress,omitzero"`
	Sequence     int             `json:"sequence,omitzero"`
	Result       json.RawMessage `json:"result,omitzero"`
	Error        string          `json:"error,omitzero"`
	Retryable    *bool           `json:"retryable,omitzero"`
	RetryAfter   sdk.Duration    `json:"retry_after,omitzero"`
}

// run calls the handler of a task and tells the server how that ended. The handler has the context handling; the heartbeats and the end have alive,
// which lasts as long as the worker does.
func (w *Worker) run(handling, alive context.Context, t *Task) {
	beating, rest := context.WithCancel(alive)
	var beat sync.WaitGroup
	beat.Go(func() { t.beats.run(beating) })
	defer beat.Wait()
	defer rest()
	// The server tells that the task has taken too long, if it is asked then.
	late := time.AfterFunc(time.Until(t.EndsAt)+time.Second, t.beats.look)
	defer late.Stop()
	err := w.call(handling, t)
	cause := context.Cause(handling)
	end := fenced{FencingToken: t.FencingToken}
	switch {
	case err == nil: // it is told even if the task may be lost: the server knows by the fencing token
		end.Result = w.result(t)
		w.end(alive, t, "complete", end)
	case errors.Is(cause, ErrLost):
		w.settings.Logger.Warn("a task was lost", "task_id", t.ID, "error", err)
	case errors.Is(cause, ErrDrained):
		w.end(alive, t, "release", end)
	default:
		var f failure
		if errors.As(err, &f) {
			retryable := !f.permanent
			end.Retryable, end.RetryAfter = &retryable, sdk.Duration(max(f.after, 0).Truncate(time.Millisecond))
		}
		end.Error = err.Error()
		end.Error = strings.ToValidUTF8(end.Error[:min(len(end.Error), maxError)], "")
		end.Result = w.result(t)
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

// result encodes a task's result. One that cannot be kept costs no success.
func (w *Worker) result(t *Task) json.RawMessage {
	if t.result == nil {
		return nil
	}
	text, err := json.Marshal(t.result)
	if err == nil && len(text) > maxResult {
		err = fmt.Errorf("it has %d bytes, more than %d", len(text), maxResult)
	}
	if err != nil {
		w.settings.Logger.Warn("the result of a task cannot be kept", "task_id", t.ID, "error", err)
		return nil
	}
	return text
}

// ofBodies are the answers that may be about the result. Others, such as those about a credential, are not.
var ofBodies = []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

// end tells the server how a task ended, again and again until it answers. The heartbeats of the task continue until then.
func (w *Worker) end(ctx context.Context, t *Task, how string, body fenced) {
	ctx, stop := context.WithTimeout(ctx, endFor)
	defer stop()
	for tries := 0; ; tries++ {
		try, done := context.WithTimeout(ctx, endTry)
		err := w.client.Do(try, http.MethodPost, w.path("/tasks/"+t.ID+"/"+how), body, nil)
		done()
		if err == nil {
			return
		}
		invalid := slices.ContainsFunc(ofBodies, func(status int) bool { return sdk.HasStatus(err, status) })
		if invalid && body.Result != nil {
			w.settings.Logger.Warn("the result of a task is refused and is not kept", "task_id", t.ID, "error", err)
			body.Result = nil // such as one of too many values
			continue
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
	told  int        // counts the checkpoints: a try that comes late, after a later one, must not take its place
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

// beat sends a heartbeat until it is answered, and ends the handler's context if the answer says so, or if there is none for too long.
func (b *beats) beat(ctx context.Context, progress json.RawMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if progress != nil {
		b.told++
	}
	for {
		began := time.Now()
		reason, err := b.try(ctx, progress)
		switch {
		case sdk.HasStatus(err, http.StatusConflict), sdk.HasStatus(err, http.StatusNotFound), err != nil && !time.Now().Before(b.until):
			b.stop(ErrLost)
			return errors.Join(ErrLost, err)
		case err != nil && (refused(err) || ctx.Err() != nil):
			return err
		case err != nil:
			pause(ctx, min(firstPause, time.Until(b.until)))
			continue
		case reason != nil:
			b.stop(reason)
		}
		b.until = began.Add(b.task.timeout)
		return nil
	}
}

// try sends a heartbeat, and returns why the task is to be stopped, if it is. A connection that has died costs one try.
func (b *beats) try(ctx context.Context, progress json.RawMessage) (reason, err error) {
	ctx, end := context.WithTimeout(ctx, min(b.task.timeout/beatsInTimeout, time.Until(b.until)))
	defer end()
	var a struct {
		Cancelled bool   `json:"cancelled"`
		Reason    string `json:"reason"`
	}
	told := fenced{FencingToken: b.task.FencingToken, Progress: progress}
	if progress != nil {
		told.Sequence = b.told
	}
	err = b.worker.client.Do(ctx, http.MethodPost, b.worker.path("/tasks/"+b.task.ID+"/heartbeat"),
		told, &a)
	switch {
	case err != nil:
		return nil, err
	case a.Cancelled && a.Reason == "timeout":
		return ErrTimeout, nil
	case a.Cancelled:
		return ErrCancelled, nil
	}
	return nil, nil
}
