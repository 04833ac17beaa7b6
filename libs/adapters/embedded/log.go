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
	// maxAppend and maxAppendBytes are the number and size of records from which nothing more joins one commit of a topic, appendQueue
	// bounds how many publishes wait for it.
	maxAppend      = 512
	maxAppendBytes = 4 << 20
	appendQueue    = 1024
	// tailBytes bounds what is kept in memory of the end of each partition until everyone who consumes it has read it, so that
	// consumers that are not far behind do not read the store. A publish of fires waits while there is as much of them.
	tailBytes = 16 << 20
	// batchOverhead is more than a record's key and lengths take in a batch.
	batchOverhead = 64
	// truncateEvery is how often the records that every group has passed are deleted.
	truncateEvery = time.Second
	// keepUnread bounds a topic that nobody consumes (the dead-letter topic), in records per partition.
	keepUnread = 100_000
)

// Log is a partitioned log on the embedded database. One goroutine for each topic appends: it takes all waiting publishes and commits them
// with one fsync, so offsets are dense. A publish returns when its records are durable, and consumers see them from then on.
//
// The fires are in memory only (decision 45), as is everything else between the take of an entry and its outcome. They are lost with this
// process, like the hot bucket that they came from, and come again from there: their entries are not done. Each process begins a new log
// of them.
type Log struct {
	db     *DB
	topics map[string]*topic
	stop   chan struct{}
	done   sync.WaitGroup
	// noted is told when there is a note of fires to sync.
	noted chan struct{}
}

var _ dispatch.Log = (*Log)(nil)

// groupsOf returns the groups that consume a topic; the log is kept for each of them.
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
	queue chan *publish
	// volatile topics are in memory only.
	volatile bool
	// handed numbers the batches that were published of it, batches are those that are not done.
	handed  int64
	batches []handedBatch
	// written is where the next records go, lastAt keeps append times from decreasing; only the appender uses them.
	written [logPartitions]int64
	// prefixes holds the partitions' keys without an offset.
	prefixes [logPartitions][]byte
	lastAt   [logPartitions]time.Time

	mu sync.Mutex
	// start and end bound the records of each partition that consumers see; tail holds the last of them.
	start, end [logPartitions]int64
	tail       [logPartitions]tail
	committed  map[string]map[int]int64
	// read holds where each consumer reads next.
	read map[*consumer]*[logPartitions]int64
	// commits serialises the commits of each group, so that a smaller offset cannot overtake a greater one.
	commits map[string]*sync.Mutex
	// grown is closed and replaced whenever end moves, taken whenever records of a volatile topic are read.
	grown, taken chan struct{}
}

type publish struct {
	records []dispatch.Message
	result  chan error
}

func (p *publish) size() (records, bytes int) {
	for _, r := range p.records {
		bytes += messageSize(r)
	}
	return len(p.records), bytes
}

// commit is one write of the log, the publishes that it carries, and their records as consumers will see them.
type commit struct {
	batch     *pebble.Batch
	publishes []*publish
	messages  []dispatch.Message
}

// end answers the publishes and releases the batch.
func (c commit) end(err error) {
	for _, p := range c.publishes {
		p.result <- err
	}
	_ = c.batch.Close() // releases memory; any failure has been reported
}

// NewLog opens the log of db and starts its appender, which Close stops.
func NewLog(db *DB) (*Log, error) {
	l := &Log{db: db, topics: map[string]*topic{}, stop: make(chan struct{}), noted: make(chan struct{}, 1)}
	for _, name := range dispatch.Topics() {
		t, err := db.openTopic(name)
		if err != nil {
			return nil, fmt.Errorf("embedded: open topic %s: %w", name, err)
		}
		l.topics[name] = t
	}
	for _, t := range l.topics {
		if !t.volatile {
			l.done.Go(func() { l.append(t) })
		}
	}
	l.done.Go(l.truncateLoop)
	l.done.Go(l.syncNotes)
	return l, nil
}

func (db *DB) openTopic(name string) (*topic, error) {
	t := &topic{
		name: name, queue: make(chan *publish, appendQueue), volatile: name == dispatch.TopicFires, committed: map[string]map[int]int64{},
		commits: map[string]*sync.Mutex{}, read: map[*consumer]*[logPartitions]int64{}, grown: make(chan struct{}), taken: make(chan struct{}),
	}
	if t.volatile {
		return t, db.openVolatile(t)
	}
	id, found, err := db.get(metaKey("log/" + name))
	if err != nil {
		return nil, err
	}
	if !found {
		id = []byte(ulid.Make().String())
		if err := db.set(metaKey("log/"+name), id); err != nil {
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
			// Where everything was truncated, the end is the last committed offset.
			t.end[p] = max(t.end[p], offset)
		}
	}
	for p := range logPartitions {
		t.prefixes[p] = logPartitionKey(name, p)
		if err := db.bounds(t, p); err != nil {
			return nil, err
		}
	}
	t.written = t.end
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
func (l *Log) Publish(ctx context.Context, name string, records []dispatch.Message) error {
	t, ok := l.topics[name]
	if !ok {
		return fmt.Errorf("embedded: no topic %q", name)
	}
	for _, r := range records {
		// A stored key's length has two bytes; ours are job ids.
		if len(r.Key)+len(r.Value) > dispatch.MaxMessageBytes || len(r.Key) > math.MaxUint16 {
			return fmt.Errorf("embedded: publish: %w", dispatch.ErrTooLarge)
		}
	}
	if len(records) == 0 {
		return nil
	}
	if t.volatile {
		return l.hand(ctx, t, records)
	}
	p := &publish{records: records, result: make(chan error, 1)}
	select {
	case t.queue <- p:
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

// append is the only writer of a topic.
func (l *Log) append(t *topic) {
	for {
		var c commit
		select {
		case p := <-t.queue:
			c.publishes = append(c.publishes, p)
		case <-l.stop:
			return
		}
		n, bytes := c.publishes[0].size()
	gather:
		for n < maxAppend && bytes < maxAppendBytes {
			select {
			case p := <-t.queue:
				c.publishes = append(c.publishes, p)
				records, more := p.size()
				n, bytes = n+records, bytes+more
			default:
				break gather
			}
		}
		if err := l.write(t, &c); err != nil {
			// The same offsets are used again.
			c.end(fmt.Errorf("embedded: publish: %w", err))
			continue
		}
		err := l.db.synced(c.batch)
		if err == nil {
			t.reveal(&c)
		}
		c.end(err)
	}
}

// write applies a commit without waiting for its fsync.
func (l *Log) write(t *topic, c *commit) error {
	now, end := time.Now(), t.written
	for i := range logPartitions {
		if now.After(t.lastAt[i]) {
			t.lastAt[i] = now
		}
	}
	n, size := 0, 0
	for _, p := range c.publishes {
		n += len(p.records)
		for _, r := range p.records {
			size += batchOverhead + messageSize(r)
		}
	}
	c.batch, c.messages = l.db.pebble.NewBatchWithSize(size), make([]dispatch.Message, 0, n)
	for _, p := range c.publishes {
		for _, r := range p.records {
			part := bucket.Partition(r.Key, logPartitions)
			op := c.batch.SetDeferred(len(t.prefixes[part])+8, messageSize(r))
			binary.BigEndian.PutUint64(op.Key[copy(op.Key, t.prefixes[part]):], uint64(end[part]))
			encodeMessage(op.Value, t.lastAt[part], r)
			if err := op.Finish(); err != nil {
				return err
			}
			c.messages = append(c.messages, dispatch.Message{
				Partition: part, Offset: end[part], Key: r.Key, Value: r.Value, Decoded: r.Decoded,
				AppendedAt: time.UnixMilli(t.lastAt[part].UnixMilli()).UTC(),
			})
			end[part]++
		}
	}
	if err := l.db.apply(c.batch); err != nil {
		return err
	}
	t.written = end
	return nil
}

// reveal lets consumers see the records of a commit.
func (t *topic) reveal(c *commit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range c.messages {
		t.end[m.Partition] = m.Offset + 1
		if len(t.read) > 0 {
			t.tail[m.Partition].add(m)
			t.tail[m.Partition].within(tailBytes)
		}
	}
	close(t.grown)
	t.grown = make(chan struct{})
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
	offsets := map[int]int64{}
	maps.Copy(offsets, t.committed[group])
	if t.volatile { // what was read is not there any more, but may be under way
		return dispatch.Position{LogID: t.logID, Offsets: offsets}, nil
	}
	for p, start := range t.start {
		if start > offsets[p] {
			offsets[p] = start
		}
	}
	return dispatch.Position{LogID: t.logID, Offsets: offsets}, nil
}

// Close stops the appender. Waiting publishes get dispatch.ErrClosed and may or may not have taken effect.
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
			if !t.volatile {
				_ = l.truncate(t) // a failed truncation costs disk until the next one
			}
		}
	}
}

// truncate deletes the records that every group has passed.
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
		if err := l.db.deleteRangeLater(logKey(t.name, p, start), logKey(t.name, p, low)); err != nil {
			return fmt.Errorf("embedded: truncate: %w", err)
		}
		t.mu.Lock()
		t.start[p] = low
		t.mu.Unlock()
	}
	return nil
}
