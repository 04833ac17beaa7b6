// Package schedulerworker is the scheduler-worker: it takes entries that are about to be due from the hot buckets of the
// partitions it owns, and dispatches each at its instant.
//
// It promises: an entry is dispatched no earlier than it is due by this clock, and as close to it as the log allows; a
// recurring entry is never dispatched without its successor being durable; an entry stays in its hot bucket until its
// fire is durable, so that a crash anywhere leads to a second dispatch under the same execution id, never to none.
// A worker that stalled for longer than OwnerTTL dispatches nothing of what it read before.
package schedulerworker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// Config holds what an operator may change.
type Config struct {
	// Lookahead is how far ahead of its instant an entry is read and prepared.
	Lookahead time.Duration
	// PollInterval is the longest pause between two reads of the hot buckets; hints make it shorter.
	PollInterval time.Duration
	// ReadGap is the shortest pause between two reads.
	ReadGap time.Duration
	// Ahead is how long before its instant a fire is published at most, and half of it the least (an entry that is read later is
	// published when it was read); 0 publishes at the instant.
	// The executor waits for the instant. So what is due within half of it is published, and later removed, together.
	Ahead time.Duration
	// OwnerTTL is how old the last accepted read may be for an owner to dispatch anything.
	OwnerTTL time.Duration
	// Grace is how long an entry waits for a job row, or a row of its definition, before it is dropped.
	Grace time.Duration
	// HoldRecheck is the pause between two looks at an entry that waits for its row.
	HoldRecheck time.Duration
	// MaxTasks bounds the entries that one shard holds in memory, MaxBytes the job rows that all shards hold.
	MaxTasks int
	MaxBytes int64
	// Batch bounds how many entries are prepared or dispatched at once, at most jobstore.MaxGetMany.
	Batch int
	// Shards is how many loops share the owned partitions.
	Shards int
	// LateWrite is how long a dispatch may take before it is abandoned and started again from the hot bucket: half of the
	// five minutes after which a bucket may close.
	LateWrite time.Duration
	// Partitions is the store's partition count. A worker's share of each target's capacity is its share of the partitions;
	// 0 means that it owns all.
	Partitions int
	// Window is how many fires may be in flight in a lane on which no executor has reported, over all workers.
	Window int
}

// DefaultConfig returns the settings of a worker that was given none.
func DefaultConfig() Config {
	return Config{
		Lookahead: 2 * time.Second, PollInterval: 500 * time.Millisecond, Ahead: 500 * time.Millisecond, ReadGap: 5 * time.Millisecond,
		OwnerTTL: 5 * time.Second, Grace: 2 * time.Minute, HoldRecheck: time.Second, MaxTasks: 20_000, MaxBytes: 96 << 20, Batch: 500,
		Shards: 4, LateWrite: 150 * time.Second, Window: 2000,
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, msg string) {
		if !ok {
			errs = append(errs, errors.New("scheduler-worker: "+msg))
		}
	}
	check(c.Lookahead > 0, "lookahead must be over 0")
	check(c.PollInterval > 0 && c.PollInterval < c.OwnerTTL && c.PollInterval < c.Lookahead,
		"poll interval must be over 0, below the owner TTL and below the lookahead")
	check(c.Ahead >= 0, "ahead must not be negative")
	check(c.ReadGap >= 0, "read gap must not be negative")
	check(c.MaxTasks > 0 && c.MaxBytes > 0 && c.Shards > 0, "max tasks, max bytes and shards must be over 0")
	check(c.Batch > 0 && c.Batch <= jobstore.MaxGetMany, fmt.Sprintf("batch must be 1 to %d", jobstore.MaxGetMany))
	check(c.Window > 0 && c.Partitions >= 0, "window must be over 0, and partitions not negative")
	check(c.Grace >= 2*time.Minute, "grace must be at least 2m, a writer may take half of it")
	check(c.HoldRecheck > 0 && c.LateWrite > 0, "hold recheck and late write must be over 0")
	return errors.Join(errs...)
}

// Deps are the ports that a worker works on.
type Deps struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Outcomes attempts.Outcomes
	Stops    attempts.Stops
	Log      dispatch.Log
	Coord    coord.Coordinator
	// Board is where executors report how much of each lane they can take.
	Board   capacity.Board
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is the time of this machine, Entropy the source of ids; nil stands for the system's.
	Clock   clock.Clock
	Entropy io.Reader
}

// Service is a scheduler-worker.
type Service struct {
	cfg     Config
	deps    Deps
	change  jobchange.Changer
	metrics *metrics
	// hold says what an operator keeps from being dispatched.
	hold atomic.Pointer[job.DispatchHold]
	// owned are the partitions that the last assignment took over.
	owned map[int]bool
	// assigned is set once the worker was told which partitions it owns.
	assigned atomic.Bool
	// phase shifts this worker's ticks against those of others; it is set before the shards run.
	phase  time.Duration
	lanes  *lanes
	budget *budget
	// hot and cold report whether the stores answer: a worker that cannot reach them must not keep the partitions.
	hot, cold coord.Progress
}

// New returns a worker that has not started.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Entropy == nil {
		deps.Entropy = rand.Reader
	}
	s := &Service{
		change: jobchange.Changer{Jobs: deps.Jobs, Stops: deps.Stops, Recorder: jobchange.Recorder{
			Pending: deps.Pending, Clock: deps.Clock, Entropy: deps.Entropy, Partitions: max(cfg.Partitions, 1), Grace: cfg.Grace,
		}},
		cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics), lanes: newLanes(deps.Clock, cfg.Window), budget: newBudget(cfg.MaxBytes),
	}
	s.hold.Store(&job.DispatchHold{})
	return s, nil
}

// Missing names what must still happen before anything is dispatched.
func (s *Service) Missing() []string {
	if !s.assigned.Load() {
		return []string{"scheduler-worker: not told which partitions are its own yet"}
	}
	return nil
}

// Run takes and dispatches until ctx ends. What it holds then stays in the hot buckets for the next owner.
func (s *Service) Run(ctx context.Context) error {
	member := &coord.Membership{
		Coord: s.deps.Coord, Role: coord.RoleWorker, Logger: s.deps.Logger, Clock: s.deps.Clock,
		Hot: &s.hot, Cold: &s.cold, AskHot: hotbucket.Answers(s.deps.Hot), AskCold: s.readHold,
	}
	// Nothing is dispatched before the hold is known, and a worker that cannot read it owns nothing.
	if err := run.Retry(ctx, s.deps.Logger, "read what is held", s.readHold); err != nil {
		return nil
	}
	assigned, err := member.Keep(ctx)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	s.phase = time.Duration(s.deps.Clock.Now().UnixNano()) % s.cfg.PollInterval
	shards := make([]*shard, s.cfg.Shards)
	var wg sync.WaitGroup
	wg.Go(func() { s.holdLoop(ctx) })
	wg.Go(func() { s.reportLoop(ctx) })
	for i := range shards {
		shards[i] = newShard(s)
		wg.Go(func() { shards[i].run(ctx) })
	}
	for {
		select {
		case owned, ok := <-assigned:
			if !ok {
				wg.Wait()
				return nil
			}
			s.assign(ctx, shards, owned)
		case <-s.deps.Hot.Hints().Ready():
			for _, p := range s.deps.Hot.Hints().Take() {
				if s.owned[p] { // otherwise another worker owns it
					shards[p%len(shards)].hint(p)
					shards[p%len(shards)].nudge()
				}
			}
		case <-ctx.Done():
			wg.Wait()
			return nil
		}
	}
}

// assign takes over the partitions in the hot tier and hands each shard its share. A partition whose epoch is refused has a
// newer owner already.
func (s *Service) assign(ctx context.Context, shards []*shard, owned []coord.Owner) {
	shares := make([][]coord.Owner, len(shards))
	for _, o := range owned {
		if !s.takeOver(ctx, o) {
			continue
		}
		i := o.Partition % len(shards)
		shares[i] = append(shares[i], o)
	}
	mine := 0
	s.owned = map[int]bool{}
	for _, share := range shares {
		mine += len(share)
		for _, o := range share {
			s.owned[o.Partition] = true
		}
	}
	if s.cfg.Partitions > 0 {
		s.lanes.setShare(float64(mine) / float64(s.cfg.Partitions))
	}
	for i, sh := range shards {
		sh.own(shares[i])
	}
	s.assigned.Store(true)
}

func (s *Service) takeOver(ctx context.Context, o coord.Owner) bool {
	var stale bool
	s.hot.Begin(s.deps.Clock.Now())
	err := run.Retry(ctx, s.deps.Logger, "take a partition over", func(ctx context.Context) error {
		err := s.deps.Hot.SetEpoch(ctx, o)
		stale = errors.Is(err, hotbucket.ErrStaleEpoch)
		if err == nil || stale {
			s.hot.Done()
			return nil
		}
		return err
	})
	return err == nil && !stale
}
