package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// late returns the account of a job whose second occurrence was called and had succeeded after twenty seconds, with both deadlines at ten, and
// what a client is shown of that.
func late() *ledger.Account {
	a := sound()
	def := &a.Jobs[0].Job.Definition
	def.ID = job.DefinitionPrefix + "01HMHMHMHMHMHMHMHMHMHMHMHM" // made long before
	def.Deadlines = job.Deadlines{StartWithin: 10 * time.Second, FinishWithin: 10 * time.Second}
	a.Pending[0].DefinitionID, a.Until = def.ID, begin.Add(10*time.Minute)
	for n := range a.Events {
		at := a.Events[n].Entry.NominalAt
		if n == 1 {
			at = at.Add(20 * time.Second)
		}
		a.Events[n].Entry.DefinitionID, a.Calls[n].At = def.ID, at
		a.Events[n].Outcome.Timeline = job.Timeline{Invoked: at, Completed: at}
	}
	second := begin.Add(time.Minute)
	for _, deadline := range []string{"start_within", "finish_within"} {
		a.Incidents = append(a.Incidents, ledger.Incident{
			ID: "inc_" + deadline, Status: "closed", JobID: jobID, Deadline: deadline, FirstAt: second, LastAt: second, Missed: 1,
			DeadlineAt: second.Add(10 * time.Second), NoticedAt: second.Add(15 * time.Second),
		})
	}
	return a
}

func TestIncidentsAreHeldAgainstWhatTargetsReceived(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"as it was":             {func(*ledger.Account) {}, false},
		"nobody asked":          {func(a *ledger.Account) { a.Incidents = nil }, false},
		"one is not shown":      {func(a *ledger.Account) { a.Incidents = a.Incidents[1:] }, true},
		"none is shown":         {func(a *ledger.Account) { a.Incidents = []ledger.Incident{} }, true},
		"of another one":        {func(a *ledger.Account) { a.Incidents[0].FirstAt, a.Incidents[0].LastAt = begin, begin }, true},
		"of what was in time":   {func(a *ledger.Account) { a.Incidents[0].FirstAt = begin }, true},
		"two of one deadline":   {func(a *ledger.Account) { a.Incidents = append(a.Incidents, a.Incidents[0]) }, true},
		"it is noticed late":    {func(a *ledger.Account) { a.NoticesWithin = time.Second }, true},
		"it is noticed in time": {func(a *ledger.Account) { a.NoticesWithin = 10 * time.Second }, false},
		"an executor was lost, and one is not shown": {func(a *ledger.Account) {
			a.Incidents = a.Incidents[1:]
			lost := a.Events[1]
			lost.ID, lost.Outcome = "lost", job.Outcome{Kind: job.OutcomeWorkerLost, Disposition: job.DispositionFired}
			a.Events = append(a.Events, lost)
		}, false},
		"it had succeeded in time, and the hot tier forgot that": {func(a *ledger.Account) {
			a.Incidents, a.HotLost, a.Calls[1].EndedAt = a.Incidents[:1], true, begin.Add(time.Minute+5*time.Second)
		}, false},
		"it had failed in time, and the hot tier forgot that": {func(a *ledger.Account) {
			a.Incidents, a.HotLost, a.Calls[1].EndedAt, a.Calls[1].Failed = a.Incidents[:1], true, begin.Add(time.Minute+5*time.Second), true
		}, true},
		"the job was cancelled": {func(a *ledger.Account) {
			a.Jobs[0].Job.Status, a.Incidents = job.StatusCancelled, []ledger.Incident{}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := late()
			test.change(a)
			broken := false
			for _, v := range ledger.Check(a) {
				broken = broken || strings.HasPrefix(v.Invariant, "I13")
			}
			if broken != test.broken {
				t.Errorf("broken: %v, want %v: %v", broken, test.broken, ledger.Check(a))
			}
		})
	}
}
