package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// checkShown checks that the account of a job that a client was shown has each instant once, with the disposition that the history
// gives to it, and leaves out none that is expected or on record.
func checkShown(r *report, a *Account, i *index, j *JobAccount, definitions []job.Definition, given map[int64][]job.Disposition, expected, ahead map[int64]bool) {
	list, read := a.Shown[j.Job.ID]
	if !read {
		return
	}
	lost := func(at time.Time) bool { return a.lostToHistory(j.Job.ID, at) }
	shown := map[int64]bool{}
	for n := range list {
		s := &list[n]
		ms := s.NominalAt.UnixMilli()
		if shown[ms] {
			r.add("I1", j.Job.ID, "its account shows instant %s twice", s.NominalAt.Format(time.RFC3339Nano))
		}
		if n > 0 && !s.NominalAt.Before(list[n-1].NominalAt) {
			r.add("I1", j.Job.ID, "its account shows instant %s after an earlier one", s.NominalAt.Format(time.RFC3339Nano))
		}
		if s.Reason == "" {
			r.add("I1", j.Job.ID, "its account does not say how instant %s came to be %s", s.NominalAt.Format(time.RFC3339Nano), s.State)
		}
		shown[ms] = true
		if len(given[ms]) == 0 && !expected[ms] && !s.NominalAt.Before(a.From) && s.NominalAt.Before(a.Until) && !inPausedTail(&j.Job, s.NominalAt) {
			r.add("I1", j.Job.ID, "its account shows instant %s, which belongs to no definition", s.NominalAt.Format(time.RFC3339Nano))
		}
		known := s.NominalAt.Before(a.Until) && !ahead[ms] && !a.excuses(j.Job.ID, s.NominalAt) && !i.waited(j.Job.ID, s.NominalAt, a.Until)
		if ds := given[ms]; known && len(ds) == 1 && ds[0] != s.Disposition && !lost(s.NominalAt) {
			r.add("I1", j.Job.ID, "its account shows instant %s as %s (%q), and the history as %s", s.NominalAt.Format(time.RFC3339Nano), s.State, s.Disposition, ds[0])
		}
	}
	left := func(ms int64) bool {
		at := time.UnixMilli(ms)
		return !shown[ms] && !at.Before(a.From) && at.Before(a.Until)
	}
	for ms, ds := range given {
		// While an update was slow, its job's former definition may have skipped instants that by the account belong to the new one.
		// While a cancel was, it may have skipped instants after the end.
		stopped := j.Job.Status == job.StatusCancelled && !time.UnixMilli(ms).Before(j.Job.EndsAt)
		former := !expected[ms] && !slices.Contains(ds, job.DispositionFired) && (stopped || a.whileUpdated(definitions, time.UnixMilli(ms)))
		if left(ms) && !former && !lost(time.UnixMilli(ms)) {
			r.add("I1", j.Job.ID, "its account leaves out instant %s, which is on record", time.UnixMilli(ms).UTC().Format(time.RFC3339Nano))
		}
	}
	for ms := range expected {
		if left(ms) && len(given[ms]) == 0 {
			r.add("I1", j.Job.ID, "its account leaves out instant %s, which its schedule names", time.UnixMilli(ms).UTC().Format(time.RFC3339Nano))
		}
	}
}

// checkShownBefore checks that what an account once showed as ended had that end.
func checkShownBefore(r *report, a *Account, i *index, j *JobAccount, definitions []job.Definition, given map[int64][]job.Disposition) {
	for _, s := range a.ShownBefore[j.Job.ID] {
		x := job.ScheduleExecutionID(j.Job.ID, s.NominalAt)
		ended := func(how func(o *job.Outcome) bool) bool {
			return slices.ContainsFunc(i.attempts[x], func(e *job.Event) bool { return how(&e.Outcome) })
		}
		// Where the hot tier was lost, what failed may have been refused as well; then there is no dead letter.
		if s.State == "succeeded" && !ended(func(o *job.Outcome) bool { return o.Kind == job.OutcomeSucceeded }) ||
			s.State == "dead" && !ended((*job.Outcome).Failed) {
			r.add("I1", j.Job.ID, "its account once showed instant %s as %s, which the history does not say", s.NominalAt.Format(time.RFC3339Nano), s.State)
		}
		ds := given[s.NominalAt.UnixMilli()]
		twice := a.excuses(j.Job.ID, s.NominalAt) || a.whileUpdated(definitions, s.NominalAt) || a.gaveWayBefore(definitions, i.eventsOf[j.Job.ID], s.NominalAt)
		if slices.Contains(ds, s.Disposition) || twice || a.lostToHistory(j.Job.ID, s.NominalAt) {
			continue
		}
		// The hot tier may forget a pause's refusal before it is on record; then a cancel refuses the instant again.
		if again := s.Disposition == job.DispositionSkippedPaused && slices.Contains(ds, job.DispositionCancelled); again && a.HotLost {
			continue
		}
		// It may forget that an executor is calling a target, and a stop refuses the attempt when it comes again; then the executor tells of its call.
		if called := s.Disposition == job.DispositionCancelled && slices.Contains(ds, job.DispositionFired); called && a.HotLost {
			continue
		}
		r.add("I1", j.Job.ID, "its account once showed instant %s as %s (%s), and the history has %v", s.NominalAt.Format(time.RFC3339Nano), s.State, s.Disposition, ds)
	}
}

// lostToHistory reports whether the event about an instant was lost before the history had read it.
func (a *Account) lostToHistory(jobID string, at time.Time) bool {
	return slices.ContainsFunc(a.LostToHistory, func(e job.Event) bool {
		from, _ := e.Place()
		to := from
		if e.Skipped != nil {
			to = e.Skipped.To
		}
		return e.Entry.JobID == jobID && !at.Before(from) && !at.After(to)
	})
}

// waited reports whether an instant waited for others, and was called or ended after an instant only.
func (i *index) waited(jobID string, nominalAt, until time.Time) bool {
	x := job.ScheduleExecutionID(jobID, nominalAt)
	ended := slices.ContainsFunc(i.attempts[x], func(e *job.Event) bool { return e.Outcome.Timeline.Completed.Before(until) })
	return !ended && slices.ContainsFunc(i.eventsOf[jobID], func(e *job.Event) bool { return e.Entry.ExecutionID == x && !e.WaitsFor.IsZero() })
}
