// Package bucketloader is the bucket-loader: it keeps the hot buckets of its partitions filled with their next hour, puts
// back what was lost on the way, and closes minute buckets in which everything is done.
//
// It promises: whatever a crash, or the loss of the hot tier or the log, did to an entry, the entry comes back into its hot
// bucket as long as its row is not done (put-back). No bucket is closed that holds an entry that is not done (invariant
// I9), and buckets close in order.
package bucketloader

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/forecast"
	"github.com/minutehand/minutehand/services/bucket-loader/internal/schedules"
)

// Config holds what an operator may change.
type Config struct {
	// Ahead is how far ahead the hot buckets are filled, less up to 40 s.
	Ahead time.Duration
	// Tick is the pause between two rounds over the partitions.
	Tick time.Duration
	// NearBefore is how long before a minute begins it is read again, together with the minute after it. The last partition's turn is
	// when half of it is over.
	NearBefore time.Duration
	// CloseSweepAfter is how long after a minute has passed it is swept, and the pause between two sweeps of it.
	CloseSweepAfter time.Duration
	// CloseAfter is how long after its minute a bucket may be closed.
	CloseAfter time.Duration
	// PutBackWait is the longest that a put-back waits for the executors; it doubles with each put-back of an entry.
	PutBackWait time.Duration
	// MaxCandidates bounds the put-backs that wait at once, and those in hot buckets: shared evenly among the partitions,
	// but at least minShare for each.
	MaxCandidates int
	// Page is how many rows one read takes.
	Page int
	// Parallel is how many partitions are visited at once. What they ask of a store at the same time shares requests.
	Parallel int
	// Schedules are the settings of the schedule audit, Partitions the count with which the stores were set up.
	Schedules  schedules.Config
	Partitions int
	// Forecast are the settings of what is planned.
	Forecast forecast.Config
	// AllowPrivateTargets lets owners be told who are at loopback and private addresses.
	AllowPrivateTargets bool
}

// DefaultConfig returns the settings of a loader that was given none.
func DefaultConfig() Config {
	return Config{
		Ahead: time.Hour, Tick: time.Second, NearBefore: 15 * time.Second, CloseSweepAfter: 15 * time.Second,
		CloseAfter: jobstore.ClosesAfter, PutBackWait: 10 * time.Second, MaxCandidates: 50_000, Page: 500,
		Parallel: 32, Schedules: schedules.DefaultConfig(), Forecast: forecast.DefaultConfig(),
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, msg string) {
		if !ok {
			errs = append(errs, errors.New("bucket-loader: "+msg))
		}
	}
	check(c.Ahead >= 2*time.Minute, "ahead must be at least 2m")
	check(c.Tick > 0 && c.Tick <= c.NearBefore/2, "tick must be over 0 and at most half of near before")
	check(c.CloseSweepAfter > 0 && c.CloseAfter >= jobstore.ClosesAfter,
		"close after must be at least 5m, on which late writers rely, and close sweep after over 0")
	check(c.Schedules.Rate > 0 && c.Schedules.Page > 0 && c.Schedules.Page <= maxPage && c.Schedules.MaxRows > 0 && c.Schedules.LookAgain >= 2*clock.MaxDifference,
		"rate, page and max rows of the schedule audit must be over 0, the page at most 500, look again at least twice what clocks differ")
	check(c.Forecast.Rows > 0 && c.Forecast.Instants > 0 && c.Forecast.Pause > 0 && c.Forecast.Page > 0,
		"rows, instants, pause and page of the forecast must be over 0")
	check(c.PutBackWait > 0 && c.MaxCandidates > 0 && c.Page > 0 && c.Parallel > 0,
		"put-back wait, max candidates, page and parallel must be over 0")
	return errors.Join(errs...)
}

// maxPage bounds the jobs that the schedule audit looks at together.
const maxPage = jobstore.MaxGetMany

// Deps are the ports that a loader works on. What [Service] does beside its partitions alone needs Jobs, History and Settings; a loader without Jobs has none.
type Deps struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Records  attempts.Records
	Log      dispatch.Log
	Coord    coord.Coordinator
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Targets calls the owners of jobs; nil means connections of the loader's own.
	Targets http.RoundTripper
	// Clock is the time of this machine.
	Clock clock.Clock
	// Entropy is the source of ids, safe for concurrent use; nil means crypto/rand.
	Entropy io.Reader
}

// Service is a bucket-loader.
type Service struct {
	cfg     Config
	deps    Deps
	metrics *metrics

	partitions map[int]*partition
	// assigned is set once the loader was told which partitions it owns.
	assigned bool
	// staged is set once everything owned was taken over and staged.
	staged atomic.Bool
	// audits is set while this loader owns the first partition, whose owner audits the schedules and carries operations out.
	audits atomic.Bool
	// mu guards nextQuiet and putBackTotal, which visits of several partitions share.
	mu sync.Mutex
	// nextQuiet is when the next sweep that is likely to find nothing missing may go on.
	nextQuiet time.Time
	// stageUntil is until when this round stages what is not due soon. The next round continues it: entries that were found
	// overdue must not wait while an hour of a thousand partitions is staged.
	stageUntil time.Time
	// waitsSince is since when an overdue entry has waited to be put back.
	waitsSince time.Time
	// hot and cold report whether the stores answer: a loader that cannot reach them must not keep the partitions.
	hot, cold coord.Progress
	// putBackTotal counts the entries put back; told is when they were last logged.
	putBackTotal int
	told         time.Time
}

// partition is what the loader knows of one partition that it owns.
type partition struct {
	owner coord.Owner
	// incarnation is the hot tier's to which all of this applies; "" until it was read.
	incarnation string
	// staged is the first minute not yet staged; 0 before the takeover is complete.
	staged int64
	// firstSweep is set until everything open, the current minute included, was swept after the takeover.
	firstSweep bool
	// near is the minute whose near sweep is done.
	near int64
	// low is the low-water mark.
	low int64
	// sweepAt is when the next closing sweep is due.
	sweepAt time.Time
	// closeTried is the minute up to which closing was tried, closeAgain when it is tried again.
	closeTried int64
	closeAgain time.Time
	// resume is where the last sweep reached its share, and the next one goes on; nil if it came to the end.
	resume *job.Locator
	// back are the entries put back since then that were in their hot bucket at the last check.
	back []*job.Entry
	// backAt is when some of them last left it.
	backAt time.Time
	// found counts what the sweeps of the current pass over the open buckets have found. oldestDue is when the oldest entry
	// that is not done was due.
	found     int
	oldestDue time.Time
	// allDone remembers when everything was first seen done in a bucket to which a writer may still add. done are the
	// buckets that were seen all done after that. They are not read again until they are closed, however long another bucket
	// keeps them open. Neither are empty buckets, but only for a while: an overdue entry's successor may come into one of
	// them.
	allDone     map[int64]time.Time
	done, empty spans
	emptyUntil  time.Time
	// candidates wait for their put-back; putBacks counts the put-backs of entries in open buckets.
	candidates []candidate
	putBacks   map[job.Locator]int
	// forgot is set if putBacks grew too large in this pass and was cleared. passes counts such passes in a row, and
	// replaces the counts that are gone.
	forgot bool
	passes int
}

// minShare is how many put-backs a partition may have at once, however many partitions there are.
const minShare = 100

func (s *Service) share() int { return max(s.cfg.MaxCandidates/max(len(s.partitions), 1), minShare) }

// New returns a loader that has not started.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Jobs != nil && cfg.Partitions < 1 {
		return nil, errors.New("bucket-loader: partitions must be over 0")
	}
	if deps.Entropy == nil {
		deps.Entropy = rand.Reader
	}
	return &Service{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics), partitions: map[int]*partition{}}, nil
}

// Missing names what must still happen before fires are on time.
func (s *Service) Missing() []string {
	if !s.staged.Load() {
		return []string{"bucket-loader: the next hour is not staged yet"}
	}
	return nil
}

// Run stages, sweeps and closes until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	member := &coord.Membership{
		Coord: s.deps.Coord, Role: coord.RoleLoader, Logger: s.deps.Logger, Clock: s.deps.Clock,
		Hot: &s.hot, Cold: &s.cold, AskHot: hotbucket.Answers(s.deps.Hot), AskCold: s.askCold,
	}
	assigned, err := member.Keep(ctx)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if s.deps.Jobs != nil {
		defer s.audit(ctx)()
	}
	tick := time.NewTicker(s.cfg.Tick)
	defer tick.Stop()
	for {
		select {
		case owned, ok := <-assigned:
			if !ok {
				return nil
			}
			s.assign(owned)
			s.round(ctx)
		case <-tick.C:
			s.round(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// assign starts newly owned partitions from scratch, and forgets those no longer owned.
func (s *Service) assign(owned []coord.Owner) {
	next := make(map[int]*partition, len(owned))
	for _, o := range owned {
		if p, ok := s.partitions[o.Partition]; ok && p.owner == o {
			next[o.Partition] = p
			continue
		}
		next[o.Partition] = newPartition(o)
		s.staged.Store(false)
	}
	s.partitions, s.assigned = next, true
	s.audits.Store(next[0] != nil)
}

func newPartition(o coord.Owner) *partition {
	return &partition{owner: o, allDone: map[int64]time.Time{}, putBacks: map[job.Locator]int{}}
}

// round does what is due now for every partition. What fails is tried again in the next round.
func (s *Service) round(ctx context.Context) {
	mine := slices.Sorted(maps.Keys(s.partitions))
	if len(mine) > 0 {
		s.hot.Begin(s.deps.Clock.Now())
	}
	incarnations, err := s.deps.Hot.Incarnations(ctx, mine)
	if err != nil {
		s.deps.Logger.Warn("cannot read the hot tier's incarnation", "error", err)
		return
	}
	s.hot.Done()
	parts := make([]*partition, len(mine))
	for i, n := range mine {
		if p := s.partitions[n]; p.incarnation != incarnations[i] {
			// Everything may be gone: take over, stage and sweep as at a start. Nobody else moves the low-water mark meanwhile.
			low := p.low
			p = newPartition(p.owner)
			p.low, p.incarnation, s.partitions[n] = low, incarnations[i], p
		}
		parts[i] = s.partitions[n]
	}
	// What is due soon in any partition comes before what is due later: staging an hour of a thousand partitions takes a
	// while.
	parts = s.each(ctx, parts, s.visitNear)
	s.putBackAll(ctx, parts)
	s.stageUntil = s.deps.Clock.Now().Add(s.stageFor())
	s.each(ctx, parts, s.visit)
	if ctx.Err() != nil {
		return
	}
	s.observeOldest(s.deps.Clock.Now())
	oldest := s.deps.Clock.Now()
	for _, p := range s.partitions {
		if open := s.oldestOpen(p); open.Before(oldest) {
			oldest = open
		}
	}
	s.metrics.oldestOpen.Set(s.deps.Clock.Since(oldest).Seconds())
	s.tellProgress(s.deps.Clock.Now())
	all := s.assigned
	for _, p := range s.partitions {
		all = all && p.staged > job.Minute(s.deps.Clock.Now())
	}
	s.staged.Store(all)
}

// stageFor returns how long a round stages what is not due soon: a tick. It returns zero while an overdue entry waits to be
// put back, for as long as that should take.
func (s *Service) stageFor() time.Duration {
	now := s.deps.Clock.Now()
	for _, p := range s.partitions {
		if len(p.candidates) == 0 {
			continue
		}
		if s.waitsSince.IsZero() {
			s.waitsSince = now
		}
		if now.Sub(s.waitsSince) < s.cfg.PutBackWait {
			return 0
		}
		return s.cfg.Tick
	}
	s.waitsSince = time.Time{}
	return s.cfg.Tick
}

// tellEvery is the pause between two log lines about overdue entries.
const tellEvery = 10 * time.Second

// tellProgress logs how the entries that were found overdue get on, while there are more than a sweep takes.
func (s *Service) tellProgress(now time.Time) {
	waiting, more := 0, false
	var oldest time.Time
	for _, p := range s.partitions {
		waiting += len(p.candidates)
		more = more || p.resume != nil && len(p.candidates)+len(p.back) > 0
		if !p.oldestDue.IsZero() && (oldest.IsZero() || p.oldestDue.Before(oldest)) {
			oldest = p.oldestDue
		}
	}
	if !more || now.Sub(s.told) < tellEvery {
		return
	}
	s.told = now
	s.deps.Logger.Info("catching up with what is overdue", "put_back", s.putBackTotal, "waiting", waiting,
		"oldest_due_ago", now.Sub(oldest).Round(time.Second))
}

// each visits partitions, several at once, and returns those whose visit succeeded. The others are visited again in the
// next round.
func (s *Service) each(
	ctx context.Context, parts []*partition, visit func(ctx context.Context, p *partition, now time.Time) error,
) (well []*partition) {
	errs := make([]error, len(parts))
	ended := run.Each(len(parts), s.cfg.Parallel, func(i int) error {
		if errs[i] = visit(ctx, parts[i], s.deps.Clock.Now()); errs[i] != nil {
			return run.Sleep(ctx, time.Millisecond)
		}
		return ctx.Err()
	})
	if ended != nil {
		return nil // ctx has ended
	}
	for i, p := range parts {
		if errs[i] == nil {
			well = append(well, p)
			continue
		}
		switch {
		case errors.Is(errs[i], hotbucket.ErrStaleEpoch) && p.staged == 0:
			delete(s.partitions, p.owner.Partition) // refused: another loader owns it
		case errors.Is(errs[i], hotbucket.ErrStaleEpoch):
			s.partitions[p.owner.Partition] = newPartition(p.owner) // forgotten, or another's: taking over will show
		}
		s.deps.Logger.Warn("a sweep failed, it is tried again", "partition", p.owner.Partition, "error", errs[i])
	}
	return well
}

// soon is how far ahead every partition is staged before any is staged further.
const soon = 2 * time.Minute

// visitNear takes a partition over, and makes hot what is due soon and what is overdue. It has little to do except for a
// new partition, or one whose hot bucket was lost.
func (s *Service) visitNear(ctx context.Context, p *partition, now time.Time) error {
	if p.staged == 0 {
		if err := s.takeOver(ctx, p, now); err != nil {
			return err
		}
	}
	if err := s.stage(ctx, p, now, soon); err != nil {
		return err
	}
	if p.firstSweep {
		// After staging, and by a later clock than staging used. Entries that became due while it staged are past due here,
		// so that every entry is in one of the two.
		now = s.deps.Clock.Now()
		p.sweepAt = now.Add(s.cfg.CloseSweepAfter - s.turn(p, s.cfg.CloseSweepAfter))
		if err := s.sweep(ctx, p, now, job.Minute(now)+1); err != nil {
			return err
		}
		p.firstSweep = false
	}
	return nil
}

func (s *Service) visit(ctx context.Context, p *partition, now time.Time) error {
	if now.Before(s.stageUntil) {
		if err := s.stage(ctx, p, now, s.cfg.Ahead-s.calm(p)); err != nil {
			return err
		}
	}
	if err := s.nearSweep(ctx, p, now); err != nil {
		return err
	}
	if !now.Before(p.sweepAt) {
		if err := s.closingSweep(ctx, p, now); err != nil {
			return err
		}
	}
	return s.close(ctx, p, now)
}
