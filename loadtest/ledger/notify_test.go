package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// told returns the account of a job whose second occurrence failed for good and whose third succeeded, with an incident of the second, and what its
// owner received of that.
func told() *ledger.Account {
	a := late()
	j := &a.Jobs[0].Job
	j.Notify = []job.Notify{{
		On: []job.Cause{job.CauseDeadLetter, job.CauseSLAMissed, job.CauseRecovered}, Quiet: time.Minute,
		Target: job.Target{Kind: job.TargetWebhook, URL: "http://team/"},
	}}
	second, third := &a.Events[1], &a.Events[2]
	second.Outcome.Kind = job.OutcomeFailed
	at := second.Outcome.Timeline.Completed
	a.DeadLetters = []job.DeadLetter{{Event: *second, Reason: "permanent", At: at}}
	got := func(c job.Cause, at, of time.Time) *ledger.Notification {
		period := j.Notify[0].Period(of)
		a.Notifications = append(a.Notifications, ledger.Notification{
			ID: "ntf_" + string(c), Cause: c, At: at, ReceivedAt: at.Add(time.Second), Accepted: true, JobID: jobID, QuietUntil: period.Add(time.Minute), Host: "team",
		})
		return &a.Notifications[len(a.Notifications)-1]
	}
	got(job.CauseDeadLetter, at, at).ExecutionID = second.Entry.ExecutionID
	missed := a.Incidents[0].DeadlineAt
	got(job.CauseSLAMissed, missed, missed).IncidentID = a.Incidents[0].ID
	got(job.CauseRecovered, third.Outcome.Timeline.Completed, at).ExecutionID = third.Entry.ExecutionID
	return a
}

// failsToTake lets the owner be called some times because of the deadline, and take it at none.
func failsToTake(a *ledger.Account, times int) {
	a.Notifications[1].Accepted = false
	for range times - 1 {
		a.Notifications = append(a.Notifications, a.Notifications[1])
	}
}

func TestNotificationsAreHeldAgainstWhatHappened(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"as it was":                   {func(*ledger.Account) {}, false},
		"nobody looked":               {func(a *ledger.Account) { a.Notifications = nil }, false},
		"the dead letter is not told": {func(a *ledger.Account) { a.Notifications = a.Notifications[1:] }, true},
		"the deadline is not told":    {func(a *ledger.Account) { a.Notifications[1].Accepted = false }, true},
		"the deadline is told to one that fails to take it": {func(a *ledger.Account) { failsToTake(a, 4) }, true},
		"again and again, and it fails to take it":          {func(a *ledger.Account) { failsToTake(a, 5) }, false},
		"the recovery is not told":                          {func(a *ledger.Account) { a.Notifications = a.Notifications[:2] }, true},
		"the history lost the success": {func(a *ledger.Account) {
			a.Notifications = a.Notifications[:2]
			last := len(a.Events) - 1
			a.LostToHistory, a.Events = a.Events[last:], a.Events[:last]
		}, false},
		"in another period":              {func(a *ledger.Account) { a.Notifications[0].QuietUntil = begin.Add(time.Hour) }, true},
		"to another one":                 {func(a *ledger.Account) { a.Notifications[0].Host = "pager" }, true},
		"of an execution that succeeded": {func(a *ledger.Account) { a.Notifications[0].ExecutionID = a.Events[0].Entry.ExecutionID }, true},
		"of a failure as a success":      {func(a *ledger.Account) { a.Notifications[2].ExecutionID = a.Events[1].Entry.ExecutionID }, true},
		"before it happened":             {func(a *ledger.Account) { a.Notifications[0].ReceivedAt = begin }, true},
		"what nobody is to be told":      {func(a *ledger.Account) { a.Jobs[0].Job.Notify[0].On = a.Jobs[0].Job.Notify[0].On[:1] }, true},
		"the recovery again in another period": {func(a *ledger.Account) {
			again := a.Notifications[2]
			again.ID += "x"
			a.Notifications = append(a.Notifications, again)
		}, true},
		"twice": {func(a *ledger.Account) { a.Notifications = append(a.Notifications, a.Notifications...) }, false},
		"again and again": {func(a *ledger.Account) {
			for range 5 {
				a.Notifications = append(a.Notifications, a.Notifications[0])
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := told()
			test.change(a)
			broken := false
			for _, v := range ledger.Check(a) {
				broken = broken || strings.HasPrefix(v.Invariant, "I14")
			}
			if broken != test.broken {
				t.Errorf("broken: %v, want %v: %v", broken, test.broken, ledger.Check(a))
			}
		})
	}
}
