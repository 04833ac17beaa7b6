package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// checkOwed compares the schedules that clients were given with the calls that targets received, without any record of the
// system: each owed instant was called, and nothing was called at any other instant. Only that one gave way to another is told by the record.
func checkOwed(r *report, a *Account, i *index) {
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
			if !called[asked.JobID][at.UnixMilli()] && (!asked.Alone || !a.gaveWay(i, asked.JobID, at)) {
				r.add("I1", asked.JobID, "instant %s of the schedule that its client was answered was never called%s", at.Format(time.RFC3339Nano),
					a.known(asked.JobID, at))
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

// known says what is on record of an instant that was never called.
func (a *Account) known(jobID string, at time.Time) (text string) {
	x := job.ScheduleExecutionID(jobID, at)
	other := ""
	for n := range a.Events {
		if e := &a.Events[n]; e.Entry.ExecutionID == x {
			other = e.GaveWayTo()
			text += fmt.Sprintf("; on record is %s %s at %s %s", e.Type, e.Disposition, e.At.Format(time.RFC3339Nano), other)
		}
	}
	for n := range a.Events {
		if e := &a.Events[n]; other != "" && e.Entry.ExecutionID == other {
			text += fmt.Sprintf("; of that %s %d %s %s at %s", e.Type, e.Entry.Attempt, e.Outcome.Kind, e.Disposition, e.At.Format(time.RFC3339Nano))
		}
	}
	for n := range a.Calls {
		if c := &a.Calls[n]; other != "" && c.ExecutionID == other {
			text += fmt.Sprintf("; a call at %s", c.At.Format(time.RFC3339Nano))
		}
	}
	return text
}

// gaveWay reports whether an instant is on record as skipped because of another execution, or another one took its place. Which one, and
// whether that was in progress, I11 checks: it may have waited for minutes while a server was away, and never have been called because of a
// pause.
func (a *Account) gaveWay(i *index, jobID string, at time.Time) bool {
	x := job.ScheduleExecutionID(jobID, at)
	return cancelled(i.attempts[x]) && displaced(a, i, x) || slices.ContainsFunc(i.attempts[x], func(e *job.Event) bool {
		return e.Disposition == job.DispositionSkippedOverlap
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
