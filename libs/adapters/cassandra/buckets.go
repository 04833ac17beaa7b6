package cassandra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// Scan implements jobstore.Pending. Buckets of one minute that are asked for at the same time, from their start, are read together.
func (s *Pending) Scan(
	ctx context.Context, partition int, minute int64, after *job.Locator, limit int,
) ([]job.PendingRow, error) {
	if after != nil {
		return s.scanFrom(ctx, partition, minute, after, limit)
	}
	first, err := s.scans.Do(ctx, scan{minute, limit}, partition)
	if err == nil {
		err = first.err
	}
	if err != nil || first.read < limit || len(first.rows) == limit {
		return first.rows, err
	}
	rest, err := s.scanFrom(ctx, partition, minute, &first.last, limit-len(first.rows)) // some were no more than cells
	return append(first.rows, rest...), err
}

// scan is what is asked of buckets. scanned is what one bucket holds of it: its rows, how many were read with those that are only cells,
// and where the last of them lies.
type scan struct {
	minute int64
	limit  int
}

type scanned struct {
	rows []job.PendingRow
	read int
	last job.Locator
	err  error
}

// scanAll reads the first rows of the buckets of several partitions. If that fails, each is read alone, because one of them must not keep
// the others from being read.
func (s *Pending) scanAll(ctx context.Context, of scan, partitions []int) ([]scanned, error) {
	each := slices.Compact(slices.Sorted(slices.Values(partitions)))
	found := make([]map[int]*scanned, len(each))
	all, err := s.scanTogether(ctx, of, each)
	errs := map[int]error{}
	if err != nil && len(each) == 1 {
		errs[each[0]] = err
	} else if err != nil {
		alone := make([]error, len(each))
		_ = run.Each(len(each), concurrency, func(i int) error { // each has its own error
			found[i], alone[i] = s.scanTogether(ctx, of, each[i:i+1])
			return nil
		})
		all = map[int]*scanned{}
		for i, p := range each {
			maps.Copy(all, found[i])
			errs[p] = alone[i]
		}
	}
	answers := make([]scanned, len(partitions))
	for i, p := range partitions {
		if one := all[p]; one != nil {
			answers[i] = *one
			answers[i].rows = slices.Clip(one.rows) // a partition that is asked for twice is answered twice
		}
		answers[i].err = failed("scan", errs[p])
	}
	return answers, nil
}

// scanTogether reads the first rows of the buckets of several partitions in one request. With all rows in one page, Cassandra reads the
// partitions side by side.
func (s *Pending) scanTogether(ctx context.Context, of scan, partitions []int) (map[int]*scanned, error) {
	q := s.session.Query("SELECT "+cells+" FROM pending WHERE partition = ? AND minute = ? LIMIT ?", partitions[0], of.minute, of.limit)
	if len(partitions) > 1 {
		most := of.limit * len(partitions)
		q = s.session.Query("SELECT "+cells+" FROM pending WHERE partition IN ? AND minute = ? PER PARTITION LIMIT ? LIMIT ?",
			partitions, of.minute, of.limit, most).PageSize(most)
	}
	found := map[int]*scanned{}
	return found, s.each(ctx, q, func(l job.Locator, row *job.PendingRow) {
		one := found[l.Partition]
		if one == nil {
			one = &scanned{}
			found[l.Partition] = one
		}
		one.read, one.last = one.read+1, l
		if row != nil {
			one.rows = append(one.rows, *row)
		}
	})
}

// scanFrom reads on in a bucket.
func (s *Pending) scanFrom(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	var all []job.PendingRow
	for {
		want, read, last := limit-len(all), 0, job.Locator{}
		q := s.session.Query("SELECT "+cells+" FROM pending WHERE partition = ? AND minute = ?"+
			" AND (due_ms, execution_id, attempt, definition_id) > (?, ?, ?, ?) LIMIT ?",
			partition, minute, after.DueAt.UnixMilli(), after.ExecutionID, after.Attempt, after.DefinitionID, want)
		err := s.each(ctx, q, func(l job.Locator, row *job.PendingRow) {
			read, last = read+1, l
			if row != nil {
				all = append(all, *row)
			}
		})
		if err != nil {
			return nil, failed("scan", err)
		}
		if read < want || len(all) == limit {
			return all, nil
		}
		after = &last
	}
}

// Heads implements jobstore.Pending: one request for each inRows buckets. With all rows in one page, Cassandra reads the buckets side by side.
func (s *Pending) Heads(ctx context.Context, partition int, from, to int64, limit int) (all []job.PendingRow, err error) {
	for ; from < to; from += inRows {
		n := min(to-from, inRows)
		minutes, rows, read := make([]int64, n), make([][]job.PendingRow, n), make([]int, n)
		for i := range minutes {
			minutes[i] = from + int64(i)
		}
		most := limit * len(minutes)
		q := s.session.Query("SELECT "+cells+" FROM pending WHERE partition = ? AND minute IN ? PER PARTITION LIMIT ? LIMIT ?",
			partition, minutes, limit, most).PageSize(most)
		err := s.each(ctx, q, func(l job.Locator, row *job.PendingRow) {
			i := l.Minute - from
			if read[i]++; row != nil {
				rows[i] = append(rows[i], *row)
			}
		})
		for i := range minutes {
			if err == nil && read[i] == limit && len(rows[i]) < limit { // some were no more than cells
				rows[i], err = s.Scan(ctx, partition, minutes[i], nil, limit)
			}
			all = append(all, rows[i]...)
		}
		if err != nil {
			return nil, failed("heads of buckets", err)
		}
	}
	return all, nil
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
// yet closed; they are closed again. What is closed at the same time shares requests.
func (s *Pending) Close(ctx context.Context, partition int, minute int64) error {
	failed, err := s.closes.Do(ctx, struct{}{}, bucketOf{partition, minute})
	if err == nil {
		err = failed
	}
	return err
}

// closeAll closes the buckets of several partitions, each below a minute, and returns what failed for each of them. If they cannot be closed
// together, each is closed alone.
func (s *Pending) closeAll(ctx context.Context, _ struct{}, below []bucketOf) ([]error, error) {
	errs := make([]error, len(below))
	if s.closeTogether(ctx, below) == nil {
		return errs, nil
	}
	_ = run.Each(len(below), concurrency, func(i int) error { // each has its own error
		errs[i] = s.closeTogether(ctx, below[i:i+1])
		return nil
	})
	return errs, nil
}

func (s *Pending) closeTogether(ctx context.Context, below []bucketOf) error {
	var deletions, marks []gocql.BatchEntry
	var closed []bucketOf
	for _, b := range below {
		low, err := s.lowWaterOnce(ctx, b.partition)
		if err != nil {
			return err
		}
		if low >= b.minute {
			continue
		}
		for m := low; m < b.minute; m++ {
			deletions = append(deletions, gocql.BatchEntry{
				Stmt: "DELETE FROM pending WHERE partition = ? AND minute = ?", Args: []any{b.partition, m}, Idempotent: true,
			})
		}
		// Of two writes the one with the later timestamp stands, and that is the later minute's: the mark never goes back, without a
		// transaction for each partition and minute.
		marks = append(marks, gocql.BatchEntry{
			Stmt: "UPDATE partition_progress USING TIMESTAMP ? SET low_water = ? WHERE partition = ?",
			Args: []any{job.MinuteStart(b.minute).UnixMicro(), b.minute, b.partition}, Idempotent: true,
		})
		closed = append(closed, b)
	}
	for _, writes := range [][]gocql.BatchEntry{deletions, marks} {
		if err := s.send(ctx, "close", mixed(writes)); err != nil {
			return err
		}
	}
	for _, b := range closed {
		s.know(b.partition, b.minute, time.Now())
	}
	return nil
}

// lowWaterOnce returns a low-water mark that this process has read or written at any time. Buckets that another has closed since are then
// deleted once more, which changes nothing.
func (s *Pending) lowWaterOnce(ctx context.Context, partition int) (int64, error) {
	s.mu.Lock()
	known := s.low[partition]
	s.mu.Unlock()
	if !known.readAt.IsZero() {
		return known.minute, nil
	}
	return s.LowWater(ctx, partition)
}
