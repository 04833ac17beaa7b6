package ledger

import (
	"slices"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// Operation is a backfill, a replay or a redrive that was answered to a client.
type Operation struct {
	// JobID is "" for a redrive, which is one of all jobs.
	JobID, ID, DefinitionID string
	Replay, Redrive         bool
	// Elsewhere is the host that a replay calls instead of the job's target; "" for that.
	Elsewhere string
	// From and To bound the range as it was asked for, to the nanosecond.
	From, To time.Time
	// Total is how many instants the answer of a backfill named.
	Total int
	// Known are the executions that a client was shown as ended, before it asked for the replay, in one of the states that it named; for a
	// redrive those that it was shown as dead letters which nobody had redriven.
	Known   []string
	AckedAt time.Time
	// Rate is how many executions were asked for in a second. Cancelled is set if a cancel was answered, when AtCancel were handed out.
	Rate, AtCancel int
	Cancelled      bool
	// Resumed is set if a resume was answered after each pause that was asked for.
	Resumed bool
	// Status and HandedOut are what a client was shown near the end; "" if it was shown nothing.
	Status    string
	HandedOut int
}

// checkOperations checks that each execution of an operation is called, as many as were handed out, and that nothing is executed because of an
// operation but what clients asked for.
func checkOperations(r *report, a *Account, i *index) {
	if a.Operations == nil || a.Settles == 0 {
		return
	}
	stopped, asked, elsewhere := map[string]bool{}, map[string]bool{}, map[string]string{} // jobs; executions
	for _, s := range a.Stops {
		stopped[s.JobID] = stopped[s.JobID] || s.Kind == StopCancel
	}
	for id := range a.Deleted {
		stopped[id] = stopped[id] || a.Deleted[id]
	}
	redrives := &redrives{stopped: stopped, by: map[string]string{}}
	for n := range a.Operations {
		redrives.take(r, a, i, &a.Operations[n])
	}
	for n := range a.Operations {
		o := &a.Operations[n]
		var own []string
		spare := 0
		switch {
		case o.Redrive:
			own, spare = redrives.check(r, a, i, o)
		case o.Replay:
			own = checkReplay(r, a, i, o)
		default:
			own = checkBackfill(r, i, o)
		}
		for _, id := range own {
			asked[id], elsewhere[id] = true, o.Elsewhere
		}
		if !stopped[o.JobID] {
			checkHandedOut(r, a, i, o, own, spare)
		}
	}
	checkElsewhere(r, a, i, elsewhere)
	for _, t := range a.Triggers {
		asked[t.ExecutionID] = true
	}
	for n := range a.Calls {
		c := &a.Calls[n]
		ref, err := job.ParseExecutionID(c.ExecutionID)
		of := ofOperation(ref.Trigger) && !a.Unanswered[c.JobID] || ref.Trigger == job.TriggerRedrive && redrives.asked && !a.Unanswered[""]
		if err == nil && of && !asked[c.ExecutionID] {
			asked[c.ExecutionID] = true
			r.add("I1", c.JobID, "%s was called, which belongs to no operation that was answered", c.ExecutionID)
		}
	}
}

// ElsewhereSuffix is how the hosts end to which only replays go.
const ElsewhereSuffix = ".elsewhere"

// checkElsewhere checks that the executions of replays that were to go elsewhere, and no others, call the host that was named, and that nothing
// comes of them but a record.
func checkElsewhere(r *report, a *Account, i *index, elsewhere map[string]string) {
	for n := range a.Calls {
		c := &a.Calls[n]
		host := elsewhere[c.ExecutionID]
		if (host != "" || strings.HasSuffix(c.Host, ElsewhereSuffix)) && c.Host != host && !a.Unanswered[c.JobID] {
			r.add("I1", c.JobID, "%s called %s, and was to call %q", c.ExecutionID, c.Host, host)
		}
	}
	for n := range a.DeadLetters {
		if e := &a.DeadLetters[n].Event.Entry; elsewhere[e.ExecutionID] != "" {
			r.add("I7", e.JobID, "%s went elsewhere, and is a dead letter", e.ExecutionID)
		}
	}
	for jobID, events := range i.eventsOf {
		for _, e := range events {
			if n := e.Entry.Note; n != nil && e.Entry.Trigger == job.TriggerAfter && elsewhere[n.Source] != "" {
				r.add("I15", jobID, "%s follows %s, which went elsewhere", e.Entry.ExecutionID, n.Source)
			}
		}
	}
	for n := range a.Events { // not what a log lost before the history had it: that is as it was published
		if e := &a.Events[n].Entry; e.Elsewhere() != nil && e.Elsewhere().Headers != nil {
			r.add("I1", e.JobID, "the history of %s keeps the headers of a target", e.ExecutionID)
		}
	}
}

// standsForAnother reports whether executions with a trigger stand for a former occurrence.
func standsForAnother(t job.Trigger) bool {
	return t == job.TriggerRedrive || t == job.TriggerAfter || ofOperation(t)
}

func ofOperation(t job.Trigger) bool { return t == job.TriggerBackfill || t == job.TriggerReplay }

// checkBackfill returns the executions of a backfill.
func checkBackfill(r *report, i *index, o *Operation) (ids []string) {
	n := slices.IndexFunc(i.definitions[o.JobID], func(d *job.Definition) bool { return d.ID == o.DefinitionID })
	if n < 0 {
		r.add("API", o.JobID, "operation %s executes definition %s, which the job never had", o.ID, o.DefinitionID)
		return nil
	}
	plan, err := schedule.Compile(i.definitions[o.JobID][n].Schedule, o.JobID)
	if err != nil {
		r.add("API", o.JobID, "the schedule of operation %s: %v", o.ID, err)
		return nil
	}
	for at, ok := plan.First(o.From); ok && at.Before(o.To); at, ok = plan.Next(at) {
		id := job.BackfillExecutionID(o.JobID, o.ID, at)
		checkOccurrence(r, i, id, at)
		ids = append(ids, id)
	}
	if len(ids) != o.Total {
		r.add("API", o.JobID, "operation %s was answered with %d instants, and there are %d", o.ID, o.Total, len(ids))
	}
	for _, id := range ids {
		for _, e := range i.attempts[id] {
			if e.Entry.Note == nil || e.Entry.Note.Operation != o.ID {
				r.add("I1", o.JobID, "%s does not name operation %s", id, o.ID)
			}
		}
	}
	return ids
}

// checkReplay returns the executions of a replay: of what was called before, or cancelled.
func checkReplay(r *report, a *Account, i *index, o *Operation) (ids []string) {
	request := strings.TrimPrefix(o.ID, job.OperationPrefix)
	sources := map[string]bool{}
	take := func(id string) {
		if ref, err := job.ParseExecutionID(id); err == nil && ref.JobID == o.JobID && !ref.NominalAt.Before(o.From) && ref.NominalAt.Before(o.To) {
			sources[id] = true
		}
	}
	for n := range a.Calls {
		take(a.Calls[n].ExecutionID)
	}
	for _, e := range i.eventsOf[o.JobID] { // what was cancelled before it was called
		if e.Type == job.EventAttempt && e.Outcome.Kind == job.OutcomeCancelled {
			take(e.Entry.ExecutionID)
		}
	}
	for source := range sources {
		id := job.ReplayExecutionID(o.JobID, request, source)
		if ref, err := job.ParseExecutionID(source); err == nil && !standsForAnother(ref.Trigger) {
			checkOccurrence(r, i, id, ref.NominalAt)
		}
		ids = append(ids, id)
	}
	for _, source := range o.Known {
		if id := job.ReplayExecutionID(o.JobID, request, source); o.Status == "done" && !traced(i, id) {
			r.add("I1", o.JobID, "operation %s is done, and did not repeat %s, which a client had been shown before", o.ID, source)
		}
	}
	return ids
}

// redrives are those that were answered.
type redrives struct {
	// stopped are the jobs that were cancelled or deleted. by is which operation executed a dead letter again, asked is set if there is one.
	stopped map[string]bool
	by      map[string]string
	asked   bool
}

// take notes which dead letters an operation executed again, if it is a redrive. No two of them take one.
func (rs *redrives) take(r *report, a *Account, i *index, o *Operation) {
	if !o.Redrive {
		return
	}
	rs.asked = true
	for n := range a.DeadLetters {
		e := &a.DeadLetters[n].Event.Entry
		id := redriveOf(o, e)
		if !traced(i, id) {
			continue
		}
		if other := rs.by[e.ExecutionID]; other != "" {
			r.add("I1", e.JobID, "%s was executed again by operation %s and by %s", e.ExecutionID, other, o.ID)
		}
		rs.by[e.ExecutionID] = o.ID
		checkOccurrence(r, i, id, e.Occurrence())
	}
}

func redriveOf(o *Operation, e *job.Entry) string {
	return job.RedriveExecutionID(e.JobID, strings.TrimPrefix(o.ID, job.OperationPrefix), e.ExecutionID)
}

// check returns the executions by which a redrive executes dead letters again, whichever they are, and how many of them need not be executed, because
// their jobs were stopped. One that is done has left none that it was to take.
func (rs *redrives) check(r *report, a *Account, i *index, o *Operation) (ids []string, spare int) {
	for n := range a.DeadLetters {
		e := &a.DeadLetters[n].Event.Entry
		id := redriveOf(o, e)
		if ids = append(ids, id); rs.stopped[e.JobID] && !traced(i, id) {
			spare++
		}
	}
	for _, source := range o.Known {
		if ref, err := job.ParseExecutionID(source); err == nil && o.Status == "done" && !rs.stopped[ref.JobID] && rs.by[source] == "" && !a.Unanswered[""] {
			r.add("I1", ref.JobID, "operation %s is done, and nobody has executed %s again, which a client had been shown before", o.ID, source)
		}
	}
	return ids, spare
}

// checkOccurrence checks that the calls of an execution tell their target of the instant for which it stands.
func checkOccurrence(r *report, i *index, id string, at time.Time) {
	for attempt := 1; ; attempt++ {
		calls := i.calls[attemptKey{id, attempt}]
		for n := range calls {
			if c := &calls[n]; !c.ScheduledFor.Equal(at) {
				r.add("I1", c.JobID, "a call of %s was scheduled for %s, and it stands for %s", id, c.ScheduledFor, at)
			}
		}
		if len(calls) == 0 {
			return
		}
	}
}

// checkHandedOut compares what an operation of a job that nobody stopped says with what it executed; spare of that need not be.
func checkHandedOut(r *report, a *Account, i *index, o *Operation, own []string, spare int) {
	executed := 0
	for _, id := range own {
		if traced(i, id) {
			executed++
		}
	}
	switch {
	case o.Status == "":
	case o.AckedAt.Before(a.Until.Add(-a.Settles)) && !slices.Contains([]string{"done", "paused", "cancelled"}, o.Status):
		r.add("I1", o.JobID, "operation %s is %s long after it began", o.ID, o.Status)
	case o.Status == "done" && !o.Replay && !o.Redrive && o.HandedOut != o.Total:
		r.add("I1", o.JobID, "operation %s is done, and has handed out %d of %d", o.ID, o.HandedOut, o.Total)
	case o.Cancelled && o.Status != "cancelled":
		r.add("API", o.JobID, "the cancel of operation %s was answered, and it is %s", o.ID, o.Status)
	case o.Status == "cancelled" && o.HandedOut > o.AtCancel+aheadOf*o.Rate+1:
		r.add("API", o.JobID, "operation %s handed out %d after its cancel was answered, and may %d", o.ID, o.HandedOut-o.AtCancel, aheadOf*o.Rate+1)
	case o.Resumed && o.Status == "paused":
		r.add("API", o.JobID, "the resume of operation %s was answered, and it is paused", o.ID)
	case o.Status == "cancelled" && a.Crashed && executed > o.HandedOut && executed <= o.HandedOut+aheadOf*o.Rate+1:
		// A process that stood still wrote what nobody counts any more.
	case o.Status == "running" && executed > o.HandedOut: // it was shown before it was done
	case executed > o.HandedOut || executed < o.HandedOut-spare:
		r.add("I1", o.JobID, "operation %s says that it handed out %d, and %d were executed", o.ID, o.HandedOut, executed)
	}
}

// aheadOf is for how many seconds executions are handed out ahead.
const aheadOf = 3

// traced reports whether anything is known of an execution.
func traced(i *index, id string) bool { return i.called[id] || len(i.attempts[id]) > 0 }
