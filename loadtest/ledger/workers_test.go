package ledger_test

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// worked returns the account of a job whose second occurrence was handed to two workers, one after the other: the first told of its progress and was
// lost, the second completed.
func worked() *ledger.Account {
	a := late()
	e := &a.Events[1]
	at := e.Outcome.Timeline.Completed
	first, second := job.Fence{Epoch: 1, Counter: 1}, job.Fence{Epoch: 1, Counter: 2}
	e.Outcome.Kind, e.Outcome.Fence = job.OutcomeSucceeded, second
	id := e.Entry.ExecutionID
	for n, f := range []job.Fence{first, second} {
		taken := at.Add(time.Duration(n-2) * time.Minute)
		a.Calls = append(a.Calls, ledger.Call{
			JobID: jobID, ExecutionID: id, Attempt: 1, Token: f.String(), At: taken, CheckedAt: taken, Pool: true, Progress: 3 * n,
		})
	}
	word := func(k ledger.WordKind, f job.Fence, at time.Time, progress int) {
		a.Words = append(a.Words, ledger.Word{
			Kind: k, JobID: jobID, ExecutionID: id, Attempt: 1, Token: f.String(), FirstAt: at, SentAt: at, AckedAt: at.Add(time.Millisecond), Progress: progress,
		})
	}
	word(ledger.WordHeartbeat, first, at.Add(-100*time.Second), 3)
	word(ledger.WordHeartbeat, second, at.Add(-30*time.Second), 5)
	word(ledger.WordCompleted, second, at, 0)
	a.Crashed = true
	return a
}

// forgotten lets the second worker be handed the task without its progress after a success of the first, of which that was not answered.
func forgotten(a *ledger.Account, calls []ledger.Call) {
	success := a.Events[1]
	success.Outcome.Fence, success.Outcome.Timeline.Completed = job.Fence{Epoch: 1, Counter: 1}, calls[1].CheckedAt.Add(-time.Second)
	a.Events = append(a.Events, success)
	calls[1].Progress = 0
}

func TestWhatWorkersWereAnsweredStands(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a *ledger.Account, calls []ledger.Call)
		broken bool
	}{
		"as it was":                {func(*ledger.Account, []ledger.Call) {}, false},
		"there were no workers":    {func(a *ledger.Account, _ []ledger.Call) { a.Words = nil; a.Events[1].Outcome.Fence = job.Fence{} }, false},
		"the end is not on record": {func(a *ledger.Account, _ []ledger.Call) { a.Events[1].Outcome.Fence = job.Fence{Epoch: 7} }, true},
		"another end is on record": {func(a *ledger.Account, _ []ledger.Call) { a.Events[1].Outcome.Kind = job.OutcomeTimedOut }, true},
		"who had lost the task completed it": {func(a *ledger.Account, calls []ledger.Call) {
			a.Words[2].Token, a.Events[1].Outcome.Fence = calls[0].Token, job.Fence{Epoch: 1, Counter: 1}
		}, true},
		"who had another attempt completed it, and the hot tier had forgotten that": {func(a *ledger.Account, calls []ledger.Call) {
			a.Words[2].Token, a.Events[1].Outcome.Fence, a.Words[2].Attempt, a.HotLost = calls[0].Token, job.Fence{Epoch: 1, Counter: 1}, 2, true
		}, false},
		"who had another attempt completed it": {func(a *ledger.Account, calls []ledger.Call) {
			a.Words[2].Token, a.Events[1].Outcome.Fence, a.Words[2].Attempt = calls[0].Token, job.Fence{Epoch: 1, Counter: 1}, 2
		}, true},
		"who had lost the task told that a second time": {func(a *ledger.Account, calls []ledger.Call) {
			a.Words[2].Token, a.Events[1].Outcome.Fence = calls[0].Token, job.Fence{Epoch: 1, Counter: 1}
			a.Words[2].FirstAt = calls[1].At.Add(-time.Second)
		}, false},
		"two completed it": {func(a *ledger.Account, calls []ledger.Call) {
			other, event := a.Words[2], a.Events[1]
			other.Token, other.FirstAt = calls[0].Token, calls[1].At.Add(-time.Second)
			event.Outcome.Fence = job.Fence{Epoch: 1, Counter: 1}
			a.Words, a.Events = append(a.Words, other), append(a.Events, event)
		}, true},
		"it was handed out after it had completed": {func(a *ledger.Account, calls []ledger.Call) {
			again := calls[1]
			again.Token, again.Progress, again.CheckedAt = again.Token+"9", 5, again.CheckedAt.Add(time.Hour)
			a.Calls = append(a.Calls, again)
		}, true},
		"progress is not given on": {func(_ *ledger.Account, calls []ledger.Call) { calls[1].Progress = 2 }, true},
		"progress is not given on after a success without an answer, and the hot tier had forgotten that": {func(a *ledger.Account, calls []ledger.Call) {
			forgotten(a, calls)
			a.HotLost = true
		}, false},
		"progress is not given on after a success without an answer": {forgotten, true},
		"progress is not given on before a success, and the hot tier had forgotten something": {func(a *ledger.Account, calls []ledger.Call) {
			calls[1].Progress, a.HotLost = 2, true
		}, true},
		"progress that is told later is not given on": {func(a *ledger.Account, calls []ledger.Call) {
			calls[1].Progress, a.Words[0].AckedAt = 2, calls[1].CheckedAt.Add(time.Second)
		}, false},
		"a worker is told to stop, and does": {func(a *ledger.Account, _ []ledger.Call) {
			a.Words[1].Stops, a.Words[2].FirstAt = true, a.Words[1].AckedAt.Add(5*time.Second)
		}, false},
		"a worker is told to stop, and believed later": {func(a *ledger.Account, _ []ledger.Call) { a.Words[1].Stops = true }, true},
		"a worker is not told of a cancel": {func(a *ledger.Account, _ []ledger.Call) {
			a.Stops = append(a.Stops, ledger.Stop{JobID: jobID, Kind: ledger.StopExecution, ExecutionID: a.Words[1].ExecutionID, AckedAt: a.Words[1].SentAt.Add(-time.Second)})
		}, true},
		"a worker is not told of a cancel that comes later": {func(a *ledger.Account, _ []ledger.Call) {
			a.Stops = append(a.Stops, ledger.Stop{JobID: jobID, Kind: ledger.StopExecution, ExecutionID: a.Words[1].ExecutionID, AckedAt: a.Words[1].SentAt.Add(time.Second)})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := worked()
			test.change(a, a.Calls[len(a.Calls)-2:])
			broken := false
			for _, v := range ledger.Check(a) {
				broken = broken || v.Invariant == "I17"
				if v.Invariant == "I17" && !test.broken {
					t.Error(v)
				}
			}
			if !broken && test.broken {
				t.Error("it was not noticed")
			}
		})
	}
}
