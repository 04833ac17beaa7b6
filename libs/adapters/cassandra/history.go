package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// History is the history rows, by a job's week or by minute, and dead letters, by day.
type History struct {
	*Store
	shards historyShards
}

var _ jobstore.History = (*History)(nil)

// NewHistory returns the history of a store.
func NewHistory(s *Store) *History { return &History{Store: s} }

// maxExecutionEvents bounds what is returned for one execution.
const maxExecutionEvents = 2000

func dayOf(at time.Time) int { return int(at.Unix() / (24 * 60 * 60)) }

// newestDay is the last day that can hold anything: a run of skipped instants may reach a little ahead.
func newestDay() int { return dayOf(time.Now()) + 1 }

// weekOf numbers the weeks of history: a partition of a week holds at most 604,800 instants of a job, and a month of a job that
// seldom fires is a read of six partitions.
func weekOf(day int) int { return day / 7 }

const (
	// mixedBatch bounds the rows of a batch over several partitions, and mixedBytes their size: Cassandra warns of more than ten
	// partitions or 5 KiB, and refuses 50 KiB. A batch of a few costs the coordinator two thirds of what single writes do, and its client
	// a fraction.
	mixedBatch, mixedBytes = 10, 4500
	// rowOverhead is what a row takes in a batch besides its text, at most.
	rowOverhead = 150
)

// mixed cuts rows of several partitions into batches. A row that is large goes alone.
func mixed(rows []gocql.BatchEntry) (batches [][]gocql.BatchEntry) {
	from, bytes := 0, 0
	for i := range rows {
		size := rowOverhead
		for _, arg := range rows[i].Args {
			switch v := arg.(type) {
			case string:
				size += len(v)
			case []byte:
				size += len(v)
			}
		}
		if i > from && (i-from == mixedBatch || bytes+size > mixedBytes) {
			batches = append(batches, rows[from:i:i])
			from, bytes = i, 0
		}
		bytes += size
	}
	if from < len(rows) {
		batches = append(batches, rows[from:])
	}
	return batches
}

// Record implements jobstore.History. Events of one partition go in one batch, which is atomic for nobody; what is left over, in batches of
// a few partitions (decision 40). Those of one-shots lie by their minute, if it is said over how many shards (decision 47).
func (s *History) Record(ctx context.Context, events []jobstore.Recorded) error {
	counts, err := s.shardCounts(ctx)
	if err != nil {
		return err
	}
	var order []any
	batches := map[any][]gocql.BatchEntry{} // by partition
	for _, e := range events {
		p, row := rowOfEvent(e, counts)
		if len(batches[p])%maxBatch == 0 {
			order = append(order, p)
		}
		batches[p] = append(batches[p], row)
	}
	var chunks [][]gocql.BatchEntry
	var few []gocql.BatchEntry
	for _, p := range order {
		n := min(maxBatch, len(batches[p]))
		if rows := batches[p][:n]; n > mixedBatch/2 {
			chunks = append(chunks, rows)
		} else {
			few = append(few, rows...)
		}
		batches[p] = batches[p][n:]
	}
	chunks = append(chunks, mixed(few)...)
	return run.Each(len(chunks), concurrency, func(i int) error {
		b := s.session.Batch(gocql.UnloggedBatch)
		b.Entries = chunks[i]
		return failed("history", b.ExecContext(ctx))
	})
}

// weekOfJob and minuteShard are partitions of history.
type weekOfJob struct {
	jobID string
	week  int
}

type minuteShard struct {
	shard  int
	minute int64
}

// rowOfEvent returns an event's partition, and the statement that writes it there.
func rowOfEvent(e jobstore.Recorded, counts []int) (partition any, row gocql.BatchEntry) {
	at, execution := e.Place()
	if shards := present(counts); shards > 0 && jobstore.OfOneShot(e.Event) {
		p := minuteShard{bucket.Partition(e.Entry.JobID, shards), job.Minute(at)}
		return p, gocql.BatchEntry{
			Stmt: "INSERT INTO history_minutes (shard, minute, job_id, nominal_ms, execution_id, attempt, event_id, event) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			Args: []any{p.shard, p.minute, e.Entry.JobID, at.UnixMilli(), execution, e.Entry.Attempt, e.ID, wire.TextOf(e)}, Idempotent: true,
		}
	}
	p := weekOfJob{e.HistoryID(), weekOf(dayOf(at))}
	return p, gocql.BatchEntry{
		Stmt: "INSERT INTO history_weeks (job_id, week, nominal_ms, execution_id, attempt, event_id, event) VALUES (?, ?, ?, ?, ?, ?, ?)",
		Args: []any{p.jobID, p.week, at.UnixMilli(), execution, e.Entry.Attempt, e.ID, wire.TextOf(e)}, Idempotent: true,
	}
}

// weeksAtOnce is how many weeks a history query asks for at once when the newest held too little: a month lies in six.
const weeksAtOnce = 6

// Executions implements jobstore.History. What lies by week and what lies by minute is asked for at the same time.
func (s *History) Executions(
	ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int,
) ([]job.Event, error) {
	var lists [2][]job.Event
	err := run.Each(len(lists), len(lists), func(i int) (err error) {
		if i == 0 {
			lists[i], err = s.inWeeks(ctx, of.ID, before, oldest, limit)
		} else {
			lists[i], err = s.inMinutes(ctx, of, before, oldest, limit)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	events := merged(lists[:])
	return events[:min(limit, len(events))], nil
}

// merged returns the events of several places in the order in which a job's history is read. One that was recorded again, after the number
// of shards had changed, is there once.
func merged(lists [][]job.Event) []job.Event {
	events := slices.Concat(lists...)
	slices.SortFunc(events, jobstore.ByPlace)
	return slices.CompactFunc(events, func(a, b job.Event) bool { return a.ID == b.ID })
}

// inWeeks returns what lies by week: a query for the newest week, and one for each month before it.
func (s *History) inWeeks(
	ctx context.Context, jobID string, before jobstore.Cursor, oldest time.Time, limit int,
) (events []job.Event, err error) {
	week, last, from := weekOf(newestDay()), weekOf(dayOf(oldest)), oldest.UnixMilli()
	if !before.NominalAt.IsZero() && weekOf(dayOf(before.NominalAt)) <= week {
		const selected = "SELECT event FROM history_weeks WHERE job_id = ? AND week = ?"
		week = weekOf(dayOf(before.NominalAt))
		if at := before.NominalAt.UnixMilli(); at >= from { // events of the same instant
			events, err = s.events(ctx, s.session.Query(selected+" AND nominal_ms = ? AND execution_id > ? LIMIT ?", jobID, week, at,
				before.ExecutionID, limit))
			if err != nil {
				return nil, err
			}
		}
		page, err := s.events(ctx, s.session.Query(selected+" AND nominal_ms < ? AND nominal_ms >= ? LIMIT ?", jobID, week,
			before.NominalAt.UnixMilli(), from, limit))
		if err != nil {
			return nil, err
		}
		events = append(events, page...)
		week--
	}
	for n := 1; week >= last && len(events) < limit; n = weeksAtOnce {
		n = min(n, week-last+1)
		page, err := s.eventsOf(ctx, jobID, week, n, from, limit-len(events))
		if err != nil {
			return nil, err
		}
		events = append(events, page...)
		week -= n
	}
	return events, nil
}

// eventsOf returns the events of n weeks, the newest first, from an instant on, and at most limit of each.
func (s *History) eventsOf(ctx context.Context, jobID string, newest, n int, from int64, limit int) (events []job.Event, err error) {
	weeks := make([]int, n)
	for i := range weeks {
		weeks[i] = newest - i
	}
	it := s.session.Query("SELECT week, event FROM history_weeks WHERE job_id = ? AND week IN ? AND nominal_ms >= ? PER PARTITION LIMIT ?", jobID,
		weeks, from, limit).Idempotent(true).IterContext(ctx)
	found := make([][]job.Event, n)
	var week int
	var text []byte
	for it.Scan(&week, &text) {
		e, err := wire.UnmarshalEvent(text)
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		found[newest-week] = append(found[newest-week], e)
		text = nil
	}
	return slices.Concat(found...), failed("history", it.Close())
}

func (s *History) events(ctx context.Context, q *gocql.Query) (events []job.Event, err error) {
	it := q.Idempotent(true).IterContext(ctx)
	var text []byte
	for it.Scan(&text) {
		e, err := wire.UnmarshalEvent(text)
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		events = append(events, e)
		text = nil
	}
	return events, failed("history", it.Close())
}

// Execution implements jobstore.History. Whether it was a one-shot's is not known, so both places are asked.
func (s *History) Execution(ctx context.Context, executionID string) ([]job.Event, error) {
	ref, err := job.ParseExecutionID(executionID)
	if err != nil {
		return nil, fmt.Errorf("cassandra: history: %w", err)
	}
	at := ref.NominalAt.UnixMilli()
	queries := []*gocql.Query{s.session.Query(
		"SELECT event FROM history_weeks WHERE job_id = ? AND week = ? AND nominal_ms = ? AND execution_id = ? LIMIT ?",
		ref.HistoryID(), weekOf(dayOf(ref.NominalAt)), at, executionID, maxExecutionEvents,
	)}
	if ref.Trigger == job.TriggerSchedule {
		shards, err := s.shardsOf(ctx, ref.JobID)
		if err != nil {
			return nil, err
		}
		if len(shards) > 0 {
			queries = append(queries, s.session.Query(
				"SELECT event FROM history_minutes WHERE shard IN ? AND minute = ? AND job_id = ? AND nominal_ms = ? AND execution_id = ? PER PARTITION LIMIT ?",
				shards, job.Minute(ref.NominalAt), ref.JobID, at, executionID, maxExecutionEvents,
			))
		}
	}
	lists := make([][]job.Event, len(queries))
	err = run.Each(len(queries), len(queries), func(i int) (err error) {
		lists[i], err = s.events(ctx, queries[i])
		return err
	})
	return merged(lists), err
}

// Forget implements jobstore.History: the weeks of a month, and those that may begin ahead, and the minute of a one-shot.
func (s *History) Forget(ctx context.Context, of jobstore.Of) error {
	first, last := weekOf(dayOf(time.Now().Add(-jobstore.HistoryTTL))), weekOf(newestDay())
	err := run.Each(last-first+1, concurrency, func(i int) error {
		q := s.session.Query("DELETE FROM history_weeks WHERE job_id = ? AND week = ?", of.ID, first+i)
		return failed("forget history", q.Idempotent(true).ExecContext(ctx))
	})
	if err != nil {
		return err
	}
	return s.forgetMinutes(ctx, of)
}

// RemoveDeadLetters implements jobstore.History: the days of a month, as wholes.
func (s *History) RemoveDeadLetters(ctx context.Context, tenant job.Tenant) error {
	first, last := dayOf(time.Now().Add(-jobstore.HistoryTTL)), newestDay()
	return run.Each(last-first+1, concurrency, func(i int) error {
		q := s.session.Query("DELETE FROM dead_letters WHERE tenant_id = ? AND day = ?", tenant.String(), first+i)
		return failed("remove dead letters", q.Idempotent(true).ExecContext(ctx))
	})
}

// PutDeadLetter implements jobstore.History. The letter is stored under the day of the occurrence, which never changes.
func (s *History) PutDeadLetter(ctx context.Context, d job.DeadLetter) error {
	e := &d.Event.Entry
	q := s.session.Query("INSERT INTO dead_letters (tenant_id, day, execution_id, letter) VALUES (?, ?, ?, ?)", d.Event.Entry.Tenant.String(),
		dayOf(e.NominalAt), e.ExecutionID, wire.MarshalDeadLetter(&d))
	return failed("dead letter", q.Idempotent(true).ExecContext(ctx))
}

// MarkRedriven implements jobstore.History.
func (s *History) MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) error {
	e := &d.Event.Entry
	q := s.session.Query("UPDATE dead_letters SET redriven_by = ? WHERE tenant_id = ? AND day = ? AND execution_id = ?", executionID,
		d.Event.Entry.Tenant.String(), dayOf(e.NominalAt), e.ExecutionID)
	return failed("mark redriven", q.Idempotent(true).ExecContext(ctx))
}

// DeadLetters implements jobstore.History. The cursor is a day and the execution after which a page begins.
func (s *History) DeadLetters(
	ctx context.Context, tenant job.Tenant, cursor string, limit int,
) (page []job.DeadLetter, next string, err error) {
	day, after := newestDay(), ""
	if cursor != "" {
		text, execution, ok := strings.Cut(cursor, "_")
		if day, err = strconv.Atoi(text); err != nil || !ok {
			return nil, "", fmt.Errorf("cassandra: dead letters: cursor: %w", jobstore.ErrNotFound)
		}
		after = execution
	}
	for last := dayOf(time.Now().Add(-jobstore.HistoryTTL)); day >= last; day-- {
		it := s.session.Query("SELECT letter, redriven_by FROM dead_letters WHERE tenant_id = ? AND day = ? AND execution_id > ? LIMIT ?",
			tenant.String(), day, after, limit-len(page)).Idempotent(true).IterContext(ctx)
		var text []byte
		var by string
		for it.Scan(&text, &by) {
			if len(text) == 0 {
				continue // a mark without a letter
			}
			d, err := wire.UnmarshalDeadLetter(text)
			if err != nil {
				return nil, "", errors.Join(err, it.Close())
			}
			d.RedrivenBy = by
			page = append(page, d)
			text, by = nil, ""
		}
		if err := it.Close(); err != nil {
			return nil, "", failed("dead letters", err)
		}
		if len(page) >= limit {
			return page, fmt.Sprintf("%d_%s", day, page[len(page)-1].Event.Entry.ExecutionID), nil
		}
		after = ""
	}
	return page, "", nil
}
