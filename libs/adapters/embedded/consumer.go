package embedded

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// consumer reads all partitions of a topic: in a single process a group has one member.
type consumer struct {
	log   *Log
	topic *topic
	group string

	mu   sync.Mutex
	next [logPartitions]int64
	turn int
}

// Subscribe implements dispatch.Log.
func (l *Log) Subscribe(_ context.Context, name, group string) (dispatch.Consumer, error) {
	t, ok := l.topics[name]
	if !ok {
		return nil, fmt.Errorf("embedded: no topic %q", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	committed, ok := t.committed[group]
	if !ok {
		return nil, fmt.Errorf("embedded: topic %q has no group %q", name, group)
	}
	c := &consumer{log: l, topic: t, group: group}
	for p := range logPartitions {
		c.next[p] = max(committed[p], t.start[p])
		if t.volatile {
			committed[p] = c.next[p] // what lies before it is lost
		}
	}
	next := c.next
	t.read[c] = &next
	return c, nil
}

// Poll implements dispatch.Consumer.
func (c *consumer) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		messages, grown, err := c.read(ctx, limit)
		if err != nil || len(messages) > 0 {
			return messages, err
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.log.stop:
			return nil, dispatch.ErrClosed
		}
	}
}

// read takes the messages that are there. Each call begins with another partition, so that none waits for the others. It reads from
// memory where that goes back far enough. grown is closed when there is more than read saw.
func (c *consumer) read(ctx context.Context, limit int) (messages []dispatch.Message, grown chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	var behind []int
	c.topic.mu.Lock()
	end, grown := c.topic.end, c.topic.grown
	room := 0
	for p := range logPartitions {
		room += int(end[p] - c.next[p])
	}
	messages = make([]dispatch.Message, 0, max(0, min(room, limit)))
	bytes := 0
	for i := range logPartitions {
		p := (c.turn + i) % logPartitions
		if c.topic.volatile {
			c.next[p] = max(c.next[p], c.topic.start[p])
		}
		if c.next[p] >= end[p] || len(messages) >= limit || bytes >= dispatch.MaxPollBytes {
			continue
		}
		recent, ok := c.topic.tail[p].from(c.next[p], limit-len(messages), &bytes)
		if !ok {
			behind = append(behind, p)
			continue
		}
		messages = append(messages, recent...)
		c.next[p] += int64(len(recent))
		c.topic.passed(c, p, c.next[p])
	}
	c.topic.mu.Unlock()
	for _, p := range behind {
		if len(messages) >= limit || bytes >= dispatch.MaxPollBytes {
			break
		}
		lower, upper := logKey(c.topic.name, p, c.next[p]), logKey(c.topic.name, p, end[p])
		err := c.log.db.scan(ctx, lower, upper, func(k, v []byte) (bool, error) {
			m, err := decodeMessage(p, k, v)
			if err != nil {
				return false, err
			}
			messages = append(messages, m)
			c.next[p] = m.Offset + 1
			bytes += len(m.Value)
			return len(messages) < limit && bytes < dispatch.MaxPollBytes, nil
		})
		c.topic.mu.Lock()
		c.topic.passed(c, p, c.next[p])
		c.topic.mu.Unlock()
		if err != nil && len(messages) == 0 {
			return nil, nil, fmt.Errorf("embedded: consume: %w", err)
		}
		if err != nil {
			break // what was taken is returned; the next read meets the error again
		}
	}
	return messages, grown, nil
}

// Commit implements dispatch.Consumer. It does not wait for a sync, which would compete with the log's own syncs for the disk. A
// power loss may undo the last commits, but never one without everything committed after it.
func (c *consumer) Commit(_ context.Context, offsets map[int]int64) error {
	select {
	case <-c.log.stop: // the database may be closed by now
		return dispatch.ErrClosed
	default:
	}
	b := c.log.db.pebble.NewBatch()
	defer b.Close()
	commits := c.topic.commits[c.group]
	commits.Lock()
	defer commits.Unlock()
	c.topic.mu.Lock()
	forward := map[int]int64{}
	for p, offset := range offsets {
		if offset > c.topic.committed[c.group][p] {
			forward[p] = offset
		}
	}
	c.topic.mu.Unlock()
	if len(forward) == 0 {
		return nil
	}
	for p, offset := range forward {
		if c.topic.volatile {
			break
		}
		if err := setNumber(b, offsetKey(c.topic.name, c.group, p), offset); err != nil {
			return fmt.Errorf("embedded: commit offsets: %w", err)
		}
	}
	if !c.topic.volatile {
		if err := c.log.db.commitLater(b); err != nil {
			return fmt.Errorf("embedded: commit offsets: %w", err)
		}
	}
	if first, last, ok := c.commit(forward); ok {
		if err := c.log.unnote(first, last); err != nil {
			return fmt.Errorf("embedded: commit offsets: %w", err)
		}
	}
	return nil
}

// commit moves the committed position forward, and returns the first and the last of the batches of fires that are done with, if there are any.
func (c *consumer) commit(forward map[int]int64) (first, last int64, ok bool) {
	t := c.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.committed[c.group], forward)
	if !t.volatile {
		return 0, 0, false
	}
	for p, offset := range forward {
		t.tail[p].before(min(offset, t.tail[p].fresh))
		t.begin(p)
	}
	return t.forget(t.committed[c.group])
}

// Seek implements dispatch.Consumer.
func (c *consumer) Seek(partition int, offset int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next[partition] = offset
}

// LogID implements dispatch.Consumer.
func (c *consumer) LogID() string { return c.topic.logID }

// Close implements dispatch.Consumer.
func (c *consumer) Close() error {
	c.topic.mu.Lock()
	defer c.topic.mu.Unlock()
	delete(c.topic.read, c)
	if len(c.topic.read) == 0 && !c.topic.volatile {
		c.topic.tail = [logPartitions]tail{} // nothing is added to it until there is a consumer again
	}
	return nil
}
