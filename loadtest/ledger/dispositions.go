package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// checkDispositions checks I1: every nominal instant of the definition in force ends in exactly one disposition, and a
// fired one was invoked.
func checkDispositions(r *report, a *Account, i *index, j *JobAccount) {
	given := dispositions(r, a, i, j)
	definitions := append(append([]job.Definition(nil), j.Superseded...), j.Job.Definition)
	expected, superseded := map[int64]bool{}, map[int64]bool{}
	ahead := map[int64]bool{} // expected, and due after the account was taken
	lost := a.lostBefore410(j, given)
	for n := range definitions {
		if n+1 < len(definitions) {
			_, list := instants(r, j, &definitions[n], a.Until)
			for _, at := range list {
				superseded[at.UnixMilli()] = true
			}
		}
		plan, list := instants(r, j, &definitions[n], earlier(earlier(a.Until, endOf(&j.Job)), nextOf(definitions, n)))
		for _, at := range list {
			if at.Before(a.From) {
				continue
			}
			expected[at.UnixMilli()] = true
			if !plan.ScheduledFor(at).Before(a.Until) {
				ahead[at.UnixMilli()] = true
				continue
			}
			n := len(given[at.UnixMilli()])
			if n == 0 && (i.inLine(j.Job.ID, at) || !lost.IsZero() && !at.Before(lost)) {
				continue
			}
			twice := a.excuses(j.Job.ID, at) || a.whileUpdated(definitions, at) || a.gaveWayBefore(definitions, i.eventsOf[j.Job.ID], at)
			if n == 0 || n > 1 && !twice {
				r.add("I1", j.Job.ID, "instant %s has dispositions %v, want exactly one", at.Format(time.RFC3339Nano),
					given[at.UnixMilli()])
			}
		}
	}
	checkShown(r, a, i, j, definitions, given, expected, ahead)
	checkShownBefore(r, a, i, j, definitions, given)
	for ms, ds := range given {
		at := time.UnixMilli(ms).UTC()
		once := len(ds) == 1 || a.excuses(j.Job.ID, at) // two chains may go on behind a stop as they do before it
		stopped := j.Job.Status == job.StatusCancelled && !at.Before(j.Job.EndsAt) && once
		// A slow update begins before what fires meanwhile; I4 decides whether that was allowed.
		stopped = stopped || superseded[ms] && once && (ds[0] == job.DispositionFired || a.whileUpdated(definitions, at) || a.gaveWayBefore(definitions, i.eventsOf[j.Job.ID], at))
		if at.Before(a.Until) && !at.Before(a.From) && !expected[ms] && !stopped && !inPausedTail(&j.Job, at) {
			r.add("I1", j.Job.ID, "instant %s has dispositions %v, but belongs to no definition", at.Format(time.RFC3339Nano), ds)
		}
	}
}

// inLine reports whether an instant waits until others have ended. How long it may, checkPromises knows.
func (i *index) inLine(jobID string, at time.Time) bool {
	x := job.ScheduleExecutionID(jobID, at)
	return slices.ContainsFunc(i.pendingOf[jobID], func(p *job.PendingRow) bool { return p.ExecutionID == x && p.InLine() && !p.Done })
}

// lostBefore410 returns the instant whose entry an operator removed, if the target then answered 410 to another execution of the job, which
// paused it, before the audit of the schedules had mended the loss; zero otherwise. The audit does not look at a job that is paused
// (decision 55), so nothing tells of the instants from that one to the pause. If anything is on record of one of them, the schedule went on,
// and all of them are owed.
func (a *Account) lostBefore410(j *JobAccount, given map[int64][]job.Disposition) (lost time.Time) {
	if j.Job.Status != job.StatusPaused || !slices.ContainsFunc(a.Calls, func(c Call) bool { return c.JobID == j.Job.ID && c.Gone }) {
		return lost
	}
	for x := range a.Removed {
		if ref, err := job.ParseExecutionID(x); err == nil && ref.JobID == j.Job.ID {
			lost = later(lost, ref.NominalAt)
		}
	}
	for ms, ds := range given {
		if len(ds) > 0 && ms >= lost.UnixMilli() {
			return time.Time{}
		}
	}
	return lost
}

// whileUpdated reports whether an instant lies between the beginning of an update and the moment it took effect. The job's
// former definition was in force until then, and both may have given it a disposition.
func (a *Account) whileUpdated(definitions []job.Definition, at time.Time) bool {
	for _, d := range definitions {
		if applied, ok := a.Updated[d.ID]; ok && !at.Before(d.EffectiveAt) && !at.After(applied) {
			return true
		}
	}
	return false
}

// gaveWayBefore reports whether an instant was skipped because of another execution before the update took effect that took the instant: by
// a worker whose clock was ahead of that of the update's process.
func (a *Account) gaveWayBefore(definitions []job.Definition, events []*job.Event, at time.Time) bool {
	for _, e := range events {
		if e.Disposition != job.DispositionSkippedOverlap || !e.Entry.NominalAt.Equal(at) {
			continue
		}
		for _, d := range definitions {
			if applied, ok := a.Updated[d.ID]; ok && d.ID > e.Entry.DefinitionID && !e.Outcome.Timeline.Completed.After(applied.Add(clock.MaxDifference)) {
				return true
			}
		}
	}
	return false
}

func (a *Account) excuses(jobID string, at time.Time) bool {
	return slices.ContainsFunc(a.Excused[jobID], func(w Window) bool { return !at.Before(w.From) && !at.After(w.To) })
}

// Occurrences counts the nominal instants of an account, each in the definition that it belongs to, and those that may have more than one
// disposition.
func Occurrences(a *Account) (all, excused int) {
	for n := range a.Jobs {
		j := &a.Jobs[n]
		definitions := append(slices.Clone(j.Superseded), j.Job.Definition)
		for k := range definitions {
			_, list := instants(&report{}, j, &definitions[k], earlier(earlier(a.Until, endOf(&j.Job)), nextOf(definitions, k)))
			for _, at := range list {
				if at.Before(a.From) {
					continue
				}
				all++
				if a.excuses(j.Job.ID, at) {
					excused++
				}
			}
		}
	}
	return all, excused
}

// nextOf returns where a definition ends because another one follows; zero for the last. A resume begins before an update made during its
// pause.
func nextOf(definitions []job.Definition, k int) (end time.Time) {
	for _, later := range definitions[k+1:] {
		end = earlier(later.EffectiveAt, end)
	}
	return end
}

// endOf returns the instant from which no occurrences of the job are expected: when it was cancelled, or after the pause.
func endOf(j *job.Job) time.Time {
	switch j.Status {
	case job.StatusCancelled:
		return j.EndsAt
	case job.StatusPaused:
		return j.PausedAt.Add(time.Millisecond)
	}
	return time.Time{}
}

func inPausedTail(j *job.Job, at time.Time) bool {
	return j.Status == job.StatusPaused && at.After(j.PausedAt)
}

func earlier(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// instants returns the nominal instants of a definition before end.
func instants(r *report, j *JobAccount, d *job.Definition, end time.Time) (*schedule.Plan, []time.Time) {
	plan, err := schedule.Compile(d.Schedule, j.Job.ID)
	if err != nil {
		r.add("I1", j.Job.ID, "schedule does not compile: %v", err)
		return nil, nil
	}
	var list []time.Time
	ordinal := d.FirstOrdinal
	for at, ok := plan.First(d.EffectiveAt); ok && at.Before(end); at, ok = plan.Next(at) {
		if most := d.Schedule.MaxOccurrences; most > 0 && ordinal > most {
			break
		}
		list = append(list, at)
		ordinal++
	}
	return plan, list
}

// dispositions returns those that the history gives to each instant of a job, counting each execution once.
func dispositions(r *report, a *Account, i *index, j *JobAccount) map[int64][]job.Disposition {
	given := map[int64][]job.Disposition{}
	skippedBy := map[int64]string{}
	ranges := map[string]bool{}
	for _, e := range i.eventsOf[j.Job.ID] {
		if e.Type != job.EventSkipped || ranges[e.ID] {
			continue
		}
		ranges[e.ID] = true
		n := 0
		for _, at := range between(r, j, e.Entry.DefinitionID, e.Skipped.From, e.Skipped.To) {
			given[at.UnixMilli()] = append(given[at.UnixMilli()], e.Disposition)
			skippedBy[at.UnixMilli()] = e.Entry.DefinitionID
			n++
		}
		if n != e.Skipped.Count {
			r.add("I1", j.Job.ID, "a range says that it holds %d instants, it holds %d", e.Skipped.Count, n)
		}
	}
	seen := map[string]bool{}
	for _, e := range i.eventsOf[j.Job.ID] {
		x := e.Entry.ExecutionID
		if e.Type != job.EventAttempt || e.Entry.Trigger != job.TriggerSchedule || seen[x] {
			continue
		}
		seen[x] = true
		d := dispositionOf(i.attempts[x])
		ms := e.Entry.NominalAt.UnixMilli()
		if d == job.DispositionFired {
			if by := skippedBy[ms]; by != "" && by == e.Entry.DefinitionID && !a.excuses(j.Job.ID, e.Entry.NominalAt) {
				r.add("I1", j.Job.ID, "execution %s is fired, and skipped by a range of the same definition", x)
			}
			given[ms] = nil // regardless of what else is on record
		}
		given[ms] = append(given[ms], d)
		if d == job.DispositionFired && !i.called[x] && !lostOnly(i.attempts[x]) {
			r.add("I1", j.Job.ID, "execution %s is fired, but no target saw it", x)
		}
	}
	return given
}

// dispositionOf returns the one disposition of an execution: fired, if any invocation is on record, whatever else is.
func dispositionOf(events []*job.Event) job.Disposition {
	var d job.Disposition
	for _, e := range events {
		if e.Disposition == job.DispositionFired || d == "" {
			d = e.Disposition
		}
	}
	return d
}

// lostOnly reports whether an execution has only attempts whose executors were lost before or after the call.
func lostOnly(events []*job.Event) bool {
	for _, e := range events {
		if !lost(e) && e.Outcome.Invoked() {
			return false
		}
	}
	return true
}

func between(r *report, j *JobAccount, definitionID string, from, to time.Time) []time.Time {
	d := &j.Job.Definition
	for n := range j.Superseded {
		if j.Superseded[n].ID == definitionID {
			d = &j.Superseded[n]
		}
	}
	plan, err := schedule.Compile(d.Schedule, j.Job.ID)
	if err != nil {
		r.add("I1", j.Job.ID, "schedule does not compile: %v", err)
		return nil
	}
	var list []time.Time
	for at, ok := plan.First(from); ok && !at.After(to); at, ok = plan.Next(at) {
		list = append(list, at)
	}
	return list
}

// checkPending checks I6: an active recurring job that goes on has exactly one pending entry of its current definition
// ahead of it (two while the next is being written). Any other job has none that would fire. Entries that are due may wait
// for room at their target.
func checkPending(r *report, a *Account, i *index, j *JobAccount) {
	chains, ahead, other := 0, 0, 0
	for _, p := range i.pendingOf[j.Job.ID] {
		if p.Done || !p.FirstOfSchedule() || p.Chained {
			continue
		}
		state := j.Job.State()
		if state.Judge(&p.Entry, time.Time{}) == job.VerdictProceed && p.DefinitionID == j.Job.Definition.ID {
			chains++
			if p.DueAt.After(later(a.Until, a.TakenAt)) {
				ahead++
			}
		} else {
			other++
		}
	}
	kind := j.Job.Definition.Schedule.Type
	recurring := kind != job.ScheduleOneShot && kind != job.ScheduleAfter
	switch {
	case j.Job.Status == job.StatusActive && recurring && goesOn(j) && (chains < 1 || ahead > 2):
		r.add("I6", j.Job.ID, "an active recurring job has %d pending entries, %d of them ahead (and %d that will not fire), want one", chains, ahead, other)
	case j.Job.Status != job.StatusActive && chains > 0:
		r.add("I6", j.Job.ID, "a %s job has %d pending entries that would fire", j.Job.Status, chains)
	}
}

// goesOn reports whether the schedule has no end.
func goesOn(j *JobAccount) bool {
	s := j.Job.Definition.Schedule
	return s.EndAt.IsZero() && s.MaxOccurrences == 0
}
