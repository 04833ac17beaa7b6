package reads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// incident is an incident as answers show it.
type incident struct {
	ID         string             `json:"incident_id"`
	Status     string             `json:"status"`
	JobID      string             `json:"job_id"`
	JobName    string             `json:"job_name"`
	Owner      string             `json:"owner,omitempty"`
	Deadline   incidents.Deadline `json:"deadline"`
	Within     json.Marshaler     `json:"within"`
	Cause      incidents.Cause    `json:"cause"`
	Reason     string             `json:"reason"`
	FirstAt    time.Time          `json:"first_at"`
	LastAt     time.Time          `json:"last_at"`
	Missed     int                `json:"missed"`
	DeadlineAt time.Time          `json:"deadline_at"`
	NoticedAt  time.Time          `json:"noticed_at"`
	ClosedAt   *time.Time         `json:"closed_at,omitempty"`
	Closed     string             `json:"closed,omitempty"`
}

func showIncident(i *incidents.Incident) incident {
	shown := incident{
		ID: i.ID, Status: "open", JobID: i.JobID, JobName: i.JobName, Owner: i.Owner, Deadline: i.Deadline, Within: form.Duration(i.Within), Cause: i.Cause,
		Reason: i.Reason, FirstAt: i.First, LastAt: i.Last, Missed: i.Missed, DeadlineAt: i.DeadlineAt, NoticedAt: i.NoticedAt,
		ClosedAt: form.Instant(i.ClosedAt), Closed: i.Closed,
	}
	if !i.ClosedAt.IsZero() {
		shown.Status = "closed"
	}
	return shown
}

// listIncidents shows a page of a tenant's incidents, without those of jobs that are deleted.
func (rs *Reads) listIncidents(ctx context.Context, r *edge.Request) (edge.Response, error) {
	of, err := rs.filteredJob(ctx, r)
	if err != nil {
		return edge.Response{}, err
	}
	store, cursor, now := incidents.Store{Lists: rs.Settings}, r.Parameters["cursor"], rs.Clock.Now()
	result := newPage()
	for read := 0; read < maxRowsRead && len(result.Items) < r.Limit(); {
		n := min(r.Limit(), maxRowsRead-read)
		list, next, err := store.List(ctx, r.Tenant(), cursor, now, n)
		if errors.Is(err, incidents.ErrBadCursor) {
			return edge.Response{}, edge.BadCursor()
		}
		if err != nil {
			return edge.Response{}, err
		}
		read += n
		ids := make([]string, len(list))
		for i := range list {
			ids[i] = list[i].JobID
		}
		jobs, err := rs.manyJobs(ctx, ids)
		if err != nil {
			return edge.Response{}, fmt.Errorf("read the jobs of %d incidents: %w", len(list), err)
		}
		for i := range list {
			if len(result.Items) == r.Limit() { // the page ends before what was read
				next = cursor
				break
			}
			cursor = list[i].ID
			shown := showIncident(&list[i])
			if j := jobs[shown.JobID]; j == nil || j.Deleted || j.Tenant != r.Tenant() || !wanted(r.Parameters["status"], of, &shown) {
				continue
			}
			result.Items = append(result.Items, shown)
		}
		if next == "" {
			return edge.Response{Status: http.StatusOK, Body: result}, nil
		}
	}
	result.NextCursor = &cursor
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

// wanted reports whether an incident has a status and is of a job; the empty text stands for any.
func wanted(status, of string, i *incident) bool {
	return (status == "" || status == i.Status) && (of == "" || of == i.JobID)
}
