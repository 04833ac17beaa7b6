package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Notification is what an owner received.
type Notification struct {
	ID    string    `json:"notification_id"`
	Cause job.Cause `json:"cause"`
	// At is when it happened, as the notification says, and ReceivedAt when the owner was told. Accepted: the owner said that it was told; Refused:
	// that it does not want it.
	At          time.Time `json:"at"`
	ReceivedAt  time.Time `json:"-"`
	Accepted    bool      `json:"-"`
	Refused     bool      `json:"-"`
	JobID       string    `json:"job_id"`
	ExecutionID string    `json:"execution_id"`
	IncidentID  string    `json:"incident_id"`
	QuietUntil  time.Time `json:"quiet_until"`
	// Host is that of the owner.
	Host string `json:"-"`
}

// mostTold bounds how often an owner is told the same and says that it was: again after a process died behind that, or stood still.
const mostTold = 4

// owner is one whom a job tells, and what it received.
type owner struct {
	*job.Notify
	got []*Notification
}

// mostFailed is how often in a row an owner that cannot take a notification is called before the next call is minutes away.
const mostFailed = 5

// told reports whether an owner was told of a cause in a period that is not before that of an instant; only in that, if exact. One that failed to
// take it again and again counts as told.
func (o *owner) told(c job.Cause, at time.Time, exact bool) bool {
	failed := map[string]int{}
	return slices.ContainsFunc(o.got, func(n *Notification) bool {
		begun := n.QuietUntil.Add(-o.Quiet)
		failed[n.ID]++
		return (n.Accepted || n.Refused || failed[n.ID] >= mostFailed) && n.Cause == c && (begun.Equal(o.Period(at)) || !exact && begun.After(o.Period(at)))
	})
}

// toldBy reports whether an owner was told of an incident before an instant: it may have been noticed once more since.
func (o *owner) toldBy(incident string, at time.Time) bool {
	return slices.ContainsFunc(o.got, func(n *Notification) bool { return n.IncidentID == incident && n.ReceivedAt.Before(at.Add(apart)) })
}

// checkNotifications holds what owners received against the dead letters and the incidents that a client is shown, and against what targets
// received.
func checkNotifications(r *report, a *Account, i *index) {
	if a.Notifications == nil {
		return
	}
	times := map[string]int{}
	ofJob := map[string][]*Notification{}
	for n := range a.Notifications {
		x := &a.Notifications[n]
		ofJob[x.JobID] = append(ofJob[x.JobID], x)
		if x.Accepted || x.Refused {
			times[x.ID]++
		}
		most := mostTold
		if a.NoticesWithin > 0 { // nothing is broken
			most = 1
		}
		if times[x.ID] == most+1 {
			r.add("I14", x.JobID, "an owner was told %s more than %d times", x.ID, most)
		}
	}
	for n := range a.Jobs {
		j := &a.Jobs[n].Job
		for _, x := range ofJob[j.ID] {
			checkNotification(r, i, j, x)
		}
		if a.Deleted[j.ID] {
			continue
		}
		for k := range j.Notify {
			o := owner{Notify: &j.Notify[k]}
			for _, x := range ofJob[j.ID] {
				if "http://"+x.Host+"/" == o.Target.URL {
					o.got = append(o.got, x)
				}
			}
			checkRecoveries(r, a, i, j, &o)
			checkDeadLettersTold(r, a, i, j, &o)
			checkIncidentsTold(r, a, j, &o)
		}
	}
}

// checkNotification checks that there is a reason for what an owner received.
func checkNotification(r *report, i *index, j *job.Job, x *Notification) {
	asked := slices.ContainsFunc(j.Notify, func(n job.Notify) bool { return n.Tells(x.Cause) && "http://"+x.Host+"/" == n.Target.URL })
	called, failed, succeeded := false, false, false
	for _, e := range i.eventsOf[j.ID] {
		if e.Entry.ExecutionID == x.ExecutionID && e.Type == job.EventAttempt {
			called, failed, succeeded = called || e.Outcome.Called(), failed || e.Outcome.Failed(), succeeded || e.Outcome.Kind == job.OutcomeSucceeded
		}
	}
	for k, calls := range i.calls {
		called = called || k.executionID == x.ExecutionID && len(calls) > 0
	}
	switch {
	case !asked:
		r.add("I14", j.ID, "%s told %s of %s, who is not to be", x.ID, x.Host, x.Cause)
	case x.ReceivedAt.Before(x.At.Add(-apart)):
		r.add("I14", j.ID, "%s tells of %s before it happened", x.ID, x.At)
	case (x.Cause == job.CauseDeadLetter || x.Cause == job.CausePausedBy410) && (!called || succeeded && !failed):
		r.add("I14", j.ID, "%s tells that %s has failed (called %v, failed %v, succeeded %v)", x.ID, x.ExecutionID, called, failed, succeeded)
	case x.Cause == job.CauseRecovered && x.IncidentID == "" && !succeeded:
		r.add("I14", j.ID, "%s tells that %s has succeeded, and that is not on record", x.ID, x.ExecutionID)
	}
}

// checkRecoveries checks that between two executions of which an owner is told that all is well again another one has failed for good. One that
// was called once more, because its hot tier and its log were lost, has its dead letter from then on: the first time has only an event.
func checkRecoveries(r *report, a *Account, i *index, j *job.Job, o *owner) {
	var before *Notification
	inOrder := slices.SortedFunc(slices.Values(o.got), func(a, b *Notification) int { return a.At.Compare(b.At) })
	for _, n := range inOrder {
		if n.Cause != job.CauseRecovered || n.ExecutionID == "" || before != nil && n.ID == before.ID {
			continue
		}
		between := func(at time.Time) bool {
			return before != nil && !at.Before(before.At.Add(-apart)) && !at.After(n.At.Add(apart))
		}
		failed := slices.ContainsFunc(a.DeadLetters, func(l job.DeadLetter) bool { return l.Event.Entry.JobID == j.ID && between(l.At) }) ||
			slices.ContainsFunc(i.eventsOf[j.ID], func(e *job.Event) bool {
				return e.Type == job.EventAttempt && e.Entry.Elsewhere() == nil && e.Outcome.Failed() && e.Reason() != "" && between(e.Outcome.Timeline.Completed)
			})
		if before != nil && !failed {
			r.add("I14", j.ID, "%s was told %s and %s, and nothing failed between %s and %s", o.Target.URL, before.ID, n.ID, before.At, n.At)
		}
		before = n
	}
}

// checkDeadLettersTold checks that an owner was told of the dead letters of a job, and of a success after the last.
func checkDeadLettersTold(r *report, a *Account, i *index, j *job.Job, o *owner) {
	var last time.Time
	for n := range a.DeadLetters {
		l := &a.DeadLetters[n]
		if l.Event.Entry.JobID != j.ID {
			continue
		}
		last = job.Later(last, l.At)
		if !l.At.Add(toldWithin).Before(a.Until) {
			continue
		}
		if o.Tells(job.CauseDeadLetter) && !o.told(job.CauseDeadLetter, l.At, true) {
			r.add("I14", j.ID, "%s has failed for good at %s, and %s was not told", l.Event.Entry.ExecutionID, l.At, o.Target.URL)
		}
	}
	if last.IsZero() || !o.Tells(job.CauseDeadLetter) || !o.Tells(job.CauseRecovered) || o.told(job.CauseRecovered, last, false) {
		return
	}
	for _, e := range i.eventsOf[j.ID] {
		at := e.Outcome.Timeline.Completed
		// Whether all is well again is looked up in the history: what that lost, nobody is told.
		if e.Type == job.EventAttempt && !i.lost[e.Entry.ExecutionID] && e.Outcome.Kind == job.OutcomeSucceeded && e.Entry.Elsewhere() == nil && at.After(last) && at.Add(toldWithin).Before(a.Until) {
			r.add("I14", j.ID, "%s has succeeded at %s after the dead letter of %s, and %s was not told", e.Entry.ExecutionID, at, last, o.Target.URL)
			return
		}
	}
}

// checkIncidentsTold checks that an owner was told of the incidents that a client is shown, but for those that began while another one of the
// job was open.
func checkIncidentsTold(r *report, a *Account, j *job.Job, o *owner) {
	if !o.Tells(job.CauseSLAMissed) {
		return
	}
	for n := range a.Incidents {
		x := &a.Incidents[n]
		if x.JobID != j.ID || !x.NoticedAt.Add(toldWithin).Before(a.Until) || o.told(job.CauseSLAMissed, x.DeadlineAt, false) {
			continue
		}
		beside := slices.ContainsFunc(a.Incidents, func(y Incident) bool {
			return y.JobID == x.JobID && y.ID != x.ID && (y.ClosedAt.IsZero() || !y.ClosedAt.Before(x.NoticedAt.Add(-apart))) &&
				(y.NoticedAt.Before(x.NoticedAt) || o.toldBy(y.ID, x.NoticedAt) || y.NoticedAt.Equal(x.NoticedAt) && o.told(job.CauseSLAMissed, y.DeadlineAt, false))
		})
		if !beside {
			r.add("I14", j.ID, "%s began, and %s was not told", x.ID, o.Target.URL)
		}
	}
}
