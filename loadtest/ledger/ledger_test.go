package ledger_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

const jobID = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"

// If the time of a call's last check is not known, the call may have been on its way for a while.
func TestCallThatMayHaveBegunOutsideAPauseIsAllowed(t *testing.T) {
	const travel = 2 * time.Second
	for _, test := range []struct {
		name           string
		acked, resumed time.Duration // before the call
		sound          bool
	}{
		{"on its way when the pause was acknowledged", time.Second, 0, true},
		{"begun in the pause", 3 * time.Second, 0, false},
		{"begun in the pause, and received in it", 3 * time.Second, -time.Second, false},
		{"received after the resume", 3 * time.Second, time.Second, true},
	} {
		a := sound()
		at := a.Calls[1].At
		stop := ledger.Stop{JobID: jobID, Kind: ledger.StopPause, AckedAt: at.Add(-test.acked), ResumedAt: at.Add(-test.resumed)}
		if test.resumed == 0 {
			stop.ResumedAt = at.Add(30 * time.Second)
		}
		a.Travel, a.Stops = travel, []ledger.Stop{stop}
		if violations := ledger.Check(a); len(violations) == 0 != test.sound {
			t.Errorf("%s: %v", test.name, violations)
		}
	}
}

// sound returns the account of a run in which everything went well: an interval job with three occurrences.
func sound() *ledger.Account {
	def := job.Definition{
		ID: "def_01HZZZZZZZZZZZZZZZZZZZZZZZ", EffectiveAt: begin, FirstOrdinal: 1, Retry: job.DefaultRetryPolicy(),
		Schedule: job.Schedule{Type: job.ScheduleInterval, Every: time.Minute, StartAt: begin},
	}
	a := &ledger.Account{From: begin, Until: begin.Add(150 * time.Second), Settles: 10 * time.Second, Registered: []string{jobID}}
	a.Jobs = []ledger.JobAccount{{Job: job.Job{ID: jobID, Status: job.StatusActive, Definition: def}}}
	for i := range 3 {
		at := begin.Add(time.Duration(i) * time.Minute)
		f := job.Fire{Entry: entry(def.ID, at), Retry: def.Retry}
		o := job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: fence(1)}
		e := job.AttemptEvent(&f, job.TargetRef{}, o, at)
		a.Events = append(a.Events, e)
		a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: int64(i)})
		a.Calls = append(a.Calls, ledger.Call{
			Host: "ok", JobID: jobID, ExecutionID: f.ExecutionID, Attempt: 1, ScheduledFor: at, Token: fence(1).String(), At: at,
		})
	}
	a.Pending = []job.PendingRow{{Entry: entry(def.ID, begin.Add(3*time.Minute))}}
	return a
}

// shown returns what a client is shown of the sound account.
func shown(a *ledger.Account) map[string][]ledger.Shown {
	list := []ledger.Shown{{NominalAt: begin.Add(3 * time.Minute), State: "planned", Reason: "It is not due yet."}}
	for i := range 3 {
		at := begin.Add(time.Duration(2-i) * time.Minute)
		list = append(list, ledger.Shown{NominalAt: at, State: "succeeded", Disposition: job.DispositionFired, Reason: "It was called."})
	}
	a.Shown = map[string][]ledger.Shown{jobID: list}
	return a.Shown
}

// trigger adds an execution that a client triggered.
func trigger(a *ledger.Account) {
	at := begin.Add(30 * time.Second)
	e := entry(a.Jobs[0].Job.Definition.ID, at)
	e.ExecutionID, e.Trigger = job.ManualExecutionID(jobID, "01HZZZZZZZZZZZZZZZZZZZZZZZ"), job.TriggerManual
	e.By = &job.Author{Subject: "local"}
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: fence(9)}, at)
	a.Events = append(a.Events, event)
	a.Archived = append(a.Archived, ledger.Archived{EventID: event.ID, Offset: 3})
	a.Triggers = []ledger.Trigger{{JobID: jobID, ExecutionID: e.ExecutionID, AckedAt: at}}
	a.Calls = append(a.Calls, ledger.Call{
		Host: "ok", JobID: jobID, ExecutionID: e.ExecutionID, Attempt: 1, ScheduledFor: at, Token: fence(9).String(), At: at,
	})
}

func entry(definitionID string, at time.Time) job.Entry {
	return job.Entry{
		Locator: job.Locator{
			DueAt: at, ExecutionID: job.ScheduleExecutionID(jobID, at), Attempt: 1, DefinitionID: definitionID,
		},
		JobID: jobID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
	}
}

func fence(counter int64) job.Fence {
	return job.Fence{Epoch: 1, Counter: counter, Start: 1 + counter}
}

func TestSoundAccountBreaksNothing(t *testing.T) {
	a := sound()
	trigger(a)
	shown(a)
	for _, v := range append(ledger.Check(sound()), ledger.Check(a)...) {
		t.Error(v)
	}
}

// witnessed returns what clients and targets know of the sound account, without any record of the system.
func witnessed() *ledger.Account {
	a := sound()
	asked := ledger.Asked{JobID: jobID, Schedule: a.Jobs[0].Job.Definition.Schedule, From: begin, Until: a.Until}
	return &ledger.Account{From: begin, Until: a.Until, Settles: time.Second, Calls: a.Calls, Asked: []ledger.Asked{asked}}
}

func TestClientsAndTargetsAloneShowWhatWasNotCalledOrNotAskedFor(t *testing.T) {
	for _, test := range []struct {
		name    string
		corrupt func(a *ledger.Account)
		sound   bool
	}{
		{"every instant is called", func(*ledger.Account) {}, true},
		{"one is never called", func(a *ledger.Account) { a.Calls = append(a.Calls[:1:1], a.Calls[2:]...) }, false},
		{"that one came after the client asked for a pause", func(a *ledger.Account) {
			a.Calls = append(a.Calls[:1:1], a.Calls[2:]...)
			again := a.Asked[0]
			a.Asked[0].Until, again.From = begin.Add(50*time.Second), begin.Add(110*time.Second)
			a.Asked = append(a.Asked, again)
		}, true},
		{"that one came after the last occurrence that was asked for", func(a *ledger.Account) {
			a.Calls = a.Calls[:2:2]
			a.Asked[0].Schedule.MaxOccurrences = 2
		}, true},
		{"another instant is called", func(a *ledger.Account) {
			c := a.Calls[0]
			c.ExecutionID = job.ScheduleExecutionID(jobID, begin.Add(time.Second))
			a.Calls = append(a.Calls, c)
		}, false},
	} {
		a := witnessed()
		test.corrupt(a)
		if violations := ledger.Check(a); len(violations) == 0 != test.sound {
			t.Errorf("%s: %v", test.name, violations)
		}
	}
}

func TestEveryCorruptionIsFound(t *testing.T) {
	for _, test := range []struct {
		name, invariant string
		corrupt         func(a *ledger.Account)
	}{
		{"an occurrence without a disposition", "I1", func(a *ledger.Account) {
			a.Events, a.Calls, a.Archived = a.Events[:2], a.Calls[:2], a.Archived[:2]
		}},
		{"an occurrence with two dispositions", "I1", func(a *ledger.Account) {
			r := job.SkippedRange{From: begin, To: begin, Count: 1}
			e := job.SkippedEvent(a.Events[0].Entry, job.TargetRef{}, r, job.DispositionSkippedMissed, begin)
			a.Events = append(a.Events, e)
			a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: 3})
		}},
		{"an occurrence of no definition", "I1", func(a *ledger.Account) { a.Jobs[0].Job.Definition.EffectiveAt = begin.Add(1) }},
		{"fired and never seen", "I1", func(a *ledger.Account) { a.Calls = a.Calls[1:] }},
		{"an account without an occurrence", "I1", func(a *ledger.Account) { list := shown(a); list[jobID] = slices.Delete(list[jobID], 1, 2) }},
		{"an account with an occurrence twice", "I1", func(a *ledger.Account) {
			list := shown(a)
			list[jobID] = append(list[jobID], list[jobID][3])
		}},
		{"an account with an occurrence of no definition", "I1", func(a *ledger.Account) {
			list := shown(a)
			list[jobID] = slices.Insert(list[jobID], 2, ledger.Shown{NominalAt: begin.Add(90 * time.Second), State: "unknown", Reason: "Nothing is on record of it."})
		}},
		{"an account out of order", "I1", func(a *ledger.Account) { slices.Reverse(shown(a)[jobID]) }},
		{"an account that says otherwise", "I1", func(a *ledger.Account) { shown(a)[jobID][2].Disposition = job.DispositionSkippedMissed }},
		{"an account that takes an end back", "I1", func(a *ledger.Account) {
			once := shown(a)[jobID][2]
			once.Disposition = job.DispositionSkippedMissed
			a.ShownBefore = map[string][]ledger.Shown{jobID: {once}}
		}},
		{"an account that takes a refusal back", "I1", func(a *ledger.Account) {
			once := shown(a)[jobID][2]
			once.Disposition, once.State = job.DispositionCancelled, "cancelled"
			a.ShownBefore = map[string][]ledger.Shown{jobID: {once}}
		}},
		{"an account that takes a failure back", "I1", func(a *ledger.Account) {
			once := shown(a)[jobID][2]
			once.State = "dead"
			a.ShownBefore = map[string][]ledger.Shown{jobID: {once}}
		}},
		{"an account without a reason", "I1", func(a *ledger.Account) { shown(a)[jobID][2].Reason = "" }},
		{"a range that counts wrong", "I1", func(a *ledger.Account) {
			at := begin.Add(-time.Minute)
			e := job.SkippedEvent(a.Events[0].Entry, job.TargetRef{}, job.SkippedRange{From: at, To: at, Count: 5}, job.DispositionSkippedMissed, begin)
			a.Events = append(a.Events, e)
			a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: 3})
		}},
		{"invoked twice without a crash", "I2", func(a *ledger.Account) {
			again := a.Calls[0]
			again.Token = fence(2).String()
			a.Calls = append(a.Calls, again)
		}},
		{"invoked twice under one token", "I2", func(a *ledger.Account) {
			a.Crashed = true
			a.Calls = append(a.Calls, a.Calls[0])
		}},
		{"invoked later under a smaller token", "I2", func(a *ledger.Account) {
			a.Crashed = true
			a.Calls[0].CheckedAt = begin.Add(time.Second)
			again := a.Calls[0]
			again.Token, again.CheckedAt = fence(0).String(), begin.Add(time.Minute)
			a.Calls = append(a.Calls, again)
		}},
		{"begun after a cancel", "I4", func(a *ledger.Account) {
			a.Stops = []ledger.Stop{{JobID: jobID, Kind: ledger.StopCancel, AckedAt: begin.Add(90 * time.Second)}}
		}},
		{"begun after a pause", "I4", func(a *ledger.Account) {
			a.Stops = []ledger.Stop{{JobID: jobID, Kind: ledger.StopPause, AckedAt: begin.Add(90 * time.Second)}}
		}},
		{"the old definition begun after an update", "I4", func(a *ledger.Account) {
			at := begin.Add(90 * time.Second)
			a.Stops = []ledger.Stop{{JobID: jobID, Kind: ledger.StopUpdate, AckedAt: at, EffectiveAt: at, OldHosts: []string{"ok"}}}
		}},
		{"invoked early", "I5", func(a *ledger.Account) { a.Calls[1].At = a.Calls[1].At.Add(-time.Millisecond) }},
		{"a retry before its pause is over", "I5", func(a *ledger.Account) {
			c := a.Calls[1]
			c.Attempt, c.At, c.Token = 2, c.At.Add(time.Second), fence(2).String()
			a.Calls = append(a.Calls, c)
			a.RetryAfter = map[string]time.Duration{jobID: 2 * time.Second}
		}},
		{"a retry before any attempt", "I5", func(a *ledger.Account) {
			a.Calls[1].Attempt = 2
			a.RetryAfter = map[string]time.Duration{jobID: 2 * time.Second}
		}},
		{"no pending entry", "I6", func(a *ledger.Account) { a.Pending = nil }},
		{"three pending entries", "I6", func(a *ledger.Account) { a.Pending = append(a.Pending, a.Pending[0], a.Pending[0]) }},
		{"too many attempts", "I7", func(a *ledger.Account) { a.Events[0].Entry.Attempt = 6 }},
		{"given up without a dead letter", "I7", func(a *ledger.Account) { a.Events[0].Outcome.Kind = job.OutcomeFailed }},
		{"a dead letter of a success", "I7", func(a *ledger.Account) {
			a.DeadLetters = []job.DeadLetter{{Event: a.Events[0]}}
		}},
		{"two ends of one attempt", "I7", func(a *ledger.Account) {
			a.Crashed = true
			e := a.Events[0]
			e.ID, e.Outcome.Fence = "other", fence(2)
			a.Events = append(a.Events, e)
			a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: 3})
		}},
		{"missing in the archive", "I8", func(a *ledger.Account) { a.Archived = a.Archived[:2] }},
		{"a gap in the archive", "I8", func(a *ledger.Account) { a.Archived[2].Offset = 7 }},
		{"twice in the archive", "I8", func(a *ledger.Account) { a.Archived = append(a.Archived, a.Archived[0]) }},
		{"a gap in another log of the archive", "I8", func(a *ledger.Account) {
			a.Archived = append(a.Archived, ledger.Archived{EventID: a.Events[0].ID, LogID: "other", Offset: 1})
		}},
		{"a job that was answered and is not there", "I1", func(a *ledger.Account) { a.Registered = append(a.Registered, "job_other") }},
		{"a trigger that was answered and never called", "I1", func(a *ledger.Account) {
			trigger(a)
			a.Calls = a.Calls[:3]
		}},
		{"a trigger of which nothing is known", "I1", func(a *ledger.Account) {
			a.Crashed = true
			trigger(a)
			a.Calls, a.Events, a.Archived = a.Calls[:3], a.Events[:3], a.Archived[:3]
		}},
		{"a retry that never comes", "I1", func(a *ledger.Account) {
			a.Calls[1].Failed = true
			a.MaxAttempts = map[string]int{jobID: 2}
		}},
		{"a call of an execution after its cancel was answered", "I4", func(a *ledger.Account) {
			c := a.Calls[1]
			a.Stops = []ledger.Stop{{JobID: jobID, Kind: ledger.StopExecution, ExecutionID: c.ExecutionID, AckedAt: c.At.Add(-1)}}
		}},
		{"a resume that was answered and reverted", "API", func(a *ledger.Account) {
			a.Jobs[0].Job.Status = job.StatusPaused
			a.Resumed = map[string]bool{jobID: true}
		}},
		{"a 409 without a cause", "API", func(a *ledger.Account) { a.Refusals = []ledger.Refusal{{JobID: jobID, Code: "cancelled"}} }},
		{"a job that the pages of jobs leave out", "API", func(a *ledger.Account) { a.Listed = map[string]int{"job_x": 1} }},
		{"an execution that the pages leave out", "API", func(a *ledger.Account) {
			a.Executions = map[string]map[string]int{a.Calls[0].JobID: {}}
		}},
		{"an execution that two pages hold", "API", func(a *ledger.Account) {
			a.Executions = map[string]map[string]int{"job_x": {"exe_x": 2}}
		}},
		{"a call of an attempt without an event", "I7", func(a *ledger.Account) {
			c := a.Calls[1]
			c.Attempt = 2
			a.Calls = append(a.Calls, c)
		}},
		{"a call of an attempt without an event, whose executor died, and no update took its place", "I7", func(a *ledger.Account) {
			c := a.Calls[1]
			c.Attempt, c.Untold = 2, true
			a.Calls = append(a.Calls, c)
		}},
		{"a call of an attempt without an event, whose executor died, of a job that was paused and not resumed", "I7", func(a *ledger.Account) {
			c := a.Calls[1]
			c.Attempt, c.Untold = 2, true
			a.Calls = append(a.Calls, c)
			a.Stops = []ledger.Stop{{JobID: jobID, Kind: ledger.StopPause, AckedAt: c.At.Add(time.Second)}}
		}},
		{"an entry that is not done long after it was due", "I1", func(a *ledger.Account) {
			row := a.Pending[0]
			row.DueAt = begin.Add(time.Minute)
			row.Done = false
			a.Pending = append(a.Pending, row)
		}},
		{"unknown to the history", "I8", func(a *ledger.Account) {
			a.Archived = append(a.Archived, ledger.Archived{EventID: "x", Offset: 3})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := sound()
			test.corrupt(a)
			for _, v := range ledger.Check(a) {
				if strings.HasPrefix(v.String(), test.invariant+" ") {
					return
				}
			}
			t.Errorf("%s was not reported; found %v", test.invariant, ledger.Check(a))
		})
	}
}

// excuse excuses a job's instants until one of them.
func excuse(jobID string, until time.Time) func(a *ledger.Account) {
	return func(a *ledger.Account) { a.Excused = map[string][]ledger.Window{jobID: {{From: begin, To: until}}} }
}

func TestPauseBeginsWhereTheAttemptMayHaveEnded(t *testing.T) {
	const least = 20 * time.Second
	for _, test := range []struct {
		name   string
		before func(c *ledger.Call) // the first attempt, called 15 s before the second
		early  bool
	}{
		{"at the call", func(*ledger.Call) {}, true},
		{"at the call that was checked right before", func(c *ledger.Call) { c.CheckedAt = c.At.Add(-5 * time.Second) }, true},
		{"when the lease of an executor that stood still was over", func(c *ledger.Call) { c.CheckedAt = c.At.Add(-15 * time.Second) }, false},
		{"after the call", func(c *ledger.Call) { c.EndedAt = c.At.Add(time.Second) }, true},
		{"when the clock had been set back", func(c *ledger.Call) { c.EndedAt, c.AheadAtEnd = c.At, -least }, false},
	} {
		a := sound()
		trigger(a)
		retry := a.Calls[len(a.Calls)-1]
		test.before(&a.Calls[len(a.Calls)-1])
		retry.Attempt, retry.At, retry.Token = 2, retry.At.Add(15*time.Second), fence(10).String()
		a.Calls = append(a.Calls, retry)
		a.RetryAfter = map[string]time.Duration{jobID: least}
		found := slices.ContainsFunc(ledger.Check(a), func(v ledger.Violation) bool { return v.Invariant == "I5" })
		if found != test.early {
			t.Errorf("the pause begins %s: found early %t, want %t", test.name, found, test.early)
		}
	}
}

func TestPauseBeginsWhereAnAttemptWasLostThatItsTargetDidNotSee(t *testing.T) {
	const least = 20 * time.Second
	for _, test := range []struct {
		name  string
		lost  func(a *ledger.Account, at time.Time) // at is when the first attempt was called that the target saw, 15 s before the second
		early bool
	}{
		{"never", func(*ledger.Account, time.Time) {}, true},
		{"so long before the retry that its pause was over", func(a *ledger.Account, at time.Time) { lose(a, 1, at.Add(-5*time.Second)) }, false},
		{"a millisecond too late for that", func(a *ledger.Account, at time.Time) { lose(a, 1, at.Add(-5*time.Second+2*time.Millisecond)) }, true},
		{"after the retry", func(a *ledger.Account, at time.Time) { lose(a, 1, at.Add(time.Minute)) }, true},
		{"in time, but it was the retry", func(a *ledger.Account, at time.Time) { lose(a, 2, at.Add(-5*time.Second)) }, true},
		{"in time, but it failed with an answer", func(a *ledger.Account, at time.Time) {
			lose(a, 1, at.Add(-5*time.Second)).Outcome.Kind = job.OutcomeFailed
		}, true},
	} {
		a := sound()
		trigger(a)
		a.Crashed = true
		before := a.Calls[len(a.Calls)-1]
		retry := before
		retry.Attempt, retry.At, retry.Token = 2, before.At.Add(15*time.Second), fence(10).String()
		a.Calls = append(a.Calls, retry)
		a.RetryAfter = map[string]time.Duration{jobID: least}
		test.lost(a, before.At)
		found := slices.ContainsFunc(ledger.Check(a), func(v ledger.Violation) bool { return v.Invariant == "I5" })
		if found != test.early {
			t.Errorf("an attempt was lost %s: found early %t, want %t", test.name, found, test.early)
		}
	}
}

// lose adds to the execution of the last call that one of its attempts was lost under another token.
func lose(a *ledger.Account, attempt int, at time.Time) *job.Event {
	e := entry(a.Jobs[0].Job.Definition.ID, at)
	e.ExecutionID, e.Attempt = a.Calls[len(a.Calls)-1].ExecutionID, attempt
	o := job.Outcome{Kind: job.OutcomeWorkerLost, Retryable: true, Disposition: job.DispositionFired, Fence: fence(8), Timeline: job.Timeline{Completed: at}}
	a.Events = append(a.Events, job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, o, at))
	return &a.Events[len(a.Events)-1]
}

// A worker's completion was answered, the hot tier forgot it, and the lease of the task lapsed. (Seed 1912366 of the simulation.)
func TestAttemptThatSucceededAndIsOnRecordAsLostIsTheLast(t *testing.T) {
	for name, test := range map[string]struct {
		change func(second *ledger.Call)
		broken bool
	}{
		"it succeeded":                    {func(*ledger.Call) {}, false},
		"it failed":                       {func(c *ledger.Call) { c.Failed = true }, true},
		"it was given back":               {func(c *ledger.Call) { c.GivenBack = true }, true},
		"nobody knows how its call ended": {func(c *ledger.Call) { c.EndedAt = time.Time{} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := sound()
			trigger(a)
			a.Crashed, a.HotLost, a.MaxAttempts = true, true, map[string]int{jobID: 3}
			first := &a.Calls[len(a.Calls)-1]
			first.Failed = true
			second := *first
			second.Attempt, second.At, second.Token, second.Failed, second.EndedAt = 2, first.At.Add(time.Minute), fence(10).String(), false, first.At.Add(2*time.Minute)
			test.change(&second)
			a.Calls = append(a.Calls, second)
			lose(a, 2, second.At.Add(time.Minute))
			if broken := breaks(a, "I1", "never came"); broken != test.broken {
				t.Errorf("another attempt is owed: %v, want %v", broken, test.broken)
			}
		})
	}
}

func TestCallIsEarlyByTheClockThatItsExecutorLookedAt(t *testing.T) {
	for _, test := range []struct {
		name               string
		atLook, atCall, by time.Duration
		early              bool
	}{
		{"the clock is ahead by as much", time.Second, time.Second, time.Second, false},
		{"it was ahead by as much at the look, and set back since", time.Second, 0, time.Second, false},
		{"it was ahead by less", time.Second, 0, time.Second + time.Millisecond, true},
		{"it was right", 0, 0, time.Millisecond, true},
	} {
		a := sound()
		c := &a.Calls[0]
		c.At, c.AheadAtLook, c.Ahead = c.ScheduledFor.Add(-test.by), test.atLook, test.atCall
		found := slices.ContainsFunc(ledger.Check(a), func(v ledger.Violation) bool { return v.Invariant == "I5" })
		if found != test.early {
			t.Errorf("%s: found early %t, want %t", test.name, found, test.early)
		}
	}
}

// skipTwice gives the second instant of the sound account two dispositions.
func skipTwice(a *ledger.Account) {
	r := job.SkippedRange{From: begin.Add(time.Minute), To: begin.Add(time.Minute), Count: 1}
	for _, d := range []job.Disposition{job.DispositionSkippedMissed, job.DispositionSkippedPaused} {
		a.Events = append(a.Events, job.SkippedEvent(a.Events[1].Entry, job.TargetRef{}, r, d, begin))
	}
	a.Events = append(a.Events[:1], a.Events[2:]...)
	a.Calls = append(a.Calls[:1], a.Calls[2:]...)
	a.Archived = nil
	for i, e := range a.Events {
		a.Archived = append(a.Archived, ledger.Archived{EventID: e.ID, Offset: int64(i)})
	}
}

func TestWhatTheDesignExcludesIsExcused(t *testing.T) {
	for _, test := range []struct {
		name   string
		excuse func(a *ledger.Account)
		sound  bool
	}{
		{"nothing", func(*ledger.Account) {}, false},
		{"an owner that stood still while the hot tier was lost", excuse(jobID, begin.Add(time.Minute)), true},
		{"one that stood still before", excuse(jobID, begin.Add(time.Minute-1)), false},
		{"another job's", excuse("other", begin.Add(time.Hour)), false},
		{"an update that was under way", func(a *ledger.Account) {
			a.Updated = map[string]time.Time{a.Jobs[0].Job.Definition.ID: begin.Add(2 * time.Minute)}
		}, true},
	} {
		a := sound()
		skipTwice(a)
		test.excuse(a)
		if violations := ledger.Check(a); len(violations) == 0 != test.sound {
			t.Errorf("%s: %v", test.name, violations)
		}
	}
}

// The entry of a job was removed, and a backfill paused the job by a 410 before the audit of the schedules came by.
func TestScheduleThatLostItsEntryIsOwedUnlessItsTargetPausedItBeforeTheAudit(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(a *ledger.Account)
		sound  bool
	}{
		{"nothing else", func(*ledger.Account) {}, true},
		{"no entry was removed", func(a *ledger.Account) { a.Removed = nil }, false},
		{"that of another job was", func(a *ledger.Account) {
			a.Removed = map[string]bool{job.ScheduleExecutionID("job_02HZZZZZZZZZZZZZZZZZZZZZZZ", begin.Add(time.Minute)): true}
		}, false},
		{"the entry of a later instant was", func(a *ledger.Account) {
			a.Removed = map[string]bool{job.ScheduleExecutionID(jobID, begin.Add(2*time.Minute)): true}
		}, false},
		{"no target answered 410", func(a *ledger.Account) { a.Calls[1].Gone = false }, false},
		{"the job is active", func(a *ledger.Account) { a.Jobs[0].Job.Status, a.Jobs[0].Job.PausedAt = job.StatusActive, time.Time{} }, false},
		{"the schedule went on behind an instant", func(a *ledger.Account) {
			whole := sound()
			a.Events, a.Calls = append(a.Events, whole.Events[2]), append(a.Calls, whole.Calls[2])
			a.Archived = append(a.Archived, ledger.Archived{EventID: whole.Events[2].ID, Offset: 2})
		}, false},
	} {
		a := sound()
		a.Events, a.Calls, a.Archived = a.Events[:1:1], a.Calls[:1:1], a.Archived[:1:1]
		backfill := job.AttemptEvent(&job.Fire{Entry: job.Entry{
			Locator: job.Locator{ExecutionID: job.BackfillExecutionID(jobID, "op_01HZZZZZZZZZZZZZZZZZZZZZZZ", begin.Add(-time.Hour)), Attempt: 1},
			JobID:   jobID, Trigger: job.TriggerBackfill, NominalAt: begin.Add(2 * time.Minute),
		}}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeFailed, Disposition: job.DispositionFired, Fence: fence(3), PauseJob: true}, begin.Add(2*time.Minute))
		a.Events, a.DeadLetters = append(a.Events, backfill), []job.DeadLetter{{Event: backfill}}
		a.Archived = append(a.Archived, ledger.Archived{EventID: backfill.ID, Offset: 1})
		a.Calls = append(a.Calls, ledger.Call{
			Host: "gone", JobID: jobID, ExecutionID: backfill.Entry.ExecutionID, Attempt: 1, Token: fence(3).String(), At: begin.Add(2 * time.Minute), Gone: true,
		})
		j := &a.Jobs[0].Job
		j.Status, j.PausedAt, a.Pending = job.StatusPaused, begin.Add(130*time.Second), nil
		a.Removed = map[string]bool{job.ScheduleExecutionID(jobID, begin.Add(time.Minute)): true}
		test.change(a)
		violations := ledger.Check(a)
		if found := slices.ContainsFunc(violations, func(v ledger.Violation) bool { return v.Invariant == "I1" }); found == test.sound || test.sound && len(violations) > 0 {
			t.Errorf("%s: %v", test.name, violations)
		}
	}
}

func TestWhatIsExcusedIsExcusedBehindAStopToo(t *testing.T) {
	for _, stop := range []struct {
		name string
		stop func(a *ledger.Account)
	}{
		{"a cancel", func(a *ledger.Account) {
			j := &a.Jobs[0].Job
			j.Status, j.EndsAt = job.StatusCancelled, begin.Add(30*time.Second)
		}},
		{"an update that was slow", func(a *ledger.Account) {
			j := &a.Jobs[0]
			j.Superseded = []job.Definition{j.Job.Definition}
			next := &j.Job.Definition
			next.ID, next.EffectiveAt = "def_02HZZZZZZZZZZZZZZZZZZZZZZZ", begin.Add(30*time.Second)
			next.Schedule.Every = time.Hour
			a.Updated = map[string]time.Time{next.ID: begin.Add(90 * time.Second)}
			a.Pending = []job.PendingRow{{Entry: entry(next.ID, begin.Add(time.Hour))}}
		}},
	} {
		for _, test := range []struct {
			name   string
			excuse func(a *ledger.Account)
			sound  bool
		}{
			{"nothing", func(*ledger.Account) {}, false},
			{"an owner that stood still while the hot tier was lost", excuse(jobID, begin.Add(time.Minute)), true},
			{"one that stood still before", excuse(jobID, begin.Add(time.Minute-1)), false},
		} {
			a := sound()
			skipTwice(a)
			stop.stop(a)
			test.excuse(a)
			if violations := ledger.Check(a); len(violations) == 0 != test.sound {
				t.Errorf("behind %s, %s: %v", stop.name, test.name, violations)
			}
		}
	}
}
