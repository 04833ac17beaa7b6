// Package retrymanager is the retry-manager: it reads how attempts ended and settles each as done, another attempt, or a
// dead letter.
//
// It promises: handling an event twice changes nothing (every key it writes follows from the event), an entry is marked
// done only after what follows from it is durable, and attempts never exceed max_attempts (I7).
package retrymanager

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/overlap"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// Config holds what an operator may change.
type Config struct {
	// Batch is how many events are settled at once.
	Batch int
	// Linger is how long events that only mark entries as done are gathered at most. Anything else is settled at once, with what was
	// gathered before it.
	Linger time.Duration
	// Partitions is the store's partition count, Grace how long an entry without its row is kept.
	Partitions int
	Grace      time.Duration
}

// DefaultConfig returns the settings of a settler that was given none.
func DefaultConfig() Config {
	return Config{Batch: 500, Linger: time.Second, Partitions: bucket.DefaultPartitions, Grace: 2 * time.Minute}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	if c.Batch <= 0 || c.Linger < 0 || c.Grace <= 0 || c.Partitions < 1 || c.Partitions > bucket.MaxPartitions {
		return errors.New("retry-manager: batch and grace must be over 0, linger not below, partitions 1 to 16384")
	}
	return nil
}

// Deps are the ports that a settler works on.
type Deps struct {
	Jobs    jobstore.Jobs
	Pending jobstore.Pending
	History jobstore.History
	Hot     hotbucket.Buckets
	Stops   attempts.Stops
	Log     dispatch.Log
	// Settings hold what owners of jobs are to be told, and what follows what.
	Settings jobstore.Settings
	// Entropy is the source of ids, safe for concurrent use; nil means crypto/rand.
	Entropy io.Reader
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is the time of this machine.
	Clock clock.Clock
}

// Service is a retry-manager.
type Service struct {
	cfg     Config
	deps    Deps
	change  jobchange.Changer
	metrics *metrics
	// subscribed is set once events arrive.
	subscribed atomic.Bool
}

// New returns a settler that has not started.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Entropy == nil {
		deps.Entropy = rand.Reader
	}
	return &Service{
		cfg: cfg, deps: deps,
		change: jobchange.Changer{Jobs: deps.Jobs, Stops: deps.Stops, Recorder: jobchange.Recorder{
			Pending: deps.Pending, Clock: deps.Clock, Entropy: deps.Entropy, Partitions: cfg.Partitions, Grace: cfg.Grace,
		}},
		metrics: newMetrics(deps.Metrics),
	}, nil
}

// Missing names what must still happen before anything is settled.
func (s *Service) Missing() []string {
	if !s.subscribed.Load() {
		return []string{"retry-manager: not subscribed to the events yet"}
	}
	return nil
}

// Run settles until ctx ends. A batch that was not committed by then is settled again by the next settler.
func (s *Service) Run(ctx context.Context) error {
	consumer, err := run.Subscribe(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupSettle)
	if err != nil {
		return nil // ctx ended before anything began
	}
	s.subscribed.Store(true)
	g := s.newGathered()
	for ctx.Err() == nil {
		from := consumer
		messages, err := s.next(ctx, &consumer, g)
		if err != nil && ctx.Err() != nil {
			break
		}
		if consumer != from && g.taken > 0 {
			// The topic was re-created. Events of the old one are settled, but their offsets mean nothing in the new one.
			clear(g.offsets)
			if !s.settleAll(ctx, consumer, g) {
				break
			}
			g = s.newGathered()
		}
		s.add(g, messages)
		if len(g.offsets) == 0 || !g.urgent && g.taken < s.cfg.Batch && s.deps.Clock.Since(g.began) < s.cfg.Linger {
			continue
		}
		if !s.settleAll(ctx, consumer, g) {
			break
		}
		g = s.newGathered()
	}
	return consumer.Close()
}

// gathered is events that are settled together, in the order of the log.
type gathered struct {
	events []*job.Event
	// offsets are the positions behind them; taken counts the messages, which may be more than the events.
	offsets map[int]int64
	taken   int
	began   time.Time
	// urgent is set if one of them needs more than a mark, or others wait for its end.
	urgent bool
}

func (s *Service) newGathered() *gathered {
	return &gathered{events: make([]*job.Event, 0, s.cfg.Batch), offsets: map[int]int64{}}
}

// next waits for messages, until what was gathered must be settled at the latest.
func (s *Service) next(ctx context.Context, consumer *dispatch.Consumer, g *gathered) ([]dispatch.Message, error) {
	if g.taken > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(s.cfg.Linger-s.deps.Clock.Since(g.began), 0))
		defer cancel()
	}
	return run.NextOf(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupSettle, consumer, s.cfg.Batch-g.taken)
}

// add gathers the events of messages.
func (s *Service) add(g *gathered, messages []dispatch.Message) {
	if g.taken == 0 {
		g.began = s.deps.Clock.Now()
	}
	g.taken += len(messages)
	for i := range messages {
		m := &messages[i]
		g.offsets[m.Partition] = m.Offset + 1
		e, err := wire.EventOf(m)
		if err != nil {
			s.deps.Logger.Error("an event cannot be decoded, it is passed over", "partition", m.Partition,
				"offset", m.Offset, "error", err)
			continue
		}
		g.urgent = g.urgent || !onlyMarks(e) || endsTurn(e)
		g.events = append(g.events, e)
	}
}

// endsTurn reports whether an event may end an execution for which others wait.
func endsTurn(e *job.Event) bool {
	return e.Entry.Queues && e.Type != job.EventDeferred && e.Type != job.EventSkipped && e.Disposition != job.DispositionSkippedOverlap
}

// settleAll settles what was gathered and commits it. It returns false if ctx ended before that.
func (s *Service) settleAll(ctx context.Context, consumer dispatch.Consumer, g *gathered) bool {
	err := run.Retry(ctx, s.deps.Logger, "settle events", func(ctx context.Context) error { return s.settle(ctx, g.events) })
	if err != nil {
		return false
	}
	err = run.Retry(ctx, s.deps.Logger, "commit events", func(ctx context.Context) error { return consumer.Commit(ctx, g.offsets) })
	if err != nil {
		return false
	}
	s.metrics.settled.Add(float64(g.taken))
	return true
}

// settle handles a batch. It writes first what follows from an attempt, then the marks. A crash in between leaves the batch
// uncommitted, and everything is written once more under the same keys.
func (s *Service) settle(ctx context.Context, events []*job.Event) error {
	b := &batch{
		marked: make(map[job.Locator]bool, len(events)), ended: map[job.Locator]bool{}, marks: make([]job.Locator, 0, len(events)),
		rows: map[job.Locator]job.PendingRow{}, queues: map[string]bool{}, paused: map[string]bool{},
	}
	if err := s.readRows(ctx, b, events); err != nil {
		return err
	}
	for _, e := range events {
		if err := s.handle(ctx, b, e); err != nil {
			return err
		}
		if endsTurn(e) {
			b.queues[e.Entry.JobID] = true
		}
	}
	if err := s.follow(ctx, b); err != nil {
		return err
	}
	return s.write(ctx, b)
}

func (s *Service) write(ctx context.Context, b *batch) error {
	if err := s.deps.Pending.Put(ctx, b.entries); err != nil {
		return err
	}
	if err := s.addNear(ctx, b.entries); err != nil {
		return err
	}
	if err := s.note(ctx, b.entries); err != nil {
		return err
	}
	letters := make([]dispatch.Message, len(b.letters))
	for i := range b.letters {
		if err := s.deps.History.PutDeadLetter(ctx, b.letters[i]); err != nil {
			return err
		}
		letters[i] = dispatch.Message{
			Key: b.letters[i].Event.Entry.JobID, Value: wire.MarshalDeadLetter(&b.letters[i]),
		}
	}
	if err := s.deps.Log.Publish(ctx, dispatch.TopicDLQ, letters); err != nil {
		return err
	}
	if err := s.tellOwners(ctx, b); err != nil {
		return err
	}
	for _, l := range b.deferred {
		if err := s.deps.Pending.Defer(ctx, l, b.rows[l].DeferredTo); err != nil {
			return err
		}
	}
	if len(b.marks) == 0 {
		return nil
	}
	if err := s.deps.Pending.MarkDone(ctx, b.marks); err != nil {
		return err
	}
	s.callNext(ctx, b.queues)
	return nil
}

// callNext brings forward what waited for executions of jobs that have ended. Nobody depends on it: workers look at what waits from time to
// time.
func (s *Service) callNext(ctx context.Context, jobs map[string]bool) {
	ids := slices.Sorted(maps.Keys(jobs))
	err := run.Each(len(ids), notesAtOnce, func(i int) error {
		next, err := overlap.Next(ctx, s.deps.Jobs, s.deps.Pending, ids[i], s.deps.Clock.Now())
		if err != nil || next == nil {
			return err
		}
		return s.deps.Hot.Recall(ctx, []*job.Entry{next})
	})
	if err != nil && ctx.Err() == nil {
		s.deps.Logger.Warn("what waited for an execution that has ended is called some seconds later", "error", err)
	}
}

// notesAtOnce is of how many jobs what is in progress is noted, or asked for, at once.
const notesAtOnce = 32

// note notes executions that may not overlap as in progress in their new rows, before the rows that these came from are done.
func (s *Service) note(ctx context.Context, entries []job.Entry) error {
	byJob := map[string][]*job.Entry{}
	for i := range entries {
		if e := &entries[i]; e.Alone {
			byJob[e.JobID] = append(byJob[e.JobID], e)
		}
	}
	ids := slices.Sorted(maps.Keys(byJob))
	return run.Each(len(ids), notesAtOnce, func(i int) error {
		for _, e := range byJob[ids[i]] {
			if err := overlap.Note(ctx, s.deps.Jobs, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// addNear adds the new entries that are due before the horizon to their hot buckets. An entry that finds no room is
// durable, and the loader's sweeps add it.
func (s *Service) addNear(ctx context.Context, entries []job.Entry) error {
	if err := hotbucket.AddNear(ctx, s.deps.Hot, entries); !errors.Is(err, hotbucket.ErrFull) {
		return err
	}
	return nil
}
