package jobapi

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/lifecycle"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// maxRowsRead bounds the rows that one list call reads; a page may be short and still have a cursor.
const maxRowsRead = 5000

// jobBody is a job as the API shows it.
type jobBody struct {
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
}

// page is a page of anything.
type page struct {
	Items      []any   `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

func newPage() page { return page{Items: []any{}} }

func (s *Service) answerJob(ctx context.Context, status int, j *job.Job) (edge.Response, error) {
	body, err := s.show(ctx, j)
	if err != nil {
		return edge.Response{}, err
	}
	headers := map[string]string{"ETag": form.ETag(j)}
	if status == http.StatusCreated {
		headers["Location"] = edge.Root + "/jobs/" + j.ID
	}
	return edge.Response{Status: status, Headers: headers, Body: body}, nil
}

// show resolves what is derived: the next instant, when it fired last, and whether the schedule has ended.
func (s *Service) show(ctx context.Context, j *job.Job) (*jobBody, error) {
	line, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return nil, err
	}
	return s.showLine(ctx, j, line)
}

func (s *Service) showLine(ctx context.Context, j *job.Job, line *occurrence.Line) (*jobBody, error) {
	body := &jobBody{
		JobID: j.ID, Status: string(j.Status), DefinitionID: j.Definition.ID, EffectiveAt: j.Definition.EffectiveAt, CreatedAt: j.CreatedAt,
		UpdatedAt: j.UpdatedAt, Job: form.Of(j),
	}
	now := s.deps.Clock.Now()
	next, more := line.NextRun(now)
	if more && j.Status == job.StatusActive {
		at := line.Plan.ScheduledFor(next)
		body.NextRunAt = &at
	}
	if j.Status == job.StatusPaused {
		body.PausedAt = form.Instant(j.PausedAt)
	}
	if j.Version == 1 && j.CreatedAt.Add(time.Second).After(now) && more {
		return body, nil // it is new: nothing can have happened
	}
	// Nothing of it is older than the job, but for an instant that lay in the past when the job was made.
	oldest := job.Later(now.Add(-jobstore.HistoryTTL), j.CreatedAt.Add(-j.Definition.CatchUpWindow-clock.MaxDifference))
	latest, _, err := s.executions(ctx, j.ID, jobstore.Position{}, oldest, recentEvents)
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
	if j.Status == job.StatusActive && !more && !pending {
		body.Status = "completed"
	}
	return body, nil
}

// recentEvents is how far back a job's latest executions are looked at.
const recentEvents = 20

func (s *Service) getJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := s.deps.Jobs.Get(ctx, r.PathValue("id"))
	if err != nil {
		return edge.Response{}, err
	}
	if j.Deleted {
		return edge.Response{}, jobstore.ErrNotFound
	}
	return s.answerJob(ctx, http.StatusOK, &j)
}

func (s *Service) listJobs(ctx context.Context, r *edge.Request) (edge.Response, error) {
	result := newPage()
	cursor := r.Parameters["cursor"]
	if cursor != "" && !job.ValidID(cursor, job.JobPrefix) {
		return edge.Response{}, badCursor()
	}
	size, weight, read, chunk := 0, 0, 0, firstChunk
	for more := true; more && read < maxRowsRead && len(result.Items) < r.Limit() && size < maxPageBytes; {
		rows, next, err := s.deps.Jobs.List(ctx, r.Tenant(), cursor, min(r.Limit()-len(result.Items), chunk))
		if err != nil {
			return edge.Response{}, err
		}
		shown, err := s.showAll(ctx, rows, r.Parameters["status"], r.Parameters["label"])
		if err != nil {
			return edge.Response{}, err
		}
		cursor, more = next, next != ""
		for i, body := range shown {
			if size >= maxPageBytes { // the rest is the next page's
				cursor, more = rows[i-1].ID, true
				break
			}
			read++
			weight += weightOf(&rows[i])
			if body == nil {
				continue
			}
			if r.Parameters["fields"] != wholeTarget {
				body.Target.Body = nil
			}
			size += weightOf(&rows[i]) - len(rows[i].Definition.Target.Body) + len(body.Target.Body)
			result.Items = append(result.Items, body)
		}
		if read > 0 {
			chunk = min(2*chunk, max(maxPageBytes/(weight/read), 1)) // what comes may weigh more than what came
		}
	}
	if cursor != "" {
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}

const (
	// maxPageBytes is about what a page holds at most, in bytes: the item that passes it is its last.
	maxPageBytes = 4 << 20
	// firstChunk is how many rows a list reads at first; what they weigh says how many it reads next.
	firstChunk = 20
	// shownAtOnce is for how many jobs of a page the history is asked side by side.
	shownAtOnce = 16
	// wholeTarget is what a client asks for that wants the targets' bodies in a list.
	wholeTarget = "target.body"
)

// weightOf is about what a job takes in memory and in an answer, in bytes.
func weightOf(j *job.Job) int {
	weight := 2048 + len(j.Name) + len(j.Definition.Target.URL) + len(j.Definition.Target.Body)
	for name, value := range j.Definition.Target.Headers {
		weight += len(name) + len(value)
	}
	return weight
}

// showAll is showIf for many, in their order.
func (s *Service) showAll(ctx context.Context, rows []job.Job, status, label string) ([]*jobBody, error) {
	shown := make([]*jobBody, len(rows))
	failed := make([]error, len(rows))
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(shownAtOnce, len(rows)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rows); i = int(next.Add(1)) - 1 {
				shown[i], failed[i] = s.showIf(ctx, &rows[i], status, label)
			}
		})
	}
	workers.Wait()
	return shown, errors.Join(failed...)
}

// showIf shows a job that a list's filters let through; nil is one that they do not.
func (s *Service) showIf(ctx context.Context, j *job.Job, status, label string) (*jobBody, error) {
	if j.Deleted || label != "" && !job.HasLabel(j.Labels, label) {
		return nil, nil
	}
	if stored := string(j.Status); status != "" && stored != status && (status != "completed" || j.Status != job.StatusActive) {
		return nil, nil // completed is an active job whose schedule has ended; nothing else changes by being looked at
	}
	body, err := s.show(ctx, j)
	if err != nil || status != "" && body.Status != status {
		return nil, err
	}
	return body, nil
}

func badCursor() *problem.Problem {
	return problem.New(http.StatusBadRequest, "invalid-parameter", "The cursor is not one of a page before.",
		problem.Fault{Pointer: "/query/cursor", Code: "cursor", Message: "Use the next_cursor of the page before."})
}

func (s *Service) listExecutions(ctx context.Context, r *edge.Request) (edge.Response, error) {
	jobID := r.PathValue("id")
	j, err := s.deps.Jobs.Get(ctx, jobID)
	if err != nil {
		return edge.Response{}, err
	}
	if j.Deleted {
		return edge.Response{}, jobstore.ErrNotFound
	}
	before, ok := parsePosition(r.Parameters["cursor"])
	if !ok {
		return edge.Response{}, badCursor()
	}
	oldest := s.deps.Clock.Now().Add(-jobstore.HistoryTTL)
	if from, err := time.Parse(time.RFC3339Nano, r.Parameters["from"]); err == nil {
		oldest = job.Later(oldest, job.Instant(from.Add(time.Millisecond-1))) // instants have form.Whole milliseconds
	}
	if to, err := time.Parse(time.RFC3339Nano, r.Parameters["to"]); err == nil {
		last := job.Instant(to.Add(time.Millisecond - 1)).Add(-time.Millisecond)
		if before.NominalAt.IsZero() || last.Before(before.NominalAt) {
			before = jobstore.Position{NominalAt: last}
		}
	}
	executions, more, err := s.executions(ctx, jobID, before, oldest, maxRowsRead)
	if err != nil {
		return edge.Response{}, err
	}
	result := newPage()
	size := 0
	for _, x := range executions {
		if state := r.Parameters["state"]; state != "" && x.State != state {
			continue
		}
		if len(result.Items) >= r.Limit() || size >= maxPageBytes {
			// An execution and a run of skipped occurrences may begin at one instant, after a loss (I1): one page has both.
			if cursor := result.Items[len(result.Items)-1].(*executionBody).position(); cursor != x.position() {
				result.NextCursor = &cursor
				return edge.Response{Status: http.StatusOK, Body: result}, nil
			}
		}
		result.Items = append(result.Items, x)
		for i := range x.Attempts {
			size += 512 + len(x.Attempts[i].ResponseBody) + len(x.Attempts[i].Error)
		}
	}
	if n := len(executions); n > 0 && more {
		cursor := executions[n-1].position()
		result.NextCursor = &cursor
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
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

func (s *Service) getExecution(ctx context.Context, r *edge.Request) (edge.Response, error) {
	x, err := s.execution(ctx, r.PathValue("execution_id"))
	if err != nil {
		return edge.Response{}, err
	}
	return edge.Response{Status: http.StatusOK, Body: x}, nil
}

// execution puts together what is known of an execution.
func (s *Service) execution(ctx context.Context, id string) (*executionBody, error) {
	ref, err := job.ParseExecutionID(id)
	if err != nil {
		return nil, edge.NotFound()
	}
	j, err := s.deps.Jobs.Get(ctx, ref.JobID)
	if err != nil {
		return nil, err
	}
	if j.Deleted {
		return nil, jobstore.ErrNotFound
	}
	x, err := s.recorded(ctx, id)
	if err != nil || x != nil {
		return x, err
	}
	pending, err := s.pending(ctx, &j, id, ref)
	if errors.Is(err, jobstore.ErrNotFound) { // or it was pending when the history was read, and has ended since
		if x, err := s.recorded(ctx, id); err != nil || x != nil {
			return x, err
		}
	}
	return pending, err
}

// recorded is an execution of which the history tells; nil if it does not.
func (s *Service) recorded(ctx context.Context, id string) (*executionBody, error) {
	events, err := s.deps.History.Execution(ctx, id)
	if err != nil {
		return nil, err
	}
	if x := group(events); len(x) > 0 {
		return x[0], s.underWay(ctx, x[0])
	}
	return nil, nil
}

// cancelExecution stops one execution: the job's row names it, and the stop record with it, so that no attempt of it
// begins after the answer. An executor that runs it sees the stop record within a second.
func (s *Service) cancelExecution(ctx context.Context, r *edge.Request) (edge.Response, error) {
	id := r.PathValue("execution_id")
	x, err := s.execution(ctx, id)
	if err != nil {
		return edge.Response{}, err
	}
	now := job.Instant(s.deps.Clock.Now())
	if !x.ended() || now.Sub(x.lastEnd) < endedFor {
		j, err := s.change.Change(ctx, x.JobID, func(_ context.Context, j *job.Job) error {
			stopped := recent(j.StoppedExecutions, now)
			full := len(stopped) >= job.MaxStoppedExecutions
			if j.State().Stops(id) || full && x.ended() {
				return lifecycle.ErrNoChange
			}
			if full {
				return problem.New(http.StatusConflict, "too-many-cancelled-executions",
					"The job remembers 100 cancelled executions of the last 60 days; pause or cancel the job instead.")
			}
			j.StoppedExecutions = append(stopped, id)
			j.UpdatedAt = now
			return nil
		})
		if err == nil {
			err = s.hold(ctx, &j)
		}
		if err != nil {
			return edge.Response{}, err
		}
		x.Cancelling = !x.ended()
	}
	return edge.Response{Status: http.StatusAccepted, Body: x}, nil
}

// endedFor is for how long an execution must have ended so that nothing need stop it any more. Before, an executor that stood still and
// lost its lease with the hot tier may yet give an attempt another outcome than the one on record, which is retried.
const endedFor = dedupe.Retention

// recent leaves out the executions for which no attempt can come any more: a retry window is 30 days at most.
func recent(executionIDs []string, now time.Time) []string {
	var kept []string
	for _, id := range executionIDs {
		if ref, err := job.ParseExecutionID(id); err == nil && now.Sub(ref.NominalAt) < 2*jobstore.HistoryTTL {
			kept = append(kept, id)
		}
	}
	return kept
}

func (s *Service) listDeadLetters(ctx context.Context, r *edge.Request) (edge.Response, error) {
	cursor := r.Parameters["cursor"]
	letters, next, err := s.deps.History.DeadLetters(ctx, r.Tenant(), cursor, r.Limit())
	if err != nil {
		if cursor != "" && isNotFound(err) {
			return edge.Response{}, badCursor()
		}
		return edge.Response{}, err
	}
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].Event.Entry.JobID
	}
	slices.Sort(ids)
	jobs, err := s.deps.Jobs.GetMany(ctx, slices.Compact(ids)) // a page is no longer than it takes
	if err != nil {
		return edge.Response{}, err
	}
	result := newPage()
	for i := range letters {
		d := &letters[i]
		if j := jobs[d.Event.Entry.JobID]; j == nil || j.Deleted {
			continue // nobody can redrive it, and its executions are hidden too
		}
		item := map[string]any{
			"execution_id": d.Event.Entry.ExecutionID, "job_id": d.Event.Entry.JobID, "reason": d.Reason,
			"attempts": d.Event.Entry.Attempt, "at": d.At, "last_attempt": newAttempt(&d.Event),
		}
		if d.RedrivenBy != "" {
			item["redriven_by"] = d.RedrivenBy
		}
		result.Items = append(result.Items, item)
	}
	if next != "" {
		result.NextCursor = &next
	}
	return edge.Response{Status: http.StatusOK, Body: result}, nil
}
