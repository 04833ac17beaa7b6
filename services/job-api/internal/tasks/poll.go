package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
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
	PayloadRef   *job.BodyRef      `json:"payload_ref,omitempty"`
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
	slices.Sort(body.Handlers)
	body.Handlers = slices.Compact(body.Handlers)
	p, now := poolAt(r), ts.deps.Clock.Now()
	w := &pools.Worker{Name: body.Worker, Version: body.Version, Handlers: body.Handlers, Running: len(body.Running), SeenAt: job.Instant(now)}
	if err := ts.deps.Queue.See(ctx, p, w); err != nil && ctx.Err() == nil {
		ts.deps.Logger.Warn("cannot note a worker", "error", err) // it is only shown
	}
	running, err := ts.deps.Queue.Leases(ctx, p, body.Running)
	if err != nil {
		return edge.Response{}, err
	}
	one := &polling{ts: ts, pool: p, body: &body, most: 1, until: now, running: running}
	if body.Max != nil {
		one.most = int(*body.Max)
	}
	if wait := min(body.Wait.Or(0), MaxWait); wait > 0 {
		select {
		case ts.waiting <- struct{}{}:
			one.until = now.Add(wait)
			defer func() { <-ts.waiting }()
		default: // too many wait: it is answered at once
		}
	}
	answer, err := one.run(ctx)
	if err != nil {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusOK, Body: answer}, nil
}

// polling is a poll while it is answered.
type polling struct {
	ts    *Tasks
	pool  pools.Pool
	body  *pollRequest
	most  int
	until time.Time
	// running are the leases of the tasks that the worker has.
	running []*pools.Lease
	// round counts how often everything that was taken had to be dropped. A poll that is repeated looks for what it had in the same rounds.
	round int
	// looks is when it looks for tasks again.
	looks time.Time
}

// run returns the answer as soon as there is something to tell, or when the poll has waited as long as it may.
func (x *polling) run(ctx context.Context) (answer pollResponse, err error) {
	ts := x.ts
	answer = pollResponse{Tasks: []task{}, Cancelled: []string{}}
	began := ts.deps.Clock.Now()
	for {
		var waiter *pools.Waiter
		var rung <-chan struct{}
		if x.most > 0 {
			waiter = ts.deps.Queue.Bell().Wait(x.pool, x.body.Handlers)
			rung = waiter.Rung
			if now := ts.deps.Clock.Now(); !now.Before(x.looks) {
				x.looks = now.Add(lookEvery)
				answer.Tasks, err = x.take(ctx)
			}
		}
		if err == nil && len(answer.Tasks) == 0 {
			answer.Cancelled, err = ts.cancelled(ctx, x.running, x.body.Running)
		}
		left := ts.deps.Clock.Until(x.until)
		// A worker that goes on to name what was cancelled is not answered at once each time.
		told := len(answer.Cancelled) > 0 && ts.deps.Clock.Since(began) >= cancelledEvery
		goesOn := err == nil && left > 0 && len(answer.Tasks) == 0 && !told && x.round < maxRounds && x.rest(ctx, rung, left)
		if waiter != nil {
			ts.deps.Queue.Bell().End(waiter)
		}
		if !goesOn {
			return answer, err
		}
	}
}

// rest waits until it is rung for, or for a while. It reports whether the poll goes on. After a ring, the poll looks at once.
func (x *polling) rest(ctx context.Context, rung <-chan struct{}, d time.Duration) bool {
	if x.most > 0 {
		d = min(d, max(x.ts.deps.Clock.Until(x.looks), time.Millisecond))
	}
	if len(x.running) > 0 {
		d = min(d, cancelledEvery)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-x.ts.stopping:
		return false
	case <-rung:
		x.looks = time.Time{}
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

// maxRounds bounds how often a poll takes tasks of which none may begin, and so the rounds in which its repetition looks for what it had. Then it is
// answered, and the worker's next poll goes on.
const maxRounds = 20

// take takes tasks, and makes the last check of each. What failed is handed out by a later poll, so that it does not keep what has begun from the
// worker.
//
// Where the first answer of a poll was lost, its tasks may be those of a later round: if nothing is left of a round, the next one is asked for, but
// takes nothing. A request that comes late, when the worker has ended what it was given, gets nothing.
func (x *polling) take(ctx context.Context) (list []task, err error) {
	ts := x.ts
	list = []task{}
	set, err := ts.deps.Known.Of(ctx, x.pool)
	if err != nil {
		return list, err
	}
	most := x.most
	for round := x.round; round < maxRounds; round++ {
		hold, err := ts.hold(ctx)
		if err != nil {
			return list, err
		}
		asked := pools.Take{
			Poll: x.body.PollID + "." + strconv.Itoa(round), Handlers: x.body.Handlers, Most: most, Limits: set.Limits(), Now: ts.deps.Clock.Now(),
		}
		if hold.Holds(x.pool.Tenant, nil) { // a poll that is repeated gets what has begun all the same
			asked.Limits = pools.Limits{Running: new(int)}
		}
		taken, err := ts.deps.Queue.Take(ctx, x.pool, asked)
		if err != nil {
			return list, fmt.Errorf("take tasks: %w", err)
		}
		if len(taken.Tasks) == 0 && !taken.Again {
			return list, nil
		}
		if len(taken.Tasks) == 0 {
			most = 0
			continue
		}
		begun, errs := ts.beginAll(ctx, hold, taken.Tasks, x.body.Worker, &asked)
		for _, one := range begun {
			if one != nil {
				list = append(list, *one)
			}
		}
		err = errors.Join(errs...)
		if len(list) > 0 || err != nil {
			ts.handed.Add(float64(len(list)))
			if err != nil && len(list) > 0 {
				ts.deps.Logger.Warn("some tasks cannot be handed out now", "error", err)
				err = nil
			}
			return list, err
		}
		if most > 0 { // all of them were over, stopped, held or somebody else's
			x.round = round + 1
		}
	}
	return list, nil
}

// begin lets an attempt begin: it acquires the lease, makes the last check, and binds the worker's lease to the task. It returns nil if the
// attempt may not begin: then it is over, somebody else has it, or it is judged again.
//
//   - Everything here is done again if the poll is repeated: the holder is the task's, and the hand-out the poll's, so the lease is the same.
//   - A server of the pool that was replaced may hand the task out once more, beside the one in its place. The attempt's record lets one of the two
//     have the lease, so no worker ends the attempt after another one had it under a greater token.
//   - A crash in between leaves a task that is taken and not bound. It waits again after pools.TakenFor, and is then another hand-out of the same
//     holder. That has a greater token, so this process cannot go on when it wakes.
//   - If this process stalls, the task may have waited again and be another worker's: then a lease is bound to it, and this one binds none.
//   - A check that took longer than a second may be older than a stop. The attempt is then judged again.
//   - A task that has waited so long that the hot tier may have forgotten how the attempt ended is judged again, too.
func (ts *Tasks) begin(ctx context.Context, t *pools.Task, worker string, asked *pools.Take) (*task, error) {
	now := ts.deps.Clock.Now()
	if t.Lease != nil {
		return ts.shownAgain(ctx, t, t.Lease, worker)
	}
	key := attempts.KeyOf(&t.Fire.Entry)
	memory, err := ts.deps.Records.Memory(ctx, t.Fire.JobID)
	if err != nil {
		return nil, fmt.Errorf("read what is remembered of a task: %w", err)
	}
	if memory.Incarnation != t.Incarnation || !t.KnownSince.After(memory.KeptSince) || now.Sub(t.KnownSince) > attempts.Retention-clock.MaxDifference {
		return nil, ts.again(ctx, t)
	}
	until := job.Instant(now.Add(t.Fire.Target.Heartbeat))
	holder := t.Holder
	holder.For, holder.ForSince = worker+"/"+asked.Poll, job.Instant(asked.Now)
	rec, ok, err := ts.deps.Records.Acquire(ctx, key, holder, now, until.Add(2*clock.MaxDifference))
	if err != nil {
		return nil, fmt.Errorf("acquire a task: %w", err)
	}
	if !ok && rec.Outcome == nil && rec.Holder == holder.Name && rec.Token.Start == holder.Start {
		return nil, nil //nolint:nilnil // another hand-out of it has the lease; it waits again after pools.TakenFor, unless a lease is bound to it
	}
	if !ok { // it ended, or another task of the same attempt runs
		return nil, ts.drop(ctx, t)
	}
	t.Again = t.Again || rec.Running // the pool has forgotten that a worker had it
	progress, err := ts.progressOf(ctx, t)
	if err != nil {
		return nil, err
	}
	checked := ts.deps.Clock.Now()
	check := attempts.Check{Entry: &t.Fire.Entry, StopVersion: t.StopVersion, Incarnation: t.Incarnation}
	fence, stop, err := ts.deps.Records.Start(ctx, key, rec.Token, check)
	switch {
	case errors.Is(err, attempts.ErrFenced):
		return nil, nil //nolint:nilnil // it ended, or this process stalled and another hand-out has it: it waits again, and the next poll finds out
	case err != nil && !errors.Is(err, attempts.ErrIncarnation):
		return nil, fmt.Errorf("check a task: %w", err)
	case err != nil, stop != nil, ts.deps.Clock.Since(checked) > checkLimit:
		return nil, ts.giveBack(ctx, t, &rec, job.Fence{})
	}
	light := *t.Fire
	light.Target.Headers, light.Target.Body, light.Target.BodyRef = nil, nil, nil
	l := &pools.Lease{Fire: &light, Token: rec.Token, Fence: fence, Worker: worker, Begun: job.Instant(now), Until: until, Again: t.Again}
	bound, err := ts.deps.Queue.Bind(ctx, t.Pool(), t.ID(), l, ts.deps.Clock.Now())
	switch {
	case err != nil:
		return nil, fmt.Errorf("bind the lease of a task: %w", err)
	case bound && ts.deps.Clock.Since(checked) > checkLimit:
		return nil, ts.giveBack(ctx, t, &rec, fence)
	case bound:
		return shown(t, l, progress), nil
	}
	if l, err = ts.bound(ctx, t); err != nil || l == nil {
		return nil, err // it waits again
	}
	return ts.shownAgain(ctx, t, l, worker) // the poll was repeated at the same time
}

// shownAgain returns a task that was handed out already, if the poll of the worker that has it is repeated. The lease is changed before: otherwise
// who bound it, for the same poll, might give it back.
func (ts *Tasks) shownAgain(ctx context.Context, t *pools.Task, l *pools.Lease, worker string) (*task, error) {
	for range maxBeats {
		now := ts.deps.Clock.Now()
		if l == nil || l.Worker != worker || !now.Before(l.Until) {
			return nil, nil //nolint:nilnil // it was given back, it lapses, or another worker's poll had this name
		}
		told := *l
		told.Number++
		kept, err := ts.deps.Queue.Bind(ctx, t.Pool(), t.ID(), &told, now)
		if err != nil {
			return nil, fmt.Errorf("keep a task: %w", err)
		}
		if kept {
			t.Again = t.Again || l.Again // who bound the lease may have learnt it only from the attempt
			progress, err := ts.progressOf(ctx, t)
			if err != nil {
				return nil, err
			}
			return shown(t, &told, progress), nil
		}
		if l, err = ts.bound(ctx, t); err != nil { // a heartbeat changed it, or another repetition
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // the next repetition finds it
}

// bound returns the lease that is bound to a task; nil if there is none.
func (ts *Tasks) bound(ctx context.Context, t *pools.Task) (*pools.Lease, error) {
	leases, err := ts.deps.Queue.Leases(ctx, t.Pool(), []string{t.ID()})
	if err != nil {
		return nil, fmt.Errorf("read the lease of a task: %w", err)
	}
	return leases[0], nil
}

// backWithin bounds the giving back of an attempt, which goes on if its worker has gone.
const backWithin = 10 * time.Second

// giveBack releases an attempt that may not begin as it was checked, and lets it be judged again. With a fence, this process has just bound a lease
// with it.
//
// A worker may have the task by now, if the same poll was repeated at another process, or somebody else has given it back. So the task is removed
// first, where it stands as this process left it, and only who did that releases. A crash in between leaves an attempt that nobody has and that is
// held until the end of its hold: that of the lease, or of the executor that handed the task over. Then its entry leads to it.
func (ts *Tasks) giveBack(ctx context.Context, t *pools.Task, rec *attempts.Record, fence job.Fence) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backWithin)
	defer cancel()
	removed, err := ts.deps.Queue.Remove(ctx, t.Pool(), t.ID(), fence, 0)
	if err != nil {
		return fmt.Errorf("remove a task: %w", err)
	}
	if !removed {
		return nil
	}
	err = ts.deps.Records.Release(ctx, attempts.KeyOf(&t.Fire.Entry), rec.Token, rec.Running, rec.DefinitionID)
	if err != nil { // it is done once more, and by its token no harm
		err = ts.deps.Records.Release(ctx, attempts.KeyOf(&t.Fire.Entry), rec.Token, rec.Running, rec.DefinitionID)
	}
	ts.fireAgain(ctx, t.Fire.Entry)
	if err != nil {
		return fmt.Errorf("release a task: %w", err)
	}
	return nil
}

// again removes a task to which no lease is bound, and lets its entry be judged and handed over once more. The executor holds the attempt for the
// task. It is released first: otherwise the next executor would wait until that hold is over.
func (ts *Tasks) again(ctx context.Context, t *pools.Task) error {
	now := ts.deps.Clock.Now()
	rec, ok, err := ts.deps.Records.Acquire(ctx, attempts.KeyOf(&t.Fire.Entry), t.Holder, now, now.Add(checkLimit))
	if err != nil {
		return fmt.Errorf("acquire a task: %w", err)
	}
	if ok {
		return ts.giveBack(ctx, t, &rec, job.Fence{})
	}
	if err := ts.drop(ctx, t); err != nil {
		return err
	}
	ts.fireAgain(ctx, t.Fire.Entry)
	return nil
}

// drop removes a task to which no lease is bound.
func (ts *Tasks) drop(ctx context.Context, t *pools.Task) error {
	if _, err := ts.deps.Queue.Remove(ctx, t.Pool(), t.ID(), job.Fence{}, 0); err != nil {
		return fmt.Errorf("remove a task: %w", err)
	}
	return nil
}

// shown returns a task as its worker gets it.
func shown(t *pools.Task, l *pools.Lease, progress json.RawMessage) *task {
	f := t.Fire
	return &task{
		TaskID: t.ID(), ExecutionID: f.ExecutionID, Attempt: f.Attempt, JobID: f.JobID, Handler: f.Target.Handler, FencingToken: l.Fence.String(),
		Key: f.Target.IdempotencyKey(&f.Entry), Headers: f.Target.Headers, Payload: f.Target.Body, PayloadRef: f.Target.BodyRef, Progress: progress,
		ScheduledFor: f.ToldInstant(), NominalAt: f.Occurrence(), Heartbeat: form.Duration(f.Target.Heartbeat), LeaseEndsAt: l.Until, EndsAt: l.Begun.Add(f.Target.Timeout),
	}
}
