package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// changed returns an account of a job that was created, paused twice, of which once in vain, and resumed.
func changed() *ledger.Account {
	a := sound()
	for n, operation := range []string{"createJob", "pauseJob", "resumeJob"} {
		request := fmt.Sprint("request ", n)
		a.Requests = append(a.Requests, ledger.Request{
			JobID: jobID, Operation: operation, ID: request, Done: true, Version: int64(n + 1), AckedAt: begin,
		})
		change(a, operation, request, int64(n+1))
	}
	a.Requests = append(a.Requests,
		ledger.Request{JobID: jobID, Operation: "pauseJob", ID: "in vain", Done: true, Version: 2, AckedAt: begin},
		ledger.Request{JobID: jobID, Operation: "patchJob", ID: "refused", Refused: true, AckedAt: begin},
		ledger.Request{JobID: jobID, Operation: "patchJob", ID: "unsure", AckedAt: begin})
	return a
}

// change adds a change to the history and to the archive.
func change(a *ledger.Account, operation, request string, version int64) {
	id := fmt.Sprint("change ", len(a.Archived))
	a.Events = append(a.Events, job.Event{ID: id, Type: job.EventChange, Entry: job.Entry{JobID: jobID, Trigger: job.TriggerChange}})
	a.Archived = append(a.Archived, ledger.Archived{
		EventID: id, Offset: int64(len(a.Archived)), JobID: jobID, Operation: operation, RequestID: request, Version: version,
	})
}

func TestChangesInTheArchiveAreThoseThatClientsWereAnswered(t *testing.T) {
	drop := func(a *ledger.Account, n int) { a.Archived[len(a.Archived)-n].Operation = "" }
	for _, test := range []struct {
		name    string
		corrupt func(a *ledger.Account)
		sound   bool
	}{
		{"all are there", func(*ledger.Account) {}, true},
		{"one was published twice", func(a *ledger.Account) {
			again := a.Archived[len(a.Archived)-1]
			again.Offset++
			a.Archived = append(a.Archived, again)
		}, true},
		{"one that nobody was answered", func(a *ledger.Account) { change(a, "patchJob", "unsure", 4) }, true},
		{"a pause because the target was gone", func(a *ledger.Account) {
			a.Calls[2].Gone = true
			change(a, "pauseJob", "", 4)
		}, true},
		{"the creation is missing", func(a *ledger.Account) { drop(a, 3) }, false},
		{"a pause is missing", func(a *ledger.Account) { drop(a, 2) }, false},
		{"a resume is missing", func(a *ledger.Account) { drop(a, 1) }, false},
		{"one of a request that was refused", func(a *ledger.Account) { change(a, "patchJob", "refused", 4) }, false},
		{"one of a request that nobody made", func(a *ledger.Account) { change(a, "patchJob", "foreign", 4) }, false},
		{"one of another operation", func(a *ledger.Account) { change(a, "cancelJob", "unsure", 4) }, false},
		{"two of one version", func(a *ledger.Account) { change(a, "patchJob", "unsure", 3) }, false},
		{"two of one request", func(a *ledger.Account) { change(a, "pauseJob", "request 1", 4) }, false},
		{"a pause that no target asked for", func(a *ledger.Account) { change(a, "pauseJob", "", 4) }, false},
		{"a trigger that names nobody", func(a *ledger.Account) {
			trigger(a)
			a.Archived[len(a.Archived)-1].Offset = int64(len(a.Archived) - 1)
			a.Events[len(a.Events)-1].Entry.By = nil
		}, false},
	} {
		a := changed()
		test.corrupt(a)
		found := slices.ContainsFunc(ledger.Check(a), func(v ledger.Violation) bool { return v.Invariant == "I10" })
		if found == test.sound {
			t.Errorf("%s: %v", test.name, ledger.Check(a))
		}
	}
}
