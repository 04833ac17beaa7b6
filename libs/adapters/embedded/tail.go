package embedded

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// tail is the end of a partition, without a gap.
type tail struct {
	messages []dispatch.Message
	bytes    int
	// unread is the size of those that nobody has read yet, which begin at fresh.
	unread int
	fresh  int64
}

func (l *tail) add(m dispatch.Message) {
	l.messages = append(l.messages, m)
	l.bytes += messageBytes(m)
	l.unread += messageBytes(m)
}

// within drops the oldest until the rest has so many bytes.
func (l *tail) within(bytes int) {
	for l.bytes > bytes {
		l.pop()
	}
}

func (l *tail) pop() {
	l.bytes -= messageBytes(l.messages[0])
	l.messages[0] = dispatch.Message{}
	l.messages = l.messages[1:]
}

// passed notes that a consumer reads a partition from an offset on. What all consumers have passed is dropped from the tail.
func (t *topic) passed(c *consumer, p int, next int64) {
	own, open := t.read[c]
	if !open {
		return // closed
	}
	own[p] = next
	for _, read := range t.read {
		next = min(next, read[p])
	}
	if t.volatile {
		t.readUpTo(p, next)
		return
	}
	t.tail[p].before(next)
}

// before drops what lies before an offset.
func (l *tail) before(offset int64) {
	for len(l.messages) > 0 && l.messages[0].Offset < offset {
		l.pop()
	}
}

// messageBytes returns the approximate size of a message, with the value that it was encoded from.
func messageBytes(m dispatch.Message) int { return 128 + len(m.Key) + 4*len(m.Value) }

// from returns the records from an offset on, at most limit, and stops once there are MaxPollBytes. ok is false if they begin
// before the tail.
func (l *tail) from(offset int64, limit int, bytes *int) (messages []dispatch.Message, ok bool) {
	if len(l.messages) == 0 || l.messages[0].Offset > offset {
		return nil, false
	}
	rest := l.messages[min(offset-l.messages[0].Offset, int64(len(l.messages))):]
	n := 0
	for n < min(limit, len(rest)) && *bytes < dispatch.MaxPollBytes {
		*bytes += len(rest[n].Value)
		n++
	}
	return rest[:n], true
}

func messageSize(r dispatch.Message) int { return 10 + len(r.Key) + len(r.Value) }

// encodeMessage fills v, which has the message's size.
func encodeMessage(v []byte, at time.Time, r dispatch.Message) {
	binary.BigEndian.PutUint64(v, uint64(at.UnixMilli()))
	binary.BigEndian.PutUint16(v[8:], uint16(len(r.Key)))
	copy(v[10+copy(v[10:], r.Key):], r.Value)
}

func decodeMessage(partition int, k, v []byte) (dispatch.Message, error) {
	if len(v) < 10 || len(v) < 10+int(binary.BigEndian.Uint16(v[8:])) {
		return dispatch.Message{}, errors.New("embedded: log record is cut short")
	}
	n := 10 + int(binary.BigEndian.Uint16(v[8:]))
	return dispatch.Message{
		Partition: partition, Offset: offsetOf(k), Key: string(v[10:n]), Value: append([]byte(nil), v[n:]...),
		AppendedAt: time.UnixMilli(int64(binary.BigEndian.Uint64(v))).UTC(),
	}, nil
}
