package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Incident is an incident as the API showed it to a client.
type Incident struct {
	ID         string    `json:"incident_id"`
	Status     string    `json:"status"`
	JobID      string    `json:"job_id"`
	Deadline   string    `json:"deadline"`
	Cause      string    `json:"cause"`
	FirstAt    time.Time `json:"first_at"`
	LastAt     time.Time `json:"last_at"`
	Missed     int       `json:"missed"`
	DeadlineAt time.Time `json:"deadline_at"`
	NoticedAt  time.Time `json:"noticed_at"`
	ClosedAt   time.Time `json:"closed_at"`
}

const (
	startWithin, finishWithin = "start_within", "finish_within"
	// toldWithin is how long after a deadline was missed a client is shown it, once nothing is broken any more.
	toldWithin = 2 * time.Minute
	// apart is by how much the instants of two processes may be apart.
	apart = 2 * clock.MaxDifference
)

// course is what is known of an execution of a schedule.
type course struct {
	entry     *job.Entry
	def       *job.Definition
	called    time.Time // first, as its target saw it
	answered  time.Time // with success, first, as its target saw it
	succeeded time.Time // first, as the record says
	dead      bool
	lost      bool // an executor was, in an attempt
	// began is when it was called first, as the record says.
	began time.Time
	// ended is set if its job was cancelled, or paused before it, if another took its place, or if it is on record as skipped too (I1): then it
	// may have had no deadline.
	ended bool
}

// checkIncidents holds the incidents that a client was shown against what the targets received: an occurrence that missed a deadline belongs to
// an incident, and no incident begins with one that was called in time.
func checkIncidents(r *report, a *Account, i *index) {
	if a.Incidents == nil {
		return
	}
	shown := map[string][]*Incident{}
	for n := range a.Incidents {
		x := &a.Incidents[n]
		for _, other := range shown[x.JobID] {
			if other.Deadline == x.Deadline && (other.ID == x.ID || x.Status == "open" && other.Status == "open") {
				r.add("I13", x.JobID, "%s and %s are two incidents of one deadline at the same time", x.ID, other.ID)
			}
		}
		shown[x.JobID] = append(shown[x.JobID], x)
	}
	for n := range a.Jobs {
		j := &a.Jobs[n]
		if a.Deleted[j.Job.ID] {
			continue
		}
		all, pauses := courses(a, i, j), pausesOf(i, &j.Job)
		checkMissed(r, a, i, j, all, shown[j.Job.ID])
		checkOver(r, a, all, shown[j.Job.ID])
		for id, c := range all {
			if !i.lost[id] {
				// An executor may have been at an instant when a pause left it to the resume.
				c.ended = c.ended || c.def != nil && c.def.Alone() && c.entry.NominalAt.Before(j.Job.StoppedBefore) || j.Job.Status == job.StatusCancelled || j.Job.Status == job.StatusPaused && c.entry.NominalAt.After(j.Job.PausedAt)
				checkCourse(r, a, c, pauses, shown[j.Job.ID])
			}
		}
	}
}

// courses returns what is known of the executions of a job's schedule, by execution.
func courses(a *Account, i *index, j *JobAccount) map[string]*course {
	list := map[string]*course{}
	for _, e := range i.eventsOf[j.Job.ID] {
		if e.Type != job.EventAttempt || e.Entry.Trigger != job.TriggerSchedule || !e.Outcome.Called() {
			continue
		}
		c := list[e.Entry.ExecutionID]
		if c == nil {
			c = &course{entry: &e.Entry}
			list[e.Entry.ExecutionID] = c
			for _, d := range i.definitions[j.Job.ID] {
				if d.ID == e.Entry.DefinitionID {
					c.def = d
				}
				// A resume or an update reached back to it, and was made after it was due.
				c.ended = c.ended || d.ID > e.Entry.DefinitionID && !e.Entry.NominalAt.Before(d.EffectiveAt)
			}
			for attempt := 1; attempt <= max(a.MaxAttempts[j.Job.ID], 1); attempt++ {
				for _, call := range i.calls[attemptKey{e.Entry.ExecutionID, attempt}] {
					c.called = first(c.called, call.At)
					if !call.Failed && !call.Gone {
						c.answered = first(c.answered, call.EndedAt)
					}
				}
			}
		}
		c.began = first(c.began, e.Outcome.Timeline.Invoked)
		switch {
		case e.Outcome.Kind == job.OutcomeSucceeded:
			c.succeeded = first(c.succeeded, e.Outcome.Timeline.Completed)
		case e.Outcome.Failed() && e.Reason() != "":
			c.dead = true
		}
		c.lost = c.lost || e.Outcome.Kind == job.OutcomeWorkerLost
	}
	noteSkipped(list, i.eventsOf[j.Job.ID])
	return list
}

// noteSkipped notes of executions that they are on record as skipped too.
func noteSkipped(list map[string]*course, events []*job.Event) {
	for _, e := range events {
		switch {
		case e.Type == job.EventAttempt && !e.Outcome.Called():
			if c := list[e.Entry.ExecutionID]; c != nil {
				c.ended = true
			}
		case e.Type == job.EventSkipped:
			for _, c := range list {
				at := c.entry.NominalAt
				c.ended = c.ended || !at.Before(e.Skipped.From) && !at.After(e.Skipped.To)
			}
		}
	}
}

// first returns the earlier of two instants, of which either may be zero for none.
func first(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// pausesOf returns when a job was paused: the row has the last time only.
func pausesOf(i *index, j *job.Job) (list []time.Time) {
	if !j.PausedAt.IsZero() {
		list = append(list, j.PausedAt)
	}
	for _, e := range i.eventsOf[j.ID] {
		if c := e.Entry.Change; c != nil && c.Operation == "pauseJob" {
			list = append(list, e.Entry.NominalAt)
		}
	}
	return list
}

// checkCourse checks one execution of a job that was paused at some instants.
func checkCourse(r *report, a *Account, c *course, pauses []time.Time, shown []*Incident) {
	e := c.entry
	if c.def == nil || e.ScheduledFor.Before(job.DefinedAt(c.def.ID).Add(apart)) {
		return // it was due when its definition was made, and so has no deadline
	}
	for name, within := range map[string]time.Duration{startWithin: c.def.Deadlines.StartWithin, finishWithin: c.def.Deadlines.FinishWithin} {
		if within == 0 {
			continue
		}
		deadline := e.ScheduledFor.Add(within)
		of, begins := belongs(shown, name, e.NominalAt)
		var missed, met bool
		if name == startWithin {
			// Whether an executor that was lost had called, nobody knows: it counts as begun where it took its lease.
			missed = !c.lost && !c.called.IsZero() && c.called.After(deadline.Add(apart)) && c.began.After(deadline.Add(apart))
			met = !c.called.IsZero() && c.called.Before(deadline.Add(-apart)) && !c.began.IsZero() && c.began.Before(deadline.Add(-apart))
		} else {
			// The hot tier may have known of a success in time, and have lost that before anything else had it.
			forgotten := a.HotLost && !c.answered.IsZero() && !c.answered.After(deadline.Add(apart))
			missed = c.succeeded.After(deadline.Add(apart)) && !forgotten || c.succeeded.IsZero() && c.dead
			met = !c.succeeded.IsZero() && c.succeeded.Before(deadline.Add(-apart))
		}
		// A pause that nobody was told of yet need not keep an executor from it. It had no deadline after that.
		missed = missed && !slices.ContainsFunc(pauses, func(at time.Time) bool { return !deadline.Before(at) && !c.called.Before(at) && !e.NominalAt.After(at) })
		switch {
		case missed && !c.ended && of == nil && deadline.Add(toldWithin).Before(a.Until):
			r.add("I13", e.JobID, "%s missed its deadline %s of %s (called %s, succeeded %s, dead %v), and a client is not shown that",
				e.ExecutionID, name, deadline, c.called, c.succeeded, c.dead)
		case met && begins != nil && !a.HotLost && (begins.Cause != "calling" || a.NoticesWithin > 0): // its executor may not have been able to tell
			r.add("I13", e.JobID, "a client is shown %s (%s), and %s met its deadline %s of %s (began %s, succeeded %s)",
				begins.ID, begins.Cause, e.ExecutionID, name, deadline, c.began, c.succeeded)
		}
		if begins != nil && a.NoticesWithin > 0 && begins.DeadlineAt.Equal(deadline) && begins.NoticedAt.After(deadline.Add(a.NoticesWithin)) {
			r.add("I13", e.JobID, "%s was noticed %s after the deadline", begins.ID, begins.NoticedAt.Sub(deadline))
		}
	}
}

// checkMissed checks that a client is shown an incident for the first of occurrences that were missed, and not called after all.
func checkMissed(r *report, a *Account, i *index, j *JobAccount, called map[string]*course, shown []*Incident) {
	if j.Job.Status != job.StatusActive || !j.Job.StoppedBefore.IsZero() {
		return
	}
	for _, e := range i.eventsOf[j.Job.ID] {
		if e.Type != job.EventSkipped || e.Disposition != job.DispositionSkippedMissed {
			continue
		}
		id := job.ScheduleExecutionID(j.Job.ID, e.Skipped.From)
		if called[id] != nil || len(i.attempts[id]) > 0 { // it has another disposition too (I1)
			continue
		}
		for _, d := range i.definitions[j.Job.ID] {
			within := d.Deadlines.StartWithin
			deadline := e.Skipped.From.Add(within)
			if slices.ContainsFunc(i.definitions[j.Job.ID], func(o *job.Definition) bool { return o.ID > d.ID && !e.Skipped.From.Before(o.EffectiveAt) }) {
				continue // a resume or an update reached back to it
			}
			if d.ID != e.Entry.DefinitionID || within == 0 || e.Skipped.From.Before(job.DefinedAt(d.ID).Add(apart)) || deadline.Add(toldWithin+maxJitter).After(a.Until) {
				continue
			}
			if of, _ := belongs(shown, startWithin, e.Skipped.From); of == nil {
				r.add("I13", j.Job.ID, "the occurrence of %s was missed, and a client is not shown that", e.Skipped.From)
			}
		}
	}
}

// maxJitter bounds the jitter of the workload's jobs that have deadlines.
const maxJitter = 5 * time.Second

// checkOver checks that an incident is not open when a later occurrence met its deadline long before the end.
func checkOver(r *report, a *Account, called map[string]*course, shown []*Incident) {
	for _, x := range shown {
		for _, c := range called {
			if x.Status != "open" || x.Deadline != startWithin || c.def == nil || c.ended || !c.entry.NominalAt.After(x.LastAt) || c.began.IsZero() {
				continue
			}
			deadline := c.entry.ScheduledFor.Add(c.def.Deadlines.StartWithin)
			if c.def.Deadlines.StartWithin > 0 && c.entry.ScheduledFor.After(job.DefinedAt(c.def.ID).Add(apart)) && c.began.Before(deadline.Add(-apart)) && deadline.Add(toldWithin).Before(a.Until) {
				r.add("I13", x.JobID, "%s is open, and %s met its deadline %s since", x.ID, c.entry.ExecutionID, deadline)
			}
		}
	}
}

// belongs returns the incident of a deadline to which the occurrence of an instant belongs, and which begins with it.
func belongs(shown []*Incident, deadline string, at time.Time) (of, begins *Incident) {
	for _, x := range shown {
		if x.Deadline != deadline || at.Before(x.FirstAt) || at.After(x.LastAt) {
			continue
		}
		if of = x; at.Equal(x.FirstAt) {
			begins = x
		}
	}
	return of, begins
}
