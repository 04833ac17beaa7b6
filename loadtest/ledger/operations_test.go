package ledger_test

import (
	"fmt"
	"slices"
	"strings"
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

// redriven returns the sound account with a redrive of all, and the event by which it executed the one dead letter again.
func redriven() *ledger.Account {
	const request = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
	a := sound()
	source, at := &a.Events[1], begin.Add(70*time.Second)
	source.Outcome.Kind = job.OutcomeFailed
	a.DeadLetters = []job.DeadLetter{{Event: *source, Reason: "permanent", At: source.At}}
	e := entry(source.Entry.DefinitionID, at)
	e.ExecutionID, e.Trigger, e.By = job.RedriveExecutionID(jobID, request, source.Entry.ExecutionID), job.TriggerRedrive, &job.Author{Subject: "local"}
	e.Note = &job.Note{Source: source.Entry.ExecutionID, Operation: job.OperationPrefix + request, Occurrence: source.Entry.NominalAt}
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: fence(9)}, at)
	a.Operations = []ledger.Operation{{
		ID: e.Note.Operation, Redrive: true, Known: []string{source.Entry.ExecutionID}, Status: "done", HandedOut: 1, AckedAt: at, Rate: 10,
	}}
	a.Calls = append(a.Calls, ledger.Call{
		Host: a.Calls[1].Host, JobID: jobID, ExecutionID: e.ExecutionID, Attempt: 1, ScheduledFor: source.Entry.NominalAt, Token: fence(9).String(), At: at,
	})
	a.Events = append(a.Events, event)
	a.Archived = append(a.Archived, ledger.Archived{EventID: event.ID, Offset: 3})
	return a
}

func TestRedriveOfAllExecutesEachDeadLetterOnce(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		want   string
	}{
		"sound": {func(*ledger.Account) {}, ""},
		"a letter was left out": {func(a *ledger.Account) {
			a.Events, a.Archived, a.Calls = a.Events[:len(a.Events)-1], a.Archived[:len(a.Archived)-1], a.Calls[:len(a.Calls)-1]
			a.Operations[0].HandedOut = 0
		}, "nobody has executed"},
		"two took it": {func(a *ledger.Account) {
			c := a.Calls[len(a.Calls)-1]
			c.ExecutionID = job.RedriveExecutionID(jobID, "01J00000000000000000000000", a.DeadLetters[0].Event.Entry.ExecutionID)
			a.Calls = append(a.Calls, c)
			a.Operations = append(a.Operations, ledger.Operation{ID: "op_01J00000000000000000000000", Redrive: true, Status: "done", HandedOut: 1, AckedAt: c.At, Rate: 10})
		}, "again by operation"},
		"nobody asked for it": {func(a *ledger.Account) {
			c := a.Calls[len(a.Calls)-1]
			c.ExecutionID = job.RedriveExecutionID(jobID, "01J00000000000000000000000", a.DeadLetters[0].Event.Entry.ExecutionID)
			a.Calls = append(a.Calls, c)
		}, "belongs to no operation"},
		"it counts too many": {func(a *ledger.Account) { a.Operations[0].HandedOut = 2 }, "says that it handed out 2, and 1 were executed"},
	} {
		a := redriven()
		test.change(a)
		violations := ledger.Check(a)
		found := slices.ContainsFunc(violations, func(v ledger.Violation) bool { return strings.Contains(fmt.Sprint(v), test.want) })
		if test.want == "" && len(violations) > 0 || !found && test.want != "" {
			t.Errorf("%s: %v", name, violations)
		}
	}
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
