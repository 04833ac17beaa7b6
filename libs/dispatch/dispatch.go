// Package dispatch is the port of the log: topics of partitions of messages, and consumer groups with committed positions. Fires
// travel on it from the workers to the executors, events from there to everyone else.
//
// What every adapter promises:
//   - Publish returns nil once all its messages are durable. Messages with one key keep their order.
//   - A consumer without a committed position starts at the earliest message there is.
//   - Delivery is at least once: after a crash it goes on from the committed position.
//   - A topic that was re-created has another log id; positions of the old one say nothing about it.
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

// Topics returns all topics.
func Topics() []string { return []string{TopicFires, TopicEvents, TopicDLQ} }

// The consumer groups.
const (
	GroupExecutor = "executor"
	GroupSettle   = "retry-manager"
	GroupHistory  = "audit-history"
	GroupArchive  = "audit-archive"
)

// TopicOf returns the topic that a group consumes.
func TopicOf(group string) string {
	if group == GroupExecutor {
		return TopicFires
	}
	return TopicEvents
}

// MaxMessageBytes bounds one message: a fire with its payload and headers fits.
const MaxMessageBytes = 1 << 20

// MaxPollBytes is the approximate size of one Poll's result, in bytes of values: the message that exceeds it is the last one.
const MaxPollBytes = 8 << 20

// Sentinel errors.
var (
	// ErrTooLarge means: a message is larger than MaxMessageBytes.
	ErrTooLarge = errors.New("message is too large for the log")
	// ErrClosed means: the log was closed.
	ErrClosed = errors.New("log is closed")
	// ErrRecreated means: the topic was re-created since the consumer joined. The consumer can only be closed now.
	ErrRecreated = errors.New("topic was created anew")
)

// Message is one message of a topic. The log assigns its place and its time; Publish ignores them.
type Message struct {
	Partition int
	Offset    int64
	// AppendedAt is when the log accepted the message; it never decreases within a partition.
	AppendedAt time.Time

	Key   string
	Value []byte
	// Decoded is what Value encodes, if the publisher has it at hand, and otherwise nil. A consumer in the same process may receive it
	// instead of decoding Value; nobody may change it any more.
	Decoded any
	// Trace is the W3C traceparent, for those who inspect the log from outside; "" for none, and always at a consumer.
	Trace string
}

// Position is, per partition of one topic, the offset of the next message to consume, or to be written.
type Position struct {
	LogID   string
	Offsets map[int]int64
}

// Passed reports whether p has passed end. A position beyond the end counts as passed. One with another log id does not count at
// all: the caller then notes the end again.
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

// Within returns p, limited to messages that still exist: per partition the smaller offset of p and of the log's current end. A log
// may lose its end under the same id, to a leader that did not have it, and then nobody would ever pass a position that was noted
// before. There is no need to wait for what was lost.
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
	// Publish appends messages to a topic, each to the partition of its key. Nobody may write to their values afterwards.
	Publish(ctx context.Context, topic string, messages []Message) error
	// Subscribe joins a group that consumes a topic.
	Subscribe(ctx context.Context, topic, group string) (Consumer, error)
	// End returns the position after the last durable message of the topic.
	End(ctx context.Context, topic string) (Position, error)
	// Committed returns the group's committed position, or the start of the messages that still exist if that is later. Partitions
	// with neither are at 0.
	Committed(ctx context.Context, topic, group string) (Position, error)
}

// Rejoin joins a group again whose topic was re-created. If that fails, the old consumer stays as it is.
func Rejoin(ctx context.Context, l Log, topic, group string, old Consumer) (Consumer, error) {
	c, err := l.Subscribe(ctx, topic, group)
	if err != nil {
		return old, err
	}
	return c, old.Close()
}

// Consumer reads the partitions that its group assigns to it. Only one goroutine may use it, except for Commit.
type Consumer interface {
	// Poll waits for messages and returns at most limit of them, and about MaxPollBytes. Offsets within a partition ascend, until
	// messages are redelivered. Poll returns ctx's error when ctx ends. It returns ErrRecreated, from then on always, when the topic
	// was re-created: the caller then closes the consumer and subscribes again.
	Poll(ctx context.Context, limit int) ([]Message, error)
	// Commit stores, per partition, that everything below the offset was handled. It ignores an offset smaller than the stored one,
	// and one of a partition that the group has since assigned to another member or of a topic that no longer exists. A crash may undo
	// the latest commits, so that their messages are redelivered.
	Commit(ctx context.Context, offsets map[int]int64) error
	// Seek makes the next Poll continue from the offset.
	Seek(partition int, offset int64)
	// LogID returns the name of this incarnation of the topic.
	LogID() string
	// Close leaves the group.
	Close() error
}
