package jobstoretest

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// RunHistory runs the suite of history and dead letters. The history is that of the jobs.
func RunHistory(t *testing.T, open func(t *testing.T) (jobstore.History, jobstore.Jobs)) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, s jobstore.History)
	}{
		{"an event is read back as it was written", eventIsReadBack},
		{"an event that is recorded twice is there once", eventsAreOnce},
		{"events that are recorded at once are all there", recordsRace},
		{"an execution's events come by attempt, and alone", executionByAttempt},
		{"an execution that has no events is empty", noExecution},
		{"a job's executions come newest first over days, attempts in order, pages without gap or repetition", executionsInPages},
		{"executions of one instant are told apart by a position", executionsOfOneInstant},
		{"a position behind everything is the start, one before everything the end", executionsAtTheEnds},
		{"a look-back ends at the oldest instant asked for", lookBackEnds},
		{"changes of a job are kept apart from its executions", changesAreApart},
		{"what is forgotten is gone, and nothing else", forgets},
		{"the dead letters of one tenant are removed, and no others", lettersAreRemoved},
		{"a dead letter is read back as it was written, the same execution twice is once", letterIsOnce},
		{"a tenant's dead letters come newest day first, in pages without gap or repetition", lettersInPages},
	} {
		t.Run(c.promise, func(t *testing.T) {
			s, _ := open(t)
			c.check(t, s)
		})
	}
	t.Run("what a job did as a one-shot comes with all else that it did", func(t *testing.T) { oneShotsAmongAll(t, open) })
	t.Run("what a job did as a one-shot is forgotten, and no other job's", func(t *testing.T) { oneShotsAreForgotten(t, open) })
}

// historyBegin returns an instant early enough that all of a test lies in the past, and late enough that nothing expires.
func historyBegin() time.Time { return job.Instant(time.Now().Add(-96 * time.Hour)) }

func event(jobID string, tenant job.Tenant, at time.Time, attempt int) job.Event {
	due := at.Add(time.Duration(attempt) * time.Second)
	f := job.Fire{
		Entry: job.Entry{
			Locator: job.Locator{
				Partition: 1, Minute: job.Minute(due), DueAt: due, ExecutionID: job.ScheduleExecutionID(jobID, at),
				Attempt: attempt, DefinitionID: newDefinitionID(),
			},
			JobID: jobID, Tenant: tenant, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: at,
		},
		Retry: job.DefaultRetryPolicy(),
	}
	o := job.Outcome{
		Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 1_700_000_000_000_000, Counter: 3, Start: 4}, StatusCode: 503,
		ResponseBody: []byte("{\xff}"), ResponseTruncated: true, Error: "no", RetryAfter: 1500 * time.Millisecond, PauseJob: true,
		Timeline: job.Timeline{Taken: due, Published: due, Consumed: due, Invoked: due, Completed: due.Add(time.Millisecond)},
	}
	return job.AttemptEvent(&f, f.Target.Ref(), o, due.Add(time.Second))
}

func changesAreApart(t *testing.T, s jobstore.History) {
	at := historyBegin()
	id := ulid.MustNew(uint64(at.UnixMilli()), rand.Reader).String()
	jobID, tenant := newJobID(), newTenant()
	attempt := event(jobID, tenant, at, 1)
	entry := job.NewChange(job.ChangeLocator(1, jobID, id), jobID, tenant, job.Change{Operation: "pauseJob", Version: 2}, job.Author{
		Subject: "key:mh_1", Role: "editor", Request: id, Source: "192.0.2.1",
	})
	change := job.ChangeEvent(entry, at)
	must(t, s.Record(t.Context(), pointers([]job.Event{attempt, change})))
	for of, want := range map[string]job.Event{jobID: attempt, job.ChangesOf(jobID): change} {
		got, err := s.Executions(t.Context(), jobstore.Of{ID: of}, jobstore.Cursor{}, at.Add(-time.Hour), 10)
		must(t, err)
		same(t, "events of "+of, got, []job.Event{want})
	}
	got, err := s.Execution(t.Context(), entry.ExecutionID)
	must(t, err)
	same(t, "the change", got, []job.Event{change})
}

func forgets(t *testing.T, s jobstore.History) {
	at := historyBegin()
	jobID, other := newJobID(), newJobID()
	kept := event(other, newTenant(), at, 1)
	must(t, s.Record(t.Context(), pointers([]job.Event{
		event(jobID, kept.Entry.Tenant, at, 1), event(jobID, kept.Entry.Tenant, at.Add(49*time.Hour), 1), kept,
	})))
	for range 2 {
		must(t, s.Forget(t.Context(), jobstore.Of{ID: jobID}))
		for of, want := range map[string]int{jobID: 0, other: 1} {
			got, err := s.Executions(t.Context(), jobstore.Of{ID: of}, jobstore.Cursor{}, at.Add(-time.Hour), 10)
			must(t, err)
			if len(got) != want {
				t.Errorf("%d events of %s are left, want %d", len(got), of, want)
			}
		}
	}
}

func lettersAreRemoved(t *testing.T, s jobstore.History) {
	tenant, other, at := newTenant(), newTenant(), historyBegin()
	for i := range 3 {
		for _, to := range []job.Tenant{tenant, other} {
			d := job.DeadLetter{Event: event(newJobID(), to, at.Add(time.Duration(i)*30*time.Hour), 1), Reason: "permanent", At: at}
			must(t, s.PutDeadLetter(t.Context(), d))
			must(t, s.MarkRedriven(t.Context(), d, "exe_1"))
		}
	}
	for range 2 {
		must(t, s.RemoveDeadLetters(t.Context(), tenant))
		for of, want := range map[job.Tenant]int{tenant: 0, other: 3} {
			if n := len(letters(t, s, of, 10)); n != want {
				t.Errorf("%d letters are left, want %d", n, want)
			}
		}
	}
}

func eventIsReadBack(t *testing.T, s jobstore.History) {
	jobID, tenant, at := newJobID(), newTenant(), historyBegin()
	attempt := event(jobID, tenant, at, 1)
	later := event(jobID, tenant, at.Add(time.Hour), 1)
	deferred := job.DeferredEvent(&job.Fire{Entry: later.Entry}, job.TargetRef{}, at.Add(2*time.Hour), at.Add(time.Hour))
	must(t, s.Record(t.Context(), pointers([]job.Event{attempt, deferred})))
	for _, want := range []job.Event{attempt, deferred} {
		got, err := s.Execution(t.Context(), want.Entry.ExecutionID)
		must(t, err)
		same(t, "execution", got, []job.Event{want})
	}
	skipped := job.SkippedEvent(attempt.Entry, job.TargetRef{}, job.SkippedRange{From: at.Add(3 * time.Hour), To: at.Add(4 * time.Hour), Count: 2}, job.DispositionSkippedMissed, at.Add(5*time.Hour))
	must(t, s.Record(t.Context(), pointers([]job.Event{skipped})))
	all, err := s.Executions(t.Context(), jobstore.Of{ID: jobID}, jobstore.Cursor{}, at.Add(-time.Hour), 10)
	must(t, err)
	for _, want := range []job.Event{attempt, deferred, skipped} {
		i := slices.IndexFunc(all, func(e job.Event) bool { return e.ID == want.ID })
		if i < 0 || len(all) != 3 {
			t.Fatalf("of %d events %s is missing", len(all), want.ID)
		}
		same(t, "event", all[i], want)
	}
}

func eventsAreOnce(t *testing.T, s jobstore.History) {
	e := event(newJobID(), newTenant(), historyBegin(), 1)
	again := e
	again.At = e.At.Add(time.Minute) // published again later
	for _, list := range [][]job.Event{{e, e}, {e}, {again}, nil} {
		must(t, s.Record(t.Context(), pointers(list)))
		got, err := s.Execution(t.Context(), e.Entry.ExecutionID)
		must(t, err)
		if len(got) != 1 || got[0].ID != e.ID {
			t.Errorf("the execution has %d events", len(got))
		}
	}
}

func recordsRace(t *testing.T, s jobstore.History) {
	jobID, tenant, begin := newJobID(), newTenant(), historyBegin()
	atOnce(writers, func(i int) {
		for k := range 5 {
			at := begin.Add(time.Duration(5*i+k) * time.Hour)
			if err := s.Record(t.Context(), pointers([]job.Event{event(jobID, tenant, at, 1)})); err != nil {
				t.Error(err)
			}
		}
	})
	all, err := s.Executions(t.Context(), jobstore.Of{ID: jobID}, jobstore.Cursor{}, begin.Add(-time.Hour), 100)
	must(t, err)
	if len(all) != 5*writers {
		t.Errorf("%d events, want %d", len(all), 5*writers)
	}
}

func executionByAttempt(t *testing.T, s jobstore.History) {
	jobID, tenant, at := newJobID(), newTenant(), historyBegin()
	var want []job.Event
	for attempt := range 12 {
		want = append(want, event(jobID, tenant, at, attempt+1))
	}
	backward := slices.Clone(want)
	slices.Reverse(backward)
	must(t, s.Record(t.Context(), pointers(backward)))
	must(t, s.Record(t.Context(), pointers([]job.Event{
		event(jobID, tenant, at.Add(time.Millisecond), 1), event(jobID, tenant, at.Add(-time.Millisecond), 1),
		event(newJobID(), tenant, at, 1),
	})))
	got, err := s.Execution(t.Context(), want[0].Entry.ExecutionID)
	must(t, err)
	same(t, "execution", got, want)
}

func noExecution(t *testing.T, s jobstore.History) {
	for _, id := range []string{
		job.ScheduleExecutionID(newJobID(), historyBegin()), job.ManualExecutionID(newJobID(), ulid.Make().String()),
	} {
		if got, err := s.Execution(t.Context(), id); err != nil || len(got) != 0 {
			t.Errorf("%s gave %v, %v", id, got, err)
		}
	}
}

// turn reads all events of a job page by page; limit must not cut an execution in two.
func turn(t *testing.T, s jobstore.History, jobID string, before jobstore.Cursor, oldest time.Time, limit int) []job.Event {
	t.Helper()
	var all []job.Event
	for range 1000 {
		page, err := s.Executions(t.Context(), jobstore.Of{ID: jobID}, before, oldest, limit)
		must(t, err)
		if len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		last := page[len(page)-1].Entry
		before = jobstore.Cursor{NominalAt: last.NominalAt, ExecutionID: last.ExecutionID}
	}
	t.Fatal("the history has no end")
	return nil
}

func executionsInPages(t *testing.T, s jobstore.History) {
	jobID, tenant, begin := newJobID(), newTenant(), historyBegin()
	var want []job.Event
	for i := range 10 {
		at := begin.Add(time.Duration(9-i) * 7 * time.Hour)
		pair := []job.Event{event(jobID, tenant, at, 1), event(jobID, tenant, at, 2)}
		want = append(want, pair...)
		must(t, s.Record(t.Context(), pointers([]job.Event{pair[1], pair[0], event(newJobID(), tenant, at, 1)})))
	}
	for _, limit := range []int{2, 6, 20, 100} {
		same(t, fmt.Sprint("history by ", limit), turn(t, s, jobID, jobstore.Cursor{}, begin.Add(-time.Hour), limit), want)
	}
}

func executionsOfOneInstant(t *testing.T, s jobstore.History) {
	jobID, tenant, at := newJobID(), newTenant(), historyBegin()
	events := []job.Event{event(jobID, tenant, at, 1)}
	for range 3 { // requests of the same instant
		e := event(jobID, tenant, at, 1)
		request := ulid.MustNew(ulid.Timestamp(at), ulid.DefaultEntropy())
		e.Entry.ExecutionID, e.Entry.Trigger = job.ManualExecutionID(jobID, request.String()), job.TriggerManual
		e.ID = e.Entry.ExecutionID + "/1/failed"
		events = append(events, e)
	}
	must(t, s.Record(t.Context(), pointers(events)))
	seen := map[string]int{}
	for _, e := range turn(t, s, jobID, jobstore.Cursor{}, at.Add(-time.Hour), 1) {
		seen[e.ID]++
	}
	for _, e := range events {
		if seen[e.ID] != 1 {
			t.Errorf("%s came %d times", e.ID, seen[e.ID])
		}
	}
}

func executionsAtTheEnds(t *testing.T, s jobstore.History) {
	jobID, at := newJobID(), historyBegin()
	e := event(jobID, newTenant(), at, 1)
	must(t, s.Record(t.Context(), pointers([]job.Event{e})))
	for _, c := range []struct {
		before time.Time
		want   int
	}{{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 1}, {at.Add(time.Millisecond), 1}, {at, 0}, {at.Add(-time.Millisecond), 0}} {
		before := jobstore.Cursor{NominalAt: c.before, ExecutionID: job.ScheduleExecutionID(jobID, c.before)}
		got, err := s.Executions(t.Context(), jobstore.Of{ID: jobID}, before, at.Add(-time.Hour), 10)
		must(t, err)
		if len(got) != c.want {
			t.Errorf("before %s there are %d events, want %d", c.before, len(got), c.want)
		}
	}
}

func lookBackEnds(t *testing.T, s jobstore.History) {
	jobID, tenant := newJobID(), newTenant()
	noon := historyBegin().Truncate(24 * time.Hour).Add(12 * time.Hour)
	for h := -30; h <= 30; h += 10 {
		must(t, s.Record(t.Context(), pointers([]job.Event{event(jobID, tenant, noon.Add(time.Duration(h)*time.Hour), 1)})))
	}
	for _, c := range []struct{ oldest, want int }{{-40, 7}, {-30, 7}, {-29, 6}, {0, 4}, {1, 3}, {30, 1}, {31, 0}} {
		got, err := s.Executions(t.Context(), jobstore.Of{ID: jobID}, jobstore.Cursor{}, noon.Add(time.Duration(c.oldest)*time.Hour), 100)
		must(t, err)
		if len(got) != c.want {
			t.Errorf("back to %d h there are %d events, want %d", c.oldest, len(got), c.want)
		}
	}
}

func letterIsOnce(t *testing.T, s jobstore.History) {
	tenant, at := newTenant(), historyBegin()
	d := job.DeadLetter{Event: event(newJobID(), tenant, at, 5), Reason: "exhausted", At: at.Add(time.Minute)}
	must(t, s.PutDeadLetter(t.Context(), job.DeadLetter{Event: event(newJobID(), newTenant(), at, 1), At: at})) // another tenant's
	for range 2 {
		must(t, s.PutDeadLetter(t.Context(), d))
		same(t, "dead letters", letters(t, s, tenant, 10), []job.DeadLetter{d})
	}
}

func lettersInPages(t *testing.T, s jobstore.History) {
	tenant, begin := newTenant(), historyBegin()
	for i := range 9 {
		at := begin.Add(time.Duration(i) * 9 * time.Hour)
		for _, to := range []job.Tenant{tenant, newTenant()} {
			must(t, s.PutDeadLetter(t.Context(), job.DeadLetter{Event: event(newJobID(), to, at, 1), Reason: "permanent", At: at}))
		}
	}
	for _, limit := range []int{1, 2, 9, 100} {
		all := letters(t, s, tenant, limit)
		seen := map[string]bool{}
		for i, d := range all {
			seen[d.Event.ID] = true
			if i > 0 && day(d).After(day(all[i-1])) {
				t.Errorf("by %d: %s comes after %s", limit, day(d), day(all[i-1]))
			}
		}
		if len(all) != 9 || len(seen) != 9 {
			t.Errorf("by %d: %d dead letters, %d of them different, want 9", limit, len(all), len(seen))
		}
	}
}

func day(d job.DeadLetter) time.Time { return d.Event.Entry.NominalAt.Truncate(24 * time.Hour) }

// clientsCursor is what the API takes for a cursor.
var clientsCursor = regexp.MustCompile(`^[0-9A-Za-z_-]{1,256}$`)

// letters reads all pages of a tenant's dead letters.
func letters(t *testing.T, s jobstore.History, tenant job.Tenant, limit int) []job.DeadLetter {
	t.Helper()
	var all []job.DeadLetter
	cursor := ""
	for range 100 {
		page, next, err := s.DeadLetters(t.Context(), tenant, cursor, limit)
		must(t, err)
		if len(page) > limit {
			t.Fatalf("a page of %d, limit %d", len(page), limit)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if !clientsCursor.MatchString(next) {
			t.Fatalf("the cursor %q cannot be a parameter of the API", next)
		}
		cursor = next
	}
	t.Fatal("the dead letters have no end")
	return nil
}

func pointers(events []job.Event) []jobstore.Recorded {
	list := make([]jobstore.Recorded, len(events))
	for i := range events {
		list[i].Event = &events[i]
	}
	return list
}
