package job

import (
	"strconv"
	"time"
)

// Fire is the message that tells executors to run an attempt. It carries the whole invocation, so the fire path needs no read of
// the job row.
type Fire struct {
	Entry
	Target Target
	Retry  RetryPolicy
	// Incarnation is that of the hot tier, read before the job row was.
	Incarnation string
	// Epoch is the one under which the owner took the entry.
	Epoch       int64
	TakenAt     time.Time
	PublishedAt time.Time
	// Fresh means that the worker has read the entry's row, because the entry came late. For any other late fire the executor reads
	// the row itself, if the hot tier can have forgotten how the attempt ended.
	Fresh bool
	// Deadlines are those of an occurrence of the schedule, for the record; zero for any other execution.
	Deadlines Deadlines
}

// Token names a lease of an attempt. A greater token was given out later for the same attempt, unless the hot tier forgot it.
type Token struct {
	Counter int64
	// Start is the holder's number for this lease, which no other lease has ever had.
	Start int64
}

// String returns the name of the lease.
func (t Token) String() string {
	return strconv.FormatInt(t.Counter, 10) + "." + strconv.FormatInt(t.Start, 10)
}

// Less reports whether t orders before o.
func (t Token) Less(o Token) bool {
	return t.Counter < o.Counter || t.Counter == o.Counter && t.Start < o.Start
}

// Fence is the fencing token of an invocation. Of two fences of one execution, the greater belongs to the later invocation, even if
// the hot tier forgot everything in between.
type Fence struct {
	// Epoch is the number of the hot tier's incarnation that accepted the last check before the invocation. Counter numbers that check
	// among all that the incarnation accepted.
	Epoch, Counter int64
	// Start is the number of the lease under which the invocation was made.
	Start int64
}

// String returns the form that targets and clients see: 49 characters whose text order is the order of the tokens. They are region
// (0 until there are several), epoch, counter and start, in hexadecimal digits.
func (f Fence) String() string {
	b := make([]byte, 0, 49)
	digits := func(n int64, width int) {
		for i := width - 1; i >= 0; i-- {
			b = append(b, "0123456789abcdef"[n>>(4*i)&15])
		}
	}
	digits(0, 4)
	b = append(b, '-')
	digits(f.Epoch, 14)
	b = append(b, '-')
	digits(f.Counter, 12)
	b = append(b, '-')
	digits(f.Start, 16)
	return string(b)
}

// OutcomeKind is how an attempt ended.
type OutcomeKind string

// The outcomes. OutcomeSkipped ends an occurrence that was never invoked.
const (
	OutcomeSucceeded  OutcomeKind = "succeeded"
	OutcomeFailed     OutcomeKind = "failed"
	OutcomeTimedOut   OutcomeKind = "timed_out"
	OutcomeWorkerLost OutcomeKind = "worker_lost"
	OutcomeCancelled  OutcomeKind = "cancelled"
	OutcomeSkipped    OutcomeKind = "skipped"
)

// Outcome is the end of one attempt.
type Outcome struct {
	Kind OutcomeKind
	// Retryable distinguishes a failure that a later attempt may fix from a permanent one.
	Retryable bool
	// Disposition is the one that this outcome gives the occurrence.
	Disposition Disposition
	Fence       Fence
	StatusCode  int
	// ResponseBody is the start of the response body, at most [MaxResponseBytes].
	ResponseBody      []byte
	ResponseTruncated bool
	// RequestBytes and ResponseBytes are the sizes of the bodies of the call, as far as they were sent and read.
	RequestBytes, ResponseBytes int64
	// Worker names the executor that made the call.
	Worker string
	// Error describes what went wrong, without any submitted value.
	Error string
	// RetryAfter is the delay that the target asked for, 0 if it asked for none.
	RetryAfter time.Duration
	// PauseJob is set when the target answered that it is permanently gone (410).
	PauseJob bool
	// GaveWayTo is the nominal instant of the execution because of which this one was skipped; zero for any other outcome.
	GaveWayTo time.Time
	// DefinitionID is the definition under which the attempt ended. Around an update, entries of two definitions may
	// stand for one execution.
	DefinitionID string
	Timeline     Timeline
}

// Invoked reports whether the target was called, or may have been.
func (o *Outcome) Invoked() bool { return o.Kind != OutcomeSkipped && o.Kind != OutcomeCancelled }

// Timeline holds the instants that one attempt passed through; zero for those that it did not.
type Timeline struct {
	Taken, Published, Consumed, Invoked, Completed time.Time
}

// Called reports whether the target was called, or may have been, also if the call was cut off.
func (o *Outcome) Called() bool { return o.Invoked() || !o.Timeline.Invoked.IsZero() }

// Disposition is what became of an occurrence.
type Disposition string

// The dispositions that are implemented.
const (
	DispositionFired         Disposition = "fired"
	DispositionSkippedMissed Disposition = "skipped_missed"
	DispositionSkippedPaused Disposition = "skipped_paused"
	// DispositionSkippedOverlap means: another execution of the schedule was in progress.
	DispositionSkippedOverlap Disposition = "skipped_overlap"
	DispositionCancelled      Disposition = "cancelled"
)

// EventType says what happened.
type EventType string

// The events. Each stands for one or more transitions of an execution; the event of an attempt carries its whole timeline.
const (
	// EventAttempt means: an attempt ended, or was refused with a disposition.
	EventAttempt EventType = "attempt"
	// EventDeferred means: the attempt will be fired later, because its target's queue was full, or once other executions have ended.
	EventDeferred EventType = "deferred"
	// EventReleased means: the attempt was refused without a disposition; its instant belongs to another definition.
	EventReleased EventType = "released"
	// EventSkipped means: a run of occurrences was skipped.
	EventSkipped EventType = "skipped"
	// EventChange means: somebody changed a job, a tenant, a key or a setting. The event's entry tells who and what.
	EventChange EventType = "change"
)

// Event is one record of the events log.
type Event struct {
	// ID follows from (execution, attempt, transition, token), so an event that is published twice has the same id.
	ID      string
	Type    EventType
	At      time.Time
	Entry   Entry
	Outcome Outcome
	// Retry is the policy under which the attempt was invoked.
	Retry RetryPolicy
	// DeferUntil is when a deferred attempt is due again. WaitsFor is the nominal instant of the execution that ends first, if it waits
	// for one.
	DeferUntil, WaitsFor time.Time
	// Skipped is the range of EventSkipped.
	Skipped     *SkippedRange
	Disposition Disposition
	// Target is the one of the definition in force; zero for a change.
	Target TargetRef
	// Deadlines are those of the fire.
	Deadlines Deadlines
}

// AttemptEvent returns the event for the end of an attempt at t. now is the publishing process's clock.
func AttemptEvent(f *Fire, t TargetRef, o Outcome, now time.Time) Event {
	return Event{
		ID:   eventID(f.ExecutionID, f.Attempt, string(o.Kind), o.Fence.Start),
		Type: EventAttempt, At: now, Entry: f.Entry, Outcome: o, Retry: f.Retry,
		Disposition: o.Disposition, Target: t, Deadlines: f.Deadlines,
	}
}

// Kept returns the event as it is kept for reading: without the headers of a replay that goes elsewhere, which may be secrets. What follows from
// an event is made of the event itself.
func (e *Event) Kept() *Event {
	x := e.Entry.Elsewhere()
	if x == nil || x.Headers == nil {
		return e
	}
	kept, note := *e, *e.Entry.Note
	note.Elsewhere = &Elsewhere{URL: x.URL}
	kept.Entry.Note = &note
	return &kept
}

// StartBy and FinishBy return by when an occurrence was to begin and to succeed; zero for no such deadline.
func (e *Event) StartBy() time.Time { return e.by(e.Deadlines.StartWithin) }

// FinishBy is documented at StartBy.
func (e *Event) FinishBy() time.Time { return e.by(e.Deadlines.FinishWithin) }

func (e *Event) by(within time.Duration) time.Time {
	if within == 0 {
		return time.Time{}
	}
	return e.Entry.ScheduledFor.Add(within)
}

// GaveWayTo returns the execution because of which the event's was skipped, or for which it waits; "" if there is none.
func (e *Event) GaveWayTo() string {
	at := Later(e.Outcome.GaveWayTo, e.WaitsFor)
	if at.IsZero() {
		return ""
	}
	return ScheduleExecutionID(e.Entry.JobID, at)
}

// DeferredEvent returns the event for an attempt at t that is due again at until.
func DeferredEvent(f *Fire, t TargetRef, until, now time.Time) Event {
	return Event{
		ID:   eventID(f.ExecutionID, f.Attempt, "deferred@"+strconv.FormatInt(f.DueAt.UnixMilli(), 36), 0),
		Type: EventDeferred, At: now, Entry: f.Entry, DeferUntil: until, Target: t,
	}
}

// WaitingEvent returns the event for an attempt at t that waits until the execution of another instant has ended, and is looked at again at
// until.
func WaitingEvent(f *Fire, t TargetRef, other, until, now time.Time) Event {
	e := DeferredEvent(f, t, until, now)
	e.WaitsFor = other
	return e
}

// ReleasedEvent returns the event for an attempt at t that was refused because another definition's entry stands for its instant.
func ReleasedEvent(f *Fire, t TargetRef, now time.Time) Event {
	return Event{
		ID:   eventID(f.ExecutionID, f.Attempt, "released@"+f.DefinitionID, 0),
		Type: EventReleased, At: now, Entry: f.Entry, Target: t,
	}
}

// SkippedEvent returns the event for a run of skipped occurrences at t that begins with e or right after it.
func SkippedEvent(e Entry, t TargetRef, r SkippedRange, d Disposition, now time.Time) Event {
	return Event{
		ID: eventID(ScheduleExecutionID(e.JobID, r.From), 1, string(d)+"@"+strconv.FormatInt(r.To.UnixMilli(), 36),
			0),
		Type: EventSkipped, At: now, Entry: e, Skipped: &r, Disposition: d, Target: t,
	}
}

// Next returns the entry of the attempt that follows the failed one of e, or the reason why there is none. It depends on the event
// alone, jitter and all.
func (e *Event) Next() (next Entry, reason string) {
	if !e.Outcome.Retryable {
		return Entry{}, "permanent"
	}
	if e.Entry.Attempt >= e.Retry.MaxAttempts {
		return Entry{}, "max_attempts"
	}
	delay := max(e.Retry.Delay(e.Entry.ExecutionID, e.Entry.Attempt), e.Outcome.RetryAfter)
	due := e.Outcome.Timeline.Completed.Add(delay)
	if due.Sub(e.Entry.ScheduledFor) > e.Retry.Window {
		return Entry{}, "window"
	}
	next = e.Entry
	next.Attempt++
	next.DueAt, next.Chained, next.WrittenAt = Instant(due), false, e.Outcome.Timeline.Completed
	return NewEntry(next, MinuteStart(e.Entry.Minute)), ""
}

// Failed reports whether the attempt was made in vain, so that another one follows or none is left.
func (o *Outcome) Failed() bool {
	return o.Kind == OutcomeFailed || o.Kind == OutcomeTimedOut || o.Kind == OutcomeWorkerLost
}

// Reason returns why nothing more follows from a failed attempt, as its dead letter says, or why an occurrence was not fired or not
// now; "" if there is nothing to explain. It depends on the event alone.
func (e *Event) Reason() string {
	switch {
	case e.Type == EventDeferred && !e.WaitsFor.IsZero():
		return "overlap"
	case e.Type == EventDeferred:
		return "no_capacity"
	case e.Type == EventReleased:
		return "superseded"
	case e.Disposition == DispositionSkippedMissed:
		return "missed"
	case e.Disposition == DispositionSkippedPaused:
		return "paused"
	case e.Disposition == DispositionSkippedOverlap:
		return "overlap"
	case e.Type == EventSkipped, e.Type == EventAttempt && e.Outcome.Kind == OutcomeCancelled:
		return "cancelled"
	case e.Type == EventAttempt && e.Outcome.Failed():
		_, reason := e.Next()
		return reason
	}
	return ""
}

func eventID(executionID string, attempt int, transition string, lease int64) string {
	id := executionID + "/" + strconv.Itoa(attempt) + "/" + transition
	if lease != 0 {
		id += "/" + strconv.FormatInt(lease, 36)
	}
	return id
}

// DeadLetter is an execution that was given up: its last event and why.
type DeadLetter struct {
	Event  Event
	Reason string
	At     time.Time
	// RedrivenBy is the execution that replaced it, "" if none did.
	RedrivenBy string
}

// Place returns where the event lies in its job's history: under the execution that it is of, and a run of skipped instants under the first.
func (e *Event) Place() (nominalAt time.Time, executionID string) {
	if e.Type == EventSkipped {
		return e.Skipped.From, ScheduleExecutionID(e.Entry.JobID, e.Skipped.From)
	}
	return e.Entry.NominalAt, e.Entry.ExecutionID
}

// End is how an execution ended.
type End string

// The ends of executions that were called, or stopped by somebody.
const (
	EndSucceeded End = "succeeded"
	EndDead      End = "dead"
	EndCancelled End = "cancelled"
)

// EndOf returns how the execution ended of which the events are, in the order of its attempts; "" if it has not, or was skipped. Of two events
// of one attempt the first stands, but one of a call before one that refused it.
func EndOf(events []Event) (end End) {
	attempt, called := 0, false
	for i := range events {
		e := &events[i]
		if e.Type != EventAttempt || e.Entry.Attempt == attempt && (called || !e.Outcome.Called()) {
			continue
		}
		attempt, called = e.Entry.Attempt, e.Outcome.Called()
		switch e.Outcome.Kind {
		case OutcomeSucceeded:
			end = EndSucceeded
		case OutcomeCancelled:
			end = EndCancelled
		case OutcomeSkipped:
			end = ""
		default:
			if end = ""; e.Reason() != "" {
				end = EndDead
			}
		}
	}
	return end
}
