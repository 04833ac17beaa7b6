package embedded

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// History is the history rows and dead letters on the embedded database. They are grouped by day, so that one range delete drops a
// day when its time is over.
type History struct{ db *DB }

var _ jobstore.History = (*History)(nil)

// NewHistory returns the history of db.
func NewHistory(db *DB) *History { return &History{db: db} }

// Record implements jobstore.History. It does not wait for a sync: the rows are copies of what the log holds, and the position that
// is committed after them cannot outlive them.
func (s *History) Record(_ context.Context, events []jobstore.Recorded) error {
	b := s.db.pebble.NewBatch()
	defer b.Close()
	for _, e := range events {
		at, exec := e.Place()
		k := historyKey(e.HistoryID(), at, exec, e.Entry.Attempt, e.ID)
		if err := b.Set(k, wire.TextOf(e), nil); err != nil {
			return fmt.Errorf("embedded: history: %w", err)
		}
	}
	if err := s.db.commitLater(b); err != nil {
		return fmt.Errorf("embedded: history: %w", err)
	}
	return nil
}

// Executions implements jobstore.History: one seek for each day that it looks back over.
func (s *History) Executions(
	ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int,
) ([]job.Event, error) {
	newest, err := s.newestDay(before)
	if err != nil {
		return nil, err
	}
	var events []job.Event
	for d := newest; d >= day(oldest) && len(events) < limit && d != ^uint32(0); d-- {
		prefix := historyDayKey(d, of.ID)
		lower := prefix
		if !before.NominalAt.IsZero() && day(before.NominalAt) == d {
			lower = after(historyExecutionKey(of.ID, before.NominalAt, before.ExecutionID))
		}
		upper := after(prefix)
		if d == day(oldest) {
			upper = after(binary.BigEndian.AppendUint64(prefix, ^uint64(oldest.UnixMilli())))
		}
		page, err := s.events(ctx, lower, upper, limit-len(events))
		if err != nil {
			return nil, err
		}
		events = append(events, page...)
	}
	return events, nil
}

// newestDay returns the day in which a look-back begins: the newest that has any row, or the cursor's if that is earlier. (A cursor
// comes from a client; one in the far future must not cost a seek for each day until then.)
func (s *History) newestDay(before jobstore.Cursor) (uint32, error) {
	prefix := []byte{tableHistory}
	it, err := s.db.pebble.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return 0, fmt.Errorf("embedded: history: %w", err)
	}
	var d uint32
	if it.Last() {
		k := it.Key()
		d = uint32(k[1])<<24 | uint32(k[2])<<16 | uint32(k[3])<<8 | uint32(k[4])
	}
	if !before.NominalAt.IsZero() {
		d = min(d, day(before.NominalAt))
	}
	return d, errors.Join(it.Error(), it.Close())
}

// Execution implements jobstore.History.
func (s *History) Execution(ctx context.Context, executionID string) ([]job.Event, error) {
	ref, err := job.ParseExecutionID(executionID)
	if err != nil {
		return nil, fmt.Errorf("embedded: history: %w", err)
	}
	prefix := historyExecutionKey(ref.HistoryID(), ref.NominalAt, executionID)
	return s.events(ctx, prefix, after(prefix), maxExecutionEvents)
}

// maxExecutionEvents bounds what is returned for one execution.
const maxExecutionEvents = 2000

func (s *History) events(ctx context.Context, lower, upper []byte, limit int) ([]job.Event, error) {
	var events []job.Event
	err := s.db.scan(ctx, lower, upper, func(_, v []byte) (bool, error) {
		e, err := wire.UnmarshalEvent(v)
		if err != nil {
			return false, err
		}
		events = append(events, e)
		return len(events) < limit, nil
	})
	if err != nil {
		return nil, fmt.Errorf("embedded: history: %w", err)
	}
	return events, nil
}

// Forget implements jobstore.History: one range for each day.
func (s *History) Forget(_ context.Context, of jobstore.Of) error {
	newest, err := s.newestDay(jobstore.Cursor{})
	if err != nil {
		return err
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	for d := day(time.Now().Add(-jobstore.HistoryTTL - 24*time.Hour)); d <= newest; d++ {
		prefix := historyDayKey(d, of.ID)
		err = errors.Join(err, b.DeleteRange(prefix, after(prefix), nil))
	}
	if err == nil {
		err = s.db.commit(b)
	}
	if err != nil {
		return fmt.Errorf("embedded: forget history: %w", err)
	}
	return nil
}

// RemoveDeadLetters implements jobstore.History: one range for each day.
func (s *History) RemoveDeadLetters(_ context.Context, tenant job.Tenant) error {
	b := s.db.pebble.NewBatch()
	defer b.Close()
	var err error
	for d := day(time.Now().Add(-jobstore.HistoryTTL - 24*time.Hour)); d <= day(time.Now())+1; d++ {
		prefix := deadLetterKey(d, tenant, "")
		err = errors.Join(err, b.DeleteRange(prefix, after(prefix), nil), b.DeleteRange(redrivenKey(prefix), after(redrivenKey(prefix)), nil))
	}
	if err == nil {
		err = s.db.commit(b)
	}
	if err != nil {
		return fmt.Errorf("embedded: remove dead letters: %w", err)
	}
	return nil
}

// PutDeadLetter implements jobstore.History. The letter is stored under the day of the occurrence, which never changes.
func (s *History) PutDeadLetter(_ context.Context, d job.DeadLetter) error {
	e := &d.Event.Entry
	k := deadLetterKey(day(e.NominalAt), d.Event.Entry.Tenant, e.ExecutionID)
	if err := s.db.set(k, wire.MarshalDeadLetter(&d)); err != nil {
		return fmt.Errorf("embedded: dead letter: %w", err)
	}
	return nil
}

// MarkRedriven implements jobstore.History.
func (s *History) MarkRedriven(_ context.Context, d job.DeadLetter, executionID string) error {
	e := &d.Event.Entry
	k := redrivenKey(deadLetterKey(day(e.NominalAt), d.Event.Entry.Tenant, e.ExecutionID))
	if err := s.db.set(k, []byte(executionID)); err != nil {
		return fmt.Errorf("embedded: mark redriven: %w", err)
	}
	return nil
}

func redrivenKey(deadLetter []byte) []byte { return append([]byte{tableRedriven}, deadLetter[1:]...) }

// DeadLetters implements jobstore.History.
func (s *History) DeadLetters(
	ctx context.Context, tenant job.Tenant, cursor string, limit int,
) (page []job.DeadLetter, next string, err error) {
	lower := []byte{tableDeadLetter}
	if cursor != "" {
		key, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || len(key) == 0 || key[0] != tableDeadLetter {
			return nil, "", fmt.Errorf("embedded: dead letters: cursor: %w", jobstore.ErrNotFound)
		}
		lower = append(key, 0)
	}
	err = s.lettersOf(ctx, tenant, lower, func(k, v []byte) (bool, error) {
		d, err := wire.UnmarshalDeadLetter(v)
		if err != nil {
			return false, err
		}
		if d.Event.Entry.Tenant != tenant {
			return true, nil
		}
		by, _, err := s.db.get(redrivenKey(k))
		if err != nil {
			return false, err
		}
		d.RedrivenBy = string(by)
		page = append(page, d)
		if len(page) == limit {
			next = base64.RawURLEncoding.EncodeToString(k)
		}
		return len(page) < limit, nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("embedded: dead letters: %w", err)
	}
	return page, next, nil
}

// lettersOf visits a tenant's dead letters from a key on, newest day first. It reads none of another tenant's: of each day it seeks the
// tenant's first, and then the next day.
func (s *History) lettersOf(ctx context.Context, tenant job.Tenant, lower []byte, visit func(k, v []byte) (more bool, err error)) (err error) {
	it, err := s.db.pebble.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: after([]byte{tableDeadLetter})})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Error(), it.Close()) }()
	const dayEnds = 5 // the table and the day
	for ok := it.First(); ok && ctx.Err() == nil; {
		k := it.Key()
		own := text(bytes.Clone(k[:dayEnds]), tenant.String())
		switch {
		case bytes.HasPrefix(k, own):
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			if more, err := visit(bytes.Clone(k), v); err != nil || !more {
				return err
			}
			ok = it.Next()
		case bytes.Compare(k, own) < 0:
			ok = it.SeekGE(own)
		default:
			before := binary.BigEndian.Uint32(k[1:dayEnds]) + 1
			ok = before > 0 && it.SeekGE(text(binary.BigEndian.AppendUint32(bytes.Clone(k[:1]), before), tenant.String()))
		}
	}
	return ctx.Err()
}

// expire drops the days before the instant.
func (s *History) expire(before time.Time) error {
	d := day(before)
	b := s.db.pebble.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.DeleteRange(historyDayKey(0, "")[:5], historyDayKey(d, "")[:5], nil),
		b.DeleteRange(deadLetterKey(d-1, job.DefaultTenant, "")[:5], after([]byte{tableDeadLetter}), nil),
		b.DeleteRange(redrivenKey(deadLetterKey(d-1, job.DefaultTenant, "")[:5]), after([]byte{tableRedriven}), nil),
	)
	if err != nil {
		return err
	}
	return s.db.commitLater(b)
}
