// Package executor runs fires: it takes a lease on the attempt, checks one last time that nothing stopped it, calls
// the target, stores the outcome and publishes it.
//
// It promises: without a crash an attempt is invoked exactly once (I2), never early (I5), never more than its retry
// policy allows, and never after a cancel, pause, delete or update that stops it was acknowledged (I4). A target that
// hangs holds up neither other targets nor the log: what waits too long for its host is deferred to a later fire.
package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/run"
)

// Config holds what an operator may change.
type Config struct {
	// Name is how the record of a call names this executor, at most [MaxNameBytes]; "" for no name.
	Name string
	// LeaseTTL is how long a lease lasts without renewal, RenewEvery the pause between renewals.
	LeaseTTL, RenewEvery time.Duration
	// HostConcurrency bounds the invocations of one target host, MaxRunning those of all hosts.
	HostConcurrency, MaxRunning int
	// MaxIdle bounds the connections to targets that are kept for the next call.
	MaxIdle int
	// MaxWaiting bounds the fires that wait in memory, HostWaiting those of one host.
	MaxWaiting, HostWaiting int
	// MaxBytes bounds the total size of what waits and runs. One host has at most half of it, or a quarter if its fires are
	// large, and large fires leave a quarter to the others.
	MaxBytes int64
	// MaxQueueWait is how long a fire waits for its host before it is deferred; six times as long where the host's calls go
	// on.
	MaxQueueWait time.Duration
	// MinDefer and MaxDefer bound the deferral of a fire. Within them it is at most as long as the fire is late already, and
	// at least a quarter of that.
	MinDefer, MaxDefer time.Duration
	// MaxUncommitted bounds the fires behind the committed position; beyond it nothing more is consumed.
	MaxUncommitted int
	// MaxTakeovers is how often an expired lease of an attempt is taken over; the last takeover records worker_lost.
	MaxTakeovers int
	// DrainLimit is how long a stop waits for invocations in flight.
	DrainLimit time.Duration
	// PollBatch is how many fires are consumed at once.
	PollBatch int
	// AllowPrivateTargets switches off the guard against loopback and private addresses.
	AllowPrivateTargets bool
}

// MaxNameBytes bounds an executor's name: that of a host or a pod fits.
const MaxNameBytes = 253

// DefaultConfig returns the settings of an executor that was given none.
func DefaultConfig() Config {
	return Config{
		LeaseTTL: 10 * time.Second, RenewEvery: 3 * time.Second, HostConcurrency: 256, MaxRunning: 12_288, MaxIdle: 12_288,
		MaxWaiting: 100_000, HostWaiting: 60_000, MaxBytes: 128 << 20, MaxQueueWait: 5 * time.Second,
		MinDefer: 5 * time.Second, MaxDefer: 5 * time.Minute, MaxUncommitted: 1_000_000, MaxTakeovers: 3,
		DrainLimit: 20 * time.Second, PollBatch: 1000,
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, msg string) {
		if !ok {
			errs = append(errs, errors.New("executor: "+msg))
		}
	}
	check(c.RenewEvery > 0 && 2*c.RenewEvery+clock.MaxDifference < c.LeaseTTL,
		fmt.Sprintf("renew every must be over 0, and the lease TTL over twice that and %s, by which clocks may differ", clock.MaxDifference))
	check(c.HostConcurrency > 0 && c.MaxRunning >= c.HostConcurrency, "max running must be at least host concurrency, over 0")
	check(len(c.Name) <= MaxNameBytes && utf8.ValidString(c.Name), fmt.Sprintf("the name must be UTF-8 of at most %d bytes", MaxNameBytes))
	check(c.MaxIdle >= 0, "max idle must not be below 0")
	check(c.MaxWaiting > 0 && c.HostWaiting > 0 && c.MaxBytes > 0, "bounds of what waits must be over 0")
	check(c.MaxQueueWait > 0 && c.MinDefer > 0 && c.MaxDefer >= c.MinDefer, "max defer must be at least min defer, over 0")
	check(c.MaxUncommitted >= c.MaxWaiting, "max uncommitted must be at least max waiting")
	check(c.MaxTakeovers > 0 && c.PollBatch > 0 && c.DrainLimit >= 0, "max takeovers and poll batch must be over 0")
	return errors.Join(errs...)
}

// Deps are the ports that an executor works on.
type Deps struct {
	Jobs    jobstore.Jobs
	Pending jobstore.Pending
	Records attempts.Records
	Log     dispatch.Log
	Coord   coord.Coordinator
	// Board is where the executor reports how much of each lane it can take.
	Board capacity.Board
	// Nap sleeps for the last moment before an instant of a precise job; nil means time.Sleep. [clock.Nap] is more exact.
	Nap func(time.Duration)
	// Connections reads the connections of tenants, and Messengers opens them, by the kind of their targets; both may be empty.
	Connections messaging.Settings
	Messengers  map[string]messaging.Open
	// Pools is where workers fetch their tasks.
	Pools pools.Queue
	// Transport carries webhooks; nil means a transport of its own with the guard of the configuration.
	Transport http.RoundTripper
	Logger    *slog.Logger
	Metrics   prometheus.Registerer
	// Clock is the time of this machine.
	Clock clock.Clock
}

// Service is an executor.
type Service struct {
	cfg     Config
	deps    Deps
	metrics *metrics
	webhook *webhook
	// messages calls targets of all other kinds.
	messages *messages
	// name and start are those of this process; leased counts the leases that it took or tried to take.
	name   string
	start  int64
	leased atomic.Int64

	// reading is what is being consumed; it changes when the topic is recreated.
	reading atomic.Pointer[reading]
	hosts   *hosts
	alarm   *alarm
	leases  leases
	calls   calls
	endings chan ending
	// idle hands tasks to runners that have nothing to do.
	idle chan *task
	// idling counts them.
	idling atomic.Int64

	// seenUntil is the publication instant up to which this executor has consumed fires. pollingSince is since when it waits
	// for more (0: it does not wait). Both are in nanoseconds since the Unix epoch.
	seenUntil, pollingSince atomic.Int64
}

// New returns an executor that has not started.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics), webhook: newWebhook(cfg, deps.Clock, deps.Transport),
		messages: newMessages(deps.Connections, deps.Messengers, deps.Clock),
		endings:  make(chan ending, maxEnding), idle: make(chan *task),
	}
	if s.deps.Nap == nil {
		s.deps.Nap = time.Sleep
	}
	s.hosts, s.alarm = newHosts(cfg, deps.Clock, s.metrics), newAlarm(deps.Clock, s.deps.Nap)
	return s, nil
}

// Missing names what must still happen before anything is executed.
func (s *Service) Missing() []string {
	if s.reading.Load() == nil {
		return []string{"executor: not subscribed to the fires yet"}
	}
	return nil
}

// Run consumes and executes until ctx ends. Then it leaves the group, so that others take its share of the fires, and waits
// at most DrainLimit for what it has begun. What still runs after that is left to its lease, which others have met and wait
// for.
func (s *Service) Run(ctx context.Context) error {
	s.name = "executor-" + ulid.Make().String()
	err := run.Retry(ctx, s.deps.Logger, "draw a start number", func(ctx context.Context) (err error) {
		s.start, err = s.deps.Coord.StartNumber(ctx)
		return err
	})
	if err != nil {
		return nil // ctx ended before anything began
	}
	consumer, err := run.Subscribe(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicFires, dispatch.GroupExecutor)
	if err != nil {
		return nil
	}
	s.reading.Store(&reading{consumer, newWindow()})
	// Work outlives ctx by the length of the drain; abort ends it for good.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.renewLoop(work) })
	helpers.Go(func() { s.interruptLoop(work) })
	helpers.Go(func() { s.delayLoop(ctx, work) })
	helpers.Go(func() { s.deferLoop(ctx, work) })
	helpers.Go(func() { s.reportLoop(ctx) })
	helpers.Go(func() { s.messages.tidyLoop(ctx) })
	var committing sync.WaitGroup
	committing.Go(func() { s.commitLoop(ctx) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.endLoop(work)
	}()
	s.consume(ctx, work)
	var left error
	helpers.Go(func() { // alongside the drain, because the log may be away
		committing.Wait()
		s.commit(work)
		left = s.reading.Load().consumer.Close()
	})
	s.drain(abort, ended)
	abort()
	helpers.Wait()
	s.messages.close()
	return left
}

// reading is a consumer of the fires, and the window of what it returned.
type reading struct {
	consumer dispatch.Consumer
	window   *window
}

// rejoin starts over with a topic that was recreated. What was consumed from the old topic goes on; its places are
// committed nowhere.
func (s *Service) rejoin(ctx context.Context) error {
	c, err := dispatch.Rejoin(ctx, s.deps.Log, dispatch.TopicFires, dispatch.GroupExecutor, s.reading.Load().consumer)
	if err == nil {
		s.reading.Store(&reading{c, newWindow()})
	}
	return err
}

// drain waits for the invocations in flight and then for their outcomes, each at most the drain limit. What is left then is
// aborted, and others take it over.
func (s *Service) drain(abort func(), ended <-chan struct{}) {
	s.hosts.close()
	idle := s.hosts.wait(s.cfg.DrainLimit)
	if !idle {
		s.deps.Logger.Warn("invocations are still running at the drain limit, others will take them over",
			"running", s.hosts.running())
		abort()
		idle = s.hosts.wait(max(s.cfg.DrainLimit, releaseLimit)) // what has called nobody yet is released
	}
	if idle {
		close(s.endings)
	}
	limit := time.AfterFunc(s.cfg.DrainLimit, abort)
	defer limit.Stop()
	<-ended
}

// consume hands fires to their hosts' queues until ctx ends.
func (s *Service) consume(ctx, work context.Context) {
	for ctx.Err() == nil {
		if s.reading.Load().window.size() >= s.cfg.MaxUncommitted || s.hosts.overfull() {
			if run.Sleep(ctx, 10*time.Millisecond) != nil {
				return
			}
			continue
		}
		var r *reading
		var began time.Time
		messages, err := run.Next(ctx, s.deps.Logger, func(ctx context.Context) ([]dispatch.Message, error) {
			r, began = s.reading.Load(), s.deps.Clock.Now()
			s.pollingSince.Store(began.UnixNano())
			defer s.pollingSince.Store(0)
			return r.consumer.Poll(ctx, s.cfg.PollBatch)
		}, s.rejoin)
		if err != nil {
			return
		}
		newest := began
		for _, m := range messages {
			w := s.accept(r.window, m)
			if w == nil {
				continue
			}
			newest = w.fire.PublishedAt
			if !s.hosts.waitFor(w) && !s.hosts.enqueue(w) {
				s.hosts.reject(w)
			}
		}
		s.polled(began, newest, len(messages) == s.cfg.PollBatch)
		s.launch(work)
	}
}

// accept opens the fire's place in the window.
func (s *Service) accept(in *window, m dispatch.Message) *task {
	in.open(m.Partition, m.Offset)
	w, err := newTask(in, m, job.Instant(s.deps.Clock.Now()))
	if err != nil {
		// No executor of this version can decode it. Its entry is put back and fired again as long as it is not done.
		s.deps.Logger.Error("a fire cannot be decoded, it is passed over", "partition", m.Partition, "offset", m.Offset,
			"error", err)
		in.done(m.Partition, m.Offset)
		return nil
	}
	return w
}

// commitLoop commits everything up to the first fire that is not done, a few times a second.
func (s *Service) commitLoop(ctx context.Context) {
	for run.Sleep(ctx, 200*time.Millisecond) == nil {
		s.commit(ctx)
	}
}

func (s *Service) commit(ctx context.Context) {
	r := s.reading.Load()
	if err := r.consumer.Commit(ctx, r.window.committable()); err != nil && ctx.Err() == nil {
		s.deps.Logger.Warn("cannot commit fires", "error", err)
	}
	s.metrics.uncommitted.Set(float64(r.window.size()))
}

// delayLoop brings back tasks that waited for their instant or for another's lease, as soon as they are due.
func (s *Service) delayLoop(ctx, work context.Context) {
	const idle = time.Minute
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		now := s.deps.Clock.Now()
		due, next := s.hosts.takeDelayed(now)
		for _, w := range due {
			if !s.hosts.enqueue(w) {
				s.hosts.reject(w)
			}
		}
		if len(due) > 0 {
			s.launch(work)
		}
		pause := idle
		if !next.IsZero() {
			pause = max(next.Sub(now), 0)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-s.hosts.sooner:
		case <-timer.C:
		}
	}
}

// deferLoop defers what waited too long for its host. It waits for the hot tier and the log where it must, and holds up
// nothing else.
func (s *Service) deferLoop(ctx, work context.Context) {
	for run.Sleep(ctx, 100*time.Millisecond) == nil {
		if s.hosts.quiet() {
			select {
			case <-s.hosts.waits:
			case <-ctx.Done():
				return
			}
			continue
		}
		s.deferFires(work, s.hosts.takeOverdue())
	}
}

// withoutRecord returns the tasks whose attempt nobody has begun. The others are fires that came twice. Deferring them
// would end the row that the outcome settles, so they follow the record instead.
func (s *Service) withoutRecord(ctx context.Context, tasks []*task) []*task {
	keys := make([]attempts.Key, len(tasks))
	for i, w := range tasks {
		keys[i] = attempts.KeyOf(&w.fire.Entry)
	}
	var records []attempts.Record
	err := run.Retry(ctx, s.deps.Logger, "look records up", func(ctx context.Context) (err error) {
		records, err = s.deps.Records.Lookup(ctx, keys)
		return err
	})
	if err != nil {
		return nil
	}
	var free []*task
	for i, w := range tasks {
		if records[i].Outcome != nil || records[i].Alive(s.deps.Clock.Now()) {
			s.follow(ctx, w, records[i])
			continue
		}
		free = append(free, w)
	}
	return free
}

// deferChunk is how many deferrals are published at once.
const deferChunk = 200

// deferFires tells the settlers to write the same attempts with a later due instant. The fires are then complete. They are
// published in small batches, so that the log takes other records in between, and come back spread over three quarters of
// their delay. All at once they would leave the host idle until then, and most of them would be deferred again.
func (s *Service) deferFires(ctx context.Context, tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	for len(tasks) > deferChunk {
		s.deferFires(ctx, tasks[:deferChunk])
		tasks = tasks[deferChunk:]
	}
	tasks = s.withoutRecord(ctx, tasks)
	events := make([]*job.Event, len(tasks))
	for i, w := range tasks {
		now := s.deps.Clock.Now()
		since := w.fire.ScheduledFor
		switch {
		case w.fire.Attempt > 1:
			since = w.fire.DueAt // it was on time until now
		case w.fire.InLine():
			since = w.fire.PublishedAt // until then, it waited for others
		}
		from := job.Later(now, w.fire.DueAt) // it may have come ahead
		delay := min(max(from.Sub(since), s.cfg.MinDefer), s.cfg.MaxDefer)
		// The due instant counts too, so that the fire that came last this time need not be the last one the next time.
		spread := job.Unit(w.fire.ExecutionID, int(w.fire.DueAt.UnixMilli())) * float64(delay*3/4)
		delay = delay/4 + time.Duration(spread)
		event := job.DeferredEvent(w.fire, w.target(), job.Instant(from.Add(delay)), job.Instant(now))
		events[i] = &event
	}
	if len(tasks) == 0 || s.publish(ctx, events...) != nil {
		return
	}
	s.metrics.deferred.Add(float64(len(tasks)))
	for _, w := range tasks {
		w.done()
	}
}
