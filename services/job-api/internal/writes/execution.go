package writes

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// cancelExecution stops one execution. The job's row names the execution, and so does the stop record, so no attempt of it
// begins after the answer. An executor that runs it sees the stop record within a second.
func (ws *Writes) cancelExecution(ctx context.Context, r *edge.Request) (edge.Response, error) {
	id := r.PathValue("execution_id")
	x, err := ws.deps.Reads.Execution(ctx, r, id)
	if err != nil {
		return edge.Response{}, err
	}
	now := job.Instant(ws.deps.Clock.Now())
	if !x.Ended() || now.Sub(x.LastEnd()) < endedFor {
		edit := ws.edit(r, func(_ context.Context, j *job.Job) error {
			stopped := recent(j.StoppedExecutions, now)
			full := len(stopped) >= job.MaxStoppedExecutions
			if j.State().Stops(id) || full && x.Ended() {
				return jobchange.ErrNoChange
			}
			if full {
				return problem.New(http.StatusConflict, "too-many-cancelled-executions",
					"The job remembers 100 cancelled executions of the last 60 days; pause or cancel the job instead.")
			}
			j.StoppedExecutions = append(stopped, id)
			j.UpdatedAt = now
			return nil
		})
		edit.Object = id
		j, err := ws.change.Change(ctx, r.Tenant(), x.JobID, edit)
		if err != nil {
			return edge.Response{}, fmt.Errorf("cancel execution %s: %w", id, err)
		}
		if err := ws.hold(ctx, &j); err != nil {
			return edge.Response{}, err
		}
		x.Cancelling = !x.Ended()
	}
	return edge.Response{Status: http.StatusAccepted, Body: x}, nil
}

// endedFor is how long ago an execution must have ended so that nothing need stop it any more. Before that, an executor
// that stalled and lost its lease with the hot tier may still give an attempt another outcome than the one on record, and
// that outcome is retried.
const endedFor = attempts.Retention

// recent leaves out the executions of which no attempt can come any more: a retry window is 30 days at most.
func recent(executionIDs []string, now time.Time) []string {
	var kept []string
	for _, id := range executionIDs {
		if ref, err := job.ParseExecutionID(id); err == nil && now.Sub(ref.NominalAt) < 2*jobstore.HistoryTTL {
			kept = append(kept, id)
		}
	}
	return kept
}
