package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// listDeadLetters shows a page of a tenant's dead letters, without those of jobs that are deleted.
func (rs *Reads) listDeadLetters(ctx context.Context, r *edge.Request) (edge.Response, error) {
	cursor := r.Parameters["cursor"]
	letters, next, err := rs.History.DeadLetters(ctx, r.Tenant(), cursor, r.Limit())
	if err != nil {
		if cursor != "" && errors.Is(err, jobstore.ErrNotFound) {
			return edge.Response{}, edge.BadCursor()
		}
		return edge.Response{}, fmt.Errorf("read dead letters: %w", err)
	}
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].Event.Entry.JobID
	}
	jobs, err := rs.manyJobs(ctx, ids)
	if err != nil {
		return edge.Response{}, fmt.Errorf("read the jobs of %d dead letters: %w", len(letters), err)
	}
	result := newPage()
	for i := range letters {
		d := &letters[i]
		if j := jobs[d.Event.Entry.JobID]; j == nil || j.Deleted || j.Tenant != r.Tenant() {
			continue // nobody can redrive it, and its executions are hidden too
		}
		item := map[string]any{
			"execution_id": d.Event.Entry.ExecutionID, "job_id": d.Event.Entry.JobID, "reason": d.Reason,
			"attempts": d.Event.Entry.Attempt, "at": d.At, "last_attempt": newAttempt(&d.Event),
		}
		if d.RedrivenBy != "" {
			item["redriven_by"] = d.RedrivenBy
		}
		result.Items = append(result.Items, item)
	}
	if next != "" {
		result.NextCursor = &next
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// manyJobs reads the jobs of a page, in which a job may occur more than once. A page is no longer than GetMany accepts.
func (rs *Reads) manyJobs(ctx context.Context, ids []string) (map[string]*job.Job, error) {
	slices.Sort(ids)
	return rs.Jobs.GetMany(ctx, slices.Compact(ids))
}
