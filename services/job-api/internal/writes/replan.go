package writes

import (
	"context"
	"encoding/json"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// replanJobs makes an operation that plans each job of the tenant whose next occurrence was planned by other time zone data than that of this
// process.
func (ws *Writes) replanJobs(ctx context.Context, r *edge.Request) (edge.Response, error) {
	b := struct {
		RatePerSecond form.Whole `json:"rate_per_second"`
	}{RatePerSecond: 10}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	now := job.Instant(ws.deps.Clock.Now())
	turn, answered, err := ws.begin(ctx, r, "replanJobs", r.Parameters["Idempotency-Key"], jobstore.Claim{ID: ws.newID("", now), AcceptedAt: now})
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	accepted := turn.claim.AcceptedAt
	return ws.beginOperation(ctx, r, &turn, operations.Operation{
		ID: job.OperationPrefix + turn.claim.ID, Type: operations.TypeReplan, Status: operations.StatusRunning,
		From: accepted, To: accepted, Order: operations.NewestFirst, Rate: int(b.RatePerSecond),
		TZData: schedule.TZDataVersion(),
	})
}
