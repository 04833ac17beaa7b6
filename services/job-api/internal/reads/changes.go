package reads

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// change is a change as answers show it.
type change struct {
	ID        string    `json:"change_id"`
	At        time.Time `json:"at"`
	Operation string    `json:"operation"`
	Object    string    `json:"object,omitempty"`
	Version   int64     `json:"version,omitempty"`
	By        string    `json:"by"`
	Role      string    `json:"role"`
	RequestID string    `json:"request_id,omitempty"`
	Source    string    `json:"source,omitempty"`
}

// listJobChanges shows a page of what was done to a job, the newest first.
func (rs *Reads) listJobChanges(ctx context.Context, r *edge.Request) (edge.Response, error) {
	jobID := r.PathValue("id")
	if _, err := rs.Find(ctx, r, jobID); err != nil {
		return edge.Response{}, err
	}
	return rs.changes(ctx, r, jobID)
}

// listChanges shows a page of what was done to a tenant's keys and holds, or to the installation, the newest first.
func (rs *Reads) listChanges(ctx context.Context, r *edge.Request) (edge.Response, error) {
	if r.Parameters["installation"] != "true" {
		return rs.changes(ctx, r, job.SettingsOf(r.Tenant()))
	}
	if !r.By.Installation || r.By.Chosen {
		return edge.Response{}, problem.New(http.StatusForbidden, "forbidden",
			"Only an admin of the installation has to do with its changes, and names no tenant then.")
	}
	return rs.changes(ctx, r, job.InstallationSettings())
}

// changes shows a page of the changes of a job, or of what stands in its place.
func (rs *Reads) changes(ctx context.Context, r *edge.Request, jobID string) (edge.Response, error) {
	before, ok := parsePosition(r.Parameters["cursor"])
	if !ok {
		return edge.Response{}, edge.BadCursor()
	}
	events, err := rs.History.Executions(ctx, jobstore.Of{ID: job.ChangesOf(jobID)}, before, rs.Clock.Now().Add(-jobstore.HistoryTTL), r.Limit())
	if err != nil {
		return edge.Response{}, fmt.Errorf("read changes of %s: %w", jobID, err)
	}
	result := newPage()
	for i := range events {
		if c := events[i].Entry.Change; c != nil && events[i].Entry.By != nil {
			result.Items = append(result.Items, changeOf(&events[i].Entry))
		}
	}
	if n := len(events); n > 0 && n == r.Limit() {
		last := &events[n-1].Entry
		cursor := position(last.NominalAt, last.ExecutionID)
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

func changeOf(e *job.Entry) change {
	return change{
		ID: e.ExecutionID, At: e.NominalAt, Operation: e.Change.Operation, Object: e.Change.Object, Version: e.Change.Version,
		By: e.By.Subject, Role: e.By.Role, RequestID: e.By.Request, Source: e.By.Source,
	}
}
