package reads

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// operation is an operation as answers show it.
type operation struct {
	ID           string            `json:"operation_id"`
	Type         operations.Type   `json:"type"`
	JobID        string            `json:"job_id,omitempty"`
	DefinitionID string            `json:"definition_id,omitempty"`
	Status       operations.Status `json:"status"`
	Reason       string            `json:"reason,omitempty"`
	From         time.Time         `json:"from"`
	To           time.Time         `json:"to"`
	States       []string          `json:"states,omitempty"`
	GivenUpFor   string            `json:"given_up_for,omitempty"`
	Target       *form.Recipient   `json:"target,omitempty"`
	TZData       string            `json:"tzdata,omitempty"`
	Order        operations.Order  `json:"order"`
	Rate         int               `json:"rate_per_second"`
	Total        *int              `json:"total,omitempty"`
	HandedOut    int               `json:"handed_out"`
	RequestedBy  string            `json:"requested_by"`
	RequestID    string            `json:"request_id,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
	EndedAt      *time.Time        `json:"ended_at,omitempty"`
}

// Operation returns an operation as answers show it.
func Operation(o *operations.Operation) any {
	shown := operation{
		ID: o.ID, Type: o.Type, JobID: o.JobID, DefinitionID: o.DefinitionID, Status: o.Status, Reason: o.Reason, From: o.From, To: o.To,
		States: o.States, GivenUpFor: o.GivenUpFor, Target: form.RecipientOf(o.Elsewhere), TZData: o.TZData, Order: o.Order, Rate: o.Rate, HandedOut: o.HandedOut, RequestedBy: o.By.Subject, RequestID: o.By.Request,
		CreatedAt: o.CreatedAt, UpdatedAt: o.UpdatedAt, EndedAt: form.Instant(o.EndedAt),
	}
	if o.Type == operations.TypeBackfill {
		shown.Total = &o.Total
	}
	return shown
}

// getOperation shows an operation.
func (rs *Reads) getOperation(ctx context.Context, r *edge.Request) (edge.Response, error) {
	o, err := rs.Bulk.Get(ctx, r.Tenant(), r.PathValue("operation_id"))
	if errors.Is(err, operations.ErrNotFound) {
		return edge.Response{}, jobstore.ErrNotFound
	}
	if err != nil {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusOK, Body: Operation(&o)}, nil
}

// listOperations shows the operations of a tenant, the newest first.
func (rs *Reads) listOperations(ctx context.Context, r *edge.Request) (edge.Response, error) {
	book, _, err := rs.Bulk.Read(ctx, r.Tenant())
	if err != nil {
		return edge.Response{}, err
	}
	list := make([]any, len(book.Operations))
	for n := range list {
		list[n] = Operation(&book.Operations[n])
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{"items": list}}, nil
}
