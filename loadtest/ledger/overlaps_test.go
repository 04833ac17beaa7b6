package ledger_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// breaks reports whether an account breaks an invariant in a way that is told with a text.
func breaks(a *ledger.Account, invariant, text string) bool {
	return slices.ContainsFunc(ledger.Check(a), func(v ledger.Violation) bool { return v.Invariant == invariant && strings.Contains(v.String(), text) })
}

// An update that is tried several times may have stopped by one try what another occurrence has given way to. (Seed 1906716 of the simulation.)
func TestOccurrenceGivesWayOnlyToOneThatIsCalled(t *testing.T) {
	third := begin.Add(2 * time.Minute)
	updated := func(effective, acked time.Duration) func(a *ledger.Account) {
		return func(a *ledger.Account) {
			j := &a.Jobs[0]
			j.Superseded = append(j.Superseded, j.Job.Definition)
			j.Job.Definition.ID, j.Job.Definition.EffectiveAt = job.DefinitionPrefix+"01HMHMHMHMHMHMHMHMHMHMHMHN", third.Add(effective)
			a.Events[2].Entry.DefinitionID = j.Job.Definition.ID
			a.Stops = append(a.Stops, ledger.Stop{JobID: jobID, Kind: ledger.StopUpdate, EffectiveAt: third.Add(time.Hour), AckedAt: third.Add(acked)})
		}
	}
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"no update was answered":                   {func(*ledger.Account) {}, true},
		"an update was answered later":             {updated(-time.Minute, time.Minute), false},
		"a process had died":                       {func(a *ledger.Account) { a.Crashed = true }, false},
		"an update of later instants was answered": {updated(time.Second, time.Minute), true},
		"an update had been answered long before":  {updated(-time.Hour, -30*time.Minute), true},
		"an update was answered later, and the former definition decided": {func(a *ledger.Account) {
			former := a.Events[2].Entry.DefinitionID
			updated(-time.Minute, time.Minute)(a)
			a.Events[2].Entry.DefinitionID = former
		}, true},
		"an update was answered before, and another later": {func(a *ledger.Account) {
			updated(-time.Hour, -30*time.Minute)(a)
			a.Stops = append(a.Stops, ledger.Stop{JobID: jobID, Kind: ledger.StopUpdate, EffectiveAt: third.Add(2 * time.Hour), AckedAt: third.Add(time.Minute)})
		}, true},
		"a pause was answered later, of another job": {func(a *ledger.Account) {
			a.Stops = append(a.Stops, ledger.Stop{JobID: "job_2", Kind: ledger.StopPause, AckedAt: third.Add(time.Minute)})
		}, true},
		"a pause was answered later": {func(a *ledger.Account) {
			a.Stops = append(a.Stops, ledger.Stop{JobID: jobID, Kind: ledger.StopPause, AckedAt: third.Add(time.Minute)})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := late()
			a.Jobs[0].Job.Definition.Overlap = job.OverlapSkip
			e, other := &a.Events[1], &a.Events[2]
			e.At, e.Disposition = third, job.DispositionSkippedOverlap
			e.Outcome = job.Outcome{Kind: job.OutcomeSkipped, Disposition: e.Disposition, GaveWayTo: third}
			other.Disposition = job.DispositionSkippedMissed
			other.Outcome = job.Outcome{Kind: job.OutcomeSkipped, Disposition: other.Disposition}
			test.change(a)
			broken := breaks(a, "I11", "gave way to")
			if broken != test.broken {
				t.Errorf("broken: %v, want %v", broken, test.broken)
			}
		})
	}
}

// A worker whose clock is ahead skips an instant before the update that takes it over. (Seed 1122508237 of the simulation.)
func TestAccountMayHaveShownWhatAFormerDefinitionSkippedEarly(t *testing.T) {
	for name, test := range map[string]struct {
		applied time.Duration // after the former definition's word
		again   bool
	}{
		"the update took effect a little later": {200 * time.Millisecond, true},
		"the update took effect long before":    {-time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := sound()
			j, fired := &a.Jobs[0], &a.Events[2]
			at := fired.Entry.NominalAt
			said := at.Add(-500 * time.Millisecond)
			e := *fired
			e.ID += "/former"
			e.Disposition = job.DispositionSkippedOverlap
			e.Outcome = job.Outcome{Kind: job.OutcomeSkipped, Disposition: e.Disposition, GaveWayTo: at.Add(-time.Minute), Timeline: job.Timeline{Completed: said}}
			e.Entry.DefinitionID = job.DefinitionPrefix + "00000000000000000000000000"
			a.Events = append(a.Events, e)
			a.Updated = map[string]time.Time{j.Job.Definition.ID: said.Add(test.applied)}
			a.ShownBefore = map[string][]ledger.Shown{jobID: {{NominalAt: at, Disposition: e.Disposition, State: "skipped", Reason: "Skipped."}}}
			broken := breaks(a, "I1", "once showed")
			if broken == test.again {
				t.Errorf("broken: %v, want %v", broken, !test.again)
			}
		})
	}
}

// An executor that stalled before its call makes it after another one has ended the attempt. Where the hot tier forgot that end, it ends the attempt
// once more, on record. (Seed 1910327 of the simulation.)
func TestCallOfAnAttemptThatHadEndedMayComeLateWhereTheHotTierForgotTheEnd(t *testing.T) {
	ended := func(a *ledger.Account) {
		e := a.Events[0]
		e.ID += "/lost"
		e.Outcome = job.Outcome{Kind: job.OutcomeWorkerLost, Fence: fence(1000), Disposition: job.DispositionFired, Timeline: job.Timeline{Completed: begin.Add(time.Second)}}
		a.Events = append(a.Events, e)
	}
	for name, test := range map[string]struct {
		change func(a *ledger.Account)
		broken bool
	}{
		"it ended once":                        {func(a *ledger.Account) { a.HotLost = true }, true},
		"it ended twice":                       {ended, true},
		"it ended twice, and the end was lost": {func(a *ledger.Account) { ended(a); a.HotLost = true }, false},
		"another one ended twice, and was lost": {func(a *ledger.Account) {
			ended(a)
			a.HotLost = true
			a.Events[len(a.Events)-1].Entry = a.Events[2].Entry
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := late()
			a.Jobs[0].Job.Definition.Overlap = job.OverlapSkip
			a.Calls[0].EndedAt = begin.Add(2 * time.Minute) // the second one was called meanwhile
			test.change(a)
			broken := breaks(a, "I11", "had ended")
			if broken != test.broken {
				t.Errorf("broken: %v, want %v", broken, test.broken)
			}
		})
	}
}
