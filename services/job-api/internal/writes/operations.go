package writes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// pauseOperation lets an operation hand out nothing more until it is resumed.
func (ws *Writes) pauseOperation(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.changeOperation(ctx, r, func(o *operations.Operation) error {
		if o.Status == operations.StatusPaused {
			return operations.ErrNoChange
		}
		o.Status = operations.StatusPaused
		return nil
	})
}

// resumeOperation lets an operation go on, at another rate if the request has one.
func (ws *Writes) resumeOperation(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var b struct {
		RatePerSecond form.Whole `json:"rate_per_second"`
	}
	if len(r.Raw) > 0 {
		if err := json.Unmarshal(r.Raw, &b); err != nil {
			return edge.Response{}, edge.OutOfRange()
		}
	}
	return ws.changeOperation(ctx, r, func(o *operations.Operation) error {
		rate := int(b.RatePerSecond)
		if rate == 0 {
			rate = o.Rate
		}
		if o.Status == operations.StatusRunning && o.Rate == rate {
			return operations.ErrNoChange
		}
		o.Status, o.Rate = operations.StatusRunning, rate
		return nil
	})
}

// cancelOperation ends an operation.
func (ws *Writes) cancelOperation(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.changeOperation(ctx, r, func(o *operations.Operation) error {
		o.End(operations.StatusCancelled, "", job.Instant(ws.deps.Clock.Now()))
		return nil
	})
}

// changeOperation changes an operation that has not ended. To cancel one that was cancelled changes nothing.
func (ws *Writes) changeOperation(ctx context.Context, r *edge.Request, change func(o *operations.Operation) error) (edge.Response, error) {
	o, err := ws.deps.Reads.Bulk.Change(ctx, r.Tenant(), r.PathValue("operation_id"), ws.operationEdit(r), func(o *operations.Operation) error {
		switch {
		case o.Status == operations.StatusCancelled && r.Operation == "cancelOperation":
			return operations.ErrNoChange
		case o.Ended():
			return operations.ErrEnded
		}
		if err := change(o); err != nil {
			return err
		}
		o.UpdatedAt = job.Instant(ws.deps.Clock.Now())
		return nil
	})
	switch {
	case errors.Is(err, operations.ErrNotFound):
		return edge.Response{}, jobstore.ErrNotFound
	case errors.Is(err, operations.ErrEnded):
		return edge.Response{}, problem.New(http.StatusConflict, "ended", "The operation has ended; begin another one.")
	case err != nil:
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusOK, Body: reads.Operation(&o)}, nil
}
