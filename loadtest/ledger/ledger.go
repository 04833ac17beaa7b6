// Package ledger checks the invariants I1–I17 (services/README.md) on the account of a run: what was promised to clients,
// what the targets saw, and what is in the history, the archive and the store. It does not know how the run was made, so
// the bubble, the simulation and the real servers use the same checker.
package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

// Call is one invocation as a target saw it.
type Call struct {
	Host, JobID, ExecutionID string
	// Key is the idempotency key; "" where targets do not note it.
	Key          string
	Attempt      int
	ScheduledFor time.Time
	Token        string
	At           time.Time
	// Ahead is by how much the executor's clock was ahead of the clock of At.
	Ahead time.Duration
	// AheadAtLook is the most by which it was ahead between the check whether the attempt is due, which precedes taking the
	// lease, and the call. A clock that is set back in between does not make the call early.
	AheadAtLook time.Duration
	// EndedAt is when the call was answered or given up, zero if that is not known. AheadAtEnd is Ahead at that instant.
	EndedAt    time.Time
	AheadAtEnd time.Duration
	// Failed is set if the target's answer is retried, or there was none; Gone, if it answered 410, which pauses the job.
	Failed, Gone bool
	// CheckedAt is when the hot tier accepted the last check, if that is known. The invocation begins there when it is
	// compared with a stop.
	CheckedAt time.Time
	// Replaced is set if the server that accepted the last check had been replaced, and went on with some clients. It issues
	// smaller tokens than the server in its place, so a target that has seen one of the latter's refuses them.
	Replaced bool
	// Untold is set if its executor died before it reported how the call ended, and the hot tier then forgot that the call
	// had begun.
	Untold bool
	// GivenBack is set if it was a task that its worker has given back, so that the same attempt was handed out again.
	GivenBack bool
	// Pool is set if it was a task that a worker of a pool was handed, with this Progress; 0 for none.
	Pool     bool
	Progress int
}

// JobAccount is a job's current state, with the definitions that were superseded.
type JobAccount struct {
	Job        job.Job
	Superseded []job.Definition
}

// StopKind is the kind of a client's stop.
type StopKind string

// The stops. Each is acknowledged at an instant; what it stops may not begin afterwards.
const (
	StopCancel StopKind = "cancel"
	StopPause  StopKind = "pause"
	StopUpdate StopKind = "update"
	// StopExecution is a cancel of one execution.
	StopExecution StopKind = "cancelled execution"
)

// Stop is an acknowledged cancel, pause, delete (which is a cancel) or update.
type Stop struct {
	JobID string
	Kind  StopKind
	// ExecutionID is the cancelled execution, if only that was stopped.
	ExecutionID string
	// AckedAt is when the answer arrived.
	AckedAt time.Time
	// ResumedAt is when the resume that ends a pause was requested; zero if it never was.
	ResumedAt time.Time
	// EffectiveAt and OldHosts describe what an update replaced: instants from EffectiveAt on are no longer for OldHosts.
	EffectiveAt time.Time
	OldHosts    []string
}

// Trigger is an execution that the answer to a trigger, or to a redrive, named.
type Trigger struct {
	JobID, ExecutionID string
	AckedAt            time.Time
}

// Asked is a schedule as answered to a client. Targets may be called at its instants and at no others. From From on and
// before Until the client requested nothing that stops them, so each of these instants is owed: a target receives a call
// for it.
type Asked struct {
	JobID       string
	Schedule    job.Schedule
	From, Until time.Time
	// Alone is set if an instant may be skipped because another execution is in progress.
	Alone bool
}

// Refusal is a request answered with 409, with the problem's code.
type Refusal struct {
	JobID, Code string
}

// Shown is an occurrence of a job as its account showed it to a client.
type Shown struct {
	NominalAt   time.Time       `json:"nominal_at"`
	State       string          `json:"state"`
	Disposition job.Disposition `json:"disposition"`
	Reason      string          `json:"reason"`
}

// Ended reports whether the occurrence will not be called any more.
func (s *Shown) Ended() bool {
	return slices.Contains([]string{"succeeded", "dead", "cancelled", "skipped"}, s.State)
}

// Window is a span of time that includes both its ends.
type Window struct{ From, To time.Time }

// Archived is an event as the archive holds it, with its place in the log, and the change that it tells of, if any.
type Archived struct {
	EventID                             string
	LogID                               string
	Partition, Offset                   int64
	JobID, Operation, Object, RequestID string
	Version                             int64
}

// Account is everything that is known of a run.
type Account struct {
	// From and Until bound the nominal instants that must have a disposition.
	From, Until time.Time
	// TakenAt is when the workers were told to stop, if that is later than Until.
	TakenAt time.Time
	// Crashed is set if a process was lost or stalled during the run, or a hot tier or log was lost.
	Crashed bool
	// HotLost is set if the hot tier forgot something.
	HotLost bool
	// Shortened are the ends to which logs lost what they held: offsets from there on were given to other records.
	Shortened []dispatch.Position
	// Travel is how long after its last check a call may reach its target, where the time of the check is not known.
	Travel time.Duration
	// Excused are, by job, the instants that may have more than one disposition, which I1 excludes. An owner had them in
	// hand when it stalled for longer than a catch-up window, and the hot tier was lost meanwhile. Or the job's registration
	// took so long that its first entry was written more than once, with such a loss.
	Excused map[string][]Window
	// Asked are the schedules of the jobs whose clients keep track of them, every schedule that the job ever had.
	Asked []Asked
	// Registered are the jobs whose registration was answered. By job, MaxAttempts is what the registration asked for, and
	// RetryAfter the least pause before a retry that follows from it. Triggers are the answers to triggers and redrives.
	Registered  []string
	MaxAttempts map[string]int
	RetryAfter  map[string]time.Duration
	Triggers    []Trigger
	// Removed are the executions whose entry an operator removed, so that no other attempt follows.
	Removed map[string]bool
	// Operations are those that were answered; nil if nobody asked for any. Unanswered are the jobs, "" for all, for which one was asked for that
	// nobody knows of, because no answer came.
	Operations []Operation
	Unanswered map[string]bool
	// Resumed are the jobs whose last change requested by a client is a resume that was answered. Refusals are the requests
	// answered with 409.
	Resumed  map[string]bool
	Refusals []Refusal
	// Incidents are those that a client was shown at the end, nil if none asked. NoticesWithin is how long after a missed deadline its incident
	// begins at the latest; 0 if that is not known.
	Incidents     []Incident
	NoticesWithin time.Duration
	// Notifications are what owners received, in this order; nil if nobody looked.
	Notifications []Notification
	// Followers are the jobs that follow others; nil if nobody asked for any.
	Followers []Follower
	// Words are what workers of pools told and were answered; nil if there were none.
	Words []Word
	// Forecasts are those that clients were shown; nil if nobody asked.
	Forecasts []Forecast
	// Keyed are the registrations with a key, and ByKey is which job a client was shown near the end that asked for a key.
	Keyed []Keyed
	ByKey map[string]string
	// Deleted are the jobs whose deletion was requested. Listed counts the jobs that a client read, page by page, near the
	// end, and Executions the executions of some; both are nil if no client read any.
	Deleted    map[string]bool
	Listed     map[string]int
	Executions map[string]map[string]int
	// Shown are the accounts of jobs that a client read at the end, from the first instant to the last; nil if no client read any.
	Shown map[string][]Shown
	// ShownBefore are the occurrences of jobs that accounts showed as ended long before the end.
	ShownBefore map[string][]Shown
	// Settles is how long everything that is due, or was promised, may take to end before the account is taken. If it is 0
	// it is not known, and nothing is checked that depends on it.
	Settles time.Duration
	// TellsWithin is how long after the end of an execution the system may learn of it; 0 if that is not known.
	TellsWithin time.Duration
	Jobs        []JobAccount
	Stops       []Stop
	Calls       []Call
	Events      []job.Event
	Archived    []Archived
	// Requests are those by which clients asked for changes; nil if they are not known.
	Requests []Request
	// Updated holds when the definitions made by updates took effect, if that is known.
	Updated map[string]time.Time
	// LostToHistory, LostToArchive and LostToSettle are the events of a log that was recreated, or lost its end, before the
	// history, the archive or the retry-manager had read them.
	LostToHistory, LostToArchive, LostToSettle []job.Event
	Pending                                    []job.PendingRow
	DeadLetters                                []job.DeadLetter
}

// Violation is a broken invariant.
type Violation struct {
	Invariant string
	JobID     string
	Detail    string
}

// String returns a violation for people to read.
func (v Violation) String() string { return v.Invariant + " " + v.JobID + ": " + v.Detail }

// report gathers violations, at most maxViolations of them.
type report struct{ violations []Violation }

// maxViolations bounds a report.
const maxViolations = 100

func (r *report) add(invariant, jobID, format string, args ...any) {
	if len(r.violations) < maxViolations {
		r.violations = append(r.violations, Violation{invariant, jobID, fmt.Sprintf(format, args...)})
	}
}

// Check returns every invariant that the account breaks.
func Check(a *Account) []Violation {
	r := &report{}
	i := newIndex(a)
	for n := range a.Jobs {
		checkDispositions(r, a, i, &a.Jobs[n])
		checkPending(r, a, i, &a.Jobs[n])
		checkOverlaps(r, a, i, &a.Jobs[n])
	}
	checkCalls(r, a, i)
	checkFences(r, a)
	checkStops(r, a)
	checkAttempts(r, a, i)
	checkArchive(r, a)
	checkChanges(r, a, i)
	checkRequesters(r, a)
	checkPromises(r, a, i)
	checkOwed(r, a, i)
	checkKeys(r, a)
	checkOperations(r, a, i)
	checkIncidents(r, a, i)
	checkNotifications(r, a, i)
	checkFollowers(r, a, i)
	checkForecasts(r, a)
	checkWorkers(r, a, i)
	return r.violations
}

type attemptKey struct {
	executionID string
	attempt     int
}

// index is the account, indexed for lookups.
type index struct {
	calls      map[attemptKey][]Call
	called     map[string]bool         // by execution
	eventsOf   map[string][]*job.Event // by job
	attempts   map[string][]*job.Event // attempt events by execution
	pendingOf  map[string][]*job.PendingRow
	deadLetter map[string]bool
	lost       map[string]bool // executions of which the history lost an event
	// definitions are those that a job has or had.
	definitions map[string][]*job.Definition
}

func newIndex(a *Account) *index {
	i := &index{
		calls: map[attemptKey][]Call{}, called: map[string]bool{}, eventsOf: map[string][]*job.Event{}, attempts: map[string][]*job.Event{},
		pendingOf: map[string][]*job.PendingRow{}, deadLetter: map[string]bool{}, lost: map[string]bool{}, definitions: map[string][]*job.Definition{},
	}
	for _, c := range a.Calls {
		k := attemptKey{c.ExecutionID, c.Attempt}
		i.calls[k] = append(i.calls[k], c)
		i.called[c.ExecutionID] = true
	}
	for n := range len(a.Events) + len(a.LostToHistory) {
		var e *job.Event
		if n < len(a.Events) {
			e = &a.Events[n]
		} else {
			e = &a.LostToHistory[n-len(a.Events)]
			i.lost[e.Entry.ExecutionID] = true
		}
		i.eventsOf[e.Entry.JobID] = append(i.eventsOf[e.Entry.JobID], e)
		if e.Type == job.EventAttempt {
			i.attempts[e.Entry.ExecutionID] = append(i.attempts[e.Entry.ExecutionID], e)
		}
	}
	for n := range a.Pending {
		p := &a.Pending[n]
		i.pendingOf[p.JobID] = append(i.pendingOf[p.JobID], p)
	}
	for n := range a.Jobs {
		j := &a.Jobs[n]
		i.definitions[j.Job.ID] = []*job.Definition{&j.Job.Definition}
		for k := range j.Superseded {
			i.definitions[j.Job.ID] = append(i.definitions[j.Job.ID], &j.Superseded[k])
		}
	}
	for n := range a.DeadLetters {
		i.deadLetter[a.DeadLetters[n].Event.Entry.ExecutionID] = true
	}
	return i
}
