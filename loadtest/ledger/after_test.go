package ledger_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

const followerID = "job_01HZZZZZZZZZZZZZZZZZZZZZZX"

// followedBy returns the account of a job with three occurrences of which the second failed for good, and of one that follows it whatever the end.
func followedBy() *ledger.Account {
	a := told()
	j := job.Job{ID: followerID, Status: job.StatusActive, Definition: job.Definition{
		ID: "def_1", Schedule: job.Schedule{Type: job.ScheduleAfter, After: []job.Parent{{JobID: jobID, On: job.OnAny}}},
	}}
	a.Jobs = append(a.Jobs, ledger.JobAccount{Job: j})
	a.Pending, a.Until = nil, begin.Add(time.Hour)
	a.Followers = []ledger.Follower{{JobID: followerID, AckedAt: begin.Add(-time.Hour)}}
	for _, e := range a.Events[:3] {
		follow(a, &e.Entry)
	}
	return a
}

// follow adds an execution of the job that follows.
func follow(a *ledger.Account, e *job.Entry) {
	at := e.NominalAt.Add(time.Second)
	next := job.Entry{JobID: followerID, Trigger: job.TriggerAfter, NominalAt: at, ScheduledFor: at, Note: &job.Note{Source: e.ExecutionID, Occurrence: e.NominalAt, Chain: 1}}
	next.ExecutionID, next.Attempt, next.DueAt = job.AfterExecutionID(followerID, e.ExecutionID, at.Add(time.Duration(len(a.Events))*time.Millisecond)), 1, at
	next.DefinitionID = "def_1"
	a.Pending = append(a.Pending, job.PendingRow{Entry: next})
}

func TestWhatFollowsIsHeldAgainstWhatEnded(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"as it was":             {func(*ledger.Account) {}, false},
		"nobody asked":          {func(a *ledger.Account) { a.Followers = nil }, false},
		"a success is left out": {func(a *ledger.Account) { a.Pending = a.Pending[1:] }, true},
		"a failure is left out": {func(a *ledger.Account) { a.Pending = append(a.Pending[:1], a.Pending[2:]...) }, true},
		"one is followed twice": {func(a *ledger.Account) { a.Events = append(a.Events[:3:3], a.Events...); follow(a, &a.Events[0].Entry) }, true},
		"of another instant":    {func(a *ledger.Account) { a.Pending[0].Note.Occurrence = begin.Add(time.Hour) }, true},
		"of nothing":            {func(a *ledger.Account) { a.Pending[0].Note.Source = "" }, true},
		"of what is not known": {func(a *ledger.Account) {
			a.Pending[0].Note.Source = job.ScheduleExecutionID(jobID, begin.Add(9*time.Hour))
		}, true},
		"a failure not asked for": {func(a *ledger.Account) { a.Jobs[1].Job.Definition.Schedule.After[0].On = job.OnSuccess }, true},
		"one of two had it": {func(a *ledger.Account) {
			s := &a.Jobs[1].Job.Definition.Schedule
			s.All, s.After = true, append(s.After, job.Parent{JobID: "job_other", On: job.OnAny})
		}, true},
		"before it was there": {func(a *ledger.Account) { a.Jobs[1].Job.Definition.EffectiveAt = begin.Add(30 * time.Second) }, true},
	} {
		a := followedBy()
		test.change(a)
		found := false
		for _, v := range ledger.Check(a) {
			found = found || v.Invariant == "I15"
		}
		if found != test.broken {
			t.Errorf("%s: I15 is broken: %t", name, found)
		}
	}
}
