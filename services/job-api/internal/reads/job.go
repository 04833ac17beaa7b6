package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// Job is a job as answers show it.
type Job struct {
	JobID        string     `json:"job_id"`
	Status       string     `json:"status"`
	DefinitionID string     `json:"definition_id"`
	EffectiveAt  time.Time  `json:"effective_at"`
	NextRunAt    *time.Time `json:"next_run_at"`
	LastFiredAt  *time.Time `json:"last_fired_at"`
	PausedAt     *time.Time `json:"paused_at,omitempty"`
	CreatedAt    time.Time  `json:"created_at"`
	UpdatedAt    time.Time  `json:"updated_at"`
	form.Job
	Warnings []Warning `json:"warnings,omitempty"`
}

// Warning is told with a job that was created although something about it may not be meant.
type Warning struct {
	Code    string `json:"code"`
	Pointer string `json:"pointer"`
	Message string `json:"message"`
	// Offset is by how many minutes to move the schedule to a calmer one.
	Offset int64 `json:"offset_minutes,omitempty"`
}

// Answer returns the answer that shows a job, with the headers that belong to it and to the status.
func (rs *Reads) Answer(ctx context.Context, status int, j *job.Job) (edge.Response, error) {
	body, err := rs.Show(ctx, j)
	if err != nil {
		return edge.Response{}, err
	}
	headers := map[string]string{"ETag": form.ETag(j)}
	if status == http.StatusCreated {
		headers["Location"] = edge.Root + "/jobs/" + j.ID
	}
	return edge.Response{Status: status, Headers: headers, Body: body}, nil
}

// Show returns a job with what is derived: the next instant, when it last fired, and whether its schedule has ended.
func (rs *Reads) Show(ctx context.Context, j *job.Job) (*Job, error) {
	series, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return nil, err
	}
	return rs.ShowSeries(ctx, j, series)
}

// ShowSeries is Show for a caller that has the series of the job's definition.
func (rs *Reads) ShowSeries(ctx context.Context, j *job.Job, series *occurrence.Series) (*Job, error) {
	body := &Job{
		JobID: j.ID, Status: string(j.Status), DefinitionID: j.Definition.ID, EffectiveAt: j.Definition.EffectiveAt, CreatedAt: j.CreatedAt,
		UpdatedAt: j.UpdatedAt, Job: form.Of(j),
	}
	now := rs.Clock.Now()
	next, more := series.NextRun(now)
	if more && j.Status == job.StatusActive {
		at := series.Plan.ScheduledFor(next)
		body.NextRunAt = &at
	}
	if j.Status == job.StatusPaused {
		body.PausedAt = form.Instant(j.PausedAt)
	}
	if j.Version == 1 && j.CreatedAt.Add(time.Second).After(now) && more {
		return body, nil // it is new: nothing can have happened
	}
	// Its history is no older than the job, except for an instant that lay in the past when the job was created.
	oldest := job.Later(now.Add(-jobstore.HistoryTTL), j.CreatedAt.Add(-j.Definition.CatchUpWindow-clock.MaxDifference))
	latest, _, _, err := rs.executions(ctx, j, jobstore.Cursor{}, oldest, recentEvents)
	if err != nil {
		return nil, err
	}
	pending := len(latest) == 0 && now.Sub(j.UpdatedAt) < jobstore.HistoryTTL
	for _, x := range latest {
		if body.LastFiredAt == nil && x.Timeline != nil {
			body.LastFiredAt = x.Timeline.Invoked
		}
		pending = pending || !x.Ended()
	}
	if j.Status == job.StatusActive && !more && !pending && j.Definition.Schedule.Type != job.ScheduleAfter {
		body.Status = "completed"
	}
	return body, nil
}

// recentEvents is how many events back a job's latest executions are looked up.
const recentEvents = 20

// Find returns the row of a job of the request's tenant. It fails with jobstore.ErrNotFound if there is none, or if the job is
// deleted.
func (rs *Reads) Find(ctx context.Context, r *edge.Request, jobID string) (job.Job, error) {
	j, err := rs.Jobs.Get(ctx, jobID)
	if err == nil && (j.Deleted || j.Tenant != r.Tenant()) {
		err = jobstore.ErrNotFound
	}
	if err != nil {
		return job.Job{}, fmt.Errorf("read job %s: %w", jobID, err)
	}
	return j, nil
}

// JobID returns the id of the job that a member of a body refers to. If no job has the key, that is told at the pointer.
func (rs *Reads) JobID(ctx context.Context, r *edge.Request, reference, pointer string) (string, error) {
	key, ok := edge.KeyIn(reference)
	if !ok {
		return reference, nil
	}
	id, err := rs.Jobs.JobOfKey(ctx, r.Tenant(), key)
	if err == nil {
		_, err = rs.Find(ctx, r, id)
	}
	if errors.Is(err, jobstore.ErrNotFound) {
		return "", edge.Invalid([]problem.Fault{{Pointer: pointer, Code: "not-found", Message: "No job has this key; check its spelling."}})
	}
	if err != nil {
		return "", fmt.Errorf("find the job of a key: %w", err)
	}
	return id, nil
}

// filteredJob returns the id of the job to which the parameter job_id narrows a list; the empty text if there is none.
func (rs *Reads) filteredJob(ctx context.Context, r *edge.Request) (string, error) {
	id, err := rs.JobID(ctx, r, r.Parameters["job_id"], "/query/job_id")
	var p *problem.Problem
	if errors.As(err, &p) && len(p.Errors) > 0 {
		return "", edge.BadParameter("There is no job to narrow the list to.", p.Errors[0])
	}
	return id, err
}

// getJob shows a job.
func (rs *Reads) getJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := rs.Find(ctx, r, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	return rs.Answer(ctx, http.StatusOK, &j)
}
