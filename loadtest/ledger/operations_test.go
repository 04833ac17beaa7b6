package ledger_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

const stagingHost = "staging" + ledger.ElsewhereSuffix

// replayed returns the sound account with a replay of the second occurrence that went elsewhere, and the event of it as it was published.
func replayed() (*ledger.Account, job.Event) {
	const request = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
	a := sound()
	source, at := &a.Events[1].Entry, begin.Add(70*time.Second)
	e := entry(source.DefinitionID, at)
	e.ExecutionID, e.Trigger, e.By = job.ReplayExecutionID(jobID, request, source.ExecutionID), job.TriggerReplay, &job.Author{Subject: "local"}
	e.Note = &job.Note{
		Source: source.ExecutionID, Operation: job.OperationPrefix + request, Occurrence: source.NominalAt,
		Elsewhere: &job.Elsewhere{URL: "http://" + stagingHost + "/", Headers: map[string]string{"X-Token": "secret"}},
	}
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: fence(9)}, at)
	a.Operations = []ledger.Operation{{
		JobID: jobID, ID: e.Note.Operation, Replay: true, Elsewhere: stagingHost, From: source.NominalAt, To: source.NominalAt.Add(1), Status: "done", HandedOut: 1, AckedAt: at,
	}}
	a.Calls = append(a.Calls, ledger.Call{
		Host: stagingHost, JobID: jobID, ExecutionID: e.ExecutionID, Attempt: 1, ScheduledFor: source.NominalAt, Token: fence(9).String(), At: at,
	})
	return a, event
}

// What a log lost is known as it was published, with the headers; only what came to the history was to come there without them.
func TestOnlyTheHistoryMustKeepNoHeadersOfWhatWentElsewhere(t *testing.T) {
	_, published := replayed()
	with, without := []job.Event{published}, []job.Event{*published.Kept()}
	for _, test := range []struct {
		name       string
		kept, lost []job.Event
		sound      bool
	}{
		{"kept without them", without, nil, true},
		{"kept with them", with, nil, false},
		{"lost before it was kept", nil, with, true},
		{"kept without them, and lost before that was committed", without, with, true},
		{"kept with them, and lost before that was committed", with, with, false},
	} {
		a, _ := replayed()
		a.Crashed, a.LostToHistory = test.lost != nil, test.lost
		for _, e := range test.kept {
			a.Events = append(a.Events, e)
			a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: 3})
		}
		if violations := ledger.Check(a); len(violations) == 0 != test.sound {
			t.Errorf("%s: %v", test.name, violations)
		}
	}
}
