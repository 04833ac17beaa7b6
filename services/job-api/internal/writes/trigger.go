package writes

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// triggerJob executes a job once, now. The request's ULID, kept under its idempotency key, names the execution, so a
// repeated request is the same execution.
func (ws *Writes) triggerJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	jobID := r.PathValue("id")
	j, err := ws.deps.Reads.Find(ctx, r, jobID)
	if err != nil {
		return edge.Response{}, err
	}
	now := job.Instant(ws.deps.Clock.Now())
	claim := jobstore.Claim{ID: ws.newID("", now), DefinitionID: j.Definition.ID, AcceptedAt: now}
	turn, answered, err := ws.begin(ctx, r, "triggerJob", r.Parameters["Idempotency-Key"], claim)
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	if j.Status == job.StatusCancelled {
		return edge.Response{}, cancelled()
	}
	e := ws.triggerEntry(&j, turn.claim)
	if hops, _ := strconv.Atoi(r.Parameters["Minutehand-Hops"]); hops > 0 { // checked to be a number
		e.Note = &job.Note{Hops: hops}
	}
	schedule.Localize(&e, &j.Definition.Schedule)
	return ws.execute(ctx, r, &turn, e)
}

// triggerEntry returns the entry of the execution that a claim names.
func (ws *Writes) triggerEntry(j *job.Job, c jobstore.Claim) job.Entry {
	e := job.Entry{
		Locator: job.Locator{
			Partition: bucket.Partition(j.ID, ws.cfg.Partitions), DueAt: c.AcceptedAt,
			ExecutionID: job.ManualExecutionID(j.ID, c.ID), Attempt: 1, DefinitionID: c.DefinitionID,
		},
		JobID: j.ID, Tenant: j.Tenant, Trigger: job.TriggerManual, NominalAt: c.AcceptedAt, ScheduledFor: c.AcceptedAt,
	}
	j.Definition.Mark(&e)
	return e
}

// triggered reports whether an earlier request wrote the entry: it is in the bucket of the request's minute, or its result
// is on record.
func (ws *Writes) triggered(ctx context.Context, e job.Entry) (bool, error) {
	_, err := ws.deps.Pending.Row(ctx, job.NewEntry(e, e.DueAt).Locator)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, jobstore.ErrNotFound) {
		return false, fmt.Errorf("read entry of execution %s: %w", e.ExecutionID, err)
	}
	events, err := ws.deps.History.Execution(ctx, e.ExecutionID)
	if err != nil {
		return false, fmt.Errorf("read history of execution %s: %w", e.ExecutionID, err)
	}
	return len(events) > 0, nil
}
