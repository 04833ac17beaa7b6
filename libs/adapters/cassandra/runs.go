package cassandra

import (
	"context"
	"errors"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// Runs implements jobstore.Jobs.
func (s *JobStore) Runs(ctx context.Context, jobID string) ([]job.Locator, error) {
	var listed []byte
	q := s.session.Query("SELECT listed FROM runs WHERE job_id = ?", jobID).Consistency(gocql.LocalSerial)
	err := q.Idempotent(true).ScanContext(ctx, &listed)
	if errors.Is(err, gocql.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("runs", err)
	}
	return wire.UnmarshalRuns(listed)
}

// SwapRuns implements jobstore.Jobs.
func (s *JobStore) SwapRuns(ctx context.Context, jobID string, old, runs []job.Locator) error {
	listed := wire.MarshalRuns(runs)
	q := s.session.Query("UPDATE runs SET listed = ? WHERE job_id = ? IF listed = ?", listed, jobID, wire.MarshalRuns(old))
	if len(old) == 0 {
		q = s.session.Query("INSERT INTO runs (job_id, listed) VALUES (?, ?) IF NOT EXISTS", jobID, listed)
	}
	applied, err := q.MapScanCASContext(ctx, map[string]any{})
	if err == nil && !applied {
		err = jobstore.ErrConflict
	}
	return failed("swap runs", err)
}
