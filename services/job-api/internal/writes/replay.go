package writes

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// replayBody is a request to repeat the executions of a job in a range.
type replayBody struct {
	From          time.Time  `json:"from"`
	To            time.Time  `json:"to"`
	States        []string   `json:"states"`
	RatePerSecond form.Whole `json:"rate_per_second"`
	// Target is what is called instead of the job's target.
	Target *form.Recipient `json:"target"`
}

// replayJob makes an operation that repeats executions of a job. What it repeats shows as it goes on, so nothing but the history knows how many
// there are.
func (ws *Writes) replayJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	b := replayBody{RatePerSecond: 10, States: []string{string(job.EndSucceeded), string(job.EndDead)}}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	j, err := ws.deps.Reads.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	elsewhere, err := b.Target.Elsewhere()
	if err != nil {
		return edge.Response{}, err
	}
	if elsewhere != nil && r.By.Role < access.Editor {
		return edge.Response{}, problem.New(http.StatusForbidden, "forbidden", "A replay to another target needs the role editor, as a job's target does, and yours is "+r.By.Role.String()+".")
	}
	now := job.Instant(ws.deps.Clock.Now())
	turn, answered, err := ws.begin(ctx, r, "replayJob", r.Parameters["Idempotency-Key"], jobstore.Claim{ID: ws.newID("", now), DefinitionID: j.Definition.ID, AcceptedAt: now})
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	if j.Status == job.StatusCancelled {
		return edge.Response{}, cancelled()
	}
	if b.From, b.To, err = pastRange(b.From, b.To, turn.claim.AcceptedAt); err != nil {
		return edge.Response{}, err
	}
	return ws.beginOperation(ctx, r, &turn, operations.Operation{
		ID: job.OperationPrefix + turn.claim.ID, Type: operations.TypeReplay, JobID: j.ID, Status: operations.StatusRunning,
		DefinitionID: turn.claim.DefinitionID, From: b.From, To: b.To, Order: operations.NewestFirst,
		States: b.States, Elsewhere: elsewhere, Rate: int(b.RatePerSecond),
	})
}

// replayExecution repeats one execution, now. The request's ULID, kept under its idempotency key, and the execution name the new one, so a
// repeated request is the same execution.
func (ws *Writes) replayExecution(ctx context.Context, r *edge.Request) (edge.Response, error) {
	source, err := ws.deps.Reads.Execution(ctx, r, r.PathValue("execution_id"))
	if err != nil {
		return edge.Response{}, err
	}
	j, err := ws.deps.Reads.Find(ctx, r, source.JobID)
	if err != nil {
		return edge.Response{}, err
	}
	if source.Target != nil {
		return edge.Response{}, problem.New(http.StatusConflict, "went-elsewhere",
			"The execution went to another target than the job's, and its headers are not kept. Replay what it repeated: "+source.SourceID+".")
	}
	now := job.Instant(ws.deps.Clock.Now())
	turn, answered, err := ws.begin(ctx, r, "replayExecution", r.Parameters["Idempotency-Key"], jobstore.Claim{ID: ws.newID("", now), DefinitionID: j.Definition.ID, AcceptedAt: now})
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	if j.Status == job.StatusCancelled {
		return edge.Response{}, cancelled()
	}
	stands := source.NominalAt
	if source.Occurrence != nil {
		stands = *source.Occurrence
	}
	c := turn.claim
	e := job.Entry{
		Locator: job.Locator{
			Partition: bucket.Partition(j.ID, ws.cfg.Partitions), DueAt: c.AcceptedAt,
			ExecutionID: job.ReplayExecutionID(j.ID, c.ID, source.ExecutionID), Attempt: 1, DefinitionID: c.DefinitionID,
		},
		JobID: j.ID, Tenant: j.Tenant, Trigger: job.TriggerReplay, NominalAt: c.AcceptedAt, ScheduledFor: c.AcceptedAt,
		Note: &job.Note{Source: source.ExecutionID, Occurrence: stands},
	}
	j.Definition.Mark(&e)
	schedule.Localize(&e, &j.Definition.Schedule)
	return ws.execute(ctx, r, &turn, e)
}

// execute writes the entry of an execution that a request asked for, unless an earlier try of the request did, and answers the request.
func (ws *Writes) execute(ctx context.Context, r *edge.Request, t *turn, e job.Entry) (edge.Response, error) {
	there := false
	if t.again {
		// The request that first claimed the key left no stored answer, and may have come this far.
		var err error
		if there, err = ws.triggered(ctx, e); err != nil {
			return edge.Response{}, err
		}
	}
	if !there {
		if err := ws.putAll(ctx, r, []job.Entry{e}); err != nil {
			return edge.Response{}, err
		}
	}
	return t.finish(ctx, edge.Response{
		Status:  http.StatusAccepted,
		Headers: map[string]string{"Location": edge.Root + "/executions/" + e.ExecutionID},
		Body:    map[string]string{"execution_id": e.ExecutionID, "job_id": e.JobID},
	})
}
