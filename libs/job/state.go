package job

import (
	"slices"
	"time"
)

// State decides whether an attempt may begin: it is the part of a job row that the stop record carries too.
type State struct {
	Version      int64
	Status       Status
	PausedAt     time.Time
	DefinitionID string
	EffectiveAt  time.Time
	// StoppedExecutions are the job's executions that were cancelled individually.
	StoppedExecutions []string
	// StoppedBefore stops what [Job.StoppedBefore] says.
	StoppedBefore time.Time `json:",omitzero"`
}

// Stops reports whether an execution was cancelled individually. [State.Judge] ignores this and [State.Displaced]: the worker dispatches
// such an entry like any other, so that the schedule goes on, and the executor refuses it.
func (s State) Stops(executionID string) bool {
	return slices.Contains(s.StoppedExecutions, executionID)
}

// Displaced reports whether another execution of the schedule took the place of the entry's.
func (s State) Displaced(e *Entry) bool {
	return e.Alone && e.NominalAt.Before(s.StoppedBefore)
}

// Ends reports whether one of the executions that are in progress alone was cancelled, or another one took its place.
func (s State) Ends(executionID string) bool {
	if s.Stops(executionID) {
		return true
	}
	ref, err := ParseExecutionID(executionID)
	return err == nil && ref.NominalAt.Before(s.StoppedBefore)
}

// Verdict is what becomes of an entry or a fire.
type Verdict int

// The verdicts of [State.Judge].
const (
	// VerdictProceed means: the attempt may be dispatched or invoked.
	VerdictProceed Verdict = iota
	// VerdictAheadOfRow means: the definition is newer than the row; its row is on its way.
	VerdictAheadOfRow
	// VerdictSuperseded means: the definition is no longer the job's, and the caller must find out where it ended before the entry can
	// be judged.
	VerdictSuperseded
	// VerdictOutdated means: the instant belongs to a newer definition, which fires it. No disposition.
	VerdictOutdated
	// VerdictPaused means: the instant lies at or before paused_at; its disposition is skipped_paused.
	VerdictPaused
	// VerdictAfterPause means: the instant lies after paused_at of a paused job; it gets its disposition at resume.
	VerdictAfterPause
	// VerdictCancelled means: the job was cancelled or deleted; the disposition is cancelled.
	VerdictCancelled
)

// HasDisposition reports whether the refusal ends the occurrence on record.
func (v Verdict) HasDisposition() bool { return v == VerdictPaused || v == VerdictCancelled }

// Judge decides what becomes of an entry (services/README.md, steps 4 and 6). The worker calls it with the job row, the executor
// with the stop record; one function keeps the two consistent.
//
// The state says where the job's current definition begins, but not where an earlier one ended if others came in between. endsAt is
// the end of the entry's own definition, zero where the caller does not know of one. (An end never changes once it is set.)
//
// Retries and executions that somebody asked for carry on under the definition that they began with: only cancel and delete stop them. So do
// those that follow other jobs, except that a pause skips them as it skips what is due.
func (s State) Judge(e *Entry, endsAt time.Time) Verdict {
	older := e.DefinitionID < s.DefinitionID
	first := e.FirstOfSchedule()
	switch {
	case e.DefinitionID > s.DefinitionID:
		return VerdictAheadOfRow
	case older && first && !e.NominalAt.Before(s.EffectiveAt):
		return VerdictOutdated
	case older && first && endsAt.IsZero():
		return VerdictSuperseded
	case older && first && !e.NominalAt.Before(endsAt):
		return VerdictOutdated
	case s.Status == StatusCancelled:
		return VerdictCancelled
	case e.Trigger == TriggerAfter && e.Attempt == 1 && s.Status == StatusPaused:
		return VerdictPaused
	case !first:
		return VerdictProceed
	}
	pausedBefore := !s.PausedAt.IsZero() && !e.NominalAt.After(s.PausedAt)
	switch {
	case s.Status == StatusPaused && pausedBefore:
		return VerdictPaused
	case s.Status == StatusPaused:
		return VerdictAfterPause
	case older && pausedBefore:
		return VerdictPaused
	}
	return VerdictProceed
}

// JudgeAttempt decides by a stop record whether an attempt may be invoked. It decides as Judge does, except that an execution that was
// cancelled individually, or whose place another one took, is VerdictCancelled. A state of version 0 stands for no stop record, which stops nothing.
func (s State) JudgeAttempt(e *Entry, endsAt time.Time) Verdict {
	if s.Version == 0 {
		return VerdictProceed
	}
	v := s.Judge(e, endsAt)
	if v == VerdictProceed && (s.Stops(e.ExecutionID) || s.Displaced(e)) {
		return VerdictCancelled
	}
	return v
}

// Refusal returns the outcome of an attempt that is refused with a disposition. Only a first attempt decides what becomes of its
// occurrence; a later attempt follows a call that was made, so the occurrence stays fired.
func Refusal(v Verdict, e *Entry) Outcome {
	o := Outcome{Kind: OutcomeCancelled, Disposition: DispositionCancelled}
	if v == VerdictPaused {
		o.Kind, o.Disposition = OutcomeSkipped, DispositionSkippedPaused
	}
	if e.Attempt > 1 {
		o.Disposition = DispositionFired
	}
	return o
}
