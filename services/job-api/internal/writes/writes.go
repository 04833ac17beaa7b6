// Package writes carries out the operations that change something: it creates, changes and stops jobs, triggers and redrives
// executions, and holds dispatch.
//
// It promises: what was answered with success is durable, and a change that was acknowledged holds. A request that is
// repeated under its idempotency key is carried out once and gets the same answer. An entry is durable before the job row
// that it belongs to, so a crash leaves no job that never fires.
package writes

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// Config holds the bounds of what the operations write.
type Config struct {
	// Partitions is the store's partition count.
	Partitions int
	// Grace is how long an entry without a job row is kept; a writer may take half of it from entry to row.
	Grace time.Duration
	// MaxBodyBytes bounds each job of a batch.
	MaxBodyBytes int64
	// MaxWriteThroughs bounds the entries whose write-through failed and is tried again in the background.
	MaxWriteThroughs int
	// MaxHolding bounds the requests that wait until a change holds.
	MaxHolding int
}

// Deps is what the operations work with.
type Deps struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Stops    attempts.Stops
	// Pools knows which workers there are; nil where there are none.
	Pools pools.Queue
	// Recorder makes changes known; it has the same ports, clock and bounds.
	Recorder jobchange.Recorder
	Reads    *reads.Reads
	Document *edge.Document
	Problems *edge.Problems
	// Missed counts entries that are due soon and for whose write-through there was no room, so that their buckets are read again.
	Missed prometheus.Counter
	// Entropy is the source of ids; it must be safe for concurrent use.
	Entropy io.Reader
	Logger  *slog.Logger
	Clock   clock.Clock
}

// Writes carries out the operations. It must not be copied.
type Writes struct {
	cfg    Config
	deps   Deps
	change jobchange.Changer
	// holding has a place for each answer that waits until its change holds; stopping is closed when Run is
	// asked to stop.
	holding, stopping chan struct{}
	// notThrough holds entries whose write-through failed.
	notThrough chan job.Entry
	// behind holds the buckets of those that found no room there.
	behind behind
	// hotAgain is when answers wait for the hot tier again, in nanoseconds since the Unix epoch.
	hotAgain atomic.Int64
	crowds   crowds
}

// New returns the operations; Run must be called once for them to be complete.
func New(cfg Config, deps Deps) *Writes {
	return &Writes{
		cfg: cfg, deps: deps, change: jobchange.Changer{Jobs: deps.Jobs, Stops: deps.Stops, Recorder: deps.Recorder},
		holding: make(chan struct{}, max(cfg.MaxHolding, 1)), stopping: make(chan struct{}),
		notThrough: make(chan job.Entry, cfg.MaxWriteThroughs), behind: behind{some: make(chan struct{}, 1)},
		crowds: crowds{store: forecast.Store{Lists: deps.Settings}, clock: deps.Clock},
	}
}

// Operations returns the operations by their ids in the document.
func (ws *Writes) Operations() map[string]edge.Operation {
	return map[string]edge.Operation{
		"createJob": ws.createJob, "createJobs": ws.createJobs, "replaceJob": ws.replaceJob, "patchJob": ws.patchJob,
		"deleteJob": ws.deleteJob, "pauseJob": ws.pauseJob, "resumeJob": ws.resumeJob, "cancelJob": ws.cancelJob, "triggerJob": ws.triggerJob,
		"cancelExecution": ws.cancelExecution, "redriveDeadLetters": ws.redriveDeadLetters, "redriveAllDeadLetters": ws.redriveAllDeadLetters, "replanJobs": ws.replanJobs,
		"backfillJob": ws.backfillJob, "replayJob": ws.replayJob, "replayExecution": ws.replayExecution, "pauseOperation": ws.pauseOperation, "resumeOperation": ws.resumeOperation, "cancelOperation": ws.cancelOperation,
		"pauseDispatch": ws.pauseDispatch, "resumeDispatch": ws.resumeDispatch,
	}
}

// Run repeats failed write-throughs until ctx ends. Then it answers requests that wait until a change holds that it does
// not hold yet.
func (ws *Writes) Run(ctx context.Context) {
	context.AfterFunc(ctx, func() { close(ws.stopping) })
	ws.writeThroughLoop(ctx)
}

// edit returns the change that a request makes to a job.
func (ws *Writes) edit(r *edge.Request, apply func(ctx context.Context, j *job.Job) error) jobchange.Edit {
	return jobchange.Edit{Operation: r.Operation, By: r.Author(), Apply: apply}
}

// newID returns an id that sorts by the instant at which it was made.
func (ws *Writes) newID(prefix string, now time.Time) string {
	return prefix + ulid.MustNew(uint64(now.UnixMilli()), ws.deps.Entropy).String()
}
