package retrymanager

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/notices"
)

// tells creates the job of the attempt that failed, which tells of causes.
func (f fixture) tells(on ...job.Cause) *job.Job {
	f.t.Helper()
	at := f.entry.DueAt.Add(-time.Hour)
	j := job.Job{
		ID: f.entry.JobID, Name: "n", Status: job.StatusActive, Version: 1, CreatedAt: at, UpdatedAt: at,
		Definition: job.Definition{ID: f.entry.DefinitionID, EffectiveAt: at, FirstOrdinal: 1, Schedule: job.Schedule{Type: job.ScheduleInterval, Every: time.Hour, StartAt: at}},
		Notify:     []job.Notify{{On: on, Quiet: 10 * time.Minute, Target: job.Target{Kind: job.TargetWebhook, URL: "https://team.example"}}},
	}
	if err := f.deps.Jobs.Create(f.t.Context(), j, true); err != nil {
		f.t.Fatal(err)
	}
	return &j
}

// owed returns what is owed, by cause.
func (f fixture) owed() map[job.Cause]notices.Notice {
	f.t.Helper()
	owed := map[job.Cause]notices.Notice{}
	for slice := range notices.Slices {
		page, _, err := (notices.Store{Lists: f.deps.Settings}).List(f.t.Context(), slice, "", 100)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, x := range page {
			if _, twice := owed[x.Cause]; twice {
				f.t.Errorf("two notices of %s", x.Cause)
			}
			owed[x.Cause] = x.Notice
		}
	}
	return owed
}

// last returns the last failure of the fixture's execution.
func (f fixture) last(gone bool) job.Event {
	e := f.failed
	e.Outcome.Retryable, e.Outcome.PauseJob, e.Outcome.Error = false, gone, "the target answered 400"
	return e
}

func TestOwnersAreOwedANoticeOfADeadLetter(t *testing.T) {
	for name, c := range map[string]struct {
		on   []job.Cause
		gone bool
		want []job.Cause
	}{
		"of it":                {[]job.Cause{job.CauseDeadLetter}, false, []job.Cause{job.CauseDeadLetter}},
		"and of its recovery":  {[]job.Cause{job.CauseDeadLetter, job.CauseRecovered}, false, []job.Cause{job.CauseDeadLetter, job.CauseRecovered}},
		"not of it":            {[]job.Cause{job.CauseSLAMissed, job.CausePausedBy410, job.CauseRecovered}, false, nil},
		"the target is gone":   {[]job.Cause{job.CauseDeadLetter, job.CausePausedBy410}, true, []job.Cause{job.CauseDeadLetter, job.CausePausedBy410}},
		"only of the pause":    {[]job.Cause{job.CausePausedBy410, job.CauseRecovered}, true, []job.Cause{job.CausePausedBy410, job.CauseRecovered}},
		"of deadlines, if any": {[]job.Cause{job.CauseSLAMissed}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.tells(c.on...)
			f.settled(f.last(c.gone))
			f.settled(f.last(c.gone)) // it comes twice
			owed := f.owed()
			if len(owed) != len(c.want) {
				t.Errorf("owed is %+v, want %v", owed, c.want)
			}
			for cause, x := range owed {
				if !slices.Contains(c.want, cause) || x.ExecutionID != f.entry.ExecutionID || x.Hops != 1 || x.AfterSuccess != (cause == job.CauseRecovered) {
					t.Errorf("owed is %+v, want %v", x, c.want)
				}
			}
		})
	}
}

func TestNoticeOfWhatANotificationCausedSaysHowManyLedToIt(t *testing.T) {
	f := newFixture(t)
	f.tells(job.CauseDeadLetter)
	e := f.last(false)
	e.Entry.Note = &job.Note{Hops: 3}
	f.settled(e)
	if x := f.owed()[job.CauseDeadLetter]; x.Hops != 4 {
		t.Errorf("owed is %+v", x)
	}
}

func TestFailureThatIsFollowedByAnAttemptIsNotTold(t *testing.T) {
	f := newFixture(t)
	f.tells(job.CauseDeadLetter, job.CauseRecovered)
	f.settled(f.failed)
	if owed := f.owed(); len(owed) != 0 {
		t.Errorf("owed is %+v", owed)
	}
}

// A log is read once more, and an earlier failure found again: what comes after the latest one is told all the same.
func TestARecoveryWaitsFromTheLatestFailure(t *testing.T) {
	f := newFixture(t)
	f.tells(job.CauseDeadLetter, job.CauseRecovered)
	early, late := f.last(false), f.last(false)
	late.Outcome.Timeline.Completed = late.Outcome.Timeline.Completed.Add(time.Minute)
	f.settled(early)
	f.settled(late)
	f.settled(early)
	if at := f.owed()[job.CauseRecovered].At; !at.Equal(late.Outcome.Timeline.Completed) {
		t.Errorf("the recovery waits from %s on, want %s", at, late.Outcome.Timeline.Completed)
	}
}

// unowing are lists that take nothing.
type unowing struct{ jobstore.Settings }

func (unowing) PutItem(context.Context, string, jobstore.Item) error { return errors.New("away") }

// The process dies before the notice is written, or cannot write it: the entry is not done, so another one comes to it again.
func TestEntryIsDoneAfterItsOwnersAreOwed(t *testing.T) {
	f := newFixture(t)
	f.tells(job.CauseDeadLetter)
	lists, e := f.deps.Settings, f.last(false)
	f.deps.Settings = unowing{lists}
	if err := f.settle(t.Context(), []*job.Event{&e}); err == nil {
		t.Error("it was settled without the notice")
	}
	row, err := f.deps.Pending.Row(t.Context(), f.entry.Locator)
	if err != nil || row.Done {
		t.Errorf("the entry is done: %t, %v", row.Done, err)
	}
	f.deps.Settings = lists
	f.settled(e)
	if _, ok := f.owed()[job.CauseDeadLetter]; !ok {
		t.Error("its owners are not owed a notice")
	}
}
