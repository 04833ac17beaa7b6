package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// noticed is how long after its end a target may notice that a call is over, because its caller has gone.
const noticed = 100 * time.Millisecond

// span is from the first call of an execution to the end of the last one whose outcome is on record. A call that came later was made by an
// executor that stalled, after its attempt had been given up.
type span struct {
	executionID, definitionID string
	nominalAt, from, to       time.Time
	// checked is when the last check of a call was accepted first, after which its executor may have stalled.
	checked time.Time
}

// hears is how long after it was cancelled an executor may notice that.
const hears = 2 * time.Second

// checkDisplaced checks that no call of an execution begins after one has begun that took its place, and that what took the place of another
// was called itself, unless somebody stopped it.
func checkDisplaced(r *report, a *Account, i *index, j *JobAccount, spans []span, policies map[string]job.Overlap) {
	if at := j.Job.StoppedBefore; !at.IsZero() {
		x := job.ScheduleExecutionID(j.Job.ID, at)
		switch events := i.attempts[x]; {
		case len(events) == 0:
			if a.Settles > 0 && at.Before(a.Until.Add(-a.Settles)) {
				r.add("I11", j.Job.ID, "%s took the place of another, and nothing is known of it", x)
			}
		case a.excuses(j.Job.ID, at):
		default:
			d := dispositionOf(events)
			stopped := d == job.DispositionCancelled && a.Requests != nil && !slices.ContainsFunc(a.Requests, func(q Request) bool {
				return q.JobID == j.Job.ID && slices.Contains([]string{"cancelExecution", "cancelJob", "deleteJob"}, q.Operation)
			})
			if d == job.DispositionSkippedMissed || d == job.DispositionSkippedOverlap || stopped {
				r.add("I11", j.Job.ID, "%s took the place of another, and was %s itself", x, d)
			}
		}
	}
	if a.TellsWithin == 0 {
		return
	}
	for n, s := range spans {
		if p := policies[s.definitionID]; p != job.OverlapCancelOther && p != job.OverlapTerminateOther {
			continue
		}
		for m, other := range spans {
			if n < m && other.definitionID != s.definitionID { // around an update it may have been decided about later
				continue
			}
			if other.nominalAt.Before(s.nominalAt) && i.lastCall(other.executionID).After(s.from.Add(a.TellsWithin)) {
				r.add("I11", j.Job.ID, "%s was called after %s had taken its place", other.executionID, s.executionID)
			}
		}
	}
}

// lastCall returns when the last call of an execution began.
func (i *index) lastCall(executionID string) (at time.Time) {
	for _, e := range i.attempts[executionID] {
		for _, c := range i.calls[attemptKey{executionID, e.Entry.Attempt}] {
			at = later(at, c.At)
		}
	}
	return at
}

// overtaken reports whether a pause or a cancel of the job was answered after an occurrence had given way: it may have stopped the other one at
// its last check. So may an update, by a try without an answer, too: then the other one was decided about once more, under the definition that the
// try had made, and what was answered first of that definition or a later one was answered after the occurrence had given way.
func overtaken(a *Account, e *job.Event, other []*job.Event, definitions []job.Definition) bool {
	var began time.Time // from when on the definition applied under which the other one was decided about last
	for _, d := range definitions {
		under := func(o *job.Event) bool {
			return o.Entry.DefinitionID == d.ID && !d.EffectiveAt.After(o.Entry.NominalAt)
		}
		if d.ID > e.Entry.DefinitionID && slices.ContainsFunc(other, under) {
			began = later(began, d.EffectiveAt)
		}
	}
	var answered time.Time
	for _, s := range a.Stops {
		switch after := s.AckedAt.After(e.At.Add(-apart)); {
		case s.JobID != e.Entry.JobID:
		case after && (s.Kind == StopPause || s.Kind == StopCancel):
			return true
		case s.Kind == StopUpdate && !began.IsZero() && !s.EffectiveAt.Before(began) && (answered.IsZero() || s.AckedAt.Before(answered)):
			answered = s.AckedAt
		}
	}
	return !answered.IsZero() && answered.After(e.At.Add(-apart))
}

// checkLine checks of those that may wait, by definition as many as most, that they were called in the order of their instants, and that no
// more waited. spans are in the order of their first calls. While an update is slow, the former definition may let an occurrence wait
// before the first of the new one comes, which is of an earlier instant.
func checkLine(r *report, a *Account, i *index, j *JobAccount, spans []span, most map[string]int) {
	before, ends := map[string]span{}, map[string]time.Time{}
	for _, s := range spans {
		ends[s.executionID] = s.to
		if most[s.definitionID] == 0 {
			continue
		}
		last := before[s.definitionID]
		again := a.HotLost && (i.repeated(s.executionID) || i.repeated(last.executionID)) || a.excuses(j.Job.ID, s.nominalAt) ||
			a.whileUpdated(append(slices.Clone(j.Superseded), j.Job.Definition), last.nominalAt)
		if s.nominalAt.Before(last.nominalAt) && s.checked.After(last.from) && !again {
			r.add("I11", j.Job.ID, "%s was called after %s", s.executionID, last.executionID)
		}
		before[s.definitionID] = s
	}
	if a.TellsWithin == 0 {
		return
	}
	line := map[string]*job.Event{} // who waited for another, since when, and for whom
	for _, e := range i.eventsOf[j.Job.ID] {
		if x := e.Entry.ExecutionID; !e.WaitsFor.IsZero() && line[x] == nil {
			line[x] = e
		}
	}
	for x, e := range line {
		waiting := 0
		for _, other := range line { // what it waited for was still in progress when the other one came
			if other.Entry.DefinitionID == e.Entry.DefinitionID && other.Entry.NominalAt.Before(e.Entry.NominalAt) && ends[other.GaveWayTo()].After(e.At.Add(a.TellsWithin)) {
				waiting++
			}
		}
		if n := most[e.Entry.DefinitionID]; waiting >= n {
			r.add("I11", j.Job.ID, "%s waited while %d others did, and only %d may", x, waiting, n)
		}
	}
}

// checkOverlaps checks I11: two executions of a schedule that asks for it are never in progress together, as their targets saw it, and an
// occurrence gave way only to one that was in progress.
func checkOverlaps(r *report, a *Account, i *index, j *JobAccount) {
	alone, most, policies := map[string]bool{}, map[string]int{}, map[string]job.Overlap{}
	definitions := append(slices.Clone(j.Superseded), j.Job.Definition)
	for _, d := range definitions {
		alone[d.ID], most[d.ID], policies[d.ID] = d.Alone(), d.MostWaiting(), d.Overlap
	}
	var spans []span
	ended := map[string]time.Time{}
	for _, e := range i.eventsOf[j.Job.ID] {
		x := e.Entry.ExecutionID
		if _, done := ended[x]; done || e.Type != job.EventAttempt || e.Entry.Trigger != job.TriggerSchedule || !alone[e.Entry.DefinitionID] {
			continue
		}
		s := i.span(x)
		s.nominalAt, s.definitionID = e.Entry.NominalAt, i.calledUnder(x)
		if !s.from.IsZero() {
			spans = append(spans, s)
		}
		ended[x] = i.endOf(x)
	}
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to), a.nominalAt.Compare(b.nominalAt))
	})
	var before span // the one that ends last
	for _, s := range spans {
		// The hot tier knows first that an attempt has ended. If it forgets that before the events tell it, the attempt is made again.
		again := a.HotLost && (i.repeated(s.executionID) || i.repeated(before.executionID))
		over := noticed
		if p := policies[s.definitionID]; p == job.OverlapTerminateOther { // the other one's executor hears of it a little later
			over = hears + a.TellsWithin
			again = again || a.TellsWithin == 0
		}
		// An executor that lost its lease with the hot tier cuts off a call that was cancelled a little later, too.
		again = again || a.HotLost && cancelled(i.attempts[before.executionID])
		if s.from.Before(before.to.Add(-over)) && !again {
			r.add("I11", j.Job.ID, "%s was called %s before %s had ended", s.executionID, before.to.Sub(s.from), before.executionID)
		}
		if s.to.After(before.to) {
			before = s
		}
	}
	checkLine(r, a, i, j, spans, most)
	checkDisplaced(r, a, i, j, spans, policies)
	for _, e := range i.eventsOf[j.Job.ID] {
		if e.Disposition != job.DispositionSkippedOverlap {
			continue
		}
		x := e.GaveWayTo()
		ref, err := job.ParseExecutionID(x)
		if err != nil || ref.JobID != j.Job.ID || ref.Trigger != job.TriggerSchedule || x == e.Entry.ExecutionID || !alone[e.Entry.DefinitionID] {
			r.add("I11", j.Job.ID, "%s gave way to %q, which is no other execution of its schedule", e.Entry.ExecutionID, x)
			continue
		}
		if most[e.Entry.DefinitionID] > 0 && a.TellsWithin > 0 {
			if s := i.span(x); !s.from.IsZero() && s.from.Add(a.TellsWithin).Before(e.Entry.DueAt) {
				r.add("I11", j.Job.ID, "%s gave way to %s, which did not wait: it had been called %s before", e.Entry.ExecutionID, x, e.Entry.DueAt.Sub(s.from))
			}
		}
		if d := i.unfired(x); d != "" && !a.Crashed && most[e.Entry.DefinitionID] == 0 && !overtaken(a, e, i.attempts[x], definitions) {
			r.add("I11", j.Job.ID, "%s gave way to %s, which was %s", e.Entry.ExecutionID, x, d)
		}
		if end := ended[x]; !end.IsZero() && a.TellsWithin > 0 && end.Add(a.TellsWithin).Before(e.Entry.DueAt) {
			r.add("I11", j.Job.ID, "%s gave way to %s, which had ended %s before", e.Entry.ExecutionID, x, e.Entry.DueAt.Sub(end))
		}
	}
}

// unfired returns the disposition of an execution that was never called; "" if it was, was cancelled, or may still be.
func (i *index) unfired(executionID string) job.Disposition {
	events := i.attempts[executionID]
	if len(events) == 0 {
		return ""
	}
	if d := dispositionOf(events); d != job.DispositionFired && d != job.DispositionCancelled {
		return d
	}
	return ""
}

// repeated reports whether an attempt of an execution was called more than once, or ended on record without its call, too.
func (i *index) repeated(executionID string) bool {
	for _, e := range i.attempts[executionID] {
		calls := i.calls[attemptKey{executionID, e.Entry.Attempt}]
		under := func(c Call) bool { return c.Token == e.Outcome.Fence.String() }
		if len(calls) > 1 || len(calls) > 0 && !slices.ContainsFunc(calls, under) { // it ended once without that call
			return true
		}
	}
	return false
}

// endOf returns when an execution ended, whose last attempt may have been cancelled before its call, or made again under another definition;
// zero if another attempt follows.
func (i *index) endOf(executionID string) (end time.Time) {
	last, goesOn := 0, false
	for _, e := range i.attempts[executionID] {
		if e.Entry.Attempt < last {
			continue
		}
		if e.Entry.Attempt > last {
			last, goesOn, end = e.Entry.Attempt, false, time.Time{}
		}
		_, over := e.Next()
		goesOn = goesOn || e.Outcome.Failed() && over == ""
		end = later(end, e.Outcome.Timeline.Completed)
	}
	if goesOn {
		return time.Time{}
	}
	return end
}

// calledUnder returns the definition under which an execution was called; around an update, an entry of another one may have been skipped.
func (i *index) calledUnder(executionID string) string {
	for _, e := range i.attempts[executionID] {
		if e.Outcome.Invoked() {
			return cmp.Or(e.Outcome.DefinitionID, e.Entry.DefinitionID)
		}
	}
	return i.attempts[executionID][0].Entry.DefinitionID
}

// span returns from when to when an execution was in progress at its targets.
func (i *index) span(executionID string) span {
	s := span{executionID: executionID}
	for _, e := range i.attempts[executionID] {
		for _, c := range i.calls[attemptKey{executionID, e.Entry.Attempt}] {
			if c.Token != e.Outcome.Fence.String() {
				continue
			}
			checked := c.At
			if !c.CheckedAt.IsZero() {
				checked = c.CheckedAt
			}
			if s.checked.IsZero() || checked.Before(s.checked) {
				s.checked = checked
			}
			if s.from.IsZero() || c.At.Before(s.from) {
				s.from = c.At
			}
			s.to = later(s.to, later(c.At, c.EndedAt))
		}
	}
	return s
}
