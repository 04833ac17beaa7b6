package embedded

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

func runsKey(jobID string) []byte { return append([]byte{tableRuns}, jobID...) }

// Runs implements jobstore.Jobs. What it returns is durable, as it waits for the writes before it.
func (s *JobStore) Runs(_ context.Context, jobID string) (runs []job.Locator, err error) {
	err = s.write([]string{jobID}, func(*pebble.Batch) (err error) {
		runs, err = s.runs(jobID)
		return err
	})
	return runs, err
}

func (s *JobStore) runs(jobID string) ([]job.Locator, error) {
	v, found, err := s.db.get(runsKey(jobID))
	if err != nil {
		return nil, fmt.Errorf("embedded: runs: %w", err)
	}
	if !found {
		return nil, nil
	}
	return wire.UnmarshalRuns(v)
}

// SwapRuns implements jobstore.Jobs.
func (s *JobStore) SwapRuns(_ context.Context, jobID string, old, runs []job.Locator) error {
	return s.write([]string{jobID}, func(b *pebble.Batch) error {
		standing, err := s.runs(jobID)
		if err != nil {
			return err
		}
		if !bytes.Equal(wire.MarshalRuns(standing), wire.MarshalRuns(old)) {
			return fmt.Errorf("embedded: swap runs: %w", jobstore.ErrConflict)
		}
		if err := b.Set(runsKey(jobID), wire.MarshalRuns(runs), nil); err != nil {
			return fmt.Errorf("embedded: swap runs: %w", err)
		}
		return nil
	})
}
