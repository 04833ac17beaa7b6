package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
)

const (
	// logPartitions is the partition count of each topic.
	logPartitions = 4
	// maxAppend bounds how many records one commit of the log holds, appendQueue how many publishes wait for it.
	maxAppend   = 512
	appendQueue = 1024
	// truncateEvery is how often what every group has passed is deleted.
	truncateEvery = 10 * time.Second
	// keepUnread bounds a topic that nobody consumes (the dead-letter topic), in records per partition.
	keepUnread = 100_000
)

// Log is a partitioned durable log on the embedded database. One goroutine appends: it takes all publishes that wait
// and commits them with one fsync, so that offsets are dense, and what a consumer sees is durable.
type Log struct {
	db     *DB
	topics map[string]*topic
	queue  chan *publish
	stop   chan struct{}
	done   sync.WaitGroup
}

var _ dispatch.Log = (*Log)(nil)

// groupsOf are the groups that consume a topic; the log is kept for each of them.
func groupsOf(topic string) []string {
	switch topic {
	case dispatch.TopicFires:
		return []string{dispatch.GroupExecutor}
	case dispatch.TopicEvents:
		return []string{dispatch.GroupSettle, dispatch.GroupHistory, dispatch.GroupArchive}
	}
	return nil
}

type topic struct {
	name  string
	logID string

	mu sync.Mutex
	// start and end bound the durable records of each partition; lastAt keeps append times from decreasing.
	start, end [logPartitions]int64
	lastAt     [logPartitions]time.Time
	committed  map[string]map[int]int64
	// commits serialise the commits of each group, so that a smaller offset cannot overtake a greater one.
	commits map[string]*sync.Mutex
	// grown is closed and replaced whenever end moves.
	grown chan struct{}
}

type publish struct {
	topic   *topic
	records []dispatch.Record
	result  chan error
}

// NewLog opens the log of db and starts its appender, which Close stops.
func NewLog(db *DB) (*Log, error) {
	l := &Log{
		db: db, topics: map[string]*topic{}, queue: make(chan *publish, appendQueue), stop: make(chan struct{}),
	}
	for _, name := range dispatch.Topics() {
		t, err := db.openTopic(name)
		if err != nil {
			return nil, fmt.Errorf("embedded: open topic %s: %w", name, err)
		}
		l.topics[name] = t
	}
	l.done.Add(2)
	go func() { defer l.done.Done(); l.append() }()
	go func() { defer l.done.Done(); l.truncateLoop() }()
	return l, nil
}

func (db *DB) openTopic(name string) (*topic, error) {
	t := &topic{
		name: name, committed: map[string]map[int]int64{}, commits: map[string]*sync.Mutex{}, grown: make(chan struct{}),
	}
	id, found, err := db.get(metaKey("log/" + name))
	if err != nil {
		return nil, err
	}
	if !found {
		id = []byte(ulid.Make().String())
		if err := db.pebble.Set(metaKey("log/"+name), id, db.write); err != nil {
			return nil, err
		}
	}
	t.logID = string(id)
	for _, g := range groupsOf(name) {
		t.committed[g], t.commits[g] = map[int]int64{}, &sync.Mutex{}
		for p := range logPartitions {
			offset, _, err := db.getNumber(offsetKey(name, g, p))
			if err != nil {
				return nil, err
			}
			t.committed[g][p] = offset
			// Where everything was truncated, the end is what was committed last.
			t.end[p] = max(t.end[p], offset)
		}
	}
	for p := range logPartitions {
		if err := db.bounds(t, p); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// bounds finds the first and last record of a partition.
func (db *DB) bounds(t *topic, p int) error {
	prefix := logPartitionKey(t.name, p)
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	t.start[p] = t.end[p]
	if it.First() {
		t.start[p] = offsetOf(it.Key())
	}
	if it.Last() {
		t.end[p] = max(t.end[p], offsetOf(it.Key())+1)
		if m, err := decodeMessage(p, it.Key(), it.Value()); err == nil {
			t.lastAt[p] = m.AppendedAt
		}
	}
	return errors.Join(it.Error(), it.Close())
}

func offsetOf(key []byte) int64 { return int64(binary.BigEndian.Uint64(key[len(key)-8:])) }

// Publish implements dispatch.Log.
func (l *Log) Publish(ctx context.Context, name string, records []dispatch.Record) error {
	t, ok := l.topics[name]
	if !ok {
		return fmt.Errorf("embedded: no topic %q", name)
	}
	for _, r := range records {
		// A stored key's length has two bytes; ours are job ids.
		if len(r.Key)+len(r.Value) > dispatch.MaxRecordBytes || len(r.Key) > math.MaxUint16 {
			return fmt.Errorf("embedded: publish: %w", dispatch.ErrTooLarge)
		}
	}
	if len(records) == 0 {
		return nil
	}
	p := &publish{topic: t, records: records, result: make(chan error, 1)}
	select {
	case l.queue <- p:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.stop:
		return dispatch.ErrClosed
	}
	select {
	case err := <-p.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.stop:
		return dispatch.ErrClosed
	}
}

func (l *Log) append() {
	for {
		var batch []*publish
		select {
		case p := <-l.queue:
			batch = append(batch, p)
		case <-l.stop:
			return
		}
		n := len(batch[0].records)
	gather:
		for n < maxAppend {
			select {
			case p := <-l.queue:
				batch = append(batch, p)
				n += len(p.records)
			default:
				break gather
			}
		}
		err := l.commit(batch)
		for _, p := range batch {
			p.result <- err
		}
	}
}

// commit writes a batch with one fsync, and only then lets consumers see it. After a failed commit the offsets are
// given out again; a record that reached the disk all the same is overwritten.
func (l *Log) commit(batch []*publish) error {
	b := l.db.pebble.NewBatch()
	defer b.Close()
	now := time.Now()
	ends := map[*topic]*[logPartitions]int64{}
	for _, p := range batch {
		t := p.topic
		end, ok := ends[t]
		if !ok {
			end = &[logPartitions]int64{}
			*end = t.end // only this goroutine writes it
			ends[t] = end
			for i := range logPartitions {
				if now.After(t.lastAt[i]) {
					t.lastAt[i] = now
				}
			}
		}
		for _, r := range p.records {
			part := bucket.Partition(r.Key, logPartitions)
			v := encodeMessage(t.lastAt[part], r)
			if err := b.Set(logKey(t.name, part, end[part]), v, nil); err != nil {
				return fmt.Errorf("embedded: publish: %w", err)
			}
			end[part]++
		}
	}
	if err := b.Commit(l.db.write); err != nil {
		return fmt.Errorf("embedded: publish: %w", err)
	}
	for t, end := range ends {
		t.mu.Lock()
		t.end = *end
		close(t.grown)
		t.grown = make(chan struct{})
		t.mu.Unlock()
	}
	return nil
}

func encodeMessage(at time.Time, r dispatch.Record) []byte {
	v := make([]byte, 0, 10+len(r.Key)+len(r.Value))
	v = binary.BigEndian.AppendUint64(v, uint64(at.UnixMilli()))
	v = binary.BigEndian.AppendUint16(v, uint16(len(r.Key)))
	v = append(v, r.Key...)
	return append(v, r.Value...)
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

// End implements dispatch.Log.
func (l *Log) End(_ context.Context, name string) (dispatch.Position, error) {
	t, ok := l.topics[name]
	if !ok {
		return dispatch.Position{}, fmt.Errorf("embedded: no topic %q", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	pos := dispatch.Position{LogID: t.logID, Offsets: map[int]int64{}}
	for p, end := range t.end {
		pos.Offsets[p] = end
	}
	return pos, nil
}

// Committed implements dispatch.Log.
func (l *Log) Committed(_ context.Context, name, group string) (dispatch.Position, error) {
	t, ok := l.topics[name]
	if !ok {
		return dispatch.Position{}, fmt.Errorf("embedded: no topic %q", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return dispatch.Position{LogID: t.logID, Offsets: maps.Clone(t.committed[group])}, nil
}

// Close stops the appender. Publishes that wait get dispatch.ErrClosed and may or may not have taken effect.
func (l *Log) Close() {
	close(l.stop)
	l.done.Wait()
}

func (l *Log) truncateLoop() {
	tick := time.NewTicker(truncateEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.stop:
			return
		}
		for _, t := range l.topics {
			// A failed truncation costs disk until the next one.
			_ = l.truncate(t)
		}
	}
}

// truncate deletes what every group has passed.
func (l *Log) truncate(t *topic) error {
	for p := range logPartitions {
		t.mu.Lock()
		start, low := t.start[p], t.end[p]-keepUnread
		if len(t.committed) > 0 {
			low = t.end[p]
		}
		for _, c := range t.committed {
			low = min(low, c[p])
		}
		t.mu.Unlock()
		if low <= start {
			continue
		}
		if err := l.db.pebble.DeleteRange(logKey(t.name, p, start), logKey(t.name, p, low), pebble.NoSync); err != nil {
			return fmt.Errorf("embedded: truncate: %w", err)
		}
		t.mu.Lock()
		t.start[p] = low
		t.mu.Unlock()
	}
	return nil
}
