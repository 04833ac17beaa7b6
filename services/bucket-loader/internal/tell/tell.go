// Package tell calls the owners of jobs that are to be told something (libs/notices).
//
// It promises: what is owed is called until its target answers with a success, or says for good that it does not want it, for GiveUp at most;
// each time under the same id. What was told in a quiet period is not told again in it, unless a process dies or stands still between the call and
// the mark behind it. A target that hangs holds up no other host, and no call holds up the services that owe notices.
//
// One process at a time calls, under a lease in the cold store.
package tell

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/notices"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/lease"
)

// Config holds the times and bounds of a teller.
type Config struct {
	// Tick is the pause between two passes over the notices. After a long pass it is Calm times as long as that, up to MaxPause.
	Tick, MaxPause time.Duration
	Calm           int
	// Timeout bounds a call. FirstRetry is the pause after the first that failed, which doubles up to MaxRetry; GiveUp is how long after it
	// happened something is still told.
	Timeout, FirstRetry, MaxRetry, GiveUp time.Duration
	// Recovery is for how long a job is looked at that may recover.
	Recovery time.Duration
	// AtOnce bounds the calls in progress, PerTenant those for one tenant, PerHost those of these to one host. MaxKnown bounds what is known of notices that wait; others wait untried.
	AtOnce, PerHost, PerTenant, MaxKnown int
	// Page is how many notices are read at once.
	Page int
	// LeaseFor is how long a process calls that cannot renew its lease.
	LeaseFor time.Duration
}

// DefaultConfig returns the settings of a teller that was given none.
func DefaultConfig() Config {
	return Config{
		Tick: 5 * time.Second, MaxPause: time.Minute, Calm: 4, Timeout: 10 * time.Second, FirstRetry: 5 * time.Second, MaxRetry: 10 * time.Minute, GiveUp: 24 * time.Hour,
		Recovery: 30 * 24 * time.Hour, AtOnce: 16, PerHost: 2, PerTenant: 4, MaxKnown: 50_000, Page: 500, LeaseFor: 15 * time.Second,
	}
}

// Teller calls owners.
type Teller struct {
	Config
	Jobs     jobstore.Jobs
	History  jobstore.History
	Settings jobstore.Settings
	// Targets makes the calls.
	Targets http.RoundTripper
	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics

	lease *lease.Lease
	calls sync.WaitGroup
	// pass numbers the passes, looked is when this one began.
	pass   int
	looked time.Time
	// mu guards what follows, which calls in progress share. known is what is known of notices, by id; hosts and tenants count the calls in
	// progress, which are running in all.
	mu      sync.Mutex
	known   map[string]*state
	hosts   map[string]int
	tenants map[job.Tenant]int
	running int
}

// state is what is known of a notice that waits.
type state struct {
	tries int
	// next is when it is tried again.
	next time.Time
	// host is where, with the tenant.
	host string
	// busy: it is being called; told: it was, or is not to be, and only its mark is missing.
	busy, told bool
	// pass is the one in which it was seen last.
	pass int
}

// Metrics counts what was told.
type Metrics struct {
	told *prometheus.CounterVec
	owed prometheus.Gauge
}

// NewMetrics registers the counters; reg may be nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		told: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "minutehand_bucket_loader_notifications_total",
			Help: "Calls to owners of jobs: told, failed (they are tried again), given_up (they failed for a day), refused (no repetition mends it), or dropped, because nobody is to be told any more.",
		}, []string{"cause", "result"}),
		owed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "minutehand_bucket_loader_owed_notifications", Help: "Calls to owners that are owed, as this process saw them last.",
		}),
	}
	for _, c := range job.Causes() { // an alert sees only what a series rises by
		for _, how := range []result{told, failed, refused, givenUp, dropped} {
			m.told.WithLabelValues(string(c), string(how))
		}
	}
	if reg != nil {
		reg.MustRegister(m.told, m.owed)
	}
	return m
}

// Run calls until ctx ends.
func (t *Teller) Run(ctx context.Context) {
	t.lease = &lease.Lease{Settings: t.Settings, Name: "teller", For: t.LeaseFor, Clock: t.Clock, Logger: t.Logger}
	t.known, t.hosts, t.tenants = map[string]*state{}, map[string]int{}, map[job.Tenant]int{}
	defer t.calls.Wait()
	var next time.Time
	for run.Sleep(ctx, t.Tick) == nil {
		mine, taken, err := t.lease.Hold(ctx)
		if !mine {
			t.Metrics.owed.Set(0)
		}
		if began := t.Clock.Now(); err == nil && mine && (taken || !began.Before(next)) {
			err = t.look(ctx)
			next = t.Clock.Now().Add(min(t.Clock.Since(began)*time.Duration(t.Calm), t.MaxPause))
		}
		if err != nil && ctx.Err() == nil {
			t.Logger.Warn("owners of jobs cannot be told, it is tried again", "error", err)
		}
	}
}

func (t *Teller) store() notices.Store { return notices.Store{Lists: t.Settings} }

// errLapsed: another process may call by now.
var errLapsed = errors.New("the lease of the teller is over")

// look goes through the notices once. It begins with another list each time, so that none is always the last.
func (t *Teller) look(ctx context.Context) error {
	t.pass++
	before := t.looked
	t.looked = t.Clock.Now()
	owed := 0
	for n := range notices.Slices {
		slice := (n + t.pass) % notices.Slices
		for after, more := "", true; more; {
			if mine, err := t.lease.Renew(ctx); err != nil || !mine {
				return errors.Join(err, errLapsed)
			}
			page, next, err := t.store().List(ctx, slice, after, t.Page)
			if errors.Is(err, notices.ErrUnreadable) {
				t.Logger.Warn("a notice is none that this release knows, it is left", "error", err)
			} else if err != nil {
				return err
			}
			n, err := t.take(ctx, page, before)
			if owed += n; err != nil {
				return err
			}
			after, more = next, next != ""
		}
	}
	t.Metrics.owed.Set(float64(owed))
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.known {
		if s.pass != t.pass && !s.busy {
			delete(t.known, id) // it is not there any more
		}
	}
	return nil
}

// take removes of a page what is over, and begins the calls that are due, as far as there is room. It returns how many are owed. before is when
// the last pass began.
func (t *Teller) take(ctx context.Context, page []notices.Standing, before time.Time) (owed int, err error) {
	var due []*notices.Notice
	for n := range page {
		x := &page[n]
		switch {
		case x.Told && x.Owed:
			err = t.store().Remove(ctx, &x.Notice)
		case x.Told && t.Clock.Since(x.Over()) > t.GiveUp: // by then it is not owed again, or too old
			err = t.store().Forget(ctx, &x.Notice)
		case x.Owed && x.AfterSuccess:
			if t.mayHaveCome(&x.Notice, before) {
				due = append(due, &x.Notice)
			}
		case x.Owed:
			if owed++; t.isDue(&x.Notice) {
				due = append(due, &x.Notice)
			}
		}
		if err != nil {
			return owed, err
		}
	}
	for len(due) > 0 {
		some := due[:min(len(due), jobsAtOnce)]
		due = due[len(some):]
		rows := t.rows(ctx, some)
		for _, x := range some {
			if t.lease.Lapsed() {
				return owed, errLapsed
			}
			row, known := rows[x.JobID]
			if !known {
				continue // it is looked at again with the next pass
			}
			err := error(nil)
			if x.AfterSuccess {
				err = t.recover(ctx, x, row)
			} else {
				err = t.begin(ctx, x, row)
			}
			if err != nil && ctx.Err() == nil { // the others do not suffer
				t.Logger.Warn("a notice cannot be told, it is tried again", "job_id", x.JobID, "error", err)
			}
		}
	}
	return owed, nil
}

// jobsAtOnce is how many rows of jobs are read at once.
const jobsAtOnce = 50

// rows reads the jobs of notices; of those that are not there it returns nil, and it leaves out what cannot be read.
func (t *Teller) rows(ctx context.Context, list []*notices.Notice) map[string]*job.Job {
	ids := make([]string, len(list))
	for n, x := range list {
		ids[n] = x.JobID
	}
	together, err := t.Jobs.GetMany(ctx, ids)
	rows := make(map[string]*job.Job, len(ids))
	for _, id := range ids {
		if err == nil {
			rows[id] = together[id]
			continue
		}
		j, err := t.Jobs.Get(ctx, id)
		switch {
		case err == nil:
			rows[id] = &j
		case errors.Is(err, jobstore.ErrNotFound):
			rows[id] = nil
		case ctx.Err() == nil:
			t.Logger.Warn("a job cannot be read, its owners are told later", "job_id", id, "error", err)
		}
	}
	return rows
}

// mayHaveCome reports whether it is looked again for a recovery: after FirstRetry and then ever more rarely, up to MaxRetry. It follows from the
// instants of this pass and the one before, so that nothing is kept of those that wait.
func (t *Teller) mayHaveCome(x *notices.Notice, before time.Time) bool {
	every := min(max(t.looked.Sub(x.At)/10, t.FirstRetry), t.MaxRetry)
	return before.IsZero() || t.looked.Sub(x.At)/every != before.Sub(x.At)/every || before.Before(x.At)
}

// isDue reports whether a notice is to be tried now, and there is room for it.
func (t *Teller) isDue(x *notices.Notice) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.known[x.ID()]
	if s == nil {
		if len(t.known) >= t.MaxKnown {
			return false
		}
		s = &state{}
		t.known[x.ID()] = s
	}
	s.pass = t.pass
	return !s.busy && !t.Clock.Now().Before(s.next) && t.running < t.AtOnce && (s.host == "" || t.hosts[s.host] < t.PerHost)
}

// recipient returns whom a notice is for; nil if nobody is to be told of it any more.
func recipient(x *notices.Notice, j *job.Job) *job.Notify {
	if j == nil || j.Deleted {
		return nil
	}
	for n := range j.Notify {
		if to := &j.Notify[n]; to.ID() == x.To && to.Tells(x.Cause) {
			return to
		}
	}
	return nil
}

// end removes a notice that is not told.
func (t *Teller) end(ctx context.Context, x *notices.Notice, how result) error {
	t.Metrics.told.WithLabelValues(string(x.Cause), string(how)).Inc()
	if how == givenUp {
		t.Logger.Warn("an owner of a job cannot be told, that is given up", "job_id", x.JobID, "reason", x.Cause, "error", "nobody has tried for too long")
	}
	return t.store().Remove(ctx, x)
}

// begin begins the call of a notice, if it is to be told and there is room.
func (t *Teller) begin(ctx context.Context, x *notices.Notice, j *job.Job) error {
	to := recipient(x, j)
	if to == nil {
		return t.end(ctx, x, dropped)
	}
	host, id := j.Tenant.String()+" "+hostOf(to), x.ID()
	t.mu.Lock()
	s := t.known[id]
	if s.tries == 0 && t.Clock.Since(x.At) > t.GiveUp {
		t.mu.Unlock()
		return t.end(ctx, x, givenUp)
	}
	s.host = host
	told := s.told
	room := !told && t.running < t.AtOnce && t.hosts[host] < t.PerHost && t.tenants[j.Tenant] < t.PerTenant
	if room {
		s.busy = true
		t.running++
		t.hosts[host]++
		t.tenants[j.Tenant]++
	}
	t.mu.Unlock()
	if told {
		return t.store().Told(ctx, x)
	}
	if room {
		t.calls.Go(func() { t.tell(ctx, *x, j, to, s) })
	}
	return nil
}

// tell calls once, and notes how that went. When ctx ends it has a little longer, so that a call that is under way is not made again.
func (t *Teller) tell(ctx context.Context, x notices.Notice, j *job.Job, to *job.Notify, s *state) {
	ctx, cancel := endLater(ctx, drain)
	defer cancel()
	how, why := t.call(ctx, &x, j, to)
	now := t.Clock.Now()
	t.mu.Lock()
	if s.tries++; how == failed && now.Sub(x.At) > t.GiveUp {
		how = givenUp
	}
	s.next, s.told = now.Add(min(t.FirstRetry<<min(s.tries-1, 20), t.MaxRetry)), how != failed
	t.mu.Unlock()
	if (how == givenUp || how == refused) && ctx.Err() == nil {
		t.Logger.Warn("an owner of a job cannot be told, that is given up", "job_id", x.JobID, "reason", x.Cause, "error", why)
	}
	if how != failed { // what is not wanted is not called again in its period either
		if err := t.store().Told(ctx, &x); err != nil && ctx.Err() == nil {
			t.Logger.Warn("what an owner was told cannot be noted, it may be told again", "job_id", x.JobID, "error", err)
		}
	}
	if ctx.Err() == nil {
		t.Metrics.told.WithLabelValues(string(x.Cause), string(how)).Inc()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.busy = false
	t.running--
	if t.hosts[s.host]--; t.hosts[s.host] == 0 {
		delete(t.hosts, s.host)
	}
	if t.tenants[j.Tenant]--; t.tenants[j.Tenant] == 0 {
		delete(t.tenants, j.Tenant)
	}
}

// drain is how long a call that is under way has when its process is told to stop.
const drain = 3 * time.Second

// endLater returns a context that ends some time after ctx does.
func endLater(ctx context.Context, later time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(later, cancel) })
	return longer, func() { stop(); cancel() }
}
