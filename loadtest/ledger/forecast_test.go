package ledger_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// foreseen returns the account of a run with a job of each minute that was not changed, one that was paused, and a forecast.
func foreseen() *ledger.Account {
	a := &ledger.Account{From: begin, Until: begin.Add(time.Second)}
	each := job.Schedule{Type: job.ScheduleCron, CronExpr: "* * * * *"}
	a.Jobs = []ledger.JobAccount{
		{Job: job.Job{ID: jobID, Definition: job.Definition{ID: "def_1", EffectiveAt: begin, Schedule: each}}},
		{Job: job.Job{ID: followerID, Definition: job.Definition{ID: "def_1", EffectiveAt: begin, Schedule: each}}},
	}
	at := begin.Truncate(time.Hour).Add(4 * time.Hour)
	a.Requests = []ledger.Request{
		{JobID: jobID, Operation: "createJob", Done: true, AckedAt: begin.Add(-time.Hour)},
		{JobID: followerID, Operation: "createJob", Done: true, AckedAt: begin.Add(-time.Hour)},
		{JobID: followerID, Operation: "pauseJob", Done: true, SentAt: begin.Add(-time.Minute), AckedAt: begin},
	}
	a.Forecasts = []ledger.Forecast{{AnsweredAt: begin.Add(time.Second), AsOf: begin, Share: 1, Items: []ledger.Planned{{At: at, Planned: 60}}}}
	return a
}

func TestForecastsAreHeldAgainstWhatClientsAskedFor(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"as it was":                            {func(*ledger.Account) {}, false},
		"nobody asked":                         {func(a *ledger.Account) { a.Forecasts = nil }, false},
		"there was none":                       {func(a *ledger.Account) { a.Forecasts = []ledger.Forecast{{}} }, false},
		"the paused one is counted":            {func(a *ledger.Account) { a.Forecasts[0].Items[0].Planned = 120 }, false},
		"one is counted twice":                 {func(a *ledger.Account) { a.Forecasts[0].Items[0].Planned = 121 }, true},
		"one fire is left out":                 {func(a *ledger.Account) { a.Forecasts[0].Items[0].Planned = 59 }, true},
		"within the error":                     {func(a *ledger.Account) { a.Forecasts[0].Items[0].Planned, a.Forecasts[0].Items[0].Error = 50, 10 }, false},
		"both are left out, and one was there": {func(a *ledger.Account) { a.Forecasts[0].Items[0].Planned = 0 }, true},
		"the job came later": {func(a *ledger.Account) {
			a.Forecasts[0].Items[0].Planned, a.Requests[0].AckedAt = 0, begin
		}, false},
		"its target was gone": {func(a *ledger.Account) {
			a.Forecasts[0].Items[0].Planned, a.Calls = 0, append(a.Calls, ledger.Call{JobID: jobID, Gone: true})
		}, false},
		"the pause was asked for later": {func(a *ledger.Account) { a.Requests[2].SentAt = begin.Add(time.Minute) }, true},
	} {
		a := foreseen()
		test.change(a)
		found := false
		for _, v := range ledger.Check(a) {
			found = found || v.Invariant == "I16"
		}
		if found != test.broken {
			t.Errorf("%s: I16 is broken: %t", name, found)
		}
	}
}
