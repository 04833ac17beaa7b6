// Package auditwriter is the audit-writer: it writes every event to the history, which the API reads, and to Parquet
// objects in the archive, which Athena reads.
//
// It promises: the archive holds every record that the log kept exactly once (I8), an object is there whole or not at
// all, and the history shows an event within a second or two.
package auditwriter

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// Config holds what an operator may change.
type Config struct {
	// Region is the first part of an object's name.
	Region string
	// Codec compresses the objects' pages: "zstd", or "snappy", which is faster and larger.
	Codec string
	// CloseAfter is how long an object takes records at most, CloseBytes how large their total size may be.
	CloseAfter time.Duration
	CloseBytes int64
	// Batch is how many events are handled at once, Linger the pause after a batch that was not full: in a store with history by minute a
	// batch of many rows costs hardly more than one row.
	Batch  int
	Linger time.Duration
}

// DefaultConfig returns the settings of an audit-writer that was given none.
func DefaultConfig() Config {
	return Config{
		Region: "local", Codec: "zstd", CloseAfter: time.Minute, CloseBytes: 64 << 20, Batch: 2000,
		Linger: 500 * time.Millisecond,
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	if _, ok := codecs()[c.Codec]; !ok {
		return errors.New("audit-writer: the codec must be zstd or snappy")
	}
	if c.Region == "" || c.CloseAfter <= 0 || c.CloseBytes <= 0 || c.Batch <= 0 || c.Linger < 0 {
		return errors.New("audit-writer: region, close after, close bytes and batch must be set, linger not below 0")
	}
	return nil
}

// Deps are the ports that an audit-writer works on.
type Deps struct {
	History jobstore.History
	Archive archive.Archive
	Log     dispatch.Log
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is the time of this machine.
	Clock clock.Clock
}

// Service is an audit-writer.
type Service struct {
	cfg     Config
	deps    Deps
	metrics *metrics
	// recording and archiving are set once events reach the history, and the archive.
	recording, archiving atomic.Bool
}

// New returns an audit-writer that has not started.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics, deps.Clock)}, nil
}

// Missing names what must still happen before everything is written.
func (s *Service) Missing() []string {
	if !s.recording.Load() || !s.archiving.Load() {
		return []string{"audit-writer: not subscribed to the events yet"}
	}
	return nil
}

// Run writes until ctx ends, then everything that the log holds by then, and closes the open objects.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() { errs[0] = s.recordLoop(ctx) })
	wg.Go(func() { errs[1] = s.archiveLoop(ctx) })
	wg.Wait()
	return errors.Join(errs...)
}

// lingerBytes is the size from which a batch counts as full, however few events it has: a consumer returns no more at a time than
// dispatch.MaxPollBytes.
const lingerBytes = 1 << 20

// pauses reports whether the log held no more than these messages, as far as that shows.
func (s *Service) pauses(messages []dispatch.Message) bool {
	bytes := 0
	for i := range messages {
		bytes += len(messages[i].Value)
	}
	return len(messages) < s.cfg.Batch && bytes < lingerBytes
}

// recordLoop writes the history. It commits a batch after its rows are durable. The rows' keys follow from the events, so a
// batch written twice is written once.
func (s *Service) recordLoop(ctx context.Context) error {
	consumer, err := run.Subscribe(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupHistory)
	if err != nil {
		return nil // ctx ended before anything began
	}
	s.recording.Store(true)
	for ctx.Err() == nil {
		messages, err := run.NextOf(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupHistory, &consumer, s.cfg.Batch)
		if err != nil {
			break
		}
		events := make([]jobstore.Recorded, 0, len(messages))
		offsets := map[int]int64{}
		for i := range messages {
			m := &messages[i]
			offsets[m.Partition] = m.Offset + 1
			e, err := wire.EventOf(m)
			if err != nil {
				s.deps.Logger.Error("an event cannot be decoded, it is not in the history", "partition", m.Partition,
					"offset", m.Offset, "error", err)
				continue
			}
			r := jobstore.Recorded{Event: e.Kept(), Text: m.Value}
			if r.Event != e {
				r.Text = nil // that has the headers
			}
			events = append(events, r)
		}
		err = run.Retry(ctx, s.deps.Logger, "write history", func(ctx context.Context) error {
			if err := s.deps.History.Record(ctx, events); err != nil {
				return err
			}
			return consumer.Commit(ctx, offsets)
		})
		if err != nil {
			break
		}
		s.metrics.recorded.Add(float64(len(events)))
		if s.pauses(messages) && run.Sleep(ctx, s.cfg.Linger) != nil {
			break
		}
	}
	return consumer.Close()
}
