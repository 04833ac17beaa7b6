// Package sim is the whole simulation: six services, two of each, in one testing/synctest bubble over simulated servers,
// with faults that follow from a seed. At the end package ledger checks the invariants I1–I17 on the account of the run.
package sim

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
	"github.com/minutehand/minutehand/services/all-in-one/assembly"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	jobapi "github.com/minutehand/minutehand/services/job-api"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

const (
	// partitions is the number of partitions of the cold store; replicas is how many processes of each service share them.
	partitions = 4
	replicas   = 2
)

// kinds returns the names of the services.
func kinds() []string {
	return []string{"job-api", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer"}
}

func processNames(kinds ...string) (names []string) {
	for _, k := range kinds {
		for i := range replicas {
			names = append(names, fmt.Sprintf("%s-%d", k, i+1))
		}
	}
	return names
}

// world is one run of the simulation.
type world struct {
	base   context.Context
	seed   uint64
	faults *Faults
	// variant breaks the code on purpose; nil for the code as it is.
	variant *Variant

	cold    *servers.Cold
	hot     *servers.Hot
	log     *servers.Log
	coord   *servers.Coord
	archive *servers.Archive
	board   *embedded.Board

	began time.Time
	// forecast is the instant from which scheduled faults count.
	forecast   time.Time
	background sync.WaitGroup

	mu            sync.Mutex
	stopping      bool
	taken         time.Time // when the workers were told to stop
	processes     map[string]*process
	apis          map[string]*jobapi.Service
	outages       map[string]time.Time
	hangs         map[string]time.Time // until when unavailable servers hang instead of failing
	checked       map[string]check
	ahead         map[look]time.Duration
	calls         []ledger.Call
	callers       []*process // of each of the calls; nil for those of workers
	deleted       map[string]bool
	raced         int // how many of two concurrent changes were refused, because another was faster
	decidedBefore int // how many claims found a decision other than the one they were to make

	listed      map[string]int // by the pages that a client read
	executions  map[string]map[string]int
	shown       map[string][]ledger.Shown
	shownBefore map[string][]ledger.Shown
	stops       []ledger.Stop
	updates     []string // the definition of each of the stops that is an update
	// registered, triggers, resumed (the jobs whose last change is a resume) and refusals are what clients were answered.
	// answeredAt is when, attempts and pauses are what the retry policies ask for, by job; redriven counts executions.
	registered []string
	answeredAt map[string]time.Time
	followed
	requests []ledger.Request
	triggers []ledger.Trigger
	resumed  map[string]bool
	refusals []ledger.Refusal
	keyed    []ledger.Keyed
	byKey    map[string]string
	reused   int // keys of deleted jobs that another job got
	attempts map[string]int
	pauses   map[string]time.Duration
	redriven int
	// operations are those that were answered, unanswered the jobs, "" for all, for which one was asked for and not answered yet.
	operations []ledger.Operation
	incidents  []ledger.Incident
	forecasts  []ledger.Forecast
	// notifications are what owners received, told how often, by id.
	notifications []ledger.Notification
	told          map[string]int
	unanswered    map[string]bool
	// lostEntries are the jobs whose schedules lost the entry from which they go on.
	lostEntries map[string]bool
	removed     map[string]bool // the executions of these entries
	// late are the rows that clients' writers added when their buckets might be closed, and when.
	late map[job.Locator]time.Time
	// tenures hold when workers' reads were last accepted, epochs the greatest epoch of an accepted read, by partition.
	tenures map[tenure]time.Time
	epochs  map[int]int64
	moments []moment
	broken  []ledger.Violation
	// pooled is set if the run has pools. words are what workers told, tasksLost counts what they were told to have lost, asks what they asked.
	pooled          bool
	words           []ledger.Word
	tasksLost, asks int
	// slow are the times during which a worker stalled, or one of its calls was in flight; losses are those of the hot tier.
	slow   []span
	deeds  []deed
	losses []loss
	// registries hold the metrics of all processes that ever ran; together counts the jobs of batches.
	registries []*prometheus.Registry
	together   int

	// lastID is the millisecond of the last id, idsThen how many ids there were in it.
	lastID  int64
	idsThen int

	lostToHistory, lostToArchive, lostToSettle []job.Event
	shortened                                  []dispatch.Position // to which logs lost their ends
}

// moment is something that happened, for the timeline.
type moment struct {
	at        time.Duration
	who, what string
	about     string // an execution, a job or another key
}

func newWorld(base context.Context, seed uint64, f *Faults, v *Variant) *world {
	w := &world{
		base: base, seed: seed, faults: f, variant: v, began: time.Now(),
		// By every clock, the store was set up before the first service started.
		cold: servers.NewCold(partitions, job.Minute(time.Now().Add(-clock.MaxDifference))), hot: hotTier(f, v),
		log: servers.NewLog("log"), coord: servers.NewCoord(partitions), archive: servers.NewArchive(),
		board:     embedded.NewBoard(),
		processes: map[string]*process{}, apis: map[string]*jobapi.Service{}, outages: map[string]time.Time{}, hangs: map[string]time.Time{},
		checked: map[string]check{}, ahead: map[look]time.Duration{}, deleted: map[string]bool{}, executions: map[string]map[string]int{}, shown: map[string][]ledger.Shown{}, shownBefore: map[string][]ledger.Shown{}, tenures: map[tenure]time.Time{}, epochs: map[int]int64{},
		attempts: map[string]int{}, answeredAt: map[string]time.Time{}, followed: followed{idOf: map[string]string{}}, told: map[string]int{}, notifications: []ledger.Notification{}, lostEntries: map[string]bool{}, removed: map[string]bool{}, unanswered: map[string]bool{}, pauses: map[string]time.Duration{}, resumed: map[string]bool{},
	}
	w.pooled = w.withPools()
	if v != nil && v.Servers != nil {
		v.Servers(w)
	}
	return w
}

// hotTier returns one that is full in some seeds, and one that keeps few outcomes in others.
func hotTier(f *Faults, v *Variant) *servers.Hot {
	entries, records := 0, 0
	if v == nil && f.weather.Name != calm.Name {
		if f.dice.roll("full") < 0.12 {
			entries = 3
		}
		if f.dice.roll("records") < 0.12 {
			records = 6
		}
	}
	return servers.NewHot("hot", partitions, entries, records)
}

func (w *world) violate(invariant, jobID, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, ledger.Violation{Invariant: invariant, JobID: jobID, Detail: fmt.Sprintf(format, args...)})
}

// tell records a moment.
func (w *world) tell(who, about, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := moment{time.Since(w.began), who, what, about}
	if n := len(w.moments); n >= mostAtOnce && w.moments[n-mostAtOnce].at == m.at {
		panic(fmt.Sprintf("seed %d: %s repeats %s %s without a pause", w.seed, who, what, about)) // there is no time to run out here
	}
	w.moments = append(w.moments, m)
}

// mostAtOnce is more than the services do in an instant, unless one of them loops.
const mostAtOnce = 1_000_000

// after does something later, unless the simulation ends first.
func (w *world) after(d time.Duration, do func()) {
	if run.Sleep(w.base, d) == nil {
		do()
	}
}

func (w *world) away(port string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.outages[port])
}

// hanging returns how long a call to an unavailable server takes until its caller gives up.
func (w *world) hanging(port string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().Before(w.hangs[port]) {
		return callersWait
	}
	return 20 * time.Millisecond
}

// callersWait is how long the adapters wait for an answer.
const callersWait = 10 * time.Second

// start starts a process.
func (w *world) start(kind, name string, nth int) {
	ctx, cancel := context.WithCancel(w.base)
	p := &process{w: w, kind: kind, name: name, run: nth, clock: w.faults.clock(name), ctx: ctx, cancel: cancel, gone: make(chan struct{}), ended: make(chan struct{})}
	w.mu.Lock()
	stopping := w.stopping
	if !stopping {
		w.processes[name] = p
		delete(w.apis, name)
	}
	w.mu.Unlock()
	if stopping {
		cancel()
		return
	}
	if nth > 1 {
		w.tell(name, "", "starts again")
	}
	service, err := w.service(p)
	if err != nil {
		w.violate("start", "", "%s: %v", name, err)
		cancel()
		return
	}
	w.background.Go(func() {
		err := service.Run(ctx)
		close(p.ended)
		if p.ready() == nil && ctx.Err() == nil { // it gave up, which ends the process; it is started again
			w.tell(name, "", fmt.Sprintf("ends: %v", err))
			p.die(time.Second)
		}
	})
}

// entropy returns ids that follow from the seed and the instant (and from how many ids there were in it), so that a replay
// has the same ids.
type entropy struct{ w *world }

// Read implements io.Reader.
func (e entropy) Read(b []byte) (int, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if now := time.Now().UnixMilli(); now != e.w.lastID {
		e.w.lastID, e.w.idsThen = now, 0
	}
	e.w.idsThen++
	for i := range b {
		b[i] = byte(e.w.faults.dice.number(fmt.Sprintf("id/%d/%d/%d", e.w.lastID, e.w.idsThen, i)))
	}
	return len(b), nil
}

func (w *world) service(p *process) (run.Runner, error) {
	ports := p.ports()
	if w.variant != nil && w.variant.Ports != nil {
		w.variant.Ports(p.kind, &ports)
	}
	around := assembly.Surroundings{Logger: slog.New(slog.DiscardHandler), Metrics: w.registry(), Clock: p.clock, Entropy: entropy{w}}
	switch p.kind {
	case "job-api":
		cfg := jobapi.DefaultConfig()
		cfg.Partitions = partitions
		s, err := assembly.JobAPI(cfg, &ports, around)
		w.mu.Lock()
		w.apis[p.name] = s
		w.mu.Unlock()
		return s, err
	case "bucket-loader":
		cfg := bucketloader.DefaultConfig()
		cfg.Partitions = partitions
		cfg.Schedules.Page, cfg.Schedules.Pause = 3, 20*time.Second
		return assembly.BucketLoader(cfg, &ports, around)
	case "scheduler-worker":
		cfg := schedulerworker.DefaultConfig()
		cfg.Shards, cfg.Partitions = 1, partitions
		cfg.MaxBytes = 3 * largeBody // large bodies must wait for memory
		if w.variant == nil && w.seed%2 == 0 {
			cfg.Window = 4 // much of what is due must wait
		}
		if w.variant != nil && w.variant.Worker != nil {
			w.variant.Worker(&cfg)
		}
		return assembly.SchedulerWorker(cfg, &ports, around)
	case "executor":
		cfg := executor.DefaultConfig()
		cfg.Name = p.kind
		// Some of what hangs is deferred, but not for so long that it would miss the end of the run.
		cfg.HostConcurrency, cfg.MaxQueueWait, cfg.MaxDefer = 3, time.Second, 30*time.Second
		cfg.MaxBytes = 24 * largeBody // a quarter for each host: its three places, and as many waiting
		return assembly.Executor(cfg, &ports, around)
	case "retry-manager":
		cfg := retrymanager.DefaultConfig()
		cfg.Partitions = partitions
		return assembly.RetryManager(cfg, &ports, around)
	}
	cfg := auditwriter.DefaultConfig()
	cfg.Codec = "snappy" // zstd's encoders are pooled, with channels that belong to the bubble of their first use
	return assembly.AuditWriter(cfg, &ports, around)
}

// stop stops all processes gracefully, from the API to the audit-writers, in the order in which work flows.
func (w *world) stop() {
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	for _, k := range kinds() {
		for _, name := range processNames(k) {
			w.mu.Lock()
			p := w.processes[name]
			if k == "scheduler-worker" {
				w.taken = time.Now()
			}
			w.mu.Unlock()
			p.cancel()
		}
		time.Sleep(10 * time.Second) // what it has begun goes on and ends
	}
}

// schedule makes the scheduled faults strike.
func (w *world) schedule(list []Fault) {
	w.forecast = time.Now()
	for _, f := range list {
		w.plan(f)
	}
}

// plan makes a scheduled fault strike at its time.
func (w *world) plan(f Fault) {
	early := time.Duration(0)
	if f.Kind == FailOver || f.Kind == Replace && !f.onlyOne() {
		early = min(f.At, time.Second)
	}
	w.background.Go(func() { w.after(f.At-early-time.Since(w.forecast), func() { w.strike(f, early) }) })
}

func (w *world) strike(f Fault, early time.Duration) {
	defer w.faults.scheduled(f)
	if f.Kind != FailOver && f.Kind != Replace {
		w.tell("simulation", "", f.String())
	}
	switch f.Kind {
	case LoseHot:
		w.hot.Lose(f.partitions()...)
		w.lost(f)
	case FailOver, Replace:
		promote := w.hot.Replicate(f.partitions()...)
		w.after(early, func() {
			w.tell("simulation", "", f.String())
			promote(f.For, func(client string) bool { return f.lags(w.faults.dice, client) })
			if !f.onlyOne() { // otherwise the replica has everything
				w.lost(f)
				w.after(f.For, func() { w.lost(f) }) // what is lost by those that had lagged
			}
		})
	case Recreate:
		w.lostOf(f.What, w.log.Recreate(f.What))
	case Shorten:
		lost, ends := w.log.Shorten(f.What, time.Now().Add(-time.Second))
		w.lostOf(f.What, lost)
		w.mu.Lock()
		w.shortened = append(w.shortened, ends)
		w.mu.Unlock()
	case Forget:
		w.log.Forget(f.What)
	case Lapse:
		w.mu.Lock()
		p := w.processes[f.What]
		w.mu.Unlock()
		p.lapse()
		w.after(f.For, p.rejoin)
	case Cut: // for good
		w.mu.Lock()
		w.outages[f.What] = time.Now().Add(24 * time.Hour)
		w.mu.Unlock()
	case Outage, Hang:
		w.mu.Lock()
		w.outages[f.What] = time.Now().Add(f.For)
		if f.Kind == Hang {
			w.hangs[f.What] = time.Now().Add(f.For)
		}
		w.mu.Unlock()
	case Restart:
		w.mu.Lock()
		p := w.processes[f.What]
		w.mu.Unlock()
		p.restart(f.For)
	}
}
