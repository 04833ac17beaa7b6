package auditor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// buffer is the object that is being filled from one log partition.
type buffer struct {
	partition   int
	first, last int64
	hour        time.Time
	openedAt    time.Time
	bytes       int64
	messages    []dispatch.Message
}

// row is an event with its place in the log.
type row struct {
	event  job.Event
	offset int64
	at     time.Time
}

// archiveLoop fills an object for each log partition and puts it when it is old or large enough, when its hour ends,
// or when ctx does. The position is committed after the put; a crash in between finds the object there.
func (s *Service) archiveLoop(ctx context.Context) error {
	consumer, err := run.Subscribe(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupArchive)
	if err != nil {
		return nil // ctx ended before anything began
	}
	s.archiving.Store(true)
	a := &archiver{s: s, consumer: consumer, open: map[int]*buffer{}}
	for ctx.Err() == nil {
		messages, err := a.poll(ctx)
		if errors.Is(err, dispatch.ErrRecreated) {
			err = a.rejoin(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.deps.Logger.Warn("cannot consume events", "error", err)
			_ = run.Sleep(ctx, time.Second)
			continue
		}
		if err := a.take(ctx, messages); err != nil {
			break
		}
		if len(messages) < s.cfg.Batch && run.Sleep(ctx, s.cfg.Linger) != nil {
			break
		}
	}
	// What is open is closed, so that a stop leaves nothing out of the archive that the log held. A put that fails now
	// is made good by the next process, which reads on from the committed position.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return errors.Join(a.drain(closing), a.consumer.Close())
}

// closeLimit bounds the closing of open objects at a stop.
const closeLimit = 20 * time.Second

type archiver struct {
	s        *Service
	consumer dispatch.Consumer
	open     map[int]*buffer
}

// poll waits for records, but not longer than the oldest open object may stay open.
func (a *archiver) poll(ctx context.Context) ([]dispatch.Message, error) {
	deadline := time.Time{}
	for _, b := range a.buffers() {
		if end := a.closesAt(b); deadline.IsZero() || end.Before(deadline) {
			deadline = end
		}
	}
	a.observeAge()
	if deadline.IsZero() {
		return a.consumer.Poll(ctx, a.s.cfg.Batch)
	}
	pctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	messages, err := a.consumer.Poll(pctx, a.s.cfg.Batch)
	if err != nil && ctx.Err() == nil && pctx.Err() != nil {
		return nil, nil // an object is due to be closed
	}
	return messages, err
}

// rejoin is for a topic that was created anew: what was read of the old one is put under its log id, then reading begins
// at the start of the new one.
func (a *archiver) rejoin(ctx context.Context) (err error) {
	for _, b := range a.buffers() {
		if _, err := a.close(ctx, b); err != nil {
			return err
		}
	}
	a.consumer, err = dispatch.Rejoin(ctx, a.s.deps.Log, dispatch.TopicEvents, dispatch.GroupArchive, a.consumer)
	return err
}

// buffers are the objects that are open, in the order of their partitions.
func (a *archiver) buffers() []*buffer {
	return slices.SortedFunc(maps.Values(a.open), func(a, b *buffer) int { return a.partition - b.partition })
}

func (a *archiver) closesAt(b *buffer) time.Time {
	end := b.openedAt.Add(a.s.cfg.CloseAfter)
	if hourEnd := b.hour.Add(time.Hour); hourEnd.Before(end) {
		return hourEnd
	}
	return end
}

func (a *archiver) observeAge() {
	age := 0.0
	for _, b := range a.buffers() {
		age = max(age, a.s.deps.Clock.Since(b.messages[0].AppendedAt).Seconds())
	}
	a.s.metrics.age.Set(age)
}

// take adds records to their objects and puts those that are complete.
func (a *archiver) take(ctx context.Context, messages []dispatch.Message) error {
	lost := map[int]bool{}
	for i, m := range messages {
		if lost[m.Partition] {
			continue // it is read again from the end of the object that another put
		}
		hour := m.AppendedAt.Truncate(time.Hour)
		b := a.open[m.Partition]
		if b != nil && !b.hour.Equal(hour) {
			put, err := a.close(ctx, b)
			if err != nil {
				a.rewind(messages[i:])
				return err
			}
			if lost[m.Partition] = !put; !put {
				continue
			}
			b = a.open[m.Partition]
		}
		if b == nil {
			b = &buffer{partition: m.Partition, first: m.Offset, hour: hour, openedAt: a.s.deps.Clock.Now()}
			a.open[m.Partition] = b
		} else if m.Offset <= b.last {
			continue
		}
		m.Decoded = nil // kept for up to a minute: as small as it comes
		b.messages = append(b.messages, m)
		b.last = m.Offset
		b.bytes += int64(len(m.Value))
	}
	now := a.s.deps.Clock.Now()
	for _, b := range a.buffers() {
		if b.bytes >= a.s.cfg.CloseBytes || !now.Before(a.closesAt(b)) {
			if _, err := a.close(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// rewind gives back what was polled and not taken.
func (a *archiver) rewind(messages []dispatch.Message) {
	seen := map[int]bool{}
	for _, m := range messages {
		if !seen[m.Partition] {
			seen[m.Partition] = true
			a.consumer.Seek(m.Partition, m.Offset)
		}
	}
}

// close puts an object. If another put one of that name first, the buffer is discarded and reading goes on from the
// end of that one; put tells whether it was this one's.
func (a *archiver) close(ctx context.Context, b *buffer) (put bool, err error) {
	body, err := encode(b, a.decode(b), a.consumer.LogID(), a.s.cfg.Codec)
	if err != nil {
		return false, err
	}
	name := a.name(b)
	err = run.Patiently(ctx, a.s.deps.Logger, "put an object", func(ctx context.Context) error {
		err := a.s.deps.Archive.PutIfAbsent(ctx, name, body)
		if !errors.Is(err, archive.ErrExists) {
			return err
		}
		last, err := a.lastOf(ctx, name)
		if err != nil {
			return err
		}
		a.s.metrics.lost.Inc()
		b.messages = nil
		b.last = last
		a.consumer.Seek(b.partition, last+1)
		return nil
	})
	if err != nil {
		return false, err
	}
	delete(a.open, b.partition)
	put = b.messages != nil
	if put {
		a.s.metrics.objects.Inc()
		a.s.metrics.archived.Add(float64(len(b.messages)))
	}
	return put, run.Patiently(ctx, a.s.deps.Logger, "commit archived events", func(ctx context.Context) error {
		return a.consumer.Commit(ctx, map[int]int64{b.partition: b.last + 1})
	})
}

// decode reads the records of an object, only when it is put: until then they are kept as they came.
func (a *archiver) decode(b *buffer) []row {
	rows := make([]row, len(b.messages))
	for i, m := range b.messages {
		e, err := wire.UnmarshalEvent(m.Value)
		if err != nil {
			a.s.deps.Logger.Error("an event cannot be decoded, it is archived without its content",
				"partition", m.Partition, "offset", m.Offset, "error", err)
			e = job.Event{ID: "undecodable/" + strconv.FormatInt(m.Offset, 10), Type: "undecodable", At: m.AppendedAt}
		}
		rows[i] = row{event: e, offset: m.Offset, at: m.AppendedAt}
	}
	return rows
}

// name of an object: it follows from where it begins, so that two writers that begin at one place collide.
func (a *archiver) name(b *buffer) string {
	return fmt.Sprintf("audit/region=%s/dt=%s/hour=%s/%s-%05d-%020d.parquet", a.s.cfg.Region,
		b.hour.Format("2006-01-02"), b.hour.Format("15"), a.consumer.LogID(), b.partition, b.first)
}

func (a *archiver) lastOf(ctx context.Context, name string) (int64, error) {
	o, err := a.s.deps.Archive.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	last, err := LastOffset(o)
	return last, errors.Join(err, o.Close())
}

// drain takes what the log still holds and closes every object.
func (a *archiver) drain(ctx context.Context) error {
	end, err := a.s.deps.Log.End(ctx, dispatch.TopicEvents)
	if err != nil {
		return err
	}
	for !a.reached(ctx, end) {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		messages, err := a.consumer.Poll(pctx, a.s.cfg.Batch)
		cancel()
		if err != nil {
			break // nothing more came
		}
		if err := a.take(ctx, messages); err != nil {
			return err
		}
	}
	for _, b := range a.buffers() {
		if _, err := a.close(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (a *archiver) reached(ctx context.Context, end dispatch.Position) bool {
	for p, offset := range end.Offsets {
		if b := a.open[p]; offset > 0 && (b == nil || b.last+1 < offset) {
			committed, err := a.s.deps.Log.Committed(ctx, dispatch.TopicEvents, dispatch.GroupArchive)
			if err != nil || committed.Offsets[p] < offset {
				return false
			}
		}
	}
	return true
}
