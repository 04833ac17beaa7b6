package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

const (
	// MaxWait is how long a poll waits at most.
	MaxWait = 20 * time.Second
	// lookEvery is the pause after which a poll that waits looks for itself, in case a ring was lost.
	lookEvery = 5 * time.Second
	// cancelledEvery is the pause after which it looks whether what its worker runs was cancelled.
	cancelledEvery = 500 * time.Millisecond
	// checkLimit is how old a last check may be when the task is handed out: a stop may have come since.
	checkLimit = time.Second
)

// pollRequest is the body of a poll.
type pollRequest struct {
	PollID   string      `json:"poll_id"`
	Worker   string      `json:"worker"`
	Version  string      `json:"version"`
	Handlers []string    `json:"handlers"`
	Max      *form.Whole `json:"max"`
	Wait     *form.Time  `json:"wait"`
	Running  []string    `json:"running"`
}

// task is a task as a worker gets it.
type task struct {
	TaskID       string            `json:"task_id"`
	ExecutionID  string            `json:"execution_id"`
	Attempt      int               `json:"attempt"`
	JobID        string            `json:"job_id"`
	Handler      string            `json:"handler"`
	FencingToken string            `json:"fencing_token"`
	Key          string            `json:"idempotency_key"`
	Headers      map[string]string `json:"headers,omitempty"`
	Payload      json.RawMessage   `json:"payload,omitempty"`
	Progress     json.RawMessage   `json:"progress,omitempty"`
	ScheduledFor time.Time         `json:"scheduled_for"`
	NominalAt    time.Time         `json:"nominal_at"`
	Heartbeat    json.Marshaler    `json:"heartbeat_timeout"`
	LeaseEndsAt  time.Time         `json:"lease_ends_at"`
	EndsAt       time.Time         `json:"ends_at"`
}

type pollResponse struct {
	Tasks     []task   `json:"tasks"`
	Cancelled []string `json:"cancelled"`
}

// poll hands tasks to a worker. It waits until there is one, until what the worker runs was cancelled, or as long as it asks for.
func (ts *Tasks) poll(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var body pollRequest
	if err := json.Unmarshal(r.Raw, &body); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	if ts.deps.Queue == nil {
		return edge.Response{}, errNoQueue
	}
	p, wait, now := poolAt(r), body.Wait.Or(0), ts.deps.Clock.Now()
	most := 1
	if body.Max != nil {
		most = int(*body.Max)
	}
	until := now.Add(min(wait, MaxWait))
	w := &pools.Worker{Name: body.Worker, Version: body.Version, Handlers: body.Handlers, Running: len(body.Running), SeenAt: job.Instant(now)}
	if err := ts.deps.Queue.See(ctx, p, w); err != nil {
		return edge.Response{}, err
	}
	answer := pollResponse{Tasks: []task{}, Cancelled: []string{}}
	running, err := ts.deps.Queue.Leases(ctx, p, body.Running)
	if err != nil {
		return edge.Response{}, err
	}
	for looked := (time.Time{}); ; {
		waiter := ts.deps.Queue.Bell().Wait(p, body.Handlers)
		if now := ts.deps.Clock.Now(); most > 0 && now.Sub(looked) >= 0 {
			answer.Tasks, err = ts.take(ctx, p, &body, most)
			looked = now.Add(lookEvery)
		}
		if err == nil && len(answer.Tasks) == 0 {
			answer.Cancelled, err = ts.cancelled(ctx, running, body.Running)
		}
		left := ts.deps.Clock.Until(until)
		if err != nil || left <= 0 || len(answer.Tasks)+len(answer.Cancelled) > 0 || !ts.rest(ctx, waiter, min(left, ts.pause(running, looked)), &looked) {
			ts.deps.Queue.Bell().End(waiter)
			break
		}
		ts.deps.Queue.Bell().End(waiter)
	}
	if err != nil {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusOK, Body: answer}, nil
}

// pause returns how long a poll rests.
func (ts *Tasks) pause(running []*pools.Lease, looked time.Time) time.Duration {
	rest := max(ts.deps.Clock.Until(looked), time.Millisecond)
	if len(running) > 0 {
		rest = min(rest, cancelledEvery)
	}
	return rest
}

// rest waits until it is rung for, or for a while. It reports whether the poll goes on. After a ring, the poll looks at once.
func (ts *Tasks) rest(ctx context.Context, w *pools.Waiter, d time.Duration, looked *time.Time) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-ts.stopping:
		return false
	case <-w.Rung:
		*looked = time.Time{}
	case <-timer.C:
	}
	return true
}

// cancelled returns which of the tasks that a worker runs were cancelled, or are not its own any more.
func (ts *Tasks) cancelled(ctx context.Context, running []*pools.Lease, ids []string) ([]string, error) {
	list := []string{}
	var jobIDs []string
	for i, l := range running {
		if l == nil {
			list = append(list, ids[i])
		} else {
			jobIDs = append(jobIDs, l.Fire.JobID)
		}
	}
	stops, err := ts.deps.Records.StopsOf(ctx, jobIDs)
	if err != nil {
		return nil, fmt.Errorf("read stop records: %w", err)
	}
	for i, l := range running {
		if l != nil && stopped(stops, l) {
			list = append(list, ids[i])
		}
	}
	return list, nil
}

// stopped reports whether a task's execution was cancelled, or another one took its place.
func stopped(stops map[string]job.State, l *pools.Lease) bool {
	s := stops[l.Fire.JobID]
	return s.Stops(l.Fire.ExecutionID) || s.Displaced(&l.Fire.Entry)
}

// take takes tasks, and makes the last check of each.
func (ts *Tasks) take(ctx context.Context, p pools.Pool, body *pollRequest, most int) ([]task, error) {
	taken, err := ts.deps.Queue.Take(ctx, p, pools.Take{Poll: body.PollID, Handlers: body.Handlers, Most: most, Now: ts.deps.Clock.Now()})
	if err != nil {
		return nil, fmt.Errorf("take tasks: %w", err)
	}
	begun := make([]*pools.Lease, len(taken))
	errs := make([]error, len(taken))
	var all sync.WaitGroup
	for i, t := range taken {
		all.Go(func() { begun[i], errs[i] = ts.begin(ctx, t, body.Worker) })
	}
	all.Wait()
	list := []task{}
	for i, t := range taken {
		if begun[i] == nil {
			continue
		}
		one, err := ts.shown(ctx, t, begun[i])
		if errs[i] = err; err == nil {
			list = append(list, one)
		}
	}
	if err := errors.Join(errs...); err != nil {
		// What has begun is handed out again when the poll is repeated.
		return nil, err
	}
	ts.handed.Add(float64(len(list)))
	return list, nil
}

// begin lets an attempt begin: it acquires the lease, makes the last check, and binds the worker's lease to the task. It returns nil if the
// attempt may not begin: then it is over, somebody else has it, or it is judged again.
//
//   - Everything here is done again if the poll is repeated: the holder is the task's, so the lease is the same.
//   - A crash in between leaves a task that is taken and not bound. It waits again after pools.TakenFor, and can then be acquired by the same holder.
//   - A check that took longer than a second may be older than a stop. The attempt is then judged again.
func (ts *Tasks) begin(ctx context.Context, t *pools.Task, worker string) (*pools.Lease, error) {
	now := ts.deps.Clock.Now()
	if t.Lease != nil {
		if t.Lease.Worker == worker && now.Before(t.Lease.Until) {
			return t.Lease, nil // the poll is repeated
		}
		return nil, nil //nolint:nilnil // it is lapsing, or another worker's poll had this name
	}
	key := attempts.KeyOf(&t.Fire.Entry)
	rec, ok, err := ts.deps.Records.Acquire(ctx, key, t.Holder, now, now.Add(t.Fire.Target.Heartbeat))
	if err != nil {
		return nil, fmt.Errorf("acquire a task: %w", err)
	}
	if !ok { // it ended, or another task of the same attempt runs
		return nil, ts.drop(ctx, t)
	}
	check := attempts.Check{Entry: &t.Fire.Entry, StopVersion: t.StopVersion, Incarnation: t.Incarnation}
	fence, stop, err := ts.deps.Records.Start(ctx, key, rec.Token, check)
	switch {
	case errors.Is(err, attempts.ErrFenced):
		return nil, ts.drop(ctx, t)
	case err != nil && !errors.Is(err, attempts.ErrIncarnation):
		return nil, fmt.Errorf("check a task: %w", err)
	case err != nil, stop != nil, ts.deps.Clock.Since(now) > checkLimit:
		if err := ts.deps.Records.Release(ctx, key, rec.Token, rec.Running); err != nil {
			return nil, fmt.Errorf("release a task: %w", err)
		}
		if err := ts.drop(ctx, t); err != nil {
			return nil, err
		}
		ts.deps.Again(ctx, t.Fire.Entry)
		return nil, nil //nolint:nilnil // it may not begin
	}
	light := *t.Fire
	light.Target.Headers, light.Target.Body = nil, nil
	l := &pools.Lease{Fire: &light, Token: rec.Token, Fence: fence, Worker: worker, Begun: job.Instant(now), Until: job.Instant(now.Add(t.Fire.Target.Heartbeat))}
	bound, err := ts.deps.Queue.Bind(ctx, t.Pool(), t.ID(), l, now)
	if err != nil {
		return nil, fmt.Errorf("bind the lease of a task: %w", err)
	}
	if !bound { // it took too long: the task waits again, and can be acquired as before
		return nil, nil //nolint:nilnil // see above
	}
	return l, nil
}

// drop removes a task to which no lease is bound.
func (ts *Tasks) drop(ctx context.Context, t *pools.Task) error {
	if err := ts.deps.Queue.Remove(ctx, t.Pool(), t.ID(), job.Fence{}); err != nil {
		return fmt.Errorf("remove a task: %w", err)
	}
	return nil
}

// shown returns a task as its worker gets it.
func (ts *Tasks) shown(ctx context.Context, t *pools.Task, l *pools.Lease) (task, error) {
	f := t.Fire
	one := task{
		TaskID: t.ID(), ExecutionID: f.ExecutionID, Attempt: f.Attempt, JobID: f.JobID, Handler: f.Target.Handler, FencingToken: l.Fence.String(),
		Key: f.Target.IdempotencyKey(&f.Entry), Headers: f.Target.Headers, Payload: f.Target.Body, ScheduledFor: f.ScheduledFor, NominalAt: f.NominalAt,
		Heartbeat: form.Duration(f.Target.Heartbeat), LeaseEndsAt: l.Until, EndsAt: l.Begun.Add(f.Target.Timeout),
	}
	if !t.Again {
		return one, nil
	}
	progress, err := ts.progressOf(ctx, f.ExecutionID)
	one.Progress = progress
	return one, err
}
