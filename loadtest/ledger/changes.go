package ledger

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// Request is a request by which a client asked for a change.
type Request struct {
	// JobID is the job that the request was about, or that it made; "" for a creation whose job nobody was told of. For a setting it
	// is what stands in the place of a job's id.
	JobID, Operation string
	// Object is the execution that a cancel names.
	Object string
	// ID is the request's own, "" if no answer came.
	ID string
	// Done is set if the request was answered with success, Refused, if it was answered that nothing was changed. Otherwise the
	// change may have been made or not.
	Done, Refused bool
	// Version is that of the job in the answer, 0 if the answer has none.
	Version int64
	// SentAt is when the request was made, zero if that is not known; AckedAt when it was over.
	SentAt, AckedAt time.Time
}

// checkChanges checks I10: every change that was acknowledged is in the archive exactly once, and no other is.
func checkChanges(r *report, a *Account, i *index) {
	if a.Requests == nil {
		return
	}
	of := map[string][]Archived{} // by job
	seen := map[string]bool{}
	for _, x := range a.Archived {
		if x.Operation != "" && !seen[x.EventID] { // an event that was published twice has one id
			seen[x.EventID] = true
			of[x.JobID] = append(of[x.JobID], x)
		}
	}
	for n := range a.LostToArchive { // nobody can archive what a deleted log held
		if e := &a.LostToArchive[n]; e.Entry.Change != nil && !seen[e.ID] {
			seen[e.ID] = true
			of[e.Entry.JobID] = append(of[e.Entry.JobID], Archived{
				EventID: e.ID, JobID: e.Entry.JobID, Operation: e.Entry.Change.Operation, Object: e.Entry.Change.Object, RequestID: e.Entry.By.Request, Version: e.Entry.Change.Version,
			})
		}
	}
	settled := a.Until.Add(-a.Settles)
	for n := range a.Requests {
		if q := &a.Requests[n]; q.Done && q.AckedAt.Before(settled) && !told(a, q, of[q.JobID]) {
			r.add("I10", q.JobID, "%s was answered with success to request %s (version %d), and the archive has no such change", q.Operation, q.ID, q.Version)
		}
	}
	for jobID, changes := range of {
		checkAskedFor(r, a, i, jobID, changes)
	}
}

// told reports whether the archive has the change that a request was answered. A request that found nothing to change was answered,
// too: then an earlier one made the change.
func told(a *Account, q *Request, changes []Archived) bool {
	own := func(x Archived) bool { return x.RequestID == q.ID && x.Operation == q.Operation }
	if slices.ContainsFunc(changes, own) {
		return true
	}
	switch q.Operation {
	case "createJob", "createJobs": // a request that is repeated under its key is answered with the job that an earlier try has made
		return slices.ContainsFunc(changes, func(x Archived) bool { return x.Version == 1 && x.Operation == q.Operation })
	case "backfillJob", "replayJob", "redriveAllDeadLetters", "pauseOperation", "resumeOperation", "cancelOperation": // an earlier try made the change
		return slices.ContainsFunc(changes, func(x Archived) bool { return x.Operation == q.Operation && x.Object == q.Object })
	case "cancelExecution": // it was cancelled before, or had ended so long ago that no attempt can come any more
		before := func(x Archived) bool { return x.Operation == q.Operation && x.Object == q.Object }
		ended := func(e job.Event) bool {
			return e.Entry.ExecutionID == q.Object && e.Type == job.EventAttempt && q.AckedAt.Sub(e.Outcome.Timeline.Completed) >= attempts.Retention
		}
		return slices.ContainsFunc(changes, before) || slices.ContainsFunc(a.Events, ended)
	case "pauseJob", "resumeJob", "cancelJob", "deleteJob":
		var last Archived
		for _, x := range changes {
			if stands(x.Operation) && x.Version > last.Version && (q.Version == 0 || x.Version <= q.Version) {
				last = x
			}
		}
		begun := last.Operation == "createJob" || last.Operation == "createJobs"
		return last.Operation == q.Operation || q.Operation == "resumeJob" && begun
	}
	return false
}

// stands reports whether an operation says whether a job is active from then on.
func stands(operation string) bool {
	return slices.Contains([]string{"createJob", "createJobs", "pauseJob", "resumeJob", "cancelJob", "deleteJob"}, operation)
}

// checkAskedFor checks that each change of a job in the archive was asked for, and no other took its place.
func checkAskedFor(r *report, a *Account, i *index, jobID string, changes []Archived) {
	mine := func(q Request) bool { return q.JobID == jobID || q.JobID == "" && changes[0].Version == 1 }
	if !slices.ContainsFunc(a.Requests, mine) {
		return // it belongs to others, of whose requests nothing is known
	}
	versions, requests := map[int64]bool{}, map[string]bool{}
	unanswered := map[string]int{} // by operation; each of these requests may have made one change
	for _, q := range a.Requests {
		if q.ID == "" && q.JobID == jobID {
			if unanswered[q.Operation]++; q.Operation == "rotateKey" { // of the old key, and of the new one
				unanswered[q.Operation]++
			}
		}
	}
	for _, x := range changes {
		request := x.RequestID + " " + x.Operation + " " + x.Object
		if x.Version > 0 && versions[x.Version] || x.RequestID != "" && requests[request] {
			r.add("I10", jobID, "the archive has two changes of version %d or of request %s", x.Version, x.RequestID)
		}
		versions[x.Version], requests[request] = true, true
		asked := func(q Request) bool {
			sameJob := q.JobID == jobID || q.JobID == "" && x.Version == 1
			answered := q.ID == x.RequestID && !q.Refused
			return sameJob && q.Operation == x.Operation && (answered || q.ID == "" && x.Version == 1)
		}
		if x.RequestID == "" && x.Operation == "pauseJob" {
			if !slices.ContainsFunc(a.Calls, func(c Call) bool { return c.JobID == jobID && c.Gone }) {
				r.add("I10", jobID, "a pause in the archive was asked for by nobody")
			}
			continue
		}
		ref, _ := job.ParseExecutionID(x.Object)
		if x.RequestID == "" && x.Operation == "cancelExecution" && ref.JobID == jobID && displaced(a, i, x.Object) {
			continue
		}
		if !slices.ContainsFunc(a.Requests, asked) {
			if unanswered[x.Operation]--; unanswered[x.Operation] >= 0 {
				continue
			}
			r.add("I10", jobID, "the archive has %s by request %s (version %d), which no client made or which was refused", x.Operation, x.RequestID, x.Version)
		}
	}
}

// checkRequesters checks that the history names who asked for an execution.
func checkRequesters(r *report, a *Account) {
	if a.Requests == nil {
		return
	}
	for n := range a.Events {
		if e := &a.Events[n].Entry; !slices.Contains([]job.Trigger{job.TriggerSchedule, job.TriggerAfter, job.TriggerChange}, e.Trigger) && e.By == nil {
			r.add("I10", e.JobID, "event %s does not name who asked for the execution", a.Events[n].ID)
		}
	}
}
