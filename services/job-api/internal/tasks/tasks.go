// Package tasks hands the tasks of pools to the workers that fetch them, and ends their attempts.
//
// It promises: a worker has a task under a lease and a fencing token, and loses it when it is silent for longer than the task allows. Only
// the worker with the lease ends the attempt, and only until the lease is over. An end that was answered is on the log. No worker gets a task
// of another tenant, or one that was stopped before (I4). What this process forgets or leaves half done is found by another one, or comes back
// with its entry (decision 64).
package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// Deps are what tasks are handed out with.
type Deps struct {
	// Queue holds the tasks; nil where there are none.
	Queue   pools.Queue
	Records attempts.Records
	Log     dispatch.Log
	// Settings keeps what workers tell of their progress, and what is set for pools; Known remembers the latter, and Recorder makes known how
	// it changes.
	Settings jobstore.Settings
	Known    *pools.Known
	Recorder jobchange.Recorder
	// Holds tells what operators keep from being dispatched.
	Holds func(ctx context.Context) (stored []byte, hold job.DispatchHold, err error)
	// History is asked for ends of which the hot tier has no task any more, and Jobs whose they are, and which labels they have.
	History jobstore.History
	Jobs    jobstore.Jobs
	Hot     hotbucket.Buckets
	// Near adds entries to their hot buckets, now or soon.
	Near    func(ctx context.Context, entries []job.Entry)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Clock   clock.Clock
	// MaxWaiting bounds the polls that wait.
	MaxWaiting int
}

// Tasks hands tasks out.
type Tasks struct {
	deps Deps
	// stopping is closed when no poll shall wait any longer.
	stopping chan struct{}
	// waiting has a place for each poll that waits.
	waiting chan struct{}
	handed  prometheus.Counter
	ended   *prometheus.CounterVec
	// known is what operators hold. Who reads it has the one place in reading.
	known   atomic.Pointer[knownHold]
	reading chan struct{}
	// onLog are the ends that this process has published lately.
	onLog published
	// beats are the workers that were noted by their heartbeats lately.
	beats noted

	mu sync.Mutex
	// stillHot are the entries that are to be fired again once they are gone from their hot buckets.
	stillHot []stillHot
}

// New returns what hands tasks out.
func New(deps Deps) *Tasks {
	t := &Tasks{
		deps: deps, stopping: make(chan struct{}), waiting: make(chan struct{}, deps.MaxWaiting), reading: make(chan struct{}, 1),
		handed: prometheus.NewCounter(prometheus.CounterOpts{Name: "minutehand_tasks_handed_out_total", Help: "Tasks that were handed to workers of pools."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_tasks_ended_total", Help: "Tasks that workers of pools ended or lost, by outcome.",
		}, []string{"outcome"}),
	}
	if deps.Metrics != nil {
		deps.Metrics.MustRegister(t.handed, t.ended)
	}
	return t
}

// Operations returns the operations by their ids in the document.
func (ts *Tasks) Operations() map[string]edge.Operation {
	return map[string]edge.Operation{
		"pollTasks": ts.poll, "heartbeatTask": ts.heartbeat, "completeTask": ts.complete, "failTask": ts.fail, "releaseTask": ts.release,
		"listPools": ts.list, "getPool": ts.show, "putPool": ts.put,
	}
}

const (
	// lapsedEvery is the pause between two looks for tasks whose workers are silent, and for entries that are to be fired again.
	lapsedEvery = time.Second
	// tidyEvery is the pause between two looks for progress that is too old.
	tidyEvery = time.Hour
)

// Run ends the attempts of workers that are silent, and fires again what was given back, until ctx ends.
func (ts *Tasks) Run(ctx context.Context) {
	if ts.deps.Queue == nil {
		return
	}
	context.AfterFunc(ctx, func() { close(ts.stopping) })
	var tidied time.Time
	for run.Sleep(ctx, lapsedEvery) == nil {
		if err := ts.endLapsed(ctx); err != nil && ctx.Err() == nil {
			ts.deps.Logger.Warn("cannot look for tasks whose workers are silent", "error", err)
		}
		if err := ts.fireGone(ctx); err != nil && ctx.Err() == nil {
			ts.deps.Logger.Warn("cannot fire again what was given back", "error", err)
		}
		if now := ts.deps.Clock.Now(); now.Sub(tidied) >= tidyEvery {
			tidied = now
			if err := ts.tidy(ctx, now); err != nil && ctx.Err() == nil {
				ts.deps.Logger.Warn("cannot remove old progress", "error", err)
			}
		}
	}
}

// endLapsed ends the attempts whose workers were silent for too long.
func (ts *Tasks) endLapsed(ctx context.Context) error {
	now := ts.deps.Clock.Now()
	all, err := ts.deps.Queue.Pools(ctx, now)
	if err != nil {
		return fmt.Errorf("list the pools: %w", err)
	}
	// Each process begins elsewhere. What fails concerns no other pool, and comes again in the next round.
	var errs []error
	for _, i := range rand.Perm(len(all)) {
		p := all[i]
		// The lease was bound by another machine's clock.
		leases, err := ts.deps.Queue.Lapsed(ctx, p, now.Add(-clock.MaxDifference))
		if err != nil {
			errs = append(errs, fmt.Errorf("look for lapsed tasks: %w", err))
			continue
		}
		for _, l := range leases {
			if _, err := ts.end(ctx, l, silence(l, now)); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

// silence returns how an attempt ended whose worker is silent.
func silence(l *pools.Lease, now time.Time) job.Outcome {
	switch {
	case l.Why == whyCancelled:
		return job.Outcome{Kind: job.OutcomeCancelled, Error: "the execution was cancelled while a worker had it"}
	case l.Why == whyTimeout || !now.Before(l.Begun.Add(l.Fire.Target.Timeout)):
		return job.Outcome{Kind: job.OutcomeTimedOut, Retryable: true, Error: "the worker had the task for longer than its timeout"}
	}
	return job.Outcome{Kind: job.OutcomeWorkerLost, Retryable: true, Error: "the worker was silent for longer than the heartbeat timeout"}
}

// end ends an attempt by the lease of its worker: it stores the outcome, publishes it, and then removes the task. ended is false if the
// attempt ended otherwise, or somebody else has it.
//
//   - A crash before the outcome is stored leaves the lease: the worker tries again, or it lapses.
//   - A crash after that leaves the task: the worker tries again and finds its own outcome, or the lease lapses, and the job-api that finds it
//     publishes the outcome that stands. If the task is lost, too, the worker is answered once its entry has led to that ([Tasks.onRecord]).
//   - A crash after the event was published leaves a task that ends once more, with the same event.
func (ts *Tasks) end(ctx context.Context, l *pools.Lease, o job.Outcome) (ended bool, err error) {
	key, now := attempts.KeyOf(&l.Fire.Entry), ts.deps.Clock.Now()
	o.Fence, o.Disposition, o.Worker, o.DefinitionID = l.Fence, job.DispositionFired, l.Worker, l.Fire.DefinitionID
	o.Timeline = job.Timeline{Taken: l.Fire.TakenAt, Published: l.Fire.PublishedAt, Invoked: l.Begun, Completed: job.Instant(now)}
	done, err := ts.deps.Records.Finish(ctx, []attempts.Completion{{Key: key, Token: l.Token, Outcome: &o}}, now)
	if err != nil {
		return false, fmt.Errorf("store the outcome of a task: %w", err)
	}
	stands := &o
	if !done[0].Stored {
		stands = done[0].Record.Outcome
	}
	if stands != nil && stands.Fence == l.Fence {
		event := job.AttemptEvent(l.Fire, l.Fire.Target.Ref(), *stands, stands.Timeline.Completed)
		if err := ts.deps.Log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{wire.EventMessage(&event)}); err != nil {
			return false, fmt.Errorf("publish the outcome of a task: %w", err)
		}
		ts.onLog.note(publishedEnd{l.Fire.Tenant, key, l.Fence.String()}, stands.Kind)
		ended = stands.Kind == o.Kind
		if done[0].Stored {
			ts.ended.WithLabelValues(string(o.Kind)).Inc()
		}
	}
	// Who was late with the end may have been given up, and its task handed out again: that worker needs the progress.
	alone := ts.deps.Clock.Now().Before(l.Until)
	return ended, ts.forget(ctx, l, ended && alone && o.Kind == job.OutcomeSucceeded, ended)
}

// forget removes a task that has ended, and its progress if the execution is over. If that fails although the end is on the log, the worker is answered
// all the same: were it to repeat the end, a hot tier that has lost the task meanwhile could not know it. The lease lapses then, and its end finds
// the outcome that stands; progress is removed when it is old.
func (ts *Tasks) forget(ctx context.Context, l *pools.Lease, over, onLog bool) error {
	key := attempts.KeyOf(&l.Fire.Entry)
	_, err := ts.deps.Queue.Remove(ctx, poolOf(l), pools.IDOf(key), l.Fence, pools.AnyNumber)
	if err == nil && over && (l.Progress || l.Again) {
		err = ts.forgetProgress(ctx, key.ExecutionID)
	}
	if err != nil && onLog {
		ts.deps.Logger.Warn("cannot remove a task that has ended; it is removed when its lease lapses", "execution_id", key.ExecutionID, "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a task: %w", err)
	}
	return nil
}

func poolOf(l *pools.Lease) pools.Pool {
	return pools.Pool{Tenant: l.Fire.Tenant, Name: l.Fire.Target.Pool}
}

// errLost is the answer to a worker that does not have the task any more.
func errLost() *problem.Problem {
	return problem.New(http.StatusConflict, "lease-lost", "The worker does not have this task any more: another one may have it, or it has ended. Leave it.")
}

// errBusy is the answer to a worker whose task so many requests change at once that this one could not.
func errBusy() *problem.Problem {
	p := problem.New(http.StatusServiceUnavailable, "unavailable", "Other requests change the lease of this task at the same time. Send the same request again.")
	p.RetryAfter = time.Second
	return p
}

// held returns the lease under which a worker has a task. A heartbeat and an end are judged alike: whose lease is over has lost the task, also before
// anybody has taken it away.
func (ts *Tasks) held(ctx context.Context, r *edge.Request, fence string) (*pools.Lease, error) {
	if ts.deps.Queue == nil {
		return nil, errNoQueue
	}
	p, id := poolAt(r), r.PathValue("task_id")
	for range maxBeats {
		asked := ts.deps.Clock.Now()
		leases, err := ts.deps.Queue.Leases(ctx, p, []string{id})
		if err != nil {
			return nil, fmt.Errorf("read the lease of a task: %w", err)
		}
		l := leases[0]
		if l == nil || l.Fence.String() != fence {
			return nil, errLost()
		}
		now := ts.deps.Clock.Now()
		if now.Before(l.Until) {
			return l, nil
		}
		if !asked.Add(-clock.MaxDifference).Before(l.Until) { // no other clock would let it go on either, when it was read
			return nil, errLost()
		}
		over, err := ts.over(ctx, p, id, l, now)
		if err != nil {
			return nil, err
		}
		if over {
			return nil, errLost()
		}
	}
	return nil, errBusy()
}

// over lets a lease that is over by this clock be over by every clock, before its worker is told so: a job-api whose clock is behind would still take its
// end. The task stays, and [Tasks.endLapsed] ends the attempt. It reports false if the lease was changed since it was read; then it is judged again.
func (ts *Tasks) over(ctx context.Context, p pools.Pool, id string, l *pools.Lease, now time.Time) (bool, error) {
	sooner := *l
	if everywhere := job.Instant(now.Add(-clock.MaxDifference)); everywhere.Before(l.Until) {
		sooner.Until = everywhere
	}
	sooner.Number++
	// Nothing is bound to a task whose time is over: so it is bound as of the last moment before.
	ok, err := ts.deps.Queue.Bind(ctx, p, id, &sooner, l.Until.Add(-time.Millisecond))
	if err != nil {
		return false, fmt.Errorf("end the lease of a task: %w", err)
	}
	return ok, nil
}

var errNoQueue = errors.New("there are no pools here")

func poolAt(r *edge.Request) pools.Pool {
	return pools.Pool{Tenant: r.Tenant(), Name: r.PathValue("pool")}
}
