package cassandra

import (
	"context"
	"errors"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// keyMargin is for how many seconds longer than a job's row its key is kept: the row may be written that much later.
const keyMargin = 2 * 24 * 60 * 60

// keyTTL returns for how many seconds the key of a new job is kept; 0 for ever.
func keyTTL(j *job.Job) int {
	if seconds := ttl(j); seconds > 0 && seconds < maxTTL-keyMargin {
		return seconds + keyMargin
	}
	return 0
}

// HoldJobKey implements jobstore.Jobs. If the job that is gone has not got the key any more, nobody may have it.
func (s *JobStore) HoldJobKey(ctx context.Context, j job.Job, gone string) (holder string, err error) {
	if gone != "" {
		if holder, err = s.giveKey(ctx, &j, keyTTL(&j), &gone); err != nil || holder != "" {
			return holder, err
		}
	}
	if holder, err = s.giveKey(ctx, &j, keyTTL(&j), nil); err == nil && holder == "" {
		err = errors.New("cassandra: job key: nobody has it, and it was not given away")
	}
	return holder, err
}

// giveKey gives a job its key, for some seconds or for good (0), if another has it, or nobody (nil), and returns who has it then; "" for
// nobody. A key is one cell, which an UPDATE alone writes: an INSERT would leave a row when the cell expires.
func (s *JobStore) giveKey(ctx context.Context, j *job.Job, seconds int, other *string) (holder string, err error) {
	standing := map[string]any{}
	applied, err := s.session.Query("UPDATE job_keys USING TTL ? SET job_id = ? WHERE tenant_id = ? AND key = ? IF job_id = ?",
		seconds, j.ID, j.Tenant.String(), j.Key, other).MapScanCASContext(ctx, standing)
	if err != nil || applied {
		return j.ID, failed("job key", err)
	}
	holder, _ = standing["job_id"].(string)
	return holder, nil
}

// JobOfKey implements jobstore.Jobs.
func (s *JobStore) JobOfKey(ctx context.Context, tenant job.Tenant, key string) (jobID string, err error) {
	err = s.session.Query("SELECT job_id FROM job_keys WHERE tenant_id = ? AND key = ?", tenant.String(), key).Idempotent(true).ScanContext(ctx, &jobID)
	if err == nil && jobID == "" {
		err = gocql.ErrNotFound
	}
	return jobID, failed("job key", err)
}

// keepJobKey makes a job's key stay with it for good, before its row says anything that may make the job stay longer than its key. Nothing
// lets the key expire again after that, however late: then it would depend on who writes last. Such a key stays in the table when its job is
// gone, and the next request for it finds it free.
func (s *JobStore) keepJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" || j.Deleted {
		return nil
	}
	var holder string
	var seconds *int
	err := s.session.Query("SELECT job_id, TTL(job_id) FROM job_keys WHERE tenant_id = ? AND key = ?", j.Tenant.String(), j.Key).
		Idempotent(true).ScanContext(ctx, &holder, &seconds)
	if err != nil && !errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	keep := ttl(j)
	switch {
	case holder == "":
		holder, err = s.giveKey(ctx, j, 0, nil)
	case holder == j.ID && seconds != nil && (keep == 0 || keep > *seconds):
		holder, err = s.giveKey(ctx, j, 0, &j.ID)
	default:
		return nil
	}
	if err == nil && holder != j.ID {
		err = jobstore.ErrConflict // it was given away since the row was read: the job is gone
	}
	return err
}

// freeJobKey takes a key from a job that is gone.
func (s *JobStore) freeJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" {
		return nil
	}
	_, err := s.session.Query("DELETE job_id FROM job_keys WHERE tenant_id = ? AND key = ? IF job_id = ?", j.Tenant.String(), j.Key, j.ID).
		MapScanCASContext(ctx, map[string]any{})
	return err
}
