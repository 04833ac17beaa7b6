package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// checkOwed compares the schedules that clients were given with the calls that targets received, without any record of the
// system: each owed instant was called, and nothing was called at any other instant.
func checkOwed(r *report, a *Account) {
	called := map[string]map[int64]bool{} // nominal instants by job
	for n := range a.Calls {
		c := &a.Calls[n]
		ref, err := job.ParseExecutionID(c.ExecutionID)
		if err != nil || ref.Trigger != job.TriggerSchedule {
			continue
		}
		if called[c.JobID] == nil {
			called[c.JobID] = map[int64]bool{}
		}
		called[c.JobID][ref.NominalAt.UnixMilli()] = true
	}
	plans := map[string][]*schedule.Plan{}
	for n := range a.Asked {
		asked := &a.Asked[n]
		plan, err := schedule.Compile(asked.Schedule, asked.JobID)
		if err != nil {
			r.add("I1", asked.JobID, "its schedule does not compile: %v", err)
			continue
		}
		plans[asked.JobID] = append(plans[asked.JobID], plan)
		for _, at := range asked.owed(plan, a.Until.Add(-a.Settles)) {
			if !called[asked.JobID][at.UnixMilli()] && (!asked.Alone || !besides(a.Calls, asked.JobID, plan.ScheduledFor(at))) {
				r.add("I1", asked.JobID, "instant %s of the schedule that its client was answered was never called", at.Format(time.RFC3339Nano))
			}
		}
	}
	for id, list := range plans {
		for ms := range called[id] {
			at := time.UnixMilli(ms).UTC()
			if !slices.ContainsFunc(list, func(p *schedule.Plan) bool { return isInstant(p, at) }) {
				r.add("I1", id, "it was called for %s, which is no instant of a schedule that its client was answered", at.Format(time.RFC3339Nano))
			}
		}
	}
}

// soon is how long before or after an instant that was skipped there is a call of the execution to which it gave way. What was due comes
// late after a crash. And while a server is away nobody may know that a call has ended; I11 compares with what is on record of that.
const soon = time.Minute

// besides reports whether an execution of a job's schedule that was scheduled before an instant was called about then.
func besides(calls []Call, jobID string, at time.Time) bool {
	return slices.ContainsFunc(calls, func(c Call) bool {
		ref, err := job.ParseExecutionID(c.ExecutionID)
		return err == nil && c.JobID == jobID && ref.Trigger == job.TriggerSchedule && c.ScheduledFor.Before(at) &&
			!later(c.At, c.EndedAt).Before(at.Add(-soon)) && c.At.Before(at.Add(soon))
	})
}

// owed returns the instants between From and the earlier of Until and end.
func (a *Asked) owed(plan *schedule.Plan, end time.Time) (list []time.Time) {
	if a.Until.Before(end) {
		end = a.Until
	}
	n := 0
	for at, ok := plan.First(a.From); ok && at.Before(end); at, ok = plan.Next(at) {
		if n++; a.Schedule.MaxOccurrences > 0 && n > a.Schedule.MaxOccurrences {
			break
		}
		if plan.ScheduledFor(at).Before(end) {
			list = append(list, at)
		}
	}
	return list
}

func isInstant(p *schedule.Plan, at time.Time) bool {
	first, ok := p.First(at)
	return ok && first.Equal(at)
}
