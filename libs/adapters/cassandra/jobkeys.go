package cassandra

import (
	"context"
	"errors"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/minutehand/minutehand/libs/job"
)

// HoldJobKey implements jobstore.Jobs. If what it read expires meanwhile, it begins anew.
func (s *JobStore) HoldJobKey(ctx context.Context, j job.Job, gone string) (holder string, err error) {
	for {
		q := s.session.Query("INSERT INTO job_keys (tenant_id, key, job_id) VALUES (?, ?, ?) IF NOT EXISTS USING TTL ?",
			j.Tenant.String(), j.Key, j.ID, ttl(&j))
		if gone != "" {
			q = s.giveKey(&j, ttl(&j), gone)
		}
		standing := map[string]any{}
		applied, err := q.MapScanCASContext(ctx, standing)
		if err != nil || applied {
			return j.ID, failed("job key", err)
		}
		if other, _ := standing["job_id"].(string); other != "" {
			return other, nil
		}
		gone = ""
	}
}

// giveKey returns the statement that gives a job its key, for some seconds or for good (0), if another has it.
func (s *JobStore) giveKey(j *job.Job, seconds int, other string) *gocql.Query {
	return s.session.Query("UPDATE job_keys USING TTL ? SET job_id = ? WHERE tenant_id = ? AND key = ? IF job_id = ?",
		seconds, j.ID, j.Tenant.String(), j.Key, other)
}

// JobOfKey implements jobstore.Jobs.
func (s *JobStore) JobOfKey(ctx context.Context, tenant job.Tenant, key string) (jobID string, err error) {
	err = s.session.Query("SELECT job_id FROM job_keys WHERE tenant_id = ? AND key = ?", tenant.String(), key).Idempotent(true).ScanContext(ctx, &jobID)
	if err == nil && jobID == "" {
		err = gocql.ErrNotFound
	}
	return jobID, failed("job key", err)
}

// keepJobKey makes a job's key stay with it for good, before its row says anything that may make the job stay longer than its key.
func (s *JobStore) keepJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" || j.Deleted {
		return nil
	}
	var holder string
	var seconds *int
	err := s.session.Query("SELECT job_id, TTL(job_id) FROM job_keys WHERE tenant_id = ? AND key = ?", j.Tenant.String(), j.Key).
		Idempotent(true).ScanContext(ctx, &holder, &seconds)
	if errors.Is(err, gocql.ErrNotFound) || err == nil && (holder != j.ID || seconds == nil) {
		return nil
	}
	if err == nil {
		_, err = s.giveKey(j, 0, j.ID).MapScanCASContext(ctx, map[string]any{})
	}
	return err
}

// expireJobKey lets a key go when its job does, after the job's row says so. If that fails, whoever wants the key finds that the job is gone.
func (s *JobStore) expireJobKey(ctx context.Context, j *job.Job, seconds int) {
	switch {
	case j.Key == "":
	case j.Deleted:
		_ = s.freeJobKey(ctx, j)
	case seconds > 0:
		_, _ = s.giveKey(j, seconds, j.ID).MapScanCASContext(ctx, map[string]any{})
	}
}

// freeJobKey takes a key from a job that is gone.
func (s *JobStore) freeJobKey(ctx context.Context, j *job.Job) error {
	if j.Key == "" {
		return nil
	}
	_, err := s.session.Query("DELETE FROM job_keys WHERE tenant_id = ? AND key = ? IF job_id = ?", j.Tenant.String(), j.Key, j.ID).
		MapScanCASContext(ctx, map[string]any{})
	return err
}
