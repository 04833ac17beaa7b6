package cassandra

import (
	"context"
	"errors"
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
	// scans gathers the reads of whole buckets of a minute, closes what is closed at the same time.
	scans  run.Gatherer[scan, int, scanned]
	closes run.Gatherer[struct{}, bucketOf, error]
}

var _ jobstore.Pending = (*Pending)(nil)

// NewPending returns the minute buckets of a store.
func NewPending(s *Store) *Pending {
	p := &Pending{Store: s}
	p.scans.Flights, p.scans.Most, p.scans.Send = gatheredFlights, gathered, p.scanAll
	p.closes.Flights, p.closes.Most, p.closes.Send = gatheredFlights, gathered, p.closeAll
	return p
}

// A loader does the same for the same minute of many of its partitions at a time. What it asks together goes in one request: gathered bounds
// the buckets of one, gatheredFlights the requests of a minute that are under way.
const gathered, gatheredFlights = 16, 2

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
	return s.send(ctx, what, append(batches, mixed(few)...))
}

// send sends batches of statements.
func (s *Pending) send(ctx context.Context, what string, batches [][]gocql.BatchEntry) error {
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

// each runs a query for rows, and calls fn with where each lies and the row; nil for one that is only cells.
func (s *Pending) each(ctx context.Context, q *gocql.Query, fn func(l job.Locator, row *job.PendingRow)) error {
	it := q.Idempotent(true).IterContext(ctx)
	for {
		var r rowOf
		if !it.Scan(r.places()...) {
			break
		}
		row, there, err := r.row()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		l := r.locator
		l.DueAt = time.UnixMilli(r.dueMs).UTC()
		if !there {
			fn(l, nil)
			continue
		}
		fn(l, &row)
	}
	return it.Close()
}

// Row implements jobstore.Pending.
func (s *Pending) Row(ctx context.Context, l job.Locator) (row job.PendingRow, err error) {
	found := false
	err = s.each(ctx, s.session.Query("SELECT "+cells+" FROM pending"+ofRow, rowKey(l)...), func(_ job.Locator, r *job.PendingRow) {
		if found = r != nil; found {
			row = *r
		}
	})
	if err == nil && !found {
		err = jobstore.ErrNotFound
	}
	return row, failed("entry", err)
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
