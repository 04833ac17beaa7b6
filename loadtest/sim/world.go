// Package sim is the whole simulation: six services, two of each, in one testing/synctest bubble over simulated servers,
// with faults that follow from a seed. At the end package ledger checks the invariants I1–I9 on the account of the run.
package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
	auditor "github.com/minutehand/minutehand/services/audit-writer"
	loader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	api "github.com/minutehand/minutehand/services/job-api"
	settler "github.com/minutehand/minutehand/services/retry-manager"
	worker "github.com/minutehand/minutehand/services/scheduler-worker"
)

const (
	// partitions of the cold store, and how many processes of each service share them.
	partitions = 4
	replicas   = 2
)

// kinds are the services.
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

	mu        sync.Mutex
	stopping  bool
	taken     time.Time // when the workers were told to stop
	processes map[string]*process
	apis      map[string]*api.Service
	outages   map[string]time.Time
	hangs     map[string]time.Time // until when servers that are away hang instead of failing
	checked   map[string]time.Time
	calls     []ledger.Call
	stops     []ledger.Stop
	updates   []string // the definition of each of the stops that is an update
	// registered, triggers, resumed (the jobs whose last change is a resume) and refusals are what clients were answered, attempts and
	// pauses what the retry policies ask for, by job; redriven counts executions.
	registered []string
	triggers   []ledger.Trigger
	resumed    map[string]bool
	refusals   []ledger.Refusal
	attempts   map[string]int
	pauses     map[string]time.Duration
	redriven   int
	// tenures are when workers' reads were accepted last, epochs the greatest with which any was, by partition.
	tenures map[tenure]time.Time
	epochs  map[int]int64
	moments []moment
	broken  []ledger.Violation
	// slow are the times for which a worker stood still, or a call of it was under way; losses are those of the hot tier.
	slow   []span
	deeds  []deed
	losses []time.Time
	// registries are the metrics of all processes that ever ran; together counts the jobs of batches.
	registries []*prometheus.Registry
	together   int

	// lastID is the millisecond of the last id, idsThen how many there were in it.
	lastID  int64
	idsThen int

	lostToHistory, lostToArchive []job.Event
}

// span is for how long a worker was held up.
type span struct {
	ledger.Window
	worker string
}

// deed is what a worker did about a job, or an instant of it.
type deed struct {
	worker, jobID string
	nominal, at   time.Time
	kind          deedKind
}

type deedKind int

const (
	reads  deedKind = iota // the job, whichever instant it is for
	claims                 // an instant
	writes                 // an entry, a decision, a fire or an event
	leaves                 // is done with an instant
)

// window is the shortest catch-up window of the workload.
const window = 10 * time.Second

// delayed notes that a worker is held up for long enough that the design makes no promise if the hot tier is lost meanwhile.
func (w *world) delayed(p *process, d time.Duration) {
	if p.kind == "scheduler-worker" && d >= window-time.Second {
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		end := now.Add(d)
		for i, s := range w.slow { // held up once more
			if s.worker == p.name && !s.To.Before(now) && end.After(s.To) {
				w.slow[i].To = end
			}
		}
		w.slow = append(w.slow, span{ledger.Window{From: now, To: end}, p.name})
	}
}

// did notes what a worker does about an instant of a schedule.
func (w *world) did(p *process, kind deedKind, e *job.Entry, nominal time.Time) {
	if p.kind == "scheduler-worker" && e.FirstOfSchedule() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.deeds = append(w.deeds, deed{p.name, e.JobID, nominal, time.Now(), kind})
	}
}

// hasRead notes that a worker reads jobs.
func (w *world) hasRead(p *process, ids []string) {
	if p.kind == "scheduler-worker" {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			w.deeds = append(w.deeds, deed{p.name, id, time.Time{}, time.Now(), reads})
		}
	}
}

const (
	// inHand is within which time a worker is done with what it has claimed, unless it is held up.
	inHand = window
	// copied is within which time the copy of a first entry is dispatched, unless the hot tier has no room for it.
	copied = time.Minute
)

// excused are the instants of a job that a worker had in hand when it was held up, and the hot tier was lost meanwhile, and what it writes
// before it reads the job again: from the one of which it wrote until that one is decided, which may decide all that lies before.
func (w *world) excused(jobID string) (list []ledger.Window) {
	for _, s := range w.slow {
		lost := slices.ContainsFunc(w.losses, func(at time.Time) bool { return at.After(s.From) && at.Before(s.To) })
		if !lost || !w.had(s, jobID) {
			continue
		}
		again := false
		for _, x := range w.deeds {
			if x.worker != s.worker || x.jobID != jobID || x.at.Before(s.To) || !x.at.Before(s.To.Add(inHand)) {
				continue
			}
			again = again || x.kind == reads
			if x.kind == writes && (!again || x.nominal.Before(s.From.Add(inHand))) {
				list = append(list, ledger.Window{From: x.nominal, To: w.decided(x, s.To)})
			}
		}
	}
	return list
}

// had reports whether a worker that was held up had read a job, or had an instant of it, and was not done with it.
func (w *world) had(s span, jobID string) bool {
	open := map[int64]bool{}
	read := false
	for _, x := range w.deeds {
		if x.worker == s.worker && x.jobID == jobID && x.at.After(s.From.Add(-inHand)) && !x.at.After(s.From) {
			read = x.kind == reads || read && x.kind != leaves
			if x.kind != reads && !x.nominal.After(s.From.Add(clock.MaxDifference)) {
				open[x.nominal.UnixMilli()] = x.kind != leaves
			}
		}
	}
	for _, o := range open {
		read = read || o
	}
	return read
}

// decided is when something was last written about the same instant, after an instant or then.
func (w *world) decided(x deed, after time.Time) time.Time {
	for _, y := range w.deeds {
		if y.jobID == x.jobID && y.kind == writes && y.nominal.Equal(x.nominal) && y.at.After(after) {
			after = y.at
		}
	}
	return after
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
		// The store was set up before the first service started, by every clock.
		cold: servers.NewCold(partitions, job.Minute(time.Now().Add(-clock.MaxDifference))), hot: hotTier(f, v),
		log: servers.NewLog("log"), coord: servers.NewCoord(partitions), archive: servers.NewArchive(),
		board:     embedded.NewBoard(),
		processes: map[string]*process{}, apis: map[string]*api.Service{}, outages: map[string]time.Time{}, hangs: map[string]time.Time{},
		checked: map[string]time.Time{}, tenures: map[tenure]time.Time{}, epochs: map[int]int64{},
		attempts: map[string]int{}, pauses: map[string]time.Duration{}, resumed: map[string]bool{},
	}
	w.cold.Closing = func(rows []job.PendingRow) {
		for _, r := range rows {
			if !r.Done {
				w.violate("I9", r.JobID, "a bucket was closed in which %s is not done", locatorKey(r.Locator))
			}
		}
	}
	if v != nil && v.Servers != nil {
		v.Servers(w)
	}
	return w
}

// hotTier is one that is full in some seeds, and one that keeps few outcomes in others.
func hotTier(f *Faults, v *Variant) *servers.Hot {
	entries, records := 0, 0
	if v == nil && f.weather.Name != calm.Name {
		if f.dice.roll("full") < 0.12 {
			entries = 8
		}
		if f.dice.roll("records") < 0.12 {
			records = 20
		}
	}
	return servers.NewHot("hot", entries, records)
}

func (w *world) violate(invariant, jobID, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, ledger.Violation{Invariant: invariant, JobID: jobID, Detail: fmt.Sprintf(format, args...)})
}

// tell notes a moment.
func (w *world) tell(who, about, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := moment{time.Since(w.began), who, what, about}
	if n := len(w.moments); n >= mostAtOnce && w.moments[n-mostAtOnce].at == m.at {
		panic(fmt.Sprintf("seed %d: %s repeats %s %s without a pause", w.seed, who, what, about)) // there is no time to run out here
	}
	w.moments = append(w.moments, m)
}

// mostAtOnce is more than the services do in an instant, unless one of them turns in a loop.
const mostAtOnce = 1_000_000

// after does something later, unless the simulation ends before.
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

// hanging gives how long a call of a server that is away takes until its caller gives up.
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
		if p.ready() == nil && ctx.Err() == nil { // it gave up, which ends a process; someone starts it again
			w.tell(name, "", fmt.Sprintf("ends: %v", err))
			p.die(time.Second)
		}
	})
}

// entropy gives ids that follow from the seed and the instant (and from how many came in it before), so that a replay has
// the same ones.
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
	logger := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	metrics := w.registry()
	switch p.kind {
	case "job-api":
		cfg := api.DefaultConfig()
		cfg.Partitions = partitions
		s, err := api.New(cfg, api.Deps{
			Jobs: ports.Jobs, Pending: ports.Pending, History: ports.History, Settings: ports.Settings, Hot: ports.Hot,
			Records: ports.Records, Entropy: entropy{w}, Clock: p.clock, Logger: logger, Metrics: metrics,
		})
		w.mu.Lock()
		w.apis[p.name] = s
		w.mu.Unlock()
		return s, err
	case "bucket-loader":
		return loader.New(loader.DefaultConfig(), loader.Deps{
			Pending: ports.Pending, Hot: ports.Hot, Records: ports.Records, Log: ports.Log, Coord: ports.Coord,
			Clock: p.clock, Logger: logger, Metrics: metrics,
		})
	case "scheduler-worker":
		cfg := worker.DefaultConfig()
		cfg.Shards, cfg.Partitions = 1, partitions
		cfg.MaxBytes = 3 * largeBody // large bodies have to wait for memory
		if w.variant == nil && w.seed%2 == 0 {
			cfg.Window = 4 // much of what is due has to wait
		}
		if w.variant != nil && w.variant.Worker != nil {
			w.variant.Worker(&cfg)
		}
		return worker.New(cfg, worker.Deps{
			Jobs: ports.Jobs, Pending: ports.Pending, History: ports.History, Settings: ports.Settings, Hot: ports.Hot,
			Records: ports.Records, Log: ports.Log, Coord: ports.Coord, Board: ports.Board, Clock: p.clock, Logger: logger, Metrics: metrics,
		})
	case "executor":
		cfg := executor.DefaultConfig()
		// Some of what hangs is deferred, but not for so long that the end of the run would not see it.
		cfg.HostConcurrency, cfg.MaxQueueWait, cfg.MaxDefer = 3, time.Second, 30*time.Second
		cfg.MaxBytes = 24 * largeBody // a quarter for each host: its three places, and as many that wait
		return executor.New(cfg, executor.Deps{
			Jobs: ports.Jobs, Pending: ports.Pending, Records: ports.Records, Log: ports.Log, Coord: ports.Coord,
			Board: ports.Board, Transport: ports.Transport, Clock: p.clock, Logger: logger, Metrics: metrics,
		})
	case "retry-manager":
		return settler.New(settler.DefaultConfig(), settler.Deps{
			Jobs: ports.Jobs, Pending: ports.Pending, History: ports.History, Hot: ports.Hot, Records: ports.Records,
			Log: ports.Log, Clock: p.clock, Logger: logger, Metrics: metrics,
		})
	}
	cfg := auditor.DefaultConfig()
	cfg.Codec = "snappy" // zstd's encoders are pooled, with channels that belong to the bubble of their first use
	return auditor.New(cfg, auditor.Deps{
		History: ports.History, Archive: ports.Archive, Log: ports.Log, Clock: p.clock, Logger: logger, Metrics: metrics,
	})
}

// stop stops all processes gracefully, the API first and the audit-writers last, as their work flows.
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

// schedule lets the scheduled faults strike.
func (w *world) schedule(list []Fault) {
	w.forecast = time.Now()
	for _, f := range list {
		early := time.Duration(0)
		if f.Kind == FailOver {
			early = min(f.At, time.Second)
		}
		w.background.Go(func() { w.after(f.At-early, func() { w.strike(f, early) }) })
	}
}

func (w *world) strike(f Fault, early time.Duration) {
	defer w.faults.scheduled(f)
	if f.Kind != FailOver {
		w.tell("simulation", "", f.String())
	}
	switch f.Kind {
	case LoseHot:
		w.hot.Lose()
		w.lost()
	case FailOver:
		failOver := w.hot.Snapshot()
		w.after(early, func() {
			w.tell("simulation", "", f.String())
			failOver()
			w.lost()
		})
	case Recreate:
		lost := w.log.Recreate(f.What)
		if f.What == dispatch.TopicEvents {
			w.mu.Lock()
			w.lostToHistory = append(w.lostToHistory, decode(lost[dispatch.GroupHistory])...)
			w.lostToArchive = append(w.lostToArchive, decode(lost[dispatch.GroupArchive])...)
			w.mu.Unlock()
		}
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

func (w *world) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, time.Now())
}

func decode(messages []dispatch.Message) (events []job.Event) {
	for _, m := range messages {
		if e, err := wire.UnmarshalEvent(m.Value); err == nil {
			events = append(events, e)
		}
	}
	return events
}

func tokenKey(k dedupe.Key, token string) string { return attemptKey(k) + "@" + token }

// started notes that the hot tier accepted the last check of an attempt.
func (w *world) started(k dedupe.Key, fence job.Fence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checked[tokenKey(k, fence.String())] = time.Now()
}

// tenure is a partition as one run of a worker has it.
type tenure struct {
	worker         string
	run, partition int
	epoch          int64
}

// accepted notes that the hot tier accepted an owner's read, and with it the owners' epochs.
func (w *world) accepted(p *process, owners []hotbucket.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range owners {
		w.tenures[tenure{p.name, p.run, o.Partition, o.Epoch}] = time.Now()
		w.epochs[o.Partition] = max(w.epochs[o.Partition], o.Epoch)
	}
}

// publishes checks I3 on what a worker is about to publish: it read the partition under that epoch not long ago, or nobody has
// read it under a later one.
func (w *world) publishes(p *process, list []dispatch.Record) {
	for _, r := range list {
		f, err := wire.UnmarshalFire(r.Value)
		if err != nil {
			w.violate("wire", "", "a fire cannot be decoded: %v", err)
			continue
		}
		w.mu.Lock()
		read, present := w.tenures[tenure{p.name, p.run, f.Partition, f.Epoch}], w.epochs[f.Partition]
		w.mu.Unlock()
		if age := time.Since(read); f.Epoch != present && age > worker.DefaultConfig().OwnerTTL {
			w.violate("I3", f.JobID, "%s dispatches from partition %d under epoch %d, while %d has taken it over: it read it %s ago",
				p.name, f.Partition, f.Epoch, present, age)
		}
		w.tell(p.name, locatorKey(f.Locator), "publishes the fire of "+f.DueAt.Sub(w.began).String())
	}
}

// invoke is the network of targets: the first label of a host says how it behaves.
func (w *world) invoke(p *process, r *http.Request) (*http.Response, error) {
	attempt, _ := strconv.Atoi(r.Header.Get("Minutehand-Attempt"))
	scheduled, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
	c := ledger.Call{
		Host: r.URL.Host, JobID: r.Header.Get("Minutehand-Job-Id"), ExecutionID: r.Header.Get("Webhook-Id"),
		Attempt: attempt, ScheduledFor: scheduled, Token: r.Header.Get("Minutehand-Fencing-Token"), At: time.Now(), Ahead: time.Duration(p.clock),
	}
	w.mu.Lock()
	c.CheckedAt = w.checked[tokenKey(dedupe.Key{ExecutionID: c.ExecutionID, Attempt: attempt}, c.Token)]
	n := len(w.calls)
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	w.tell(p.name, fmt.Sprintf("%s/%d", c.ExecutionID, attempt), "invokes "+c.Host+" under token "+c.Token)
	status, err := w.behave(r, c)
	w.mu.Lock()
	w.calls[n].Failed, w.calls[n].Gone = err != nil || status >= http.StatusInternalServerError, status == http.StatusGone
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok")), Request: r}, nil
}

func (w *world) behave(r *http.Request, c ledger.Call) (status int, err error) {
	behaviour, _, _ := strings.Cut(c.Host, ".")
	switch behaviour {
	case "slow":
		return http.StatusOK, run.Sleep(r.Context(), 2*time.Second)
	case "hang":
		<-r.Context().Done()
		return 0, r.Context().Err()
	case "fail":
		return http.StatusServiceUnavailable, nil
	case "bad":
		return http.StatusBadRequest, nil
	case "gone":
		return http.StatusGone, nil
	case "cut":
		return 0, errors.New("connection reset")
	case "flaky":
		if w.faults.dice.roll("flaky/%s/%d", c.ExecutionID, c.Attempt) < 0.5 {
			return http.StatusInternalServerError, nil
		}
	}
	return http.StatusOK, nil
}
