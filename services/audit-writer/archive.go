package auditwriter

import (
	"bytes"
	"cmp"
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
	// next is where the log goes on after it.
	next     int64
	hour     time.Time
	openedAt time.Time
	bytes    int64
	messages []dispatch.Message
}

// row is an event with its place in the log.
type row struct {
	event  job.Event
	offset int64
	at     time.Time
}

// archiveLoop fills an object for each log partition. It puts the object when that is old or large enough, when its hour
// ends, or when ctx ends. The position is committed after the put; after a crash in between, the next process finds the
// object there.
func (s *Service) archiveLoop(ctx context.Context) error {
	consumer, err := run.Subscribe(ctx, s.deps.Logger, s.deps.Log, dispatch.TopicEvents, dispatch.GroupArchive)
	if err != nil {
		return nil // ctx ended before anything began
	}
	s.archiving.Store(true)
	a := &archiver{s: s, consumer: consumer, open: map[int]*buffer{}, there: map[int]contents{}}
	for ctx.Err() == nil {
		messages, err := run.Next(ctx, s.deps.Logger, a.poll, a.rejoin)
		if err != nil {
			break
		}
		if err := a.take(ctx, messages); err != nil {
			break
		}
		if s.pauses(messages) && run.Sleep(ctx, s.cfg.Linger) != nil {
			break
		}
	}
	// Open objects are closed, so that a stop leaves nothing out of the archive that the log held. If a put fails now, the
	// next process makes up for it: it reads on from the committed position.
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
	// there is, by partition, the rest of an object that another has put, after what this archiver read of it.
	there map[int]contents
}

// contents maps an object's offsets to its event ids.
type contents map[int64]string

// holds reports whether a buffer has exactly this record, which is then being read again.
func (b *buffer) holds(m *dispatch.Message) bool {
	i, found := slices.BinarySearchFunc(b.messages, m.Offset, func(m dispatch.Message, offset int64) int { return cmp.Compare(m.Offset, offset) })
	return found && b.messages[i].Key == m.Key && bytes.Equal(b.messages[i].Value, m.Value)
}

// poll waits for records, but not longer than the oldest open object may stay open.
func (a *archiver) poll(ctx context.Context) ([]dispatch.Message, error) {
	deadline := time.Time{}
	for _, b := range a.buffers() {
		if end := a.closesAt(b); deadline.IsZero() || end.Before(deadline) {
			deadline = end
		}
	}
	a.noteOldest()
	if deadline.IsZero() {
		return a.consumer.Poll(ctx, a.s.cfg.Batch)
	}
	pctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	messages, err := a.consumer.Poll(pctx, a.s.cfg.Batch)
	if err != nil && ctx.Err() == nil && pctx.Err() != nil {
		return nil, nil // an object must be closed now
	}
	return messages, err
}

// rejoin handles a topic that was recreated: it puts what was read from the old topic under the old log id, then reads the
// new one from its start.
func (a *archiver) rejoin(ctx context.Context) (err error) {
	for _, b := range a.buffers() {
		if err := a.close(ctx, b); err != nil {
			return err
		}
	}
	clear(a.there)
	a.consumer, err = dispatch.Rejoin(ctx, a.s.deps.Log, dispatch.TopicEvents, dispatch.GroupArchive, a.consumer)
	return err
}

// buffers returns the open objects, ordered by partition.
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

// noteOldest notes the oldest event that is not in the archive yet. Its age goes on growing while a put is tried again and again.
func (a *archiver) noteOldest() {
	var oldest time.Time
	for _, b := range a.buffers() {
		if at := b.messages[0].AppendedAt; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	a.s.metrics.oldest.Store(&oldest)
}

// take adds records to their objects and puts those that are complete. An object has no gap: after one that another member
// of the group has read meanwhile, a new object begins. So objects follow each other by name, and a member that reads the
// log from its start again finds each of them.
//
// A log may lose its end under the same id, and give its offsets to other records. So what is read once more is compared
// with what is there. An object is closed where the log has a different record, and records already in the archive
// are recognised by event id.
func (a *archiver) take(ctx context.Context, messages []dispatch.Message) error {
	for i, m := range messages {
		archived, err := a.isThere(ctx, &m)
		hour := m.AppendedAt.Truncate(time.Hour)
		b := a.open[m.Partition]
		if err == nil && !archived && b != nil && !b.holds(&m) && (m.Offset != b.last+1 || !b.hour.Equal(hour)) {
			b.next = min(b.next, m.Offset)
			if err = a.close(ctx, b); err == nil {
				archived, err = a.isThere(ctx, &m)
			}
			b = nil
		}
		if err != nil {
			a.rewind(messages[i:])
			return err
		}
		if archived || b != nil && m.Offset <= b.last {
			continue // it is held
		}
		if b == nil {
			b = &buffer{partition: m.Partition, first: m.Offset, hour: hour, openedAt: a.s.deps.Clock.Now()}
			a.open[m.Partition] = b
		}
		m.Decoded = nil // kept for up to a minute: as small as it arrived
		b.messages = append(b.messages, m)
		b.last, b.next = m.Offset, m.Offset+1
		b.bytes += int64(len(m.Value))
	}
	now := a.s.deps.Clock.Now()
	for _, b := range a.buffers() {
		if b.bytes >= a.s.cfg.CloseBytes || !now.Before(a.closesAt(b)) {
			if err := a.close(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// isThere reports whether a record is in the object that another has put, and commits once all of that was read.
func (a *archiver) isThere(ctx context.Context, m *dispatch.Message) (bool, error) {
	there := a.there[m.Partition]
	if there == nil {
		return false, nil
	}
	if there[m.Offset] != a.eventOf(m).ID {
		delete(a.there, m.Partition)
		return false, nil
	}
	if delete(there, m.Offset); len(there) > 0 {
		return true, nil
	}
	delete(a.there, m.Partition)
	return true, a.commit(ctx, m.Partition, m.Offset+1)
}

func (a *archiver) commit(ctx context.Context, partition int, next int64) error {
	return run.Retry(ctx, a.s.deps.Logger, "commit archived events", func(ctx context.Context) error {
		return a.consumer.Commit(ctx, map[int]int64{partition: next})
	})
}

// rewind gives back what was polled but not taken.
func (a *archiver) rewind(messages []dispatch.Message) {
	seen := map[int]bool{}
	for _, m := range messages {
		if !seen[m.Partition] {
			seen[m.Partition] = true
			a.consumer.Seek(m.Partition, m.Offset)
		}
	}
}

// close puts an object. If one of that name exists, another process has put it, or this one has and did not hear of it.
// What that object holds is left out, and what comes next is compared with the rest of it.
func (a *archiver) close(ctx context.Context, b *buffer) error {
	a.noteOldest()
	for n := 1; ; n++ {
		rows := a.decode(b)
		body, err := encode(b, rows, a.consumer.LogID(), a.s.cfg.Codec)
		if err != nil {
			return err
		}
		there, err := a.put(ctx, a.name(b, n), body)
		if err != nil {
			return err
		}
		if there == nil {
			delete(a.open, b.partition)
			a.s.metrics.objects.Inc()
			a.s.metrics.archived.Add(float64(len(b.messages)))
			return a.commit(ctx, b.partition, b.next)
		}
		fresh := slices.IndexFunc(rows, func(r row) bool { return there[r.offset] != r.event.ID })
		if fresh < 0 {
			return a.discard(ctx, b, there)
		}
		if fresh > 0 { // the log had other records after that, and lost them; otherwise all were others, and this is one more object
			b.messages, b.first, n = b.messages[fresh:], rows[fresh].offset, 0
		}
	}
}

// put puts an object, or returns the contents of the one that has its name.
func (a *archiver) put(ctx context.Context, name string, body []byte) (there contents, err error) {
	err = run.Retry(ctx, a.s.deps.Logger, "put an object", func(ctx context.Context) error {
		err := a.s.deps.Archive.PutIfAbsent(ctx, name, body)
		if !errors.Is(err, archive.ErrExists) {
			return err
		}
		o, err := a.s.deps.Archive.Open(ctx, name)
		if err != nil {
			return err
		}
		rows, err := readObject(o)
		if err := errors.Join(err, o.Close()); err != nil {
			return err
		}
		there = make(contents, len(rows))
		for _, r := range rows {
			there[r.Offset] = r.EventID
		}
		return nil
	})
	return there, err
}

// discard drops a buffer that is in an object already, and notes what else that object holds. The position stays where it
// is until the rest is read too: a process that begins there again finds the object by its name.
func (a *archiver) discard(ctx context.Context, b *buffer, there contents) error {
	a.s.metrics.lost.Inc()
	delete(a.open, b.partition)
	maps.DeleteFunc(there, func(offset int64, _ string) bool { return offset <= b.last })
	if len(there) == 0 {
		return a.commit(ctx, b.partition, b.next)
	}
	a.there[b.partition] = there
	return nil
}

// decode reads the records of an object, only when the object is put: until then they are kept as they arrived.
func (a *archiver) decode(b *buffer) []row {
	rows := make([]row, len(b.messages))
	for i := range b.messages {
		m := &b.messages[i]
		rows[i] = row{event: a.eventOf(m), offset: m.Offset, at: m.AppendedAt}
	}
	return rows
}

func (a *archiver) eventOf(m *dispatch.Message) job.Event {
	e, err := wire.UnmarshalEvent(m.Value)
	if err != nil {
		a.s.deps.Logger.Error("an event cannot be decoded, it is archived without its content",
			"partition", m.Partition, "offset", m.Offset, "error", err)
		return job.Event{ID: "undecodable/" + strconv.FormatInt(m.Offset, 10), Type: "undecodable", At: m.AppendedAt}
	}
	return e
}

// name returns an object's name. It follows from where the object begins, so two writers that begin at one place collide.
// Further objects of one place are numbered from the second on.
func (a *archiver) name(b *buffer, n int) string {
	more := ""
	if n > 1 {
		more = "." + strconv.Itoa(n)
	}
	return fmt.Sprintf("audit/region=%s/dt=%s/hour=%s/%s-%05d-%020d%s.parquet", a.s.cfg.Region,
		b.hour.Format("2006-01-02"), b.hour.Format("15"), a.consumer.LogID(), b.partition, b.first, more)
}

// drain takes what the log still holds, and closes every object.
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
		if err := a.close(ctx, b); err != nil {
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
