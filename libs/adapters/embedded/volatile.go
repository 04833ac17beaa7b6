package embedded

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

// openVolatile begins a volatile topic. What earlier versions of Minutehand left of it in the database is deleted.
func (db *DB) openVolatile(t *topic) error {
	last, err := db.lastHanded()
	if err != nil {
		return err
	}
	t.logID, t.handed = ulid.Make().String(), max(last, time.Now().UnixNano())
	for _, g := range groupsOf(t.name) {
		t.committed[g], t.commits[g] = map[int]int64{}, &sync.Mutex{}
	}
	for p := range logPartitions {
		prefix := logPartitionKey(t.name, p)
		if err := db.deleteRangeLater(prefix, after(prefix)); err != nil {
			return err
		}
	}
	return nil
}

// hand adds records to a volatile topic, once there is room.
func (l *Log) hand(ctx context.Context, t *topic, records []dispatch.Message) error {
	select {
	case <-l.stop: // the database may be closed by now
		return dispatch.ErrClosed
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.full(records) {
		taken := t.taken
		t.mu.Unlock()
		var err error
		select {
		case <-taken:
		case <-ctx.Done():
			err = ctx.Err()
		case <-l.stop:
			err = dispatch.ErrClosed
		}
		t.mu.Lock()
		if err != nil {
			return err
		}
	}
	batch, err := l.note(t, records)
	if err != nil {
		return fmt.Errorf("embedded: publish: %w", err)
	}
	now := time.UnixMilli(time.Now().UnixMilli()).UTC()
	for _, r := range records {
		p := bucket.Partition(r.Key, logPartitions)
		t.lastAt[p] = job.Later(t.lastAt[p], now)
		t.tail[p].add(dispatch.Message{
			Partition: p, Offset: t.end[p], Key: r.Key, Value: r.Value, Decoded: r.Decoded, AppendedAt: t.lastAt[p],
		})
		t.end[p]++
		batch.ends[p] = t.end[p]
		t.shrink(p)
	}
	t.batches = append(t.batches, batch)
	close(t.grown)
	t.grown = make(chan struct{})
	return nil
}

// full reports whether as much waits to be read as may, where records are to go.
func (t *topic) full(records []dispatch.Message) bool {
	for _, r := range records {
		if t.tail[bucket.Partition(r.Key, logPartitions)].unread >= tailBytes {
			return true
		}
	}
	return false
}

// readUpTo notes that records of a volatile topic were read. They are kept for a consumer that comes after this one until they are
// committed, as far as there is room.
func (t *topic) readUpTo(p int, next int64) {
	l := &t.tail[p]
	for next > l.fresh {
		l.unread -= messageBytes(l.messages[l.fresh-l.messages[0].Offset])
		l.fresh++
	}
	t.shrink(p)
	close(t.taken)
	t.taken = make(chan struct{})
}

// shrink drops what was read as far as there is too much.
func (t *topic) shrink(p int) {
	l := &t.tail[p]
	for l.bytes > tailBytes && l.messages[0].Offset < l.fresh {
		l.pop()
	}
	t.begin(p)
}

// begin sets where a partition of a volatile topic begins.
func (t *topic) begin(p int) {
	if t.start[p] = t.end[p]; len(t.tail[p].messages) > 0 {
		t.start[p] = t.tail[p].messages[0].Offset
	}
}
