package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// expireBatch bounds how many rows are deleted at once.
const expireBatch = 1000

// expiryKey returns a key of an index by time, so that looking for what has expired reads nothing that has not.
func expiryKey(at time.Time, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{tableExpiry}, uint64(at.UnixMilli())), key...)
}

// setExpiring writes a row together with its place in the index.
func (db *DB) setExpiring(key, value []byte, at time.Time) error {
	b := db.pebble.NewBatch()
	defer b.Close()
	if err := errors.Join(b.Set(key, value, nil), b.Set(expiryKey(at, key), nil, nil)); err != nil {
		return err
	}
	return db.commit(b)
}

// expire deletes what has expired by now. A row that was written again since it was listed has a later place in the index.
func (s *JobStore) expire(ctx context.Context, now time.Time) error {
	for {
		var listed [][]byte
		lower := []byte{tableExpiry}
		err := s.db.scan(ctx, lower, expiryKey(now.Add(time.Millisecond), nil), func(k, _ []byte) (bool, error) {
			listed = append(listed, append([]byte(nil), k...))
			return len(listed) < expireBatch, nil
		})
		if err != nil {
			return fmt.Errorf("embedded: expiry: %w", err)
		}
		for _, k := range listed {
			if err := s.drop(k[9:], now); err != nil {
				return fmt.Errorf("embedded: expiry: %w", err)
			}
			if err := s.db.deleteLater(k); err != nil {
				return fmt.Errorf("embedded: expiry: %w", err)
			}
		}
		if len(listed) < expireBatch {
			return nil
		}
	}
}

// drop deletes one row if it has expired.
func (s *JobStore) drop(key []byte, now time.Time) error {
	switch key[0] {
	case tableJob:
		return s.dropJob(string(key[1:]), now)
	case tableClaim:
		lock := s.keys.of(string(key[1:]))
		lock.Lock()
		defer lock.Unlock()
		c, found, err := s.claim(key)
		if err != nil || !found || now.Sub(c.AcceptedAt) < jobstore.KeyTTL {
			return err
		}
	}
	return s.db.deleteLater(key)
}

func (s *JobStore) dropJob(jobID string, now time.Time) error {
	lock := s.rows.of(jobID)
	lock.Lock()
	defer lock.Unlock()
	v, found, err := s.db.get(jobKey(jobID))
	if err != nil || !found {
		return err
	}
	row, err := wire.UnmarshalJob(v)
	if err != nil {
		return err
	}
	if at := jobstore.Expiry(&row); at.IsZero() || at.After(now) {
		return nil
	}
	if err := s.freeJobKey(&row); err != nil {
		return err
	}
	b := s.db.pebble.NewBatch()
	defer b.Close()
	if err := errors.Join(b.Delete(jobKey(jobID), nil), b.Delete(listingKey(row.Tenant, jobID), nil)); err != nil {
		return err
	}
	return s.db.commitLater(b)
}
