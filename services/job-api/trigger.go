package api

import (
	"context"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// triggerJob executes a job once, now. The ULID of the request, kept under its idempotency key, names the execution, so
// that a repeated request is the same execution.
func (s *Service) triggerJob(ctx context.Context, r *request) (response, error) {
	now := job.Instant(time.Now())
	claim := jobstore.Claim{ID: newID("", now), AcceptedAt: now}
	return s.once(ctx, r, "triggerJob", r.parameters["Idempotency-Key"], claim, func(c jobstore.Claim) (response, error) {
		jobID := r.PathValue("id")
		j, err := s.deps.Jobs.Get(ctx, jobID)
		switch {
		case err != nil:
			return response{}, err
		case j.Deleted:
			return response{}, jobstore.ErrNotFound
		case j.Status == job.Cancelled:
			return response{}, cancelled()
		}
		e := job.Entry{
			Locator: job.Locator{
				Partition: bucket.Partition(jobID, s.cfg.Partitions), DueAt: c.AcceptedAt,
				ExecutionID: job.ManualExecutionID(jobID, c.ID), Attempt: 1, DefinitionID: j.Definition.ID,
			},
			JobID: jobID, Trigger: job.TriggerManual, NominalAt: c.AcceptedAt, ScheduledFor: c.AcceptedAt,
		}
		for {
			began := job.Instant(time.Now())
			e.WrittenAt = began
			e = job.NewEntry(e, began)
			if err := s.deps.Pending.Put(ctx, []job.Entry{e}); err != nil {
				return response{}, err
			}
			if !s.tookTooLong(began) {
				break
			}
		}
		s.writeThrough(ctx, e)
		return response{
			status:  http.StatusAccepted,
			headers: map[string]string{"Location": apiRoot + "/executions/" + e.ExecutionID},
			body:    map[string]string{"execution_id": e.ExecutionID, "job_id": jobID},
		}, nil
	})
}

const apiRoot = "/api/v1"
