package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// Pending is the minute buckets on the embedded database.
type Pending struct {
	db *DB
	// low caches the low-water marks; 0 is one that was not read yet.
	low []atomic.Int64
	// rowsRead and bytesRead count what scans read from the store.
	rowsRead, bytesRead atomic.Int64
}

var _ jobstore.Pending = (*Pending)(nil)

// NewPending returns the minute buckets of db.
func NewPending(db *DB) *Pending { return &Pending{db: db, low: make([]atomic.Int64, db.partitions)} }

// Put implements jobstore.Pending. Entry, decision and done are separate cells. The entry is merged instead of set, so that of two
// puts the first one stands and neither has to read.
func (s *Pending) Put(ctx context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	for i := range entries {
		if err := b.Merge(cell(rowKey(entries[i].Locator), cellEntry), wire.MarshalEntry(&entries[i]), nil); err != nil {
			return fmt.Errorf("embedded: put entries: %w", err)
		}
	}
	commit := s.db.commit
	if jobstore.DoesRowFollow(ctx) {
		commit = s.db.commitLater
	}
	if err := commit(b); err != nil {
		return fmt.Errorf("embedded: put entries: %w", err)
	}
	return nil
}

// firstStands merges values of a key to the first that was written. It has the name of Pebble's own merger, because Pebble refuses
// to open a store with a merger of another name; FormatVersion keeps out builds that would merge otherwise.
var firstStands = &pebble.Merger{
	Name:  pebble.DefaultMerger.Name,
	Merge: func(_, value []byte) (pebble.ValueMerger, error) { return &firstValue{bytes.Clone(value)}, nil },
}

type firstValue struct{ value []byte }

func (*firstValue) MergeNewer([]byte) error { return nil }

func (f *firstValue) MergeOlder(value []byte) error {
	f.value = append(f.value[:0], value...)
	return nil
}

func (f *firstValue) Finish(bool) ([]byte, io.Closer, error) { return f.value, nil, nil }

// MarkDone implements jobstore.Pending. It marks only rows that exist: a mark without a row would outlive its bucket.
func (s *Pending) MarkDone(ctx context.Context, locators []job.Locator) error {
	return s.mark(ctx, locators, nil)
}

// Defer implements jobstore.Pending.
func (s *Pending) Defer(ctx context.Context, l job.Locator, to time.Time) error {
	return s.mark(ctx, []job.Locator{l}, binary.BigEndian.AppendUint64(nil, uint64(to.UnixMilli())))
}

func (s *Pending) mark(ctx context.Context, locators []job.Locator, deferred []byte) error {
	b := s.db.pebble.NewBatch()
	defer b.Close()
	for _, l := range locators {
		low, err := s.LowWater(ctx, l.Partition)
		if err != nil {
			return err
		}
		if l.Minute < low {
			continue
		}
		// Without its row a mark says nothing, and is deleted with its bucket.
		row := rowKey(l)
		err = b.Set(cell(row, cellDone), nil, nil)
		if err == nil && deferred != nil {
			err = b.Set(cell(row, cellDeferred), deferred, nil)
		}
		if err != nil {
			return fmt.Errorf("embedded: mark done: %w", err)
		}
	}
	if err := s.db.commit(b); err != nil {
		return fmt.Errorf("embedded: mark done: %w", err)
	}
	return nil
}

// Decide implements jobstore.Pending. Like a mark, a decision without a row would outlive its bucket.
func (s *Pending) Decide(_ context.Context, l job.Locator, d job.Decision) error {
	row := rowKey(l)
	_, found, err := s.db.get(cell(row, cellEntry))
	if err != nil {
		return fmt.Errorf("embedded: decide: %w", err)
	}
	if !found {
		return nil
	}
	if err := s.db.set(cell(row, cellDecision), wire.MarshalDecision(d)); err != nil {
		return fmt.Errorf("embedded: decide: %w", err)
	}
	return nil
}

// Row implements jobstore.Pending. It reads each cell by its key, which is quicker than an iterator, and the entry last: if the
// entry is there then, its bucket had not been closed when the others were read.
func (s *Pending) Row(_ context.Context, l job.Locator) (job.PendingRow, error) {
	prefix := rowKey(l)
	var row assembly
	for _, kind := range []byte{cellDone, cellDeferred, cellDecision, cellEntry} {
		if kind == cellDeferred && !row.Done {
			continue
		}
		key := cell(prefix, kind)
		value, found, err := s.db.get(key)
		if found {
			s.count(key, value)
			err = row.add(kind, value)
		}
		if err != nil {
			return job.PendingRow{}, fmt.Errorf("embedded: entry: %w", err)
		}
	}
	if !row.there {
		return job.PendingRow{}, fmt.Errorf("embedded: entry: %w", jobstore.ErrNotFound)
	}
	return row.PendingRow, nil
}

// Rows implements jobstore.Pending. It visits them in the order of their keys, so that neighbours cost little.
func (s *Pending) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	if len(locators) == 0 {
		return nil, nil
	}
	type wanted struct {
		row []byte
		l   job.Locator
	}
	sorted := make([]wanted, len(locators))
	for i, l := range locators {
		sorted[i] = wanted{rowKey(l), l}
	}
	slices.SortFunc(sorted, func(a, b wanted) int { return bytes.Compare(a.row, b.row) })
	it, err := s.db.pebble.NewIterWithContext(ctx, &pebble.IterOptions{
		LowerBound: sorted[0].row, UpperBound: after(sorted[len(sorted)-1].row),
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: read entries: %w", err)
	}
	found := make(map[job.Locator]job.PendingRow, len(locators))
	more := it.First()
	for _, w := range sorted {
		if more && bytes.Compare(it.Key(), w.row) < 0 {
			more = it.SeekGE(w.row)
		}
		var row assembly
		for ; more && bytes.HasPrefix(it.Key(), w.row); more = it.Next() {
			s.count(it.Key(), it.Value())
			if err := row.add(it.Key()[len(it.Key())-1], it.Value()); err != nil {
				return nil, errors.Join(fmt.Errorf("embedded: read entries: %w", err), it.Close())
			}
		}
		if row.there {
			found[w.l] = row.PendingRow
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return nil, fmt.Errorf("embedded: read entries: %w", err)
	}
	return found, nil
}

// assembly is a row that is being assembled from its cells. Cells without an entry are not a row.
type assembly struct {
	job.PendingRow
	there bool
}

func (a *assembly) add(kind byte, value []byte) (err error) {
	switch kind {
	case cellEntry:
		a.there = true
		a.Entry, err = wire.UnmarshalEntry(value)
	case cellDecision:
		var d job.Decision
		d, err = wire.UnmarshalDecision(value)
		a.Decision = &d
	case cellDone:
		a.Done = true
	case cellDeferred:
		if len(value) != 8 {
			return fmt.Errorf("deferred to %x", value)
		}
		a.DeferredTo = time.UnixMilli(int64(binary.BigEndian.Uint64(value))).UTC()
	}
	return err
}

func (s *Pending) count(key, value []byte) {
	s.rowsRead.Add(1)
	s.bytesRead.Add(int64(len(key) + len(value)))
}

// Scan implements jobstore.Pending.
func (s *Pending) Scan(
	ctx context.Context, partition int, minute int64, from *job.Locator, limit int,
) ([]job.PendingRow, error) {
	lower := bucketKey(partition, minute)
	upper := after(lower)
	if from != nil {
		lower = after(rowKey(*from))
	}
	return s.rows(ctx, lower, upper, limit)
}

// rows assembles the cells of [lower, upper) into at most limit rows. Cells without an entry are not a row.
func (s *Pending) rows(ctx context.Context, lower, upper []byte, limit int) ([]job.PendingRow, error) {
	var rows []job.PendingRow
	var current []byte // row key of the last element of rows
	err := s.db.scan(ctx, lower, upper, func(k, v []byte) (bool, error) {
		s.count(k, v)
		row, kind := k[:len(k)-1], k[len(k)-1]
		if kind == cellEntry {
			if len(rows) == limit {
				return false, nil
			}
			e, err := wire.UnmarshalEntry(v)
			if err != nil {
				return false, err
			}
			rows = append(rows, job.PendingRow{Entry: e})
			current = append(current[:0], row...)
			return true, nil
		}
		if len(rows) == 0 || !bytes.Equal(row, current) {
			return true, nil
		}
		last := assembly{PendingRow: rows[len(rows)-1]}
		err := last.add(kind, v)
		rows[len(rows)-1] = last.PendingRow
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: read entries: %w", err)
	}
	return rows, nil
}

// Heads implements jobstore.Pending.
func (s *Pending) Heads(ctx context.Context, partition int, from, to int64, limit int) (rows []job.PendingRow, err error) {
	for {
		minute, ok, err := s.FirstOpen(ctx, partition, from, to)
		if err != nil || !ok {
			return rows, err
		}
		some, err := s.Scan(ctx, partition, minute, nil, limit)
		if err != nil {
			return nil, err
		}
		rows, from = append(rows, some...), minute+1
	}
}

// FirstOpen implements jobstore.Pending. A cell without an entry, written while its bucket was closed, is not a row.
func (s *Pending) FirstOpen(ctx context.Context, partition int, from, to int64) (minute int64, ok bool, err error) {
	if from >= to {
		return 0, false, nil
	}
	err = s.db.scan(ctx, bucketKey(partition, from), bucketKey(partition, to), func(k, _ []byte) (bool, error) {
		if k[len(k)-1] != cellEntry {
			return true, nil
		}
		minute, ok = int64(binary.BigEndian.Uint64(k[5:13])), true
		return false, nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("embedded: first open bucket: %w", err)
	}
	return minute, ok, nil
}

// LowWater implements jobstore.Pending.
func (s *Pending) LowWater(_ context.Context, partition int) (int64, error) {
	if partition < 0 || partition >= len(s.low) {
		return 0, fmt.Errorf("embedded: partition %d: %w", partition, jobstore.ErrNoProgress)
	}
	if low := s.low[partition].Load(); low > 0 {
		return low, nil
	}
	n, found, err := s.db.getNumber(progressKey(partition))
	if err != nil {
		return 0, fmt.Errorf("embedded: low-water mark: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("embedded: partition %d: %w", partition, jobstore.ErrNoProgress)
	}
	s.low[partition].CompareAndSwap(0, n)
	return n, nil
}

// Close implements jobstore.Pending, in one batch: the buckets are gone exactly when the mark has moved.
func (s *Pending) Close(ctx context.Context, partition int, minute int64) error {
	low, err := s.LowWater(ctx, partition)
	if err != nil || low >= minute {
		return err
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	// Most partitions have no rows in most minutes; a range tombstone for nothing would still cost every later scan.
	any := false
	err = s.db.scan(ctx, bucketKey(partition, low), bucketKey(partition, minute), func(_, _ []byte) (bool, error) {
		any = true
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	if any {
		if err := b.DeleteRange(bucketKey(partition, low), bucketKey(partition, minute), nil); err != nil {
			return fmt.Errorf("embedded: close: %w", err)
		}
	}
	if err := setNumber(b, progressKey(partition), minute); err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	// Not synced: a mark that is lost is lower than it could be, and the buckets are closed again.
	if err := s.db.commitLater(b); err != nil {
		return fmt.Errorf("embedded: close: %w", err)
	}
	s.low[partition].Store(minute)
	return nil
}

// Reads returns how many cells and bytes scans have read from the store.
func (s *Pending) Reads() (cells, size int64) { return s.rowsRead.Load(), s.bytesRead.Load() }
