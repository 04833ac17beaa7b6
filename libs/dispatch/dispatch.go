// Package dispatch is the port of the log: topics of partitions of messages, and consumer groups with committed
// positions. Fires travel on it from the workers to the executors, events from there to everyone else.
//
// What every adapter promises:
//   - Publish returns nil once all its messages are durable. Messages with one key keep their order.
//   - A consumer without a committed position starts at the earliest message there is.
//   - Delivery is at least once: after a crash it goes on from the committed position.
//   - A topic that was created anew has another log id; positions of the old one say nothing about it.
package dispatch

import (
	"context"
	"errors"
	"time"
)

// The topics.
const (
	TopicFires  = "fires.default"
	TopicEvents = "events"
	TopicDLQ    = "dlq"
)

// Topics lists them all.
func Topics() []string { return []string{TopicFires, TopicEvents, TopicDLQ} }

// The consumer groups.
const (
	GroupExecutor = "executor"
	GroupSettle   = "retry-manager"
	GroupHistory  = "audit-history"
	GroupArchive  = "audit-archive"
)

// TopicOf is the topic that a group consumes.
func TopicOf(group string) string {
	if group == GroupExecutor {
		return TopicFires
	}
	return TopicEvents
}

// MaxMessageBytes bounds one message: a fire with its payload and headers fits.
const MaxMessageBytes = 1 << 20

// MaxPollBytes is about how much one Poll gives, in bytes of values: a message that goes beyond it is the last one.
const MaxPollBytes = 8 << 20

// Sentinel errors.
var (
	// ErrTooLarge means: a message is larger than MaxMessageBytes.
	ErrTooLarge = errors.New("message is too large for the log")
	// ErrClosed means: the log was closed.
	ErrClosed = errors.New("log is closed")
	// ErrRecreated means: the topic was created anew since the consumer joined, which can only be closed now.
	ErrRecreated = errors.New("topic was created anew")
)

// Message is one message of a topic. Its place and its time are the log's to give: Publish does not look at them.
type Message struct {
	Partition int
	Offset    int64
	// AppendedAt is when the log took it; it never decreases within a partition.
	AppendedAt time.Time

	Key   string
	Value []byte
	// Decoded is what Value encodes, if the publisher has it at hand, and otherwise nil. A consumer in the same process may get it instead
	// of decoding Value; nobody changes it any more.
	Decoded any
	// Trace is the W3C traceparent, for those who look at the log from outside; "" for none, and at a consumer.
	Trace string
}

// Position is, per partition of one topic, the offset of the next message: to consume, or to be written.
type Position struct {
	LogID   string
	Offsets map[int]int64
}

// Passed reports whether p has passed end. A position beyond the end counts as passed, one of another log id does not
// count at all: the caller notes the end again.
func (p Position) Passed(end Position) bool {
	if p.LogID != end.LogID {
		return false
	}
	for partition, offset := range end.Offsets {
		if p.Offsets[partition] < offset {
			return false
		}
	}
	return true
}

// Within is p as far as there still are messages: per partition the smaller offset of p and of the log's present end. A log may
// lose its end under the same id, to a leader that did not have it, and nobody would ever pass what was noted before. What was
// lost need not be waited for.
func (p Position) Within(end Position) Position {
	if p.LogID != end.LogID {
		return p
	}
	within := Position{LogID: p.LogID, Offsets: make(map[int]int64, len(p.Offsets))}
	for partition, offset := range p.Offsets {
		within.Offsets[partition] = min(offset, end.Offsets[partition])
	}
	return within
}

// Log is the log.
type Log interface {
	// Publish appends messages to a topic, each to the partition of its key. Their values are not written to afterwards,
	// by anyone.
	Publish(ctx context.Context, topic string, messages []Message) error
	// Subscribe joins a group's consumption of a topic.
	Subscribe(ctx context.Context, topic, group string) (Consumer, error)
	// End is the position after the last durable message of the topic.
	End(ctx context.Context, topic string) (Position, error)
	// Committed is the group's committed position, or where the messages begin that there still are, if that is later.
	// Partitions without either stand at 0.
	Committed(ctx context.Context, topic, group string) (Position, error)
}

// Rejoin joins a group anew whose topic was created anew. If that fails, the old consumer stays as it is.
func Rejoin(ctx context.Context, l Log, topic, group string, old Consumer) (Consumer, error) {
	c, err := l.Subscribe(ctx, topic, group)
	if err != nil {
		return old, err
	}
	return c, old.Close()
}

// Consumer reads the partitions that its group gives it. It is used by one goroutine, except for Commit.
type Consumer interface {
	// Poll waits for messages and gives at most limit of them, and about MaxPollBytes; offsets within a partition ascend, until some come again. It
	// returns ctx's error when ctx ends, and ErrRecreated for ever when the topic is another one: what is left to do then
	// is to close the consumer and to subscribe anew.
	Poll(ctx context.Context, limit int) ([]Message, error)
	// Commit stores that everything below the offset was handled, per partition. A smaller offset than the stored one is
	// ignored, and so is one of a partition that the group gave to another member meanwhile or of a topic that is no more.
	// A crash may take the latest commits back, so that their messages come again.
	Commit(ctx context.Context, offsets map[int]int64) error
	// Seek makes the next Poll go on from the offset.
	Seek(partition int, offset int64)
	// LogID names this incarnation of the topic.
	LogID() string
	// Close leaves the group.
	Close() error
}
