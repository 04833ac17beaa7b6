package servers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
)

// logPartitions is the partition count of each topic.
const logPartitions = 2

// Log is the log. The members of a group share the partitions of a topic.
type Log struct {
	mu     sync.Mutex
	name   string
	topics map[string]*topic
}

type topic struct {
	name       string
	creations  int
	partitions [logPartitions][]dispatch.Message
	groups     map[string]*group
	// cuts are the ends to which a partition was taken back: the span between two of them is what Kafka calls a leader
	// epoch.
	cuts [logPartitions][]int64
	// changed is closed and replaced when there is something new to poll.
	changed chan struct{}
}

type group struct {
	committed [logPartitions]int64
	members   []*Consumer
}

// NewLog returns a log with empty topics.
func NewLog(name string) *Log {
	l := &Log{name: name, topics: map[string]*topic{}}
	for _, t := range dispatch.Topics() {
		l.topics[t] = &topic{name: t, groups: map[string]*group{}, changed: make(chan struct{})}
	}
	return l
}

func (l *Log) id(t *topic) string { return fmt.Sprintf("%s-%s-%d", l.name, t.name, t.creations) }

func (t *topic) group(name string) *group {
	if t.groups[name] == nil {
		t.groups[name] = &group{}
	}
	return t.groups[name]
}

func (t *topic) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Recreate deletes a topic with all its records and positions and creates it again. It returns the records that each group
// had not committed.
func (l *Log) Recreate(name string) (lost map[string][]dispatch.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	lost = map[string][]dispatch.Message{}
	for groupName, g := range t.groups {
		for p, committed := range g.committed {
			records := t.partitions[p]
			lost[groupName] = append(lost[groupName], records[min(committed, int64(len(records))):]...)
		}
		g.committed = [logPartitions]int64{}
	}
	t.partitions, t.cuts = [logPartitions][]dispatch.Message{}, [logPartitions][]int64{}
	t.creations++
	t.wake()
	return lost
}

// Shorten loses what a topic took since an instant, under the same id, as when a leader takes over that did not have it.
// Consumers and positions beyond its new end are taken back to that end, as by leader epochs. It returns what each group
// had not committed of the lost records, and the new end.
func (l *Log) Shorten(name string, since time.Time) (lost map[string][]dispatch.Message, ends dispatch.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	lost, ends = map[string][]dispatch.Message{}, dispatch.Position{LogID: l.id(t), Offsets: map[int]int64{}}
	for p, records := range t.partitions {
		end := len(records)
		for end > 0 && !records[end-1].AppendedAt.Before(since) {
			end--
		}
		t.partitions[p], ends.Offsets[p] = records[:end:end], int64(end)
		t.cuts[p] = append(t.cuts[p], int64(end))
		for groupName, g := range t.groups {
			lost[groupName] = append(lost[groupName], records[max(end, int(g.committed[p])):]...)
			g.committed[p] = min(g.committed[p], int64(end))
			for _, m := range g.members {
				m.next[p] = min(m.next[p], int64(end))
			}
		}
	}
	t.wake()
	return lost, ends
}

// Forget loses what the groups of a topic have committed: they start over at its first record.
func (l *Log) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	for _, g := range t.groups {
		g.committed = [logPartitions]int64{}
		for _, m := range g.members {
			m.next = g.committed
		}
	}
	t.wake()
}

// Publish implements dispatch.Log.
func (l *Log) Publish(_ context.Context, name string, records []dispatch.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	for _, r := range records {
		if len(r.Key)+len(r.Value) > dispatch.MaxMessageBytes {
			return dispatch.ErrTooLarge
		}
	}
	now := time.UnixMilli(time.Now().UnixMilli()).UTC()
	for _, r := range records {
		p := bucket.Partition(r.Key, logPartitions)
		t.partitions[p] = append(t.partitions[p], dispatch.Message{
			Partition: p, Offset: int64(len(t.partitions[p])), Key: r.Key, Value: r.Value, AppendedAt: now,
		})
	}
	if len(records) > 0 {
		t.wake()
	}
	return nil
}

// End implements dispatch.Log.
func (l *Log) End(_ context.Context, name string) (dispatch.Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	end := dispatch.Position{LogID: l.id(t), Offsets: map[int]int64{}}
	for p := range logPartitions {
		end.Offsets[p] = int64(len(t.partitions[p]))
	}
	return end, nil
}

// Committed implements dispatch.Log.
func (l *Log) Committed(_ context.Context, name, groupName string) (dispatch.Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	committed := dispatch.Position{LogID: l.id(t), Offsets: map[int]int64{}}
	for p, offset := range t.group(groupName).committed {
		committed.Offsets[p] = offset
	}
	return committed, nil
}

// Consumer is a member of a group.
type Consumer struct {
	log   *Log
	topic *topic
	group *group
	// creations is the generation of the topic that it reads.
	creations int
	next      [logPartitions]int64
	owned     [logPartitions]bool
	// read is from which offset on it has read a partition after how many cuts.
	read [logPartitions][]reading
}

type reading struct {
	from int64
	cuts int
}

// noteRead is called before the record at an offset is returned.
func (c *Consumer) noteRead(p int, offset int64) {
	n := len(c.read[p])
	if cuts := len(c.topic.cuts[p]); n == 0 || c.read[p][n-1].cuts != cuts || offset < c.read[p][n-1].from {
		c.read[p] = append(c.read[p], reading{offset, cuts})
	}
}

// standing returns how much of a position committed by this consumer stands: what it read before a cut says nothing about
// what came after.
func (c *Consumer) standing(p int, offset int64) int64 {
	offset = min(offset, int64(len(c.topic.partitions[p])))
	for _, r := range slices.Backward(c.read[p]) {
		if r.from < offset {
			return slices.Min(append([]int64{offset}, c.topic.cuts[p][r.cuts:]...))
		}
	}
	return offset
}

// Subscribe implements dispatch.Log.
func (l *Log) Subscribe(_ context.Context, name, groupName string) (dispatch.Consumer, error) {
	return l.Member(name, groupName), nil
}

// Member is Subscribe.
func (l *Log) Member(name, groupName string) *Consumer {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[name]
	c := &Consumer{log: l, topic: t, group: t.group(groupName), creations: t.creations}
	c.join()
	return c
}

func (c *Consumer) join() {
	c.group.members = append(c.group.members, c)
	c.group.rebalance()
	c.topic.wake()
}

// rebalance gives every partition to one member, which goes on from the committed position.
func (g *group) rebalance() {
	for p := range logPartitions {
		for i, m := range g.members {
			owns := p%len(g.members) == i
			if owns && !m.owned[p] {
				m.next[p] = g.committed[p]
			}
			m.owned[p] = owns
		}
	}
}

// Lapse ends the membership from the group's point of view; the consumer joins again with its next poll.
func (c *Consumer) Lapse() {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.leave()
}

func (c *Consumer) leave() {
	c.group.members = slices.DeleteFunc(c.group.members, func(m *Consumer) bool { return m == c })
	c.owned = [logPartitions]bool{}
	if len(c.group.members) > 0 {
		c.group.rebalance()
	}
	c.topic.wake()
}

// Redeliver takes the consumer back to the group's committed position.
func (c *Consumer) Redeliver() {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.next = c.group.committed
	c.topic.wake()
}

// Poll implements dispatch.Consumer.
func (c *Consumer) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		messages, changed, err := c.poll(limit)
		if err != nil || len(messages) > 0 {
			return messages, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (c *Consumer) poll(limit int) (messages []dispatch.Message, changed <-chan struct{}, err error) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if !slices.Contains(c.group.members, c) {
		c.join()
	}
	if c.creations != c.topic.creations {
		return nil, nil, dispatch.ErrRecreated
	}
	bytes := 0
	for p := range logPartitions {
		if !c.owned[p] || c.next[p] >= int64(len(c.topic.partitions[p])) {
			continue
		}
		for _, m := range c.topic.partitions[p][c.next[p]:] {
			if len(messages) >= limit || bytes >= dispatch.MaxPollBytes {
				return messages, c.topic.changed, nil
			}
			c.noteRead(p, m.Offset)
			messages = append(messages, m)
			bytes += len(m.Value)
			c.next[p]++
		}
	}
	return messages, c.topic.changed, nil
}

// Commit implements dispatch.Consumer. A commit is lost if the partition belongs to another member by now, or the log no
// longer exists.
func (c *Consumer) Commit(_ context.Context, offsets map[int]int64) error {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.creations != c.topic.creations {
		return nil
	}
	for p, offset := range offsets {
		if c.owned[p] {
			c.group.committed[p] = max(c.group.committed[p], c.standing(p, offset))
		}
	}
	return nil
}

// Seek implements dispatch.Consumer.
func (c *Consumer) Seek(partition int, offset int64) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.next[partition] = offset
}

// LogID implements dispatch.Consumer.
func (c *Consumer) LogID() string {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	return fmt.Sprintf("%s-%s-%d", c.log.name, c.topic.name, c.creations)
}

// Close implements dispatch.Consumer.
func (c *Consumer) Close() error {
	c.Lapse()
	return nil
}
