package writes

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// pauseJob pauses a job; a paused job stays as it is.
func (ws *Writes) pauseJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	if err := ws.mustStand(ctx, r); err != nil {
		return edge.Response{}, err
	}
	j, err := ws.change.Pause(ctx, r.Tenant(), r.PathValue("id"), r.Author())
	if errors.Is(err, jobchange.ErrCancelled) {
		return edge.Response{}, cancelled()
	}
	if err != nil {
		return edge.Response{}, fmt.Errorf("pause job %s: %w", r.PathValue("id"), err)
	}
	return ws.answerChange(ctx, &j)
}

// mustStand refuses a job that is gone or cancelled.
func (ws *Writes) mustStand(ctx context.Context, r *edge.Request) error {
	j, err := ws.deps.Reads.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return err
	}
	if j.Status == job.StatusCancelled {
		return cancelled()
	}
	return nil
}

// cancelJob stops a job for good.
func (ws *Writes) cancelJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := ws.cancel(ctx, r, false)
	if err != nil {
		return edge.Response{}, err
	}
	if j.Deleted {
		return edge.Response{}, jobstore.ErrNotFound
	}
	return ws.answerChange(ctx, &j)
}

// deleteJob stops a job for good and hides it.
func (ws *Writes) deleteJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := ws.cancel(ctx, r, true)
	if err == nil {
		err = ws.hold(ctx, &j)
	}
	if err == nil && (j.Followed || j.Definition.Schedule.Type == job.ScheduleAfter) {
		if err := ws.dependents().Forget(ctx, j.ID); err != nil { // what is left means nothing
			ws.deps.Logger.Warn("what is kept of a deleted job that is followed, or follows others, stays", "job_id", j.ID, "error", err)
		}
	}
	return edge.Response{Status: http.StatusNoContent}, err
}

// cancel stops a job for good; with hide it also disappears from reads.
func (ws *Writes) cancel(ctx context.Context, r *edge.Request, hide bool) (jobchange.Changed, error) {
	jobID := r.PathValue("id")
	changed, err := ws.change.Change(ctx, r.Tenant(), jobID, ws.edit(r, func(_ context.Context, j *job.Job) error {
		return jobchange.Cancel(j, job.Instant(ws.deps.Clock.Now()), hide)
	}))
	if err != nil {
		return jobchange.Changed{}, fmt.Errorf("cancel job %s: %w", jobID, err)
	}
	return changed, nil
}

// cancelled returns the answer to a change of a cancelled job.
func cancelled() *problem.Problem {
	return problem.New(http.StatusConflict, "cancelled", "The job is cancelled, which is final; create a new one.")
}
