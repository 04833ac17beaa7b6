package reads

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// previewSchedule shows the next occurrences of a schedule without creating anything.
func (rs *Reads) previewSchedule(ctx context.Context, r *edge.Request) (edge.Response, error) {
	var b struct {
		form.Schedule
		After *time.Time `json:"after"`
		Count form.Whole `json:"count"`
		JobID string     `json:"job_id"`
	}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	now := job.Instant(rs.Clock.Now())
	sched, err := b.Parse(now)
	if err != nil {
		return edge.Response{}, err
	}
	if b.JobID, err = rs.JobID(ctx, r, b.JobID, "/job_id"); err != nil {
		return edge.Response{}, err
	}
	plan, err := schedule.Compile(sched, b.JobID)
	if err != nil {
		return edge.Response{}, err
	}
	description, err := schedule.Describe(sched, b.JobID)
	if err != nil {
		return edge.Response{}, err
	}
	after := now
	if b.After != nil {
		after = job.Instant(*b.After)
	}
	if b.Count == 0 {
		b.Count = 10
	}
	if sched.MaxOccurrences > 0 {
		b.Count = min(b.Count, form.Whole(sched.MaxOccurrences))
	}
	occurrences := []map[string]string{}
	for _, o := range plan.Preview(after, int(b.Count)) {
		shown := map[string]string{}
		at := o.At
		if b.JobID != "" { // jitter and spread follow from it
			at = plan.ScheduledFor(o.At)
		}
		if !at.Equal(o.At) {
			shown["occurrence"] = o.At.Format(time.RFC3339Nano)
		}
		shown["scheduled_for"], shown["local"] = at.Format(time.RFC3339Nano), at.In(o.Local.Location()).Format(time.RFC3339Nano)
		if o.Note != "" {
			shown["note"] = o.Note
		}
		occurrences = append(occurrences, shown)
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{
		"description": description, "occurrences": occurrences,
	}}, nil
}
