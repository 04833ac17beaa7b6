package writes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// letterFilter says which dead letters a request means.
type letterFilter struct {
	JobID  string     `json:"job_id"`
	Reason string     `json:"reason"`
	From   *time.Time `json:"from"`
	To     *time.Time `json:"to"`
}

// resolve puts the job's id in the place of its key, in the request's body too: a request is the same if the job is.
func (f *letterFilter) resolve(ctx context.Context, ws *Writes, r *edge.Request) (err error) {
	if f.JobID, err = ws.deps.Reads.JobID(ctx, r, f.JobID, "/filter/job_id"); err != nil {
		return err
	}
	if tree, ok := r.Tree.(map[string]any); ok && f.JobID != "" {
		tree["filter"].(map[string]any)["job_id"] = f.JobID
	}
	return nil
}

// redriveBody is a request to execute dead letters again.
type redriveBody struct {
	Filter        letterFilter `json:"filter"`
	RatePerSecond form.Whole   `json:"rate_per_second"`
	Limit         form.Whole   `json:"limit"`
}

// matches reports whether a request redrives a letter. A letter that an earlier try of the request has redriven matches
// too, so that a repeated request gets the same answer.
func (b *redriveBody) matches(d *job.DeadLetter, c jobstore.Claim) bool {
	f := &b.Filter
	return (d.RedrivenBy == "" || d.RedrivenBy == redriveID(&d.Event.Entry, c)) && (f.JobID == "" || f.JobID == d.Event.Entry.JobID) &&
		(f.Reason == "" || f.Reason == d.Reason) &&
		(f.From == nil || !d.At.Before(*f.From)) && (f.To == nil || d.At.Before(*f.To))
}

// redriven is one new execution.
type redriven struct {
	ExecutionID string    `json:"execution_id"`
	JobID       string    `json:"job_id"`
	Source      string    `json:"source_execution_id"`
	DueAt       time.Time `json:"due_at"`
	letter      job.DeadLetter
}

// redriveDeadLetters writes an entry for each dead letter that matches, spread by the rate, and then marks the letter. The
// new execution's id follows from the claim and the letter alone, so a request repeated under its key after a crash names
// the same executions. If other letters have come between, an execution's entry may exist twice. It is called once all the
// same: the second fire meets the record of the first.
func (ws *Writes) redriveDeadLetters(ctx context.Context, r *edge.Request) (edge.Response, error) {
	b := redriveBody{RatePerSecond: 10, Limit: 1000}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	if err := b.Filter.resolve(ctx, ws, r); err != nil {
		return edge.Response{}, err
	}
	now := job.Instant(ws.deps.Clock.Now())
	claim := jobstore.Claim{ID: ws.newID("", now), AcceptedAt: now}
	turn, answered, err := ws.begin(ctx, r, "redriveDeadLetters", r.Parameters["Idempotency-Key"], claim)
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	letters, more, err := ws.lettersFor(ctx, r.Tenant(), &b, turn.claim)
	if err != nil {
		return edge.Response{}, err
	}
	list, entries, err := ws.redriveEntries(ctx, r, letters, turn.claim, int(b.RatePerSecond))
	if err != nil {
		return edge.Response{}, err
	}
	if err := ws.putAll(ctx, r, entries); err != nil {
		return edge.Response{}, err
	}
	for i := range list {
		if list[i].letter.RedrivenBy != "" {
			continue
		}
		if err := ws.deps.History.MarkRedriven(ctx, list[i].letter, list[i].ExecutionID); err != nil {
			return edge.Response{}, fmt.Errorf("mark execution %s as redriven: %w", list[i].Source, err)
		}
	}
	return turn.finish(ctx, edge.Response{Status: http.StatusAccepted, Headers: map[string]string{}, Body: map[string]any{
		"redriven": len(list), "more": more, "executions": list,
	}})
}

// redriveAllBody is a request for an operation that executes dead letters again.
type redriveAllBody struct {
	Filter        letterFilter `json:"filter"`
	RatePerSecond form.Whole   `json:"rate_per_second"`
}

// redriveAllDeadLetters makes an operation that executes dead letters again, however many there are. What is given up after the request is none
// of them, so it ends although the target still fails.
func (ws *Writes) redriveAllDeadLetters(ctx context.Context, r *edge.Request) (edge.Response, error) {
	b := redriveAllBody{RatePerSecond: 10}
	if err := json.Unmarshal(r.Raw, &b); err != nil {
		return edge.Response{}, edge.OutOfRange()
	}
	if err := b.Filter.resolve(ctx, ws, r); err != nil {
		return edge.Response{}, err
	}
	if id := b.Filter.JobID; id != "" {
		_, err := ws.deps.Reads.Find(ctx, r, id)
		if errors.Is(err, jobstore.ErrNotFound) {
			return edge.Response{}, fault("/filter/job_id", "not-found", "There is no such job; check the id.")
		}
		if err != nil {
			return edge.Response{}, err
		}
	}
	now := job.Instant(ws.deps.Clock.Now())
	turn, answered, err := ws.begin(ctx, r, "redriveAllDeadLetters", r.Parameters["Idempotency-Key"], jobstore.Claim{ID: ws.newID("", now), AcceptedAt: now})
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	accepted := turn.claim.AcceptedAt
	o := operations.Operation{
		ID: job.OperationPrefix + turn.claim.ID, Type: operations.TypeRedrive, JobID: b.Filter.JobID, Status: operations.StatusRunning,
		From: accepted.Add(-jobstore.HistoryTTL), To: accepted, GivenUpFor: b.Filter.Reason, Order: operations.NewestFirst, Rate: int(b.RatePerSecond),
	}
	if b.Filter.From != nil {
		o.From = job.Bound(*b.Filter.From)
	}
	if b.Filter.To != nil && b.Filter.To.Before(accepted) {
		o.To = job.Bound(*b.Filter.To)
	}
	if !o.From.Before(o.To) {
		pointer := "/filter/from"
		if b.Filter.From == nil {
			pointer = "/filter/to"
		}
		return edge.Response{}, fault(pointer, "empty-range", "Nothing that is on record was given up in this range. From must be past and earlier than to, and to within the last 30 days.")
	}
	return ws.beginOperation(ctx, r, &turn, o)
}

// redriveEntries returns the executions of the letters whose jobs still exist, perSecond of them in each second, and the
// entries of those that are not written yet.
func (ws *Writes) redriveEntries(
	ctx context.Context, r *edge.Request, letters []job.DeadLetter, c jobstore.Claim, perSecond int,
) (list []redriven, entries []job.Entry, err error) {
	list = []redriven{}
	for _, d := range letters {
		j, err := ws.deps.Jobs.Get(ctx, d.Event.Entry.JobID)
		if errors.Is(err, jobstore.ErrNotFound) || err == nil && (j.Deleted || j.Status == job.StatusCancelled || j.Tenant != r.Tenant()) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read job %s: %w", d.Event.Entry.JobID, err)
		}
		due := c.AcceptedAt.Add(time.Duration(len(list)) * time.Second / time.Duration(perSecond))
		e := ws.redriveEntry(&j, &d.Event.Entry, c, job.Instant(due))
		if d.RedrivenBy == "" {
			entries = append(entries, e)
		}
		list = append(list, redriven{e.ExecutionID, j.ID, d.Event.Entry.ExecutionID, e.DueAt, d})
	}
	return list, entries, nil
}

// maxLettersRead bounds the dead letters that one request reads.
const maxLettersRead = 5000

// lettersFor returns the dead letters that match, and whether there may be more.
func (ws *Writes) lettersFor(
	ctx context.Context, tenant job.Tenant, b *redriveBody, c jobstore.Claim,
) (letters []job.DeadLetter, more bool, err error) {
	cursor := ""
	for read := 0; read < maxLettersRead; {
		page, next, err := ws.deps.History.DeadLetters(ctx, tenant, cursor, 500)
		if err != nil {
			return nil, false, fmt.Errorf("read dead letters: %w", err)
		}
		for i := range page {
			if !b.matches(&page[i], c) {
				continue
			}
			if len(letters) == int(b.Limit) {
				return letters, true, nil
			}
			letters = append(letters, page[i])
		}
		read += len(page)
		if cursor = next; next == "" {
			return letters, false, nil
		}
	}
	return letters, true, nil
}

// redriveID returns the id of the execution by which a request redrives the last attempt of another.
func redriveID(source *job.Entry, c jobstore.Claim) string {
	return job.RedriveExecutionID(source.JobID, c.ID, source.ExecutionID)
}

// redriveEntry returns the entry by which a claim redrives the last attempt of a source.
func (ws *Writes) redriveEntry(j *job.Job, source *job.Entry, c jobstore.Claim, due time.Time) job.Entry {
	e := job.Entry{
		Locator: job.Locator{
			Partition: bucket.Partition(j.ID, ws.cfg.Partitions), DueAt: due,
			ExecutionID: redriveID(source, c), Attempt: 1, DefinitionID: j.Definition.ID,
		},
		// Its place in the history follows from its id: a repeated request finds other letters before this one, and another
		// due instant.
		JobID: j.ID, Tenant: j.Tenant, Trigger: job.TriggerRedrive, NominalAt: c.AcceptedAt, ScheduledFor: due,
		Note: &job.Note{Source: source.ExecutionID, Occurrence: source.Occurrence()},
	}
	j.Definition.Mark(&e)
	schedule.Localize(&e, &j.Definition.Schedule)
	return e
}
