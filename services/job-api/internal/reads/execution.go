package reads

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// Execution is an execution as answers show it, assembled from its events.
type Execution struct {
	ExecutionID  string      `json:"execution_id"`
	JobID        string      `json:"job_id"`
	Trigger      job.Trigger `json:"trigger"`
	NominalAt    time.Time   `json:"nominal_at"`
	ScheduledFor time.Time   `json:"scheduled_for"`
	// Local is the nominal instant in the zone of the schedule, by the offset by which it was planned; "" without a zone but UTC.
	Local       string          `json:"local,omitempty"`
	State       string          `json:"state"`
	Cancelling  bool            `json:"cancelling,omitempty"`
	Disposition job.Disposition `json:"disposition,omitempty"`
	// GaveWayTo is the execution because of which it was skipped, or for whose end it waits or has waited.
	GaveWayTo  string      `json:"gave_way_to,omitempty"`
	Skipped    *skippedRun `json:"skipped,omitempty"`
	LatenessMS *int64      `json:"lateness_ms,omitempty"`
	Attempts   []attempt   `json:"attempts"`
	Timeline   *timeline   `json:"timeline,omitempty"`
	// RequestedBy is who asked for it, RequestID by which request.
	RequestedBy string `json:"requested_by,omitempty"`
	RequestID   string `json:"request_id,omitempty"`
	// SourceID is the execution that it repeats, OperationID the operation that asked for it, Occurrence the instant for which it stands if
	// that is not its own.
	SourceID    string     `json:"source_execution_id,omitempty"`
	OperationID string     `json:"operation_id,omitempty"`
	Occurrence  *time.Time `json:"occurrence,omitempty"`
	// Target is what a replay called that went elsewhere, without headers; nil for the job's target.
	Target *form.Recipient `json:"target,omitempty"`
	// lastEnd is when the last attempt on record ended.
	lastEnd time.Time
	// waits are the definitions under which a fire of it was deferred, without those that gave it up afterwards.
	waits []string
	// waitsUntil is when a deferred fire comes again.
	waitsUntil time.Time
	// alone is set if it must be the only one of the schedule in progress.
	alone bool
	// inLine is set if it was deferred last because it waits for others.
	inLine bool
	// gaveUp is why no attempt follows the last one, which failed.
	gaveUp string
}

type skippedRun struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int       `json:"count"`
	// definitionID is the definition that names its instants.
	definitionID string
}

type attempt struct {
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
	Worker       string          `json:"worker,omitempty"`
	LogsURL      string          `json:"logs_url,omitempty"`
	pool         string
}

type timeline struct {
	Due       time.Time  `json:"due"`
	Taken     *time.Time `json:"taken,omitempty"`
	Published *time.Time `json:"published,omitempty"`
	Consumed  *time.Time `json:"consumed,omitempty"`
	Invoked   *time.Time `json:"invoked,omitempty"`
	Completed *time.Time `json:"completed,omitempty"`
}

// Ended reports whether nothing more will come of the execution.
func (x *Execution) Ended() bool {
	switch x.State {
	case "succeeded", "dead", "cancelled", "skipped":
		return true
	}
	return false
}

// cancelling reports whether an execution of the job was cancelled, or another one takes its place, and it has not ended yet. With its job, only
// an execution is cancelled of which no attempt is being made.
func (x *Execution) cancelling(s job.State) bool {
	if s.Status == job.StatusCancelled && (x.State == "pending" || x.State == "retrying") {
		return true
	}
	return !x.Ended() && (s.Stops(x.ExecutionID) || x.alone && x.NominalAt.Before(s.StoppedBefore))
}

// LastEnd returns when the last attempt on record ended; the zero time if there is none.
func (x *Execution) LastEnd() time.Time { return x.lastEnd }

// group assembles the events of each execution; those of one execution follow each other.
func group(events []job.Event) []*Execution {
	var list []*Execution
	var last *Execution
	for i := range events {
		e := &events[i]
		if e.Type == job.EventReleased { // a fire that another definition's fire replaced: nothing came of it, and nothing will
			if last != nil && last.ExecutionID == e.Entry.ExecutionID {
				last.waits = slices.DeleteFunc(last.waits, func(id string) bool { return id == e.Entry.DefinitionID })
			}
			continue
		}
		if e.Type == job.EventSkipped {
			list = append(list, newSkipped(e))
			continue
		}
		if last == nil || last.ExecutionID != e.Entry.ExecutionID {
			last = &Execution{
				ExecutionID: e.Entry.ExecutionID, JobID: e.Entry.JobID, Trigger: e.Entry.Trigger,
				NominalAt: e.Entry.NominalAt, ScheduledFor: e.Entry.ScheduledFor, Local: local(e.Entry.NominalAt, e.Entry.Note), State: "pending",
				Attempts: []attempt{}, alone: e.Entry.Alone,
			}
			if by := e.Entry.By; by != nil {
				last.RequestedBy, last.RequestID = by.Subject, by.Request
			}
			if n := e.Entry.Note; n != nil {
				last.SourceID, last.OperationID, last.Occurrence = n.Source, n.Operation, form.Instant(n.Occurrence)
				if x := n.Elsewhere; x != nil {
					last.Target = form.RecipientOf(&job.Elsewhere{URL: x.URL}) // an audit-writer of the release before kept its headers
				}
			}
			list = append(list, last)
		}
		last.add(e)
	}
	return list
}

// local returns an instant in the zone by which it was planned.
func local(at time.Time, n *job.Note) string {
	if n == nil || n.TZData == "" {
		return ""
	}
	return at.In(time.FixedZone("", n.UTCOffset)).Format(time.RFC3339Nano)
}

// nothing reports whether nothing came of the execution: its fires were only deferred, and then given up because its instant belongs to
// another definition.
func (x *Execution) nothing() bool {
	return x.Skipped == nil && len(x.Attempts) == 0 && len(x.waits) == 0
}

// newSkipped returns a run of skipped occurrences as one execution.
func newSkipped(e *job.Event) *Execution {
	return &Execution{
		ExecutionID: job.ScheduleExecutionID(e.Entry.JobID, e.Skipped.From), JobID: e.Entry.JobID,
		Trigger: job.TriggerSchedule, NominalAt: e.Skipped.From, ScheduledFor: e.Skipped.From, State: "skipped",
		Disposition: e.Disposition, Attempts: []attempt{},
		Skipped: &skippedRun{From: e.Skipped.From, To: e.Skipped.To, Count: e.Skipped.Count, definitionID: e.Entry.DefinitionID},
	}
}

// add adds an event. Of two outcomes of one attempt (an event that came twice, or a crash) the first stands, but one of a call before one
// that refused it: the target was called, whatever else is on record.
func (x *Execution) add(e *job.Event) {
	if e.Type != job.EventAttempt {
		x.waits, x.waitsUntil = append(x.waits, e.Entry.DefinitionID), job.Later(x.waitsUntil, e.DeferUntil)
		to := e.GaveWayTo()
		if x.inLine = to != ""; x.inLine {
			x.GaveWayTo = to
		}
		return
	}
	if n := len(x.Attempts); n > 0 && x.Attempts[n-1].Number == e.Entry.Attempt {
		if !x.Attempts[n-1].refused() || !e.Outcome.Called() {
			return
		}
		x.Attempts = x.Attempts[:n-1]
	}
	x.Attempts = append(x.Attempts, newAttempt(e))
	if e.Disposition != "" && x.Disposition != job.DispositionFired {
		x.Disposition = e.Disposition
		if to := e.GaveWayTo(); to != "" {
			x.GaveWayTo = to
		}
	}
	o := &e.Outcome
	x.lastEnd = job.Later(x.lastEnd, o.Timeline.Completed)
	if e.Entry.Attempt == 1 {
		x.Timeline = &timeline{
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
		if _, x.gaveUp = e.Next(); x.gaveUp != "" {
			x.State = "dead"
		}
	}
}

// refused reports whether nobody was called in an attempt.
func (a *attempt) refused() bool {
	return a.StartedAt == nil && (a.Outcome == job.OutcomeCancelled || a.Outcome == job.OutcomeSkipped)
}

// newAttempt returns the attempt that an event reports.
func newAttempt(e *job.Event) attempt {
	o := &e.Outcome
	a := attempt{
		Number: e.Entry.Attempt, Outcome: o.Kind, Retryable: o.Retryable, StatusCode: o.StatusCode,
		ResponseBody: string(o.ResponseBody), Truncated: o.ResponseTruncated, Error: o.Error,
		StartedAt: form.Instant(o.Timeline.Invoked),
	}
	if o.Fence.Epoch != 0 {
		a.FencingToken = o.Fence.String()
	}
	if e.Target.Kind == job.TargetPool && o.Called() {
		a.Worker, a.pool = o.Worker, e.Target.Host
	}
	if a.StartedAt != nil && !o.Timeline.Completed.IsZero() {
		took := o.Timeline.Completed.Sub(*a.StartedAt).Milliseconds()
		a.DurationMS = &took
	}
	return a
}
