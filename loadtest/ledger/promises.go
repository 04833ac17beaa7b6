package ledger

import (
	"github.com/minutehand/minutehand/libs/job"
)

// checkPromises holds what clients were answered, and what targets received, against what became of it. It asks only where the run had
// the time to settle.
func checkPromises(r *report, a *Account, i *index) {
	if a.Settles == 0 {
		return
	}
	known, cancelled := map[string]bool{}, map[string]bool{}
	for n := range a.Jobs {
		known[a.Jobs[n].Job.ID] = true
	}
	for _, s := range a.Stops {
		cancelled[s.JobID] = cancelled[s.JobID] || s.Kind == StopCancel
	}
	for _, id := range a.Registered {
		if !known[id] && !cancelled[id] {
			r.add("I1", id, "its registration was answered, and nobody knows the job")
		}
	}
	settled := a.Until.Add(-a.Settles)
	for _, t := range a.Triggers {
		if t.AckedAt.After(settled) || i.called[t.ExecutionID] || cancelled[t.JobID] {
			continue
		}
		if events := i.attempts[t.ExecutionID]; !a.Crashed || len(events) == 0 || !lostOnly(events) {
			r.add("I1", t.JobID, "execution %s was answered to a trigger, and no target saw it", t.ExecutionID)
		}
	}
	for k, calls := range i.calls {
		if c := calls[0]; known[c.JobID] && !c.At.After(settled) && !onRecord(i.attempts[k.executionID], k.attempt) {
			r.add("I7", c.JobID, "attempt %d of %s was called, and no event tells of it", k.attempt, k.executionID)
		}
	}
	for n := range a.Pending {
		if p := &a.Pending[n]; !p.Done && p.DueAt.Before(settled) {
			r.add("I1", p.JobID, "the entry of %s, attempt %d, is not done %s after it was due", p.ExecutionID, p.Attempt, a.Until.Sub(p.DueAt))
		}
	}
}

func onRecord(events []*job.Event, attempt int) bool {
	for _, e := range events {
		if e.Entry.Attempt == attempt {
			return true
		}
	}
	return false
}
