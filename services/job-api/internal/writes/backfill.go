package writes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// backfillBody is a request to execute a job for the instants of its schedule in a range.
type backfillBody struct {
	From          time.Time        `json:"from"`
	To            time.Time        `json:"to"`
	RatePerSecond form.Whole       `json:"rate_per_second"`
	Order         operations.Order `json:"order"`
	DryRun        bool             `json:"dry_run"`
}

// dryRun is what a backfill would do.
type dryRun struct {
	Total int       `json:"total"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Takes string    `json:"takes"`
}

// backfillJob makes an operation that executes a job for each instant of its schedule in a range. The request's claim decides about the
// operation's id, its definition and when it was accepted, so a request that is repeated under its key is the same operation.
func (ws *Writes) backfillJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	b := backfillBody{RatePerSecond: 10, Order: operations.OldestFirst}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	j, err := ws.deps.Reads.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	now := job.Instant(ws.deps.Clock.Now())
	claim := jobstore.Claim{ID: ws.newID("", now), DefinitionID: j.Definition.ID, AcceptedAt: now}
	turn := turn{claim: claim}
	if !b.DryRun {
		var answered *edge.Response
		if turn, answered, err = ws.begin(ctx, r, "backfillJob", r.Parameters["Idempotency-Key"], claim); err != nil {
			return edge.Response{}, err
		}
		if answered != nil {
			return *answered, nil
		}
	}
	if j.Status == job.StatusCancelled {
		return edge.Response{}, cancelled()
	}
	planned, err := ws.planned(ctx, &j, &b, turn.claim)
	if err != nil {
		return edge.Response{}, err
	}
	if b.DryRun {
		return edge.Response{Status: http.StatusOK, Body: planned}, nil
	}
	o := operations.Operation{
		ID: job.OperationPrefix + turn.claim.ID, Type: operations.TypeBackfill, JobID: j.ID, Status: operations.StatusRunning,
		DefinitionID: turn.claim.DefinitionID, From: b.From, To: b.To, Order: b.Order,
		Rate: int(b.RatePerSecond), Total: planned.Total,
	}
	return ws.beginOperation(ctx, r, &turn, o)
}

// planned returns what a backfill is about to do, or what is wrong with it. It puts the range of the operation in the place of the one asked for.
func (ws *Writes) planned(ctx context.Context, j *job.Job, b *backfillBody, c jobstore.Claim) (p dryRun, err error) {
	if b.From, b.To, err = pastRange(b.From, b.To, c.AcceptedAt); err != nil {
		return p, err
	}
	d := &j.Definition
	if c.DefinitionID != d.ID {
		superseded, _, err := ws.deps.Jobs.Definition(ctx, j.ID, c.DefinitionID)
		if err != nil {
			return p, fmt.Errorf("read definition %s: %w", c.DefinitionID, err)
		}
		d = &superseded
	}
	series, err := form.Compile(j.ID, d)
	if err != nil {
		return p, err
	}
	if p.Total = series.Plan.Count(b.From, b.To, operations.MaxTotal+1); p.Total == 0 {
		return p, fault("/from", "nothing", "The schedule names no instant from here to the end of the range; ask /schedules/preview which it names.")
	}
	if p.Total > operations.MaxTotal {
		return p, fault("/to", "too-many", fmt.Sprintf("More than %d instants lie in the range; make several of it.", operations.MaxTotal))
	}
	p.First, _ = series.Plan.First(b.From)
	p.Last, _ = series.Plan.Prev(b.To)
	p.Takes = (time.Duration(p.Total) * time.Second / time.Duration(b.RatePerSecond)).Round(time.Second).String()
	return p, nil
}

// fault returns the problem of one member of a body.
func fault(pointer, code, message string) error {
	return edge.Invalid([]problem.Fault{{Pointer: pointer, Code: code, Message: message}})
}

// pastRange returns the range of an operation, in which the same instants lie as in the one that was asked for, or what is wrong with that. It ends
// when the request was accepted, at the latest: from then on the operation's own executions lie in the history.
func pastRange(from, to, accepted time.Time) (begin, end time.Time, err error) {
	begin, end = job.Bound(from), job.Bound(to)
	ahead := job.Instant(to).After(accepted) // not the rest of the millisecond in which it was accepted
	if end.After(accepted) && !ahead {
		end = accepted
	}
	switch {
	case !begin.Before(end):
		return begin, end, fault("/to", "before-from", "Must be later than from.")
	case ahead:
		return begin, end, fault("/to", "ahead", "Lies ahead; what is ahead is executed by the schedule itself. Give an instant that is past.")
	}
	return begin, end, nil
}

// beginOperation stores an operation of a request, and answers the request.
func (ws *Writes) beginOperation(ctx context.Context, r *edge.Request, t *turn, o operations.Operation) (edge.Response, error) {
	o.By, o.CreatedAt, o.UpdatedAt, o.DueAt = r.Author(), t.claim.AcceptedAt, t.claim.AcceptedAt, t.claim.AcceptedAt
	o, err := ws.deps.Reads.Bulk.Create(ctx, r.Tenant(), o, ws.operationEdit(r))
	if errors.Is(err, operations.ErrTooMany) {
		return edge.Response{}, problem.New(http.StatusConflict, "too-many-operations", fmt.Sprintf(
			"Too many operations have not ended, %d of a tenant or those of %d tenants; wait for one of them, or cancel it.", operations.MaxUnfinished, operations.MaxTenants))
	}
	if err != nil {
		return edge.Response{}, err
	}
	return t.finish(ctx, edge.Response{
		Status: http.StatusAccepted, Headers: map[string]string{"Location": edge.Root + "/operations/" + o.ID}, Body: reads.Operation(&o),
	})
}

func (ws *Writes) operationEdit(r *edge.Request) operations.Edit {
	return operations.Edit{Operation: r.Operation, By: r.Author()}
}
