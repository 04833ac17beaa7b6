package embedded

import (
	"context"
	"fmt"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func heldKey(tenant job.Tenant, key string) []byte {
	return append(text([]byte{tableJobKey}, tenant.String()), key...)
}

// HoldJobKey implements jobstore.Jobs. What it returns is durable, as it waits for the writes before it.
func (s *JobStore) HoldJobKey(_ context.Context, j job.Job, gone string) (holder string, err error) {
	k := heldKey(j.Tenant, j.Key)
	b := s.db.pebble.NewBatch()
	defer b.Close()
	err = s.swapJobKey(k, func(standing string) error {
		if holder = standing; standing != "" && standing != gone {
			return nil
		}
		holder = j.ID
		if err := b.Set(k, []byte(j.ID), nil); err != nil {
			return err
		}
		return s.db.apply(b)
	})
	switch {
	case err != nil:
	case b.Empty():
		err = s.db.sync()
	default:
		err = s.db.synced(b)
	}
	if err != nil {
		return "", fmt.Errorf("embedded: job key: %w", err)
	}
	return holder, nil
}

// swapJobKey calls a function with the job that has a key, "" if none has, while nobody else changes that.
func (s *JobStore) swapJobKey(k []byte, do func(standing string) error) error {
	lock := s.keys.of(string(k))
	lock.Lock()
	defer lock.Unlock()
	v, _, err := s.db.get(k)
	if err != nil {
		return err
	}
	return do(string(v))
}

// freeJobKey takes a key from a job that is gone, or goes now.
func (s *JobStore) freeJobKey(j *job.Job) error {
	if j.Key == "" {
		return nil
	}
	k := heldKey(j.Tenant, j.Key)
	return s.swapJobKey(k, func(standing string) error {
		if standing != j.ID {
			return nil
		}
		return s.db.deleteLater(k)
	})
}

// JobOfKey implements jobstore.Jobs.
func (s *JobStore) JobOfKey(_ context.Context, tenant job.Tenant, key string) (jobID string, err error) {
	v, found, err := s.db.get(heldKey(tenant, key))
	if err == nil && !found {
		err = jobstore.ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("embedded: job key: %w", err)
	}
	return string(v), nil
}
