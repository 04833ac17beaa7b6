// Package watch is the watchdog: it holds each occurrence of the jobs that have deadlines against these, and keeps the incidents
// (libs/incidents).
//
// It promises: an occurrence that missed a deadline is told Settle after it, or HotPatience where Redis does not answer, and once, however often
// the process that watches dies. One that is on record as in time is not told. What the records do not show yet, as when the history is behind,
// is looked at again for as long as Undecided. Nothing of this depends on the services that dispatch and call: the instants follow from the
// schedule alone, and what became of them from the cold store, and from the records of attempts as long as Redis answers.
//
// One process at a time watches, under a lease in the cold store: one that reaches Redis, if there is one, since who does not cannot tell what
// others call. Two that watch at once, because one stood still, write the same incidents.
//
// It costs a job without deadlines nothing. For each occurrence and deadline it reads the job row, up to 500 of them at once, and the events
// of the execution; the rest only of occurrences that are not on record.
package watch

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/lease"
)

// Config holds the times and bounds of a watchdog.
type Config struct {
	// Tick is the pause between two looks at what is due, Relist that between two readings of the lists of jobs.
	Tick, Relist time.Duration
	// Settle is how long after a deadline an occurrence is held against it: what happened in time is on record by then. HotPatience is how
	// long after it nothing is concluded from a Redis that does not answer. Again is the pause before an occurrence is looked at again of
	// which nothing can be told, and Undecided for how long.
	Settle, HotPatience, Again, Undecided time.Duration
	// Behind bounds how far back occurrences are judged after nobody has watched.
	Behind time.Duration
	// MaxJobs bounds the jobs that are watched; those beyond it are counted.
	MaxJobs int
	// Parallel is how many jobs are judged at once, AtOnce how many occurrences of one.
	Parallel, AtOnce int
	// LeaseFor is how long a process watches that cannot renew its lease. AskWithin bounds a question to Redis.
	LeaseFor, AskWithin time.Duration
}

// DefaultConfig returns the settings of a watchdog that was given none.
func DefaultConfig() Config {
	return Config{
		Tick: time.Second, Relist: 20 * time.Second, Settle: 5 * time.Second, HotPatience: 30 * time.Second, Again: 10 * time.Second,
		Undecided: 10 * time.Minute, Behind: time.Hour, MaxJobs: 100_000, Parallel: 16, AtOnce: 50, LeaseFor: 15 * time.Second,
		AskWithin: 2 * time.Second,
	}
}

// Records are what the watchdog asks Redis for of attempts.
type Records interface {
	Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error)
	Memory(ctx context.Context, jobID string) (attempts.Memory, error)
}

// Watchdog watches.
type Watchdog struct {
	Config
	Jobs       jobstore.Jobs
	Pending    jobstore.Pending
	History    jobstore.History
	Settings   jobstore.Settings
	Hot        hotbucket.Buckets
	Records    Records
	Partitions int
	Clock      clock.Clock
	Logger     *slog.Logger
	Metrics    *Metrics

	// lease says who watches.
	lease *lease.Lease
	// jobs are the jobs that are watched, queue those that are looked at again at some instant.
	jobs  map[string]*subject
	queue queue
	// relist is when the lists are read again, expire when old incidents are removed. pass numbers the readings.
	relist, expire time.Time
	pass           int
	// away is what is known of partitions for which Redis did not answer. probeAt is when it is asked for one again, and probedAway since when it
	// does not answer for that, in milliseconds; 0 while it does.
	away       sync.Map
	probeAt    time.Time
	probedAway atomic.Int64
}

// Metrics counts what a watchdog finds.
type Metrics struct {
	watched, beyond, open prometheus.Gauge
	incidents             *prometheus.CounterVec
	judged, undecided     prometheus.Counter
}

// NewMetrics registers the counters; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		watched: gauge("minutehand_bucket_loader_watched_jobs", "Jobs that this process holds against their deadlines."),
		beyond:  gauge("minutehand_bucket_loader_unwatched_jobs", "Jobs that have deadlines and are not watched, because there are too many."),
		open:    gauge("minutehand_bucket_loader_open_incidents", "Incidents that have not ended."),
		incidents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_incidents_total", Help: "Incidents that began, by deadline and cause.",
		}, []string{"deadline", "cause"}),
		judged:    counter("minutehand_bucket_loader_judged_occurrences_total", "Occurrences that were held against a deadline."),
		undecided: counter("minutehand_bucket_loader_undecided_occurrences_total", "Occurrences of which it could not be told whether they met a deadline."),
	}
	for _, d := range incidents.Deadlines() { // an alert sees only what a series rises by
		for _, c := range incidents.Causes() {
			m.incidents.WithLabelValues(string(d), string(c))
		}
	}
	if reg != nil {
		reg.MustRegister(m.watched, m.beyond, m.open, m.incidents, m.judged, m.undecided)
	}
	return m
}

// Run watches until ctx ends.
func (w *Watchdog) Run(ctx context.Context) {
	for pause := w.Tick; run.Sleep(ctx, pause) == nil; {
		mine, err := w.hold(ctx)
		if err == nil && mine {
			err = w.step(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn("the watchdog cannot go on, it tries again", "error", err)
		}
		if pause = w.Tick; err != nil || !mine {
			pause = w.LeaseFor / 3
		}
	}
}

// hold reports whether this process is the one that watches. One that was not before knows nothing.
func (w *Watchdog) hold(ctx context.Context) (mine bool, err error) {
	if w.lease == nil {
		w.lease = &lease.Lease{Settings: w.Settings, Name: "watchdog", For: w.LeaseFor, Clock: w.Clock, Logger: w.Logger, Misses: w.misses}
	}
	mine, taken, err := w.lease.Hold(ctx)
	if taken {
		w.jobs = nil
	}
	if !mine {
		w.show()
	}
	return mine, err
}

// renew reports whether this process still is the one that watches.
func (w *Watchdog) renew(ctx context.Context) (mine bool, err error) {
	mine, err = w.lease.Renew(ctx)
	if !mine {
		w.show()
	}
	return mine, err
}

// step reads the lists, if that is due, and looks at the jobs that are. What it cannot read of the lists keeps nobody from being judged.
func (w *Watchdog) step(ctx context.Context) error {
	if w.jobs == nil {
		if err := w.begin(ctx); err != nil {
			w.jobs = nil
			return err
		}
	}
	if len(w.jobs) > 0 {
		w.probe(ctx)
	}
	for {
		var err error
		if now := w.Clock.Now(); !now.Before(w.relist) {
			w.relist = now.Add(w.Relist)
			if err = w.list(ctx); err == nil && !now.Before(w.expire) {
				w.expire = now.Add(time.Hour)
				err = w.store().Expire(ctx, now)
			}
		}
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn("the lists of the watchdog cannot be read, it is tried again", "error", err)
		}
		due := w.due(w.Clock.Now())
		if len(due) == 0 {
			break
		}
		if mine, err := w.renew(ctx); err != nil || !mine {
			for _, s := range due {
				w.lookAt(s, w.Clock.Now())
			}
			return err
		}
		w.judgeAll(ctx, due)
	}
	w.show()
	return nil
}

// store returns the incidents, which change only while this process holds the lease.
func (w *Watchdog) store() incidents.Store { return incidents.Store{Lists: leased{w.Settings, w}} }

// leased are lists that only change while a watchdog holds its lease.
type leased struct {
	jobstore.Lists
	w *Watchdog
}

var errLapsed = errors.New("the lease of the watchdog is over")

func (l leased) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	if l.w.lease.Lapsed() {
		return errLapsed
	}
	return l.Lists.PutItem(ctx, list, i)
}

func (l leased) RemoveItem(ctx context.Context, list, name string, version int64) error {
	if l.w.lease.Lapsed() {
		return errLapsed
	}
	return l.Lists.RemoveItem(ctx, list, name, version)
}

// show sets the gauges.
func (w *Watchdog) show() {
	open := 0
	if !w.lease.Held() {
		w.Metrics.watched.Set(0)
		w.Metrics.beyond.Set(0)
	} else {
		w.Metrics.watched.Set(float64(len(w.jobs)))
		for _, s := range w.jobs {
			for _, l := range s.lines {
				if l.Open != nil {
					open++
				}
			}
		}
	}
	w.Metrics.open.Set(float64(open))
}

// listed is how many items of a list are read at once.
const listed = 1000

// begin reads how far every job was judged.
func (w *Watchdog) begin(ctx context.Context) error {
	w.jobs, w.queue, w.relist = map[string]*subject{}, nil, time.Time{}
	for slice := range incidents.Slices {
		for after, left := "", true; left; {
			if mine, err := w.renew(ctx); err != nil || !mine {
				return errors.Join(err, errLapsed)
			}
			of, next, err := w.store().Noted(ctx, slice, after, listed)
			if err != nil {
				return err
			}
			for id, how := range of {
				s := w.add(id)
				if s == nil {
					continue
				}
				for d, j := range how {
					if l := s.lines[d]; l != nil {
						l.Aside, l.Met, l.Open, l.Told, l.Periods, l.behind = j.Aside, j.Met, j.Open, j.Told, j.Periods, j.Open != nil
						maps.Copy(l.Until, j.Until)
						// The process before may have noted that this incident is over, and that may take effect only now. This process will write
						// it as open, so it is noted again before: the next process, after a crash, then knows that it is to be closed.
						s.unnoted = s.unnoted || l.behind
					}
				}
			}
			after, left = next, next != ""
		}
	}
	return nil
}

// add makes a job one that is watched; nil if there are too many.
func (w *Watchdog) add(id string) *subject {
	if s := w.jobs[id]; s != nil {
		return s
	}
	if len(w.jobs) >= w.MaxJobs {
		return nil
	}
	s := &subject{id: id, lines: map[incidents.Deadline]*line{}, known: map[string]*segment{}, place: -1}
	for _, d := range incidents.Deadlines() {
		s.lines[d] = &line{Judged: incidents.Judged{Until: map[string]time.Time{}}}
	}
	w.jobs[id] = s
	return s
}

// list reads which jobs have deadlines. Those of which anything is new are looked at at once.
func (w *Watchdog) list(ctx context.Context) error {
	w.pass++
	beyond := 0
	for slice := range incidents.Slices {
		for after, left := (incidents.Watched{}), true; left; {
			if mine, err := w.renew(ctx); err != nil || !mine {
				return errors.Join(err, errLapsed)
			}
			page, err := w.store().Watched(ctx, slice, after, listed)
			if err != nil {
				return err
			}
			for _, x := range page {
				after = x
				s := w.add(x.JobID)
				if s == nil {
					beyond++
					continue
				}
				w.see(s, x.DefinitionID)
			}
			left = len(page) == listed
		}
	}
	w.Metrics.beyond.Set(float64(beyond))
	for _, s := range w.jobs {
		if s.pass == w.pass || s.place >= 0 {
			continue
		}
		if mine, err := w.renew(ctx); err != nil || !mine { // what is left of one that is not watched any more
			return errors.Join(err, errLapsed)
		}
		if err := w.end(ctx, s, "The job has no further occurrence with a deadline."); err != nil {
			return err
		}
		w.drop(s)
	}
	return nil
}

// see notes that a definition of a job is listed.
func (w *Watchdog) see(s *subject, definition string) {
	s.pass = w.pass
	if slices.Contains(s.definitions, definition) {
		return
	}
	now := w.Clock.Now()
	s.definitions, s.changed = append(s.definitions, definition), now
	w.lookAt(s, now)
}

// atOnce is how many jobs are read together.
const atOnce = 100

// due takes the subjects from the queue that are to be looked at now, as many as are read together.
func (w *Watchdog) due(now time.Time) (list []*subject) {
	for len(w.queue) > 0 && !w.queue[0].at.After(now) && len(list) < atOnce {
		s, _ := heap.Pop(&w.queue).(*subject)
		list = append(list, s)
	}
	return list
}

// judgeAll looks at subjects, and puts them back into the queue. It ends before the lease does.
func (w *Watchdog) judgeAll(ctx context.Context, due []*subject) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, w.LeaseFor/2)
	defer cancel()
	ids := make([]string, len(due))
	for n, s := range due {
		ids[n] = s.id
	}
	within, end := context.WithTimeout(ctx, w.AskWithin)
	rows, together := w.Jobs.GetMany(within, ids)
	end()
	next, errs := make([]time.Time, len(due)), make([]error, len(due))
	_ = run.Each(len(due), w.Parallel, func(n int) error { // each error is kept
		row := rows[due[n].id]
		if together != nil { // of one that cannot be read the others do not suffer
			j, err := w.Jobs.Get(ctx, due[n].id)
			if err == nil {
				row = &j
			} else if !errors.Is(err, jobstore.ErrNotFound) {
				errs[n] = fmt.Errorf("read job %s: %w", due[n].id, err)
				return nil
			}
		}
		next[n], errs[n] = w.judge(ctx, due[n], row)
		return nil
	})
	failed := 0
	for n, s := range due {
		switch {
		case errs[n] != nil:
			if failed++; failed == 1 && whole.Err() == nil {
				w.Logger.Warn("a job cannot be held against its deadlines, it is looked at again", "job_id", s.id, "error", errs[n])
			}
			w.lookAt(s, w.Clock.Now().Add(w.Again+time.Duration(n)*10*time.Millisecond)) // not all together again
		case next[n].IsZero():
			w.drop(s)
		default:
			w.lookAt(s, next[n])
		}
	}
}
