package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// Pending is the minute buckets. A row counts as one only if it has an entry: marks and decisions for rows that do not exist create
// cells without an entry, which nobody sees.
type Pending struct {
	*Store
	mu sync.Mutex
	// low holds the low-water marks as last read.
	low map[int]lowWater
}

var _ jobstore.Pending = (*Pending)(nil)

// NewPending returns the minute buckets of a store.
func NewPending(s *Store) *Pending { return &Pending{Store: s} }

// cells lists all columns of a row, in the order in which scanRow reads them.
const cells = "partition, minute, due_ms, execution_id, attempt, definition_id, entry, done, decision, deferred_to_ms"

const ofRow = " WHERE partition = ? AND minute = ? AND due_ms = ? AND execution_id = ? AND attempt = ? AND definition_id = ?"

func rowKey(l job.Locator) []any {
	return []any{l.Partition, l.Minute, l.DueAt.UnixMilli(), l.ExecutionID, l.Attempt, l.DefinitionID}
}

type bucketOf struct {
	partition int
	minute    int64
}

// write sends statements about rows in batches of one bucket each; what is left over, in batches of a few buckets.
func (s *Pending) write(ctx context.Context, what string, n int, of func(i int) (job.Locator, gocql.BatchEntry)) error {
	var order []bucketOf
	byBucket := map[bucketOf][]gocql.BatchEntry{}
	for i := range n {
		l, e := of(i)
		b := bucketOf{l.Partition, l.Minute}
		if byBucket[b] == nil {
			order = append(order, b)
		}
		e.Idempotent = true
		byBucket[b] = append(byBucket[b], e)
	}
	var batches [][]gocql.BatchEntry
	var few []gocql.BatchEntry
	for _, b := range order {
		for chunk := range slices.Chunk(byBucket[b], maxBatch) {
			if len(chunk) > mixedBatch/2 {
				batches = append(batches, chunk)
			} else {
				few = append(few, chunk...)
			}
		}
	}
	batches = append(batches, mixed(few)...)
	return run.Each(len(batches), concurrency, func(i int) error {
		if len(batches[i]) == 1 {
			q := s.session.Query(batches[i][0].Stmt, batches[i][0].Args...).Idempotent(true)
			return failed(what, q.ExecContext(ctx))
		}
		b := s.session.Batch(gocql.UnloggedBatch)
		b.Entries = batches[i]
		return failed(what, b.ExecContext(ctx))
	})
}

// Put implements jobstore.Pending. Of two puts of a row the first one stands. A put into a bucket that was closed has no effect,
// because the deletion is newer than any put.
func (s *Pending) Put(ctx context.Context, entries []job.Entry) error {
	stamp := beforeAllClocks()
	return s.write(ctx, "put entries", len(entries), func(i int) (job.Locator, gocql.BatchEntry) {
		e := &entries[i]
		return e.Locator, gocql.BatchEntry{
			Stmt: "INSERT INTO pending (partition, minute, due_ms, execution_id, attempt, definition_id, entry) VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
			Args: append(rowKey(e.Locator), wire.MarshalEntry(e), stamp),
		}
	})
}

// MarkDone implements jobstore.Pending.
func (s *Pending) MarkDone(ctx context.Context, locators []job.Locator) error {
	open, err := s.aboveLowWater(ctx, locators)
	if err != nil {
		return err
	}
	return s.write(ctx, "mark done", len(open), func(i int) (job.Locator, gocql.BatchEntry) {
		return open[i], gocql.BatchEntry{Stmt: "UPDATE pending SET done = true" + ofRow, Args: rowKey(open[i])}
	})
}

// closedEarly is how much earlier than jobstore.ClosesAfter this process asks whether a bucket is closed: what clocks differ, and what
// a mark takes.
const closedEarly = time.Minute

// aboveLowWater leaves out rows in closed buckets, where a mark would stay for ever. A bucket that nobody closes yet is not asked for. It
// uses a low-water mark that was read a moment ago: a writer that is late by so little could just as well have asked in time.
func (s *Pending) aboveLowWater(ctx context.Context, locators []job.Locator) ([]job.Locator, error) {
	open := make([]job.Locator, 0, len(locators))
	closable := job.Minute(time.Now().Add(closedEarly - jobstore.ClosesAfter))
	for _, l := range locators {
		if l.Minute >= closable {
			open = append(open, l)
			continue
		}
		low, err := s.recentLowWater(ctx, l.Partition)
		if err != nil {
			return nil, err
		}
		if l.Minute >= low {
			open = append(open, l)
		}
	}
	return open, nil
}

// lowWaterFor is how long a low-water mark that was read is used.
const lowWaterFor = time.Second

type lowWater struct {
	minute int64
	readAt time.Time
}

func (s *Pending) recentLowWater(ctx context.Context, partition int) (int64, error) {
	s.mu.Lock()
	known := s.low[partition]
	s.mu.Unlock()
	if time.Since(known.readAt) < lowWaterFor {
		return known.minute, nil
	}
	return s.LowWater(ctx, partition)
}

// know keeps a low-water mark and when it was asked for.
func (s *Pending) know(partition int, minute int64, readAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.low == nil {
		s.low = map[int]lowWater{}
	}
	s.low[partition] = lowWater{max(minute, s.low[partition].minute), readAt}
}

// Defer implements jobstore.Pending.
func (s *Pending) Defer(ctx context.Context, l job.Locator, to time.Time) error {
	open, err := s.aboveLowWater(ctx, []job.Locator{l})
	if err != nil || len(open) == 0 {
		return err
	}
	q := s.session.Query("UPDATE pending SET done = true, deferred_to_ms = ?"+ofRow, append([]any{to.UnixMilli()}, rowKey(l)...)...)
	return failed("defer", q.Idempotent(true).ExecContext(ctx))
}

// Decide implements jobstore.Pending.
func (s *Pending) Decide(ctx context.Context, l job.Locator, d job.Decision) error {
	q := s.session.Query("UPDATE pending SET decision = ?"+ofRow, append([]any{wire.MarshalDecision(d)}, rowKey(l)...)...)
	return failed("decide", q.Idempotent(true).ExecContext(ctx))
}

// rowOf is a row as read.
type rowOf struct {
	locator    job.Locator
	dueMs      int64
	entry      []byte
	done       *bool
	decision   *[]byte // empty for the zero decision, but not null
	deferredTo *int64
}

func (r *rowOf) places() []any {
	return []any{
		&r.locator.Partition, &r.locator.Minute, &r.dueMs, &r.locator.ExecutionID, &r.locator.Attempt, &r.locator.DefinitionID, &r.entry,
		&r.done, &r.decision, &r.deferredTo,
	}
}

// row decodes the row; there is false for cells without an entry.
func (r *rowOf) row() (row job.PendingRow, there bool, err error) {
	if len(r.entry) == 0 {
		return row, false, nil
	}
	if row.Entry, err = wire.UnmarshalEntry(r.entry); err != nil {
		return row, false, err
	}
	row.Done = r.done != nil && *r.done
	if r.decision != nil {
		d, err := wire.UnmarshalDecision(*r.decision)
		if err != nil {
			return row, false, err
		}
		row.Decision = &d
	}
	if r.deferredTo != nil {
		row.DeferredTo = time.UnixMilli(*r.deferredTo).UTC()
	}
	return row, true, nil
}

// rows runs a query for rows. read also counts rows that are only cells; last is where the last one lies.
func (s *Pending) rows(ctx context.Context, q *gocql.Query) (rows []job.PendingRow, read int, last job.Locator, err error) {
	it := q.Idempotent(true).IterContext(ctx)
	for {
		var r rowOf
		if !it.Scan(r.places()...) {
			break
		}
		read++
		last = r.locator
		last.DueAt = time.UnixMilli(r.dueMs).UTC()
		row, there, err := r.row()
		if err != nil {
			return nil, read, last, errors.Join(err, it.Close())
		}
		if there {
			rows = append(rows, row)
		}
	}
	return rows, read, last, it.Close()
}

// Row implements jobstore.Pending.
func (s *Pending) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	rows, _, _, err := s.rows(ctx, s.session.Query("SELECT "+cells+" FROM pending"+ofRow, rowKey(l)...))
	if err == nil && len(rows) == 0 {
		err = jobstore.ErrNotFound
	}
	if err != nil {
		return job.PendingRow{}, failed("entry", err)
	}
	return rows[0], nil
}

// Rows implements jobstore.Pending.
func (s *Pending) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	found := make([]*job.PendingRow, len(locators))
	err := run.Each(len(locators), concurrency, func(i int) error {
		row, err := s.Row(ctx, locators[i])
		if errors.Is(err, jobstore.ErrNotFound) {
			return nil
		}
		found[i] = &row
		return err
	})
	rows := make(map[job.Locator]job.PendingRow, len(locators))
	for i, row := range found {
		if row != nil {
			rows[locators[i]] = *row
		}
	}
	return rows, err
}

// Scan implements jobstore.Pending.
func (s *Pending) Scan(
	ctx context.Context, partition int, minute int64, after *job.Locator, limit int,
) ([]job.PendingRow, error) {
	var all []job.PendingRow
	for {
		want := limit - len(all)
		q := s.session.Query("SELECT "+cells+" FROM pending WHERE partition = ? AND minute = ? LIMIT ?", partition, minute, want)
		if after != nil {
			q = s.session.Query("SELECT "+cells+" FROM pending WHERE partition = ? AND minute = ?"+
				" AND (due_ms, execution_id, attempt, definition_id) > (?, ?, ?, ?) LIMIT ?",
				partition, minute, after.DueAt.UnixMilli(), after.ExecutionID, after.Attempt, after.DefinitionID, want)
		}
		rows, read, last, err := s.rows(ctx, q)
		if err != nil {
			return nil, failed("scan", err)
		}
		if all = append(all, rows...); read < want || len(all) == limit {
			return all, nil
		}
		after = &last
	}
}

// FirstOpen implements jobstore.Pending.
func (s *Pending) FirstOpen(ctx context.Context, partition int, from, to int64) (minute int64, ok bool, err error) {
	for ; from < to; from += inRows {
		var minutes []int64
		for m := from; m < min(to, from+inRows); m++ {
			minutes = append(minutes, m)
		}
		it := s.session.Query("SELECT minute FROM pending WHERE partition = ? AND minute IN ? PER PARTITION LIMIT 1", partition, minutes).
			Idempotent(true).IterContext(ctx)
		var candidates []int64
		for it.Scan(&minute) {
			candidates = append(candidates, minute)
		}
		if err := it.Close(); err != nil {
			return 0, false, failed("first open bucket", err)
		}
		for _, m := range slices.Sorted(slices.Values(candidates)) { // which may hold no more than cells
			rows, err := s.Scan(ctx, partition, m, nil, 1)
			if err != nil || len(rows) > 0 {
				return m, err == nil, err
			}
		}
	}
	return 0, false, nil
}

// LowWater implements jobstore.Pending.
func (s *Pending) LowWater(ctx context.Context, partition int) (low int64, err error) {
	began := time.Now()
	err = s.session.Query("SELECT low_water FROM partition_progress WHERE partition = ?", partition).Idempotent(true).ScanContext(ctx, &low)
	if err == nil {
		s.know(partition, low, began)
	}
	if errors.Is(err, gocql.ErrNotFound) {
		return 0, fmt.Errorf("cassandra: partition %d: %w", partition, jobstore.ErrNoProgress)
	}
	return low, failed("low-water mark", err)
}

// Close implements jobstore.Pending: first the buckets, then the mark. A crash in between leaves buckets that are deleted but not
// yet closed; they are closed again.
func (s *Pending) Close(ctx context.Context, partition int, minute int64) error {
	low, err := s.LowWater(ctx, partition)
	if err != nil || low >= minute {
		return err
	}
	err = run.Each(int(minute-low), concurrency, func(i int) error {
		q := s.session.Query("DELETE FROM pending WHERE partition = ? AND minute = ?", partition, low+int64(i))
		return failed("close", q.Idempotent(true).ExecContext(ctx))
	})
	if err != nil {
		return err
	}
	// Of two writes the one with the later timestamp stands, and that is the later minute's: the mark never goes back, without a
	// transaction for each partition and minute.
	err = s.session.Query("UPDATE partition_progress USING TIMESTAMP ? SET low_water = ? WHERE partition = ?",
		job.MinuteStart(minute).UnixMicro(), minute, partition).Idempotent(true).ExecContext(ctx)
	if err == nil {
		s.know(partition, minute, time.Now())
	}
	return failed("close", err)
}
