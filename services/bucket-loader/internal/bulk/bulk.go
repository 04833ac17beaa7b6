// Package bulk carries operations out: backfills, and replays of what was executed.
//
// It promises: each execution of an operation is handed out once, at the operation's rate at most, whatever crashes. What an operation hands
// out is noted before it is written, so that it has the same keys whoever writes it; what was noted long ago, and may have been written, called
// and forgotten since, is looked up before it is written anew.
//
// The executions of an operation are entries like any other. One that was handed out is called although the operation is paused or cancelled
// after that: they are handed out Config.Ahead before they are due.
//
// Without an operation it costs one read of a setting in Config.Every.
package bulk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/run"
)

// Config holds the bounds of a runner.
type Config struct {
	// Every is the pause between two looks for operations, Ahead how long before they are due executions are handed out.
	Every, Ahead time.Duration
	// Tenants is how many tenants' operations are carried out side by side.
	Tenants int
}

// DefaultConfig returns the bounds of a runner that was given none.
func DefaultConfig() Config { return Config{Every: time.Second, Ahead: 3 * time.Second, Tenants: 8} }

// Runner carries operations out. Several processes may do so at once; then one of them notes first, and the others begin again.
type Runner struct {
	Config
	Store      operations.Store
	Jobs       jobstore.Jobs
	Pending    jobstore.Pending
	History    jobstore.History
	Hot        hotbucket.Buckets
	Log        dispatch.Log
	Partitions int
	Clock      clock.Clock
	Logger     *slog.Logger
	Metrics    *Metrics
	// Mine reports whether this process is the one that is to do it.
	Mine func() bool
}

// Metrics counts what a runner does.
type Metrics struct {
	handedOut *prometheus.CounterVec
	tenants   prometheus.Gauge
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		handedOut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_operation_executions_total", Help: "Executions that operations have handed out, by the operation's type.",
		}, []string{"type"}),
		tenants: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_operation_tenants", Help: "Tenants that have operations which have not ended.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.handedOut, m.tenants)
	}
	return m
}

// Run carries operations out until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	for run.Sleep(ctx, r.Every) == nil {
		if !r.Mine() {
			r.Metrics.tenants.Set(0)
			continue
		}
		if err := r.round(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, jobstore.ErrConflict) {
			r.Logger.Warn("cannot go on with the operations, it is tried again", "error", err)
		}
	}
}

// round hands out what is due soon of every tenant's operations.
func (r *Runner) round(ctx context.Context) error {
	index, err := r.Store.Index(ctx)
	if err != nil {
		return err
	}
	r.Metrics.tenants.Set(float64(len(index.Tenants)))
	ended := make([]bool, len(index.Tenants))
	_ = run.Each(len(index.Tenants), r.Tenants, func(n int) error {
		var err error
		if ended[n], err = r.carryOn(ctx, index.Tenants[n]); err != nil && ctx.Err() == nil && !errors.Is(err, jobstore.ErrConflict) {
			r.Logger.Warn("cannot go on with the operations of a tenant, it is tried again", "tenant", index.Tenants[n], "error", err)
		}
		return ctx.Err()
	})
	var leave []job.Tenant
	for n, t := range index.Tenants {
		if ended[n] {
			leave = append(leave, t)
		}
	}
	if len(leave) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	return r.Store.Leave(ctx, index, leave)
}

const (
	// mostTurns is how often a tenant's operations hand out in a round, so that those of others have their turn.
	mostTurns = 16
	// lateWrite is how long after it was noted what is handed out may be written: its bucket is open for longer.
	lateWrite = 2 * time.Minute
)

// carryOn hands out what is due soon of a tenant's operations; ended reports that all have ended.
func (r *Runner) carryOn(ctx context.Context, t job.Tenant) (ended bool, err error) {
	for range mostTurns {
		book, raw, err := r.Store.Read(ctx, t)
		if err != nil {
			return false, err
		}
		open := func(o operations.Operation) bool { return !o.Ended() || o.Chunk != nil }
		if !slices.ContainsFunc(book.Operations, open) {
			return true, nil
		}
		changed := false
		for n := range book.Operations {
			moved, err := r.advance(ctx, t, &book.Operations[n])
			if err != nil {
				return false, err
			}
			changed = changed || moved
		}
		if !changed {
			return false, nil
		}
		if err := r.Store.Note(ctx, t, raw, &book); err != nil {
			return false, err
		}
	}
	return false, nil
}

// advance writes what is noted of an operation, and takes what is to be noted next. It reports whether that, or anything else about the
// operation, is to be noted.
func (r *Runner) advance(ctx context.Context, t job.Tenant, o *operations.Operation) (changed bool, err error) {
	if o.Settled() {
		return false, nil
	}
	if o.Chunk != nil {
		rest, err := r.write(ctx, t, o)
		if err != nil {
			return false, fmt.Errorf("operation %s: %w", o.ID, err)
		}
		now := job.Instant(r.Clock.Now())
		written := len(o.Chunk.At) - len(rest.At)
		r.Metrics.handedOut.WithLabelValues(string(o.Type)).Add(float64(written))
		o.HandedOut, o.UpdatedAt, o.Chunk = o.HandedOut+written, now, nil
		if len(rest.At) > 0 {
			rest.NotedAt, rest.DueAt = now, now
			o.Chunk, o.DueAt = &rest, job.Later(o.DueAt, rest.Due(len(rest.At)))
			return true, nil
		}
		changed = true
	}
	if o.Status != operations.StatusRunning {
		return changed, nil
	}
	moved, err := r.next(ctx, t, o)
	if err != nil {
		return false, fmt.Errorf("operation %s: %w", o.ID, err)
	}
	return changed || moved, nil
}

// write writes what is noted of an operation, and returns what of it is to be noted anew, because it was noted too long ago.
func (r *Runner) write(ctx context.Context, t job.Tenant, o *operations.Operation) (rest operations.Chunk, err error) {
	entries, err := r.entries(ctx, t, o)
	if err != nil {
		return rest, err
	}
	if r.Clock.Since(o.Chunk.NotedAt) > lateWrite {
		return r.missing(ctx, o, entries)
	}
	if err := r.Pending.Put(ctx, entries); err != nil {
		return rest, fmt.Errorf("write entries: %w", err)
	}
	if r.Clock.Since(o.Chunk.NotedAt) > lateWrite {
		return rest, errLate
	}
	if err := hotbucket.AddNear(ctx, r.Hot, entries); err != nil && ctx.Err() == nil {
		r.Logger.Warn("cannot add entries to the hot bucket, the sweeps will", "entries", len(entries), "error", err)
	}
	return rest, nil
}

// errLate: entries were written so late that their buckets may have closed. They are looked for in the next round.
var errLate = errors.New("a write came back too late")

// historyWaits is how many seconds a runner waits for the history.
const historyWaits = 10

// errBehind: what became of executions cannot be told yet.
var errBehind = errors.New("the history is behind the log")

// missing returns those of a chunk's executions of which there is neither a row nor a record: they were not written. A row that is not there
// was written and is done if its bucket is closed; then the history tells of it, once it has what the log has.
func (r *Runner) missing(ctx context.Context, o *operations.Operation, entries []job.Entry) (rest operations.Chunk, err error) {
	locators := make([]job.Locator, len(entries))
	for n := range entries {
		locators[n] = entries[n].Locator
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return rest, fmt.Errorf("look for what was written: %w", err)
	}
	there := make([]bool, len(entries))
	if len(rows) < len(entries) {
		whole, err := run.HasRead(ctx, r.Log, dispatch.TopicEvents, dispatch.GroupHistory, historyWaits)
		if err == nil && !whole {
			err = errBehind
		}
		if err != nil {
			return rest, err
		}
	}
	err = run.Each(len(entries), lookups, func(n int) error {
		if _, there[n] = rows[locators[n]]; there[n] {
			return nil
		}
		events, err := r.History.Execution(ctx, entries[n].ExecutionID)
		there[n] = len(events) > 0
		return err
	})
	if err != nil {
		return rest, fmt.Errorf("look for what was called: %w", err)
	}
	rest.Rate = o.Rate
	for n := range entries {
		if there[n] {
			continue
		}
		if rest.At = append(rest.At, o.Chunk.At[n]); o.Chunk.Sources != nil {
			rest.Sources = append(rest.Sources, o.Chunk.Sources[n])
		}
	}
	return rest, nil
}

// lookups is how many executions are looked up at once.
const lookups = 8
