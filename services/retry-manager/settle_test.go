package retrymanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// fixture is a settler on embedded adapters in memory, and an attempt that failed.
type fixture struct {
	*Service
	t      *testing.T
	entry  job.Entry
	failed job.Event
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	log, err := embedded.NewLog(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	cfg := DefaultConfig()
	cfg.Partitions = 4
	s, err := New(cfg, Deps{
		Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), History: embedded.NewHistory(db),
		Hot: embedded.NewHotBuckets(db.Incarnation(), 4, 0), Stops: records, Log: log, Settings: embedded.NewSettings(db),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	e := job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: 1, DueAt: at, ExecutionID: job.ScheduleExecutionID("job_01M7ZJW5E6D77SAJPXRW35C2CA", at), Attempt: 1,
			DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
		},
		JobID: "job_01M7ZJW5E6D77SAJPXRW35C2CA", Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1,
		WrittenAt: at.Add(-time.Hour),
	}, at)
	if err := s.deps.Pending.Put(t.Context(), []job.Entry{e}); err != nil {
		t.Fatal(err)
	}
	o := job.Outcome{
		Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 1, Counter: 1, Start: 1},
		Timeline: job.Timeline{Completed: at.Add(time.Second)},
	}
	retry := job.RetryPolicy{
		MaxAttempts: 3, Backoff: job.BackoffFixed, BaseDelay: time.Second, MaxDelay: time.Minute, Window: time.Hour,
	}
	failed := job.AttemptEvent(&job.Fire{Entry: e, Retry: retry}, job.TargetRef{}, o, o.Timeline.Completed)
	return fixture{s, t, e, failed}
}

// settled settles events, one batch per call.
func (f fixture) settled(events ...job.Event) {
	f.t.Helper()
	batch := make([]*job.Event, len(events))
	for i := range events {
		batch[i] = &events[i]
	}
	if err := f.settle(f.t.Context(), batch); err != nil {
		f.t.Fatal(err)
	}
}

func (f fixture) deferred(to time.Time) job.Event {
	return job.DeferredEvent(&job.Fire{Entry: f.entry, Retry: f.failed.Retry}, job.TargetRef{}, to, f.entry.DueAt)
}

// want checks whether the second attempt is pending, and which dead letters exist.
func (f fixture) want(second bool, reasons ...string) {
	f.t.Helper()
	next, _ := f.failed.Next()
	_, err := f.deps.Pending.Row(f.t.Context(), next.Locator)
	if (err == nil) != second {
		f.t.Errorf("the second attempt is pending: %t (%v), want %t", err == nil, err, second)
	}
	letters, _, err := f.deps.History.DeadLetters(f.t.Context(), job.DefaultTenant, "", 10)
	if err != nil {
		f.t.Fatal(err)
	}
	if len(letters) != len(reasons) {
		f.t.Fatalf("there are %d dead letters, want %d", len(letters), len(reasons))
	}
	for i, l := range letters {
		if l.Reason != reasons[i] {
			f.t.Errorf("dead letter %d is there for %q, want %q", i, l.Reason, reasons[i])
		}
	}
}

func TestFailureThatIsToldTwiceIsSettledOnce(t *testing.T) {
	f := newFixture(t)
	f.settled(f.failed, f.failed)
	f.want(true)
	f.settled(f.failed)
	f.want(true)
}

func TestFailureOfADeferredAttemptIsFollowedByAnotherAttempt(t *testing.T) {
	for _, once := range []bool{true, false} {
		f := newFixture(t)
		later := f.deferred(f.entry.DueAt.Add(50 * time.Second))
		if once {
			f.settled(later, f.failed)
		} else {
			f.settled(later)
			f.settled(f.failed)
			f.settled(f.failed)
		}
		f.want(true)
		row, err := f.deps.Pending.Row(t.Context(), Deferred(&later).Locator)
		if err != nil || !row.Done {
			t.Errorf("the deferred attempt is still to be made (%v): it was made, and failed", err)
		}
	}
}

func TestFailureWhoseEntryWasEndedMeanwhileIsADeadLetter(t *testing.T) {
	f := newFixture(t)
	if err := f.deps.Pending.MarkDone(t.Context(), []job.Locator{f.entry.Locator}); err != nil {
		t.Fatal(err)
	}
	f.settled(f.failed)
	f.want(false, "overtaken")
	f.settled(f.failed)
	f.want(false, "overtaken")
}

func TestFailureThatAnotherAttemptFollowedIsNoDeadLetter(t *testing.T) {
	f := newFixture(t)
	if err := f.deps.Pending.MarkDone(t.Context(), []job.Locator{f.entry.Locator}); err != nil {
		t.Fatal(err)
	}
	second := f.failed
	second.Entry.Attempt, second.ID = 2, second.ID+"/2"
	if err := f.deps.History.Record(t.Context(), jobstore.Unencoded(&f.failed, &second)); err != nil {
		t.Fatal(err)
	}
	f.settled(f.failed)
	f.want(false)
}

// The first end is on record, and what follows it is due by that one.
func TestSecondEndOfAnAttemptIsNoDeadLetterWhereTheFirstIsFollowed(t *testing.T) {
	f := newFixture(t)
	f.settled(f.failed)
	again := f.failed
	again.Outcome.Timeline.Completed = again.Outcome.Timeline.Completed.Add(10 * time.Second)
	again.ID += "/again"
	f.settled(again)
	f.want(true, "overtaken") // the history is behind
	f = newFixture(t)
	f.settled(f.failed)
	if err := f.deps.History.Record(t.Context(), jobstore.Unencoded(&f.failed)); err != nil {
		t.Fatal(err)
	}
	f.settled(again)
	f.want(true)
}

// It is redriven with what has failed by the instant of its first end.
func TestSecondEndOfAnAttemptLeavesTheDeadLetterOfTheFirst(t *testing.T) {
	f := newFixture(t)
	f.failed.Outcome.Retryable = false
	again := f.failed
	again.Outcome.Timeline.Completed = again.Outcome.Timeline.Completed.Add(10 * time.Second)
	again.ID += "/again"
	f.settled(f.failed)
	before, _, err := f.deps.History.DeadLetters(t.Context(), job.DefaultTenant, "", 10)
	if err := errors.Join(err, f.deps.History.Record(t.Context(), jobstore.Unencoded(&f.failed, &again))); err != nil {
		t.Fatal(err)
	}
	f.settled(again)
	after, _, err := f.deps.History.DeadLetters(t.Context(), job.DefaultTenant, "", 10)
	if err != nil || len(after) != 1 || len(before) != 1 || !after[0].At.Equal(before[0].At) || after[0].Reason != before[0].Reason {
		t.Errorf("%+v, %v; before the second end %+v", after, err, before)
	}
}

func TestFailureThatCameAfterAReleaseIsADeadLetter(t *testing.T) {
	for _, once := range []bool{true, false} {
		f := newFixture(t)
		released := job.ReleasedEvent(&job.Fire{Entry: f.entry}, job.TargetRef{}, f.entry.DueAt)
		if once {
			f.settled(released, f.failed)
		} else {
			f.settled(released)
			f.settled(f.failed)
		}
		f.want(false, "overtaken")
	}
}

func TestReleaseAfterAFailureChangesNothing(t *testing.T) {
	f := newFixture(t)
	f.settled(f.failed, job.ReleasedEvent(&job.Fire{Entry: f.entry}, job.TargetRef{}, f.entry.DueAt), f.failed)
	f.want(true)
}

// The settler publishes nothing itself: if it waited for the events of earlier changes, it would wait for what only it settles.
func TestTargetThatIsGonePausesItsJobHoweverManyChangesWaitToBeTold(t *testing.T) {
	f := newFixture(t)
	at := f.entry.DueAt
	row := job.Job{
		ID: f.entry.JobID, Status: job.StatusActive, Version: 1, CreatedAt: at, UpdatedAt: at,
		Definition: job.Definition{ID: f.entry.DefinitionID, EffectiveAt: at, Schedule: job.Schedule{Type: job.ScheduleInterval, Every: time.Minute}},
	}
	if err := f.deps.Jobs.Create(t.Context(), row, true); err != nil {
		t.Fatal(err)
	}
	for n := range job.MaxChanges {
		_, err := f.change.Change(t.Context(), job.DefaultTenant, row.ID, jobchange.Edit{
			Operation: "cancelExecution", By: job.Author{Subject: "local", Role: "admin"},
			Apply: func(_ context.Context, j *job.Job) error { j.Name = fmt.Sprint(n); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := f.failed
	gone.Outcome.Retryable, gone.Outcome.PauseJob = false, true
	f.settled(gone)
	j, err := f.deps.Jobs.Get(t.Context(), row.ID)
	if err != nil || j.Status != job.StatusPaused || len(j.Changes) != job.MaxChanges+1 {
		t.Errorf("the job is %s and names %d changes, %v", j.Status, len(j.Changes), err)
	}
}
