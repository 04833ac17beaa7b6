package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
)

// maxRowsRead bounds the rows that one list call reads; a page may be short and still have a cursor.
const maxRowsRead = 5000

// jobBody is a job as the API shows it.
type jobBody struct {
	JobID        string     `json:"job_id"`
	Status       string     `json:"status"`
	DefinitionID string     `json:"definition_id"`
	NextRunAt    *time.Time `json:"next_run_at"`
	LastFiredAt  *time.Time `json:"last_fired_at"`
	PausedAt     *time.Time `json:"paused_at,omitempty"`
	CreatedAt    time.Time  `json:"created_at"`
	UpdatedAt    time.Time  `json:"updated_at"`
	definitionBody
}

// page is a page of anything.
type page struct {
	Items      []any   `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

func newPage() page { return page{Items: []any{}} }

func etag(j *job.Job) string { return `"` + strconv.FormatInt(j.Version, 10) + `"` }

func (s *Service) answerJob(ctx context.Context, status int, j *job.Job) (response, error) {
	body, err := s.show(ctx, j)
	if err != nil {
		return response{}, err
	}
	headers := map[string]string{"ETag": etag(j)}
	if status == http.StatusCreated {
		headers["Location"] = apiRoot + "/jobs/" + j.ID
	}
	return response{status: status, headers: headers, body: body}, nil
}

// show resolves what is derived: the next instant, when it fired last, and whether the schedule has ended.
func (s *Service) show(ctx context.Context, j *job.Job) (*jobBody, error) {
	body := &jobBody{
		JobID: j.ID, Status: string(j.Status), DefinitionID: j.Definition.ID, CreatedAt: j.CreatedAt,
		UpdatedAt: j.UpdatedAt, definitionBody: bodyOf(j),
	}
	now := time.Now()
	line, err := compile(j.ID, &j.Definition)
	if err != nil {
		return nil, err
	}
	next, more := line.NextRun(now)
	if more && j.Status == job.Active {
		at := line.Plan.ScheduledFor(next)
		body.NextRunAt = &at
	}
	if j.Status == job.Paused {
		body.PausedAt = maybe(j.PausedAt)
	}
	if j.Version == 1 && j.CreatedAt.Add(time.Second).After(now) && more {
		return body, nil // it is new: nothing can have happened
	}
	latest, err := s.executions(ctx, j.ID, jobstore.Position{}, recentEvents)
	if err != nil {
		return nil, err
	}
	pending := len(latest) == 0 && now.Sub(j.UpdatedAt) < jobstore.HistoryTTL
	for _, x := range latest {
		if body.LastFiredAt == nil && x.Timeline != nil {
			body.LastFiredAt = x.Timeline.Invoked
		}
		pending = pending || !x.ended()
	}
	if j.Status == job.Active && !more && !pending {
		body.Status = "completed"
	}
	return body, nil
}

// recentEvents is how far back a job's latest executions are looked at.
const recentEvents = 20

func (s *Service) getJob(ctx context.Context, r *request) (response, error) {
	j, err := s.deps.Jobs.Get(ctx, r.PathValue("id"))
	if err != nil {
		return response{}, err
	}
	if j.Deleted {
		return response{}, jobstore.ErrNotFound
	}
	return s.answerJob(ctx, http.StatusOK, &j)
}

func (s *Service) listJobs(ctx context.Context, r *request) (response, error) {
	result := newPage()
	cursor := r.parameters["cursor"]
	if cursor != "" && !job.ValidID(cursor, job.JobPrefix) {
		return response{}, badCursor()
	}
	for read := 0; read < maxRowsRead && len(result.Items) < r.limit(); {
		want := r.limit() - len(result.Items)
		rows, next, err := s.deps.Jobs.List(ctx, tenant(r.Request), cursor, want)
		if err != nil {
			return response{}, err
		}
		for i := range rows {
			if rows[i].Deleted {
				continue
			}
			body, err := s.show(ctx, &rows[i])
			if err != nil {
				return response{}, err
			}
			result.Items = append(result.Items, body)
		}
		read += len(rows)
		cursor = next
		if next == "" {
			break
		}
	}
	if cursor != "" {
		result.NextCursor = &cursor
	}
	return response{status: http.StatusOK, body: result}, nil
}

func badCursor() *problem.Problem {
	return problem.New(http.StatusBadRequest, "invalid-parameter", "The cursor is not one of a page before.",
		problem.Fault{Pointer: "/query/cursor", Code: "cursor", Message: "Use the next_cursor of the page before."})
}

func (s *Service) listExecutions(ctx context.Context, r *request) (response, error) {
	jobID := r.PathValue("id")
	j, err := s.deps.Jobs.Get(ctx, jobID)
	if err != nil {
		return response{}, err
	}
	if j.Deleted {
		return response{}, jobstore.ErrNotFound
	}
	before, ok := parsePosition(r.parameters["cursor"])
	if !ok {
		return response{}, badCursor()
	}
	executions, err := s.executions(ctx, jobID, before, maxRowsRead)
	if err != nil {
		return response{}, err
	}
	result := newPage()
	for i := range executions {
		if i == r.limit() {
			cursor := executions[i-1].position()
			result.NextCursor = &cursor
			break
		}
		result.Items = append(result.Items, executions[i])
	}
	return response{status: http.StatusOK, body: result}, nil
}

func parsePosition(cursor string) (jobstore.Position, bool) {
	if cursor == "" {
		return jobstore.Position{}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return jobstore.Position{}, false
	}
	ms, id, ok := strings.Cut(string(text), " ")
	at, err := strconv.ParseInt(ms, 10, 53)
	if _, bad := job.ParseExecutionID(id); !ok || err != nil || bad != nil || at < 0 {
		return jobstore.Position{}, false
	}
	return jobstore.Position{NominalAt: time.UnixMilli(at).UTC(), ExecutionID: id}, true
}

func (s *Service) getExecution(ctx context.Context, r *request) (response, error) {
	id := r.PathValue("execution_id")
	ref, err := job.ParseExecutionID(id)
	if err != nil {
		return response{}, notFound()
	}
	j, err := s.deps.Jobs.Get(ctx, ref.JobID)
	if err != nil {
		return response{}, err
	}
	if j.Deleted {
		return response{}, jobstore.ErrNotFound
	}
	events, err := s.deps.History.Execution(ctx, id)
	if err != nil {
		return response{}, err
	}
	x := group(events)
	if len(x) == 0 {
		pending, err := s.pending(ctx, &j, id, ref)
		if err != nil {
			return response{}, err
		}
		return response{status: http.StatusOK, body: pending}, nil
	}
	if err := s.underWay(ctx, x[0]); err != nil {
		return response{}, err
	}
	return response{status: http.StatusOK, body: x[0]}, nil
}

func (s *Service) listDeadLetters(ctx context.Context, r *request) (response, error) {
	cursor := r.parameters["cursor"]
	letters, next, err := s.deps.History.DeadLetters(ctx, tenant(r.Request), cursor, r.limit())
	if err != nil {
		if cursor != "" && isNotFound(err) {
			return response{}, badCursor()
		}
		return response{}, err
	}
	result := newPage()
	for i := range letters {
		d := &letters[i]
		result.Items = append(result.Items, map[string]any{
			"execution_id": d.Event.Entry.ExecutionID, "job_id": d.Event.Entry.JobID, "reason": d.Reason,
			"attempts": d.Event.Entry.Attempt, "at": d.At, "last_attempt": newAttempt(&d.Event),
		})
	}
	if next != "" {
		result.NextCursor = &next
	}
	return response{status: http.StatusOK, body: result}, nil
}
