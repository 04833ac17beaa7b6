package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// checkPromises compares what clients were answered, and what targets received, with the results. It checks only runs that
// had the time to settle.
func checkPromises(r *report, a *Account, i *index) {
	if a.Settles == 0 {
		return
	}
	known, cancelled := map[string]bool{}, map[string]bool{} // jobs and executions
	for n := range a.Jobs {
		known[a.Jobs[n].Job.ID] = true
	}
	for _, s := range a.Stops {
		switch s.Kind {
		case StopCancel:
			cancelled[s.JobID] = true
		case StopExecution:
			cancelled[s.ExecutionID] = true
		}
	}
	for _, id := range a.Registered {
		if !known[id] && !cancelled[id] {
			r.add("I1", id, "its registration was answered, and nobody knows the job")
		}
	}
	checkAnswers(r, a, cancelled)
	checkPages(r, a, i)
	settled := a.Until.Add(-a.Settles)
	for _, t := range a.Triggers {
		if t.AckedAt.After(settled) || i.called[t.ExecutionID] || cancelled[t.JobID] || cancelled[t.ExecutionID] {
			continue
		}
		if events := i.attempts[t.ExecutionID]; !a.Crashed || len(events) == 0 || !lostOnly(events) {
			r.add("I1", t.JobID, "execution %s was answered to a trigger or redrive, and no target saw it", t.ExecutionID)
		}
	}
	for k, calls := range i.calls {
		c := calls[0]
		if known[c.JobID] && !c.At.After(settled) && !onRecord(i.attempts[k.executionID], k.attempt) && !nobodyKnows(a, calls) && !givenBack(calls) {
			r.add("I7", c.JobID, "attempt %d of %s was called, and no event tells of it", k.attempt, k.executionID)
		}
	}
	checkRetries(r, a, i, settled)
	for n := range a.Pending {
		if p := &a.Pending[n]; !p.Done && p.DueAt.Before(settled) {
			r.add("I1", p.JobID, "the entry of %s, attempt %d, is not done %s after it was due", p.ExecutionID, p.Attempt, a.Until.Sub(p.DueAt))
		}
	}
}

// checkPages checks that the pages read by a client hold each job, and each execution that a target was called for, once.
func checkPages(r *report, a *Account, i *index) {
	for _, id := range a.Registered {
		if n := a.Listed[id]; a.Listed != nil && n != 1 && !a.Deleted[id] {
			r.add("API", id, "the pages of jobs hold it %d times", n)
		}
	}
	for jobID, executions := range a.Executions {
		for id, n := range executions {
			if n != 1 {
				r.add("API", jobID, "the pages of its executions hold %s %d times", id, n)
			}
		}
		for k := range i.calls {
			// Calls made before the account's end, which is before the pages were read.
			if c := i.calls[k][0]; c.JobID == jobID && c.At.Before(a.Until) && executions[k.executionID] == 0 && !i.lost[k.executionID] &&
				onRecord(i.attempts[k.executionID], k.attempt) {
				r.add("API", jobID, "the pages of its executions do not hold %s", k.executionID)
			}
		}
	}
}

// checkAnswers checks that a resume that was answered still holds, and that every refusal had a cause.
func checkAnswers(r *report, a *Account, cancelled map[string]bool) {
	gone := map[string]bool{}
	for n := range a.Calls {
		gone[a.Calls[n].JobID] = gone[a.Calls[n].JobID] || a.Calls[n].Gone
	}
	for n := range a.Jobs {
		if j := &a.Jobs[n].Job; a.Resumed[j.ID] && j.Status == job.StatusPaused && !gone[j.ID] {
			r.add("API", j.ID, "its resume was answered, and it is paused")
		}
	}
	for _, x := range a.Refusals {
		if x.Code == "cancelled" && !cancelled[x.JobID] {
			r.add("API", x.JobID, "a change was refused because the job is cancelled, which nobody asked for")
		}
	}
}

// checkRetries checks that an attempt is followed by another if its target failed every call of it, in jobs that nobody
// stopped or updated. (An executor that stalled may make a late call of an attempt that another executor has settled.) The
// following attempts may have been lost with their executors before they called. Of a task that the hot tier forgot while a worker had it nobody knows
// that it was begun: it may be judged as if it was late. And an attempt that the hot tier forgot after a success may be on record as lost, too.
func checkRetries(r *report, a *Account, i *index, settled time.Time) {
	stopped, unsettled := map[string]bool{}, a.unsettled()
	for _, s := range a.Stops {
		stopped[s.JobID] = true
	}
	for k, calls := range i.calls {
		c, most, events := calls[len(calls)-1], a.MaxAttempts[calls[0].JobID], i.attempts[k.executionID]
		if stopped[c.JobID] || a.Removed[k.executionID] || c.At.After(settled) || slices.ContainsFunc(calls, func(c Call) bool { return !c.Failed || c.Pool && c.Untold }) {
			continue
		}
		for k.attempt++; lostAt(events, k.attempt) && !succeeded(i.calls[k]); k.attempt++ {
		}
		if gaveUp := cancelled(events) && displaced(a, i, k.executionID); k.attempt <= most && len(i.calls[k]) == 0 && !unsettled[k.executionID] && !gaveUp {
			r.add("I1", c.JobID, "attempt %d of %s failed, and attempt %d never came", c.Attempt, k.executionID, k.attempt)
		}
	}
}

// displaced reports whether another execution of its schedule took the place of one.
func displaced(a *Account, i *index, executionID string) bool {
	ref, err := job.ParseExecutionID(executionID)
	if events := i.attempts[executionID]; err != nil || len(events) > 0 && !events[0].Entry.Alone {
		return false
	}
	return slices.ContainsFunc(a.Jobs, func(j JobAccount) bool { return j.Job.ID == ref.JobID && ref.NominalAt.Before(j.Job.StoppedBefore) })
}

// cancelled reports whether one of the events is the end of an execution that was cancelled.
func cancelled(events []*job.Event) bool {
	return slices.ContainsFunc(events, func(e *job.Event) bool { return e.Outcome.Kind == job.OutcomeCancelled })
}

// lostAt reports whether an attempt was lost.
func lostAt(events []*job.Event, attempt int) bool {
	return slices.ContainsFunc(events, func(e *job.Event) bool { return e.Entry.Attempt == attempt && lost(e) })
}

// lost reports whether an attempt ended that its target may not have seen: its executor was lost, or a task of a pool was handed out in an answer
// that did not arrive.
func lost(e *job.Event) bool {
	return e.Outcome.Kind == job.OutcomeWorkerLost || e.Outcome.Kind == job.OutcomeTimedOut && e.Target.Kind == job.TargetPool
}

// succeeded reports whether the target is known to have taken one of an attempt's calls. (A task that was given back is handed out again.)
func succeeded(calls []Call) bool {
	return slices.ContainsFunc(calls, func(c Call) bool { return !c.Failed && !c.EndedAt.IsZero() && !c.GivenBack })
}

// nobodyKnows reports whether no process was left that could know of some calls, nor a reason to repeat them: an update had
// replaced them, or a pause with the resume after it, whose definition begins where the pause did. (Of two updates that raced,
// the target of one may be called until the other is answered; so it may until a pause is, which can be long after its instant.)
func nobodyKnows(a *Account, calls []Call) bool {
	return !slices.ContainsFunc(calls, func(c Call) bool {
		return !c.Untold || !slices.ContainsFunc(a.Stops, func(s Stop) bool {
			replaced := s.Kind == StopUpdate || s.Kind == StopPause && !s.ResumedAt.IsZero()
			return s.JobID == c.JobID && replaced && s.AckedAt.After(c.At)
		})
	})
}

// givenBack reports whether calls were tasks that their workers gave back. The attempt may be stopped then before it is handed out again.
func givenBack(calls []Call) bool {
	return !slices.ContainsFunc(calls, func(c Call) bool { return !c.GivenBack })
}

func onRecord(events []*job.Event, attempt int) bool {
	return slices.ContainsFunc(events, func(e *job.Event) bool { return e.Entry.Attempt == attempt })
}
