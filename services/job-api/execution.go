package jobapi

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// executionBody is an execution as the API shows it: its events put together.
type executionBody struct {
	ExecutionID  string          `json:"execution_id"`
	JobID        string          `json:"job_id"`
	Trigger      job.Trigger     `json:"trigger"`
	NominalAt    time.Time       `json:"nominal_at"`
	ScheduledFor time.Time       `json:"scheduled_for"`
	State        string          `json:"state"`
	Cancelling   bool            `json:"cancelling,omitempty"`
	Disposition  job.Disposition `json:"disposition,omitempty"`
	Skipped      *skippedBody    `json:"skipped,omitempty"`
	LatenessMS   *int64          `json:"lateness_ms,omitempty"`
	Attempts     []attemptBody   `json:"attempts"`
	Timeline     *timelineBody   `json:"timeline,omitempty"`
	// lastEnd is when the last attempt that is on record ended.
	lastEnd time.Time
}

type skippedBody struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int       `json:"count"`
}

type attemptBody struct {
	Number       int             `json:"number"`
	Outcome      job.OutcomeKind `json:"outcome"`
	Retryable    bool            `json:"retryable,omitempty"`
	StartedAt    *time.Time      `json:"started_at,omitempty"`
	DurationMS   *int64          `json:"duration_ms,omitempty"`
	StatusCode   int             `json:"status_code,omitempty"`
	ResponseBody string          `json:"response_body,omitempty"`
	Truncated    bool            `json:"response_truncated,omitempty"`
	Error        string          `json:"error,omitempty"`
	FencingToken string          `json:"fencing_token,omitempty"`
}

type timelineBody struct {
	Due       time.Time  `json:"due"`
	Taken     *time.Time `json:"taken,omitempty"`
	Published *time.Time `json:"published,omitempty"`
	Consumed  *time.Time `json:"consumed,omitempty"`
	Invoked   *time.Time `json:"invoked,omitempty"`
	Completed *time.Time `json:"completed,omitempty"`
}

// ended reports whether nothing more will come of the execution.
func (x *executionBody) ended() bool {
	switch x.State {
	case "succeeded", "dead", "cancelled", "skipped":
		return true
	}
	return false
}

func (x *executionBody) position() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(x.NominalAt.UnixMilli(), 10) + " " + x.ExecutionID))
}

// executions are the newest executions of a job before a position, from at most limit events. An execution whose
// events the limit cuts through is left out, unless it is the only one. more tells that there may be older ones.
func (s *Service) executions(
	ctx context.Context, jobID string, before jobstore.Position, oldest time.Time, limit int,
) (list []*executionBody, more bool, err error) {
	events, err := s.deps.History.Executions(ctx, jobID, before, oldest, limit)
	if err != nil {
		return nil, false, err
	}
	list, more = group(events), len(events) == limit
	if more && len(list) > 0 {
		cut := list[len(list)-1].position()
		if whole := slices.IndexFunc(list, func(x *executionBody) bool { return x.position() == cut }); whole > 0 {
			list = list[:whole]
		}
	}
	return list, more, nil
}

// group puts the events of each execution together; those of one follow each other.
func group(events []job.Event) []*executionBody {
	var list []*executionBody
	var last *executionBody
	for i := range events {
		e := &events[i]
		if e.Type == job.EventReleased {
			continue // a fire that another definition's took the place of: nothing came of it, and nothing will
		}
		if e.Type == job.EventSkipped {
			list = append(list, skippedRun(e))
			continue
		}
		if last == nil || last.ExecutionID != e.Entry.ExecutionID {
			last = &executionBody{
				ExecutionID: e.Entry.ExecutionID, JobID: e.Entry.JobID, Trigger: e.Entry.Trigger,
				NominalAt: e.Entry.NominalAt, ScheduledFor: e.Entry.ScheduledFor, State: "pending", Attempts: []attemptBody{},
			}
			list = append(list, last)
		}
		last.add(e)
	}
	return list
}

func skippedRun(e *job.Event) *executionBody {
	return &executionBody{
		ExecutionID: job.ScheduleExecutionID(e.Entry.JobID, e.Skipped.From), JobID: e.Entry.JobID,
		Trigger: job.TriggerSchedule, NominalAt: e.Skipped.From, ScheduledFor: e.Skipped.From, State: "skipped",
		Disposition: e.Disposition, Attempts: []attemptBody{},
		Skipped: &skippedBody{From: e.Skipped.From, To: e.Skipped.To, Count: e.Skipped.Count},
	}
}

// add takes one event in. Of two outcomes of one attempt (told twice, or after a crash) the first stands.
func (x *executionBody) add(e *job.Event) {
	if e.Type != job.EventAttempt {
		return
	}
	if n := len(x.Attempts); n > 0 && x.Attempts[n-1].Number == e.Entry.Attempt {
		return
	}
	x.Attempts = append(x.Attempts, newAttempt(e))
	if e.Disposition != "" && x.Disposition != job.DispositionFired {
		x.Disposition = e.Disposition
	}
	o := &e.Outcome
	x.lastEnd = job.Later(x.lastEnd, o.Timeline.Completed)
	if e.Entry.Attempt == 1 {
		x.Timeline = &timelineBody{
			Due: e.Entry.DueAt, Taken: form.Instant(o.Timeline.Taken), Published: form.Instant(o.Timeline.Published),
			Consumed: form.Instant(o.Timeline.Consumed), Invoked: form.Instant(o.Timeline.Invoked), Completed: form.Instant(o.Timeline.Completed),
		}
		if e.Entry.Trigger == job.TriggerSchedule && !o.Timeline.Invoked.IsZero() {
			late := o.Timeline.Invoked.Sub(e.Entry.ScheduledFor).Milliseconds()
			x.LatenessMS = &late
		}
	}
	switch o.Kind {
	case job.OutcomeSucceeded:
		x.State = "succeeded"
	case job.OutcomeSkipped:
		x.State = "skipped"
	case job.OutcomeCancelled:
		x.State = "cancelled"
	default:
		x.State = "retrying"
		if !o.Retryable || e.Entry.Attempt >= e.Retry.MaxAttempts || beyondWindow(e) {
			x.State = "dead"
		}
	}
}

// beyondWindow reports whether the next attempt would begin outside the retry window: the settler's own rule.
func beyondWindow(e *job.Event) bool {
	delay := max(e.Retry.Delay(e.Entry.ExecutionID, e.Entry.Attempt), e.Outcome.RetryAfter)
	return e.Outcome.Timeline.Completed.Add(delay).Sub(e.Entry.ScheduledFor) > e.Retry.Window
}

func newAttempt(e *job.Event) attemptBody {
	o := &e.Outcome
	a := attemptBody{
		Number: e.Entry.Attempt, Outcome: o.Kind, Retryable: o.Retryable, StatusCode: o.StatusCode,
		ResponseBody: string(o.ResponseBody), Truncated: o.ResponseTruncated, Error: o.Error,
		StartedAt: form.Instant(o.Timeline.Invoked),
	}
	if o.Fence.Epoch != 0 {
		a.FencingToken = o.Fence.String()
	}
	if a.StartedAt != nil && !o.Timeline.Completed.IsZero() {
		took := o.Timeline.Completed.Sub(*a.StartedAt).Milliseconds()
		a.DurationMS = &took
	}
	return a
}

// pending shows an execution that has no event yet: its record reports whether it runs, its entry whether it exists.
func (s *Service) pending(ctx context.Context, j *job.Job, id string, ref job.ExecutionRef) (*executionBody, error) {
	x := &executionBody{
		ExecutionID: id, JobID: j.ID, Trigger: ref.Trigger, NominalAt: ref.NominalAt, ScheduledFor: ref.NominalAt,
		State: "pending", Attempts: []attemptBody{},
	}
	if ref.Trigger == job.TriggerSchedule {
		line, err := form.Compile(j.ID, &j.Definition)
		if err != nil {
			return nil, err
		}
		x.ScheduledFor = line.Plan.ScheduledFor(ref.NominalAt)
	}
	if err := s.underWay(ctx, x); err != nil || x.State != "pending" {
		return x, err
	}
	l := job.Locator{
		Partition: bucket.Partition(j.ID, s.cfg.Partitions), Minute: job.Minute(x.ScheduledFor), DueAt: x.ScheduledFor,
		ExecutionID: id, Attempt: 1, DefinitionID: j.Definition.ID,
	}
	if ref.Trigger != job.TriggerSchedule {
		return x, s.findRequested(ctx, l)
	}
	_, err := s.deps.Pending.Row(ctx, l)
	return x, err
}

// findRequested looks for the entry of a request in the buckets that are open: it was written after its key was claimed, and may have
// waited since for room in its target's lane. A bucket with an entry that is not done stays open, and what is done is on record. Its
// definition is whatever was in force then.
func (s *Service) findRequested(ctx context.Context, l job.Locator) error {
	from, err := s.deps.Pending.LowWater(ctx, l.Partition)
	if err != nil {
		return err
	}
	to := max(job.Minute(s.deps.Clock.Now()), l.Minute) + 2 // by the clock of the process that wrote it
	to = min(to, l.Minute+int64(jobstore.KeyTTL/time.Minute)+2)
	from = max(from, l.Minute)
	for range requestBuckets {
		minute, ok, err := s.deps.Pending.FirstOpen(ctx, l.Partition, from, to)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		found, err := s.requestIn(ctx, l, minute)
		if found || err != nil {
			return err
		}
		from = minute + 1
	}
	return jobstore.ErrNotFound
}

// requestIn reports whether a request's entry is in a bucket.
func (s *Service) requestIn(ctx context.Context, l job.Locator, minute int64) (bool, error) {
	var after *job.Locator
	for range requestPages {
		rows, err := s.deps.Pending.Scan(ctx, l.Partition, minute, after, requestPage)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(rows, func(r job.PendingRow) bool { return r.ExecutionID == l.ExecutionID }) {
			return true, nil
		}
		if len(rows) < requestPage {
			break
		}
		after = &rows[len(rows)-1].Locator
	}
	return false, nil
}

// What is read at most to find the entry of a request: so many open buckets, and of each so many pages.
const (
	requestBuckets = 60
	requestPages   = 10
	requestPage    = 500
)

// underWay looks at the record of the attempt that is next, or runs.
func (s *Service) underWay(ctx context.Context, x *executionBody) error {
	if x.ended() {
		return nil
	}
	k := dedupe.Key{ExecutionID: x.ExecutionID, Attempt: len(x.Attempts) + 1}
	records, err := s.deps.Outcomes.Lookup(ctx, []dedupe.Key{k})
	if err != nil {
		return err
	}
	if rec := records[0]; rec.Alive(s.deps.Clock.Now()) {
		x.State = "dispatched"
		if rec.Running {
			x.State = "running"
		}
	}
	return nil
}

func isNotFound(err error) bool { return errors.Is(err, jobstore.ErrNotFound) }
