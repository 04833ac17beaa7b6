// Package bulk carries operations out: backfills, replays of what was executed, redrives of what was given up, and the planning of jobs by other
// time zone data.
//
// It promises: each execution of an operation is handed out once, at the operation's rate at most, whatever crashes. What an operation hands
// out is noted before it is written, so that it has the same keys whoever writes it; what was noted long ago, and may have been written, called
// and forgotten since, is looked up before it is written anew.
//
// The executions of an operation are entries like any other. One that was handed out is called although the operation is paused or cancelled
// after that: they are handed out Config.Ahead before they are due. So are those that were noted a moment before, within the two minutes in which
// they may have been written.
//
// Without an operation it costs one read of a setting in Config.Every.
package bulk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
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
	Stops      attempts.Stops
	Log        dispatch.Log
	Partitions int
	Clock      clock.Clock
	// Entropy is the source of ids, safe for concurrent use.
	Entropy io.Reader
	Logger  *slog.Logger
	Metrics *Metrics
	// Mine reports whether this process is the one that is to do it.
	Mine func() bool

	// history reports whether the history has what the log had in this round, and asks once.
	history func() (bool, error)
	// idle is since when no operation of a tenant was found.
	idle map[job.Tenant]idleSince
}

// idleSince is since when no operation was found of a tenant, and by which naming it was in the index then.
type idleSince struct {
	named int64
	at    time.Time
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
			Name: "minutehand_bucket_loader_operation_executions_total", Help: "Executions that operations have handed out, and jobs that they have planned, by the operation's type.",
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
	r.idle = map[job.Tenant]idleSince{}
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
	r.history = sync.OnceValues(func() (bool, error) {
		return run.HasRead(ctx, r.Log, dispatch.TopicEvents, dispatch.GroupHistory, 1)
	})
	ended := make([]bool, len(index.Tenants))
	_ = run.Each(len(index.Tenants), r.Tenants, func(n int) error {
		var err error
		if ended[n], err = r.carryOn(ctx, index.Tenants[n]); err != nil && ctx.Err() == nil && !errors.Is(err, jobstore.ErrConflict) {
			r.Logger.Warn("cannot go on with some operations of a tenant, it is tried again", "tenant", index.Tenants[n], "error", err)
		}
		return ctx.Err()
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return r.leave(ctx, index, ended)
}

// leave takes the names of tenants away that have had no operation for a while: a request names its tenant first.
func (r *Runner) leave(ctx context.Context, index operations.Index, ended []bool) error {
	now := r.Clock.Now()
	var gone []job.Tenant
	for n, t := range index.Tenants {
		since, idle := r.idle[t]
		switch {
		case !ended[n]:
			delete(r.idle, t)
		case !idle || since.named != index.Last[n]: // a request has named it, and may be about to make one
			r.idle[t] = idleSince{index.Last[n], now}
		case now.Sub(since.at) > nameStays:
			gone = append(gone, t)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return r.Store.Leave(ctx, index, gone)
}

const (
	// mostTurns is how often a tenant's operations hand out in a round, so that those of others have their turn.
	mostTurns = 16
	// lateWrite is how long after it was noted what is handed out may be written: its bucket is open for longer.
	lateWrite = 2 * time.Minute
	// nameStays is how long a tenant is still looked at of which no operation was found: for longer than a request takes.
	nameStays = 5 * time.Minute
)

// carryOn hands out what is due soon of a tenant's operations; ended reports that all have ended. An operation that cannot go on holds up no
// other.
func (r *Runner) carryOn(ctx context.Context, t job.Tenant) (ended bool, err error) {
	for range mostTurns {
		book, raw, err := r.Store.Read(ctx, t)
		if err != nil {
			return false, err
		}
		settled := func(o operations.Operation) bool { return o.Settled() }
		if !slices.ContainsFunc(book.Operations, func(o operations.Operation) bool { return !settled(o) }) {
			return true, nil
		}
		var failed []error
		written := map[operations.Type]int{}
		changed := false
		for n := range book.Operations {
			o := &book.Operations[n]
			before := o.HandedOut
			moved, err := r.advance(ctx, t, o, &book)
			if err != nil {
				failed = append(failed, fmt.Errorf("operation %s: %w", o.ID, err))
			}
			changed = changed || moved
			written[o.Type] += o.HandedOut - before
		}
		if !changed {
			return false, errors.Join(failed...)
		}
		if err := r.Store.Note(ctx, t, raw, &book); err != nil {
			return false, errors.Join(append(failed, err)...)
		}
		for of, n := range written {
			r.Metrics.handedOut.WithLabelValues(string(of)).Add(float64(n))
		}
		if len(failed) > 0 {
			return false, errors.Join(failed...)
		}
	}
	return false, nil
}

// advance writes what is noted of an operation and due soon, and takes what is to be noted next. It reports whether that, or anything else about
// the operation, is to be noted, also if it fails. The book is the tenant's, with what the operations before this one take in the same turn.
func (r *Runner) advance(ctx context.Context, t job.Tenant, o *operations.Operation, book *operations.Book) (changed bool, err error) {
	now := job.Instant(r.Clock.Now())
	if !o.Ended() && now.Sub(o.CreatedAt) > operations.Lasts {
		o.End(operations.StatusFailed, "it was asked for so long ago that the history would forget what it executes", now)
		changed = true
	}
	if o.Type == operations.TypeReplan {
		moved, err := r.replan(ctx, t, o)
		return changed || moved, err
	}
	if !whole(o) {
		o.Chunk = nil
		o.End(operations.StatusFailed, "a process of an earlier release has removed a part of what was noted of it", now)
		return true, nil
	}
	if o.Chunk != nil {
		written, err := r.handOut(ctx, t, o)
		if changed = changed || written; err != nil || o.Chunk != nil {
			return changed, err
		}
	}
	if o.Ended() && !o.Settled() {
		o.Elsewhere = &job.Elsewhere{URL: o.Elsewhere.URL}
		changed = true
	}
	if o.Status != operations.StatusRunning {
		return changed, nil
	}
	moved, err := r.next(ctx, t, o, book)
	return changed || moved, err
}

// handOut writes what of the noted part is due soon, and counts it. What was noted long ago is looked for instead, and the rest of it noted
// anew; it is dropped if the operation has ended meanwhile, and left alone while it is paused. A redrive drops it in both cases, and reads the
// dead letters again: another one may have redriven them meanwhile.
func (r *Runner) handOut(ctx context.Context, t job.Tenant, o *operations.Operation) (changed bool, err error) {
	c, now := o.Chunk, job.Instant(r.Clock.Now())
	stale, paused, redrive := r.Clock.Since(c.NotedAt) > lateWrite, o.Status == operations.StatusPaused, o.Type == operations.TypeRedrive
	switch {
	case paused && (stale || c.Held) && !redrive:
		return false, nil
	case c.Held && o.Ended():
		o.Chunk = nil
		return true, nil
	case c.Held: // it is noted before it is written
		c.Held, c.NotedAt, c.DueAt, c.Rate = false, now, now, o.Rate
		return true, nil
	}
	soon := len(c.At)
	if !stale {
		for soon = 0; soon < len(c.At) && !c.Due(soon).After(now.Add(r.Ahead)); soon++ {
		}
		if soon == 0 && !o.Ended() {
			return false, nil
		}
	}
	entries, err := r.entries(ctx, t, o, soon)
	if err != nil {
		return false, err
	}
	rest := c.From(soon)
	if stale {
		rest, err = r.missing(ctx, o, entries)
	} else {
		err = r.write(ctx, c, entries)
	}
	if err == nil && redrive {
		err = r.mark(ctx, entries, &rest)
	}
	if err != nil {
		return false, err
	}
	o.HandedOut, o.UpdatedAt, o.Chunk = o.HandedOut+len(c.At)-len(rest.At), now, nil
	if redrive && (stale || paused) {
		o.Cursor, o.Read = c.Cursor, false
		return true, nil
	}
	if len(rest.At) > 0 && !o.Ended() {
		rest.NotedAt, rest.DueAt, rest.Held = now, job.Later(rest.DueAt, now), paused
		o.Chunk, o.DueAt = &rest, job.Later(o.DueAt, rest.Due(len(rest.At)))
	}
	return true, nil
}

// write writes entries of what is noted.
func (r *Runner) write(ctx context.Context, c *operations.Chunk, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	if err := r.Pending.Put(ctx, entries); err != nil {
		return fmt.Errorf("write entries: %w", err)
	}
	if r.Clock.Since(c.NotedAt) > lateWrite {
		return errLate
	}
	if err := hotbucket.AddNear(ctx, r.Hot, entries); err != nil && ctx.Err() == nil {
		r.Logger.Warn("cannot add entries to the hot bucket, the sweeps will", "entries", len(entries), "error", err)
	}
	return nil
}

// errLate: entries were written so late that their buckets may have closed. They are looked for in the next round.
var errLate = errors.New("a write came back too late")

// errBehind: what became of executions cannot be told yet.
var errBehind = errors.New("the history is behind the log")

// missing returns those of a chunk's executions of which there is neither a row nor a record: they were not written. A row that is not there
// was written and is done if its bucket is closed; then the history tells of it, once it has what the log has. (A row that was written below the
// low-water mark is no proof: nobody reads it.)
func (r *Runner) missing(ctx context.Context, o *operations.Operation, entries []job.Entry) (rest operations.Chunk, err error) {
	locators := make([]job.Locator, len(entries))
	for n := range entries {
		locators[n] = entries[n].Locator
	}
	low := map[int]int64{} // by partition
	for _, l := range locators {
		if _, known := low[l.Partition]; known {
			continue
		}
		if low[l.Partition], err = r.Pending.LowWater(ctx, l.Partition); err != nil {
			return rest, fmt.Errorf("read the low-water mark: %w", err)
		}
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return rest, fmt.Errorf("look for what was written: %w", err)
	}
	there := make([]bool, len(entries))
	for n, l := range locators {
		_, found := rows[l]
		there[n] = found && l.Minute >= low[l.Partition]
	}
	if slices.Contains(there, false) {
		whole, err := r.history()
		if err == nil && !whole {
			err = errBehind
		}
		if err != nil {
			return rest, err
		}
	}
	err = run.Each(len(entries), lookups, func(n int) error {
		if there[n] {
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
