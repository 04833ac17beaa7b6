package jobapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const everyMinute = `{"name":"report","type":"cron","cron_expr":"* * * * *","target":{"kind":"http_webhook","url":"https://example.com/hook"}}`

// accounted is an API whose job `id` was created a second after a full minute, from which at counts.
type accounted struct {
	*server
	id    string
	began time.Time
}

func newAccounted(t *testing.T) *accounted {
	a := &accounted{server: newServer(t, nil), began: time.Now()}
	time.Sleep(time.Second)
	a.id = a.create(everyMinute)
	return a
}

// at returns the instant n minutes after the beginning.
func (a *accounted) at(n int) time.Time { return a.began.Add(time.Duration(n) * time.Minute) }

// entry returns the entry of the occurrence at minute n.
func (a *accounted) entry(n int) job.Entry {
	row, err := a.jobs.Get(a.t.Context(), a.id)
	must(a.t, err)
	return job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: bucket.Partition(a.id, 4), DueAt: a.at(n), ExecutionID: job.ScheduleExecutionID(a.id, a.at(n)), Attempt: 1, DefinitionID: row.Definition.ID,
		},
		JobID: a.id, Tenant: row.Tenant, Trigger: job.TriggerSchedule, NominalAt: a.at(n), ScheduledFor: a.at(n), Ordinal: n,
	}, a.at(n))
}

// attempt records how attempt k of the occurrence at minute n ended.
func (a *accounted) attempt(n, k int, o job.Outcome) {
	f := &job.Fire{Entry: a.entry(n), Retry: job.RetryPolicy{MaxAttempts: 3, Window: time.Hour}}
	f.Attempt = k
	if o.Disposition = job.DispositionFired; o.Kind == job.OutcomeCancelled {
		o.Disposition = job.DispositionCancelled
	} else {
		o.Timeline = job.Timeline{Taken: f.DueAt, Invoked: f.DueAt.Add(5 * time.Millisecond), Completed: f.DueAt.Add(time.Second)}
	}
	e := job.AttemptEvent(f, job.TargetRef{}, o, f.DueAt)
	must(a.t, a.deps.History.Record(a.t.Context(), jobstore.Unencoded(&e)))
}

// publishChanges marks the entries of changes as done, as their events do.
func (a *accounted) publishChanges() {
	row, err := a.jobs.Get(a.t.Context(), a.id)
	must(a.t, err)
	for _, c := range row.Changes {
		must(a.t, a.pending.MarkDone(a.t.Context(), []job.Locator{job.ChangeLocator(bucket.Partition(a.id, 4), a.id, c.ID)}))
	}
}

// skip records a run of skipped occurrences.
func (a *accounted) skip(from, to int, d job.Disposition) {
	r := job.SkippedRange{From: a.at(from), To: a.at(to), Count: to - from + 1}
	e := job.SkippedEvent(a.entry(from), job.TargetRef{}, r, d, a.at(to))
	must(a.t, a.deps.History.Record(a.t.Context(), jobstore.Unencoded(&e)))
}

// account returns the occurrences, by pages of a size, each as "minute state disposition attempts".
func (a *accounted) account(query string, size int) (list []string, reasons map[int]string) {
	reasons = map[int]string{}
	for cursor := ""; ; {
		page, _ := a.answer(http.StatusOK, http.MethodGet, fmt.Sprintf("/jobs/%s/occurrences?limit=%d%s%s", a.id, size, query, cursor), "")
		items := page["items"].([]any)
		if len(items) > size {
			a.t.Fatalf("a page of %d has %d items", size, len(items))
		}
		for _, item := range items {
			o := item.(map[string]any)
			at, err := time.Parse(time.RFC3339Nano, o["nominal_at"].(string))
			must(a.t, err)
			n := int(at.Sub(a.began) / time.Minute)
			text := fmt.Sprint(n, " ", o["state"])
			for _, name := range []string{"disposition", "attempts"} {
				if v := o[name]; v != nil {
					text += fmt.Sprint(" ", v)
				}
			}
			list, reasons[n] = append(list, text), o["reason"].(string)
		}
		next, _ := page["next_cursor"].(string)
		if next == "" {
			return list, reasons
		}
		if len(list) > 10_000 {
			a.t.Fatal("the pages do not end")
		}
		cursor = "&cursor=" + next
	}
}

func until(at time.Time) string { return "&to=" + at.Format(time.RFC3339Nano) }

func wantAccount(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the account is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestAccountNamesEachOccurrenceOnceWithWhatBecameOfIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(10*time.Minute + 30*time.Second)
		failed := job.Outcome{Kind: job.OutcomeFailed, Retryable: true}
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeCancelled}) // one executor refused it after another, which was lost, had called
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		a.attempt(2, 1, failed)
		a.attempt(2, 2, job.Outcome{Kind: job.OutcomeCancelled})
		a.attempt(2, 2, job.Outcome{Kind: job.OutcomeSucceeded})
		a.attempt(3, 1, job.Outcome{Kind: job.OutcomeFailed})
		a.attempt(4, 1, failed)
		a.skip(5, 6, job.DispositionSkippedMissed) // and 7 went missing
		a.attempt(8, 1, job.Outcome{Kind: job.OutcomeCancelled})
		ninth, tenth := a.entry(9), a.entry(10)
		records := a.deps.Records
		_, err := records.Finish(t.Context(), []attempts.Completion{{
			Key: attempts.KeyOf(&ninth), Outcome: &job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired},
		}}, time.Now())
		must(t, err)
		must(t, a.pending.Put(t.Context(), []job.Entry{tenth}))
		want := []string{
			"12 planned", "11 planned", "10 pending", "9 succeeded fired 1", "8 cancelled cancelled 1", "7 unknown", "6 skipped skipped_missed",
			"5 skipped skipped_missed", "4 retrying fired 1", "3 dead fired 1", "2 succeeded fired 2", "1 succeeded fired 1",
		}
		for _, size := range []int{1, 2, 5, 12, 100} {
			got, reasons := a.account(until(a.at(12).Add(time.Second)), size)
			wantAccount(t, got, want)
			for n, word := range map[int]string{
				12: "not due yet", 10: "was not called yet", 8: "cancelled", 7: "Nothing is on record", 6: "catch_up_window", 4: "next one follows",
				3: "another attempt does not mend", 2: "attempt 2", 1: "the first attempt",
			} {
				if !strings.Contains(reasons[n], word) {
					t.Errorf("of %d it says: %s", n, reasons[n])
				}
			}
		}
		got, _ := a.account("", 100)
		wantAccount(t, got, want[2:])
		got, _ = a.account("&from="+a.at(6).Format(time.RFC3339)+until(a.at(9)), 2) // in the middle of the run
		wantAccount(t, got, want[4:7])
		a.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", "{}")
		if _, reasons := a.account("", 1); !strings.Contains(reasons[10], "held") {
			t.Errorf("of what is held it says: %s", reasons[10])
		}
	})
}

// Until its end is on record, only the job's row says that it was cancelled.
func TestExecutionThatWasCancelledIsShownSoUntilItHasEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(3*time.Minute + 30*time.Second)
		failed := job.Outcome{Kind: job.OutcomeFailed, Retryable: true}
		a.attempt(1, 1, failed)
		a.attempt(2, 1, failed)
		must(t, a.pending.Put(t.Context(), []job.Entry{a.entry(3)}))
		cancelling := func() map[int]bool {
			t.Helper()
			shown := map[int]bool{}
			for n := 1; n <= 3; n++ {
				m, _ := a.answer(http.StatusOK, http.MethodGet, "/executions/"+job.ScheduleExecutionID(a.id, a.at(n)), "")
				if m["cancelling"] == true {
					shown[n] = true
				}
			}
			page, _ := a.answer(http.StatusOK, http.MethodGet, "/jobs/"+a.id+"/executions", "")
			for _, item := range page["items"].([]any) {
				x, _ := item.(map[string]any)
				for n := 1; n <= 2; n++ {
					if x["execution_id"] == job.ScheduleExecutionID(a.id, a.at(n)) && (x["cancelling"] == true) != shown[n] {
						t.Errorf("execution %d is listed as %v, and shown alone: cancelling %t", n, x, shown[n])
					}
				}
			}
			return shown
		}
		if shown := cancelling(); len(shown) > 0 {
			t.Errorf("before the cancel, %v are shown as cancelled", shown)
		}
		for _, n := range []int{1, 3} {
			a.answer(http.StatusAccepted, http.MethodPost, "/executions/"+job.ScheduleExecutionID(a.id, a.at(n))+"/cancel", "")
		}
		if shown := cancelling(); len(shown) != 2 || !shown[1] || !shown[3] {
			t.Errorf("after the cancel, %v are shown as cancelled", shown)
		}
		_, reasons := a.account("", 100)
		for n, word := range map[int]string{1: "no attempt follows", 2: "the next one follows", 3: "It was cancelled"} {
			if !strings.Contains(reasons[n], word) {
				t.Errorf("of %d it says: %s", n, reasons[n])
			}
		}
		a.attempt(1, 2, job.Outcome{Kind: job.OutcomeCancelled})
		if shown := cancelling(); len(shown) != 1 || shown[1] {
			t.Errorf("after the end of one, %v are shown as cancelled", shown)
		}
	})
}

// Around a pause, an update in it and a resume, an instant belongs to one definition and is named once.
func TestAccountFollowsTheDefinitionsThatWereInForce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		path := "/jobs/" + a.id
		for n := range 3 {
			a.attempt(n+1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		}
		time.Sleep(3*time.Minute + 9*time.Second) // 3:10
		a.answer(http.StatusOK, http.MethodPost, path+"/pause", "")
		time.Sleep(2 * time.Minute) // 5:10
		got, _ := a.account(until(a.at(6).Add(time.Second)), 100)
		wantAccount(t, got, []string{"6 paused", "5 paused", "4 paused", "3 succeeded fired 1", "2 succeeded fired 1", "1 succeeded fired 1"})
		a.answer(http.StatusOK, http.MethodPatch, path, `{"name":"another"}`, "If-Match", "*")
		time.Sleep(time.Minute) // 6:10
		a.answer(http.StatusOK, http.MethodPost, path+"/resume", "")
		time.Sleep(10 * time.Second)
		odd := strings.Replace(everyMinute, "* * * * *", "1-59/2 * * * *", 1)
		pending := []string{"6 pending", "5 pending", "4 pending", "3 succeeded fired 1", "2 succeeded fired 1", "1 succeeded fired 1"}
		got, _ = a.account("", 2)
		wantAccount(t, got, pending)
		a.answer(http.StatusOK, http.MethodPut, path, odd, "If-Match", "*")
		for _, size := range []int{1, 100} {
			got, _ = a.account(until(a.at(10)), size)
			wantAccount(t, got, append([]string{"9 planned", "7 planned"}, pending...))
		}
		time.Sleep(time.Minute) // 7:20
		a.answer(http.StatusOK, http.MethodPost, path+"/cancel", "")
		got, _ = a.account(until(a.at(100)), 100)
		if len(got) == 0 || got[0][0] != '7' {
			t.Errorf("after the cancel the account begins with %v", got)
		}
	})
}

// While dispatch is held, one entry waits, and the others follow from it. It lies in an earlier minute than most of them.
func TestAccountSaysOfWhatIsHeldThatItWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		must(t, a.pending.MarkDone(t.Context(), []job.Locator{a.entry(1).Locator}))
		must(t, a.pending.Put(t.Context(), []job.Entry{a.entry(2)}))
		a.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", "{}")
		time.Sleep(9*time.Minute + 30*time.Second)
		want := []string{"9 pending", "8 pending", "7 pending", "6 pending", "5 pending", "4 pending", "3 pending", "2 pending", "1 succeeded fired 1"}
		for _, size := range []int{1, 3, 100} {
			got, reasons := a.account("", size)
			wantAccount(t, got, want)
			if !strings.Contains(reasons[9], "held") {
				t.Errorf("of what is held it says: %s", reasons[9])
			}
		}
	})
}

// A fire whose target had no room leaves its row done, and another one from which it comes again.
func TestAccountSaysOfWhatWasDeferredThatItWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(3*time.Minute + 30*time.Second)
		var again []job.Entry
		for n := range 3 {
			e := a.entry(n + 1)
			must(t, a.pending.Put(t.Context(), []job.Entry{e}))
			if n == 2 {
				break
			}
			must(t, a.pending.Defer(t.Context(), e.Locator, a.at(10)))
			e.DueAt, e.Chained = a.at(10), true
			again = append(again, job.NewEntry(e, a.at(0)))
		}
		must(t, a.pending.Put(t.Context(), again))
		// A fourth one's first bucket is closed, and only the history tells that it waits.
		e := job.DeferredEvent(&job.Fire{Entry: a.entry(0)}, job.TargetRef{}, a.at(10), a.at(0))
		must(t, a.deps.History.Record(t.Context(), jobstore.Unencoded(&e)))
		row, err := a.jobs.Get(t.Context(), a.id)
		must(t, err)
		row.Version++
		row.Definition.EffectiveAt = a.at(0)
		must(t, a.jobs.Replace(t.Context(), row))
		for _, size := range []int{1, 100} {
			got, reasons := a.account("", size)
			wantAccount(t, got, []string{"3 pending", "2 pending", "1 pending", "0 pending"})
			if !strings.Contains(reasons[2], "no room") || !strings.Contains(reasons[0], "no room") {
				t.Errorf("of what was deferred it says: %s %s", reasons[2], reasons[0])
			}
		}
	})
}

// An update came while an occurrence waited for its target: the entry of the next definition names the same instant, and was late.
func TestAccountKnowsThatWhatWasDeferredWasSkippedSince(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(5*time.Minute + 30*time.Second)
		for n, succeeded := 1, (job.Outcome{Kind: job.OutcomeSucceeded}); n <= 5; n++ {
			if n != 3 {
				a.attempt(n, 1, succeeded) // 4 is on record between the run's beginning and its end
				continue
			}
			e := a.entry(n)
			must(t, a.pending.Put(t.Context(), []job.Entry{e}))
			must(t, a.pending.Defer(t.Context(), e.Locator, a.at(10)))
		}
		a.skip(1, 4, job.DispositionSkippedMissed)
		for _, size := range []int{1, 100} {
			got, reasons := a.account("", size)
			wantAccount(t, got, []string{
				"5 succeeded fired 1", "4 succeeded fired 1", "3 skipped skipped_missed", "2 succeeded fired 1", "1 succeeded fired 1",
			})
			if strings.Contains(reasons[3], "room") {
				t.Errorf("of what was skipped it says: %s", reasons[3])
			}
		}
	})
}

// A decision about a late entry stands before its event does.
func TestAccountKnowsOfWhatIsDecidedBeforeItIsOnRecord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(5*time.Minute + 30*time.Second)
		first, next := a.entry(1), a.entry(5)
		must(t, a.pending.Put(t.Context(), []job.Entry{first, next}))
		must(t, a.pending.Decide(t.Context(), first.Locator, job.Decision{
			Fire: true, Skipped: &job.SkippedRange{From: a.at(2), To: a.at(4), Count: 3}, Disposition: job.DispositionSkippedMissed, Next: a.at(5), NextOrdinal: 5,
		}))
		for _, size := range []int{1, 100} {
			got, _ := a.account("", size)
			wantAccount(t, got, []string{
				"5 pending", "4 skipped skipped_missed", "3 skipped skipped_missed", "2 skipped skipped_missed", "1 pending",
			})
		}
	})
}

// A resume, and the run that its definition skipped, come on record after the job's row was read: by that row the instants are paused, and
// the run has others. (Seed 710055 of the simulation.)
func TestAccountDoesNotTakeTheRunOfAnotherDefinitionForItsOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(89 * time.Second) // 1:30
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		a.answer(http.StatusOK, http.MethodPost, "/jobs/"+a.id+"/pause", "")
		time.Sleep(4 * time.Minute) // 5:30
		first := a.entry(2)
		first.DefinitionID = job.NextDefinitionID(first.DefinitionID, first.DefinitionID)
		r := job.SkippedRange{From: a.at(2).Add(-10 * time.Second), To: a.at(5).Add(-10 * time.Second), Count: 4}
		e := job.SkippedEvent(first, job.TargetRef{}, r, job.DispositionSkippedMissed, time.Now())
		must(t, a.deps.History.Record(t.Context(), jobstore.Unencoded(&e)))
		for _, size := range []int{1, 100} {
			got, _ := a.account("", size)
			wantAccount(t, got, []string{"5 paused", "4 paused", "3 paused", "2 paused", "1 skipped skipped_missed", "1 succeeded fired 1"})
		}
	})
}

// A worker that has not seen an update skips for the former definition what another one skips for the new one. Both runs begin at one instant,
// so that one of them is on record. (Seed 745 of the simulation.)
func TestAccountKnowsOfWhatAnotherDefinitionSkipped(t *testing.T) {
	for _, c := range []struct {
		before   string
		from, to int
		want     []string
	}{
		{"* * * * *", 2, 4, []string{"5 unknown", "4 skipped skipped_missed", "3 skipped skipped_missed", "2 skipped skipped_missed"}},
		{"1-59/2 * * * *", 3, 5, []string{"5 skipped skipped_missed", "4 unknown", "3 skipped skipped_missed", "2 pending"}},
	} {
		bubble.Test(t, func(t *testing.T) {
			a := &accounted{server: newServer(t, nil), began: time.Now()}
			time.Sleep(time.Second)
			a.id = a.create(strings.Replace(everyMinute, "* * * * *", c.before, 1))
			a.attempt(1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
			first := a.entry(c.from)
			time.Sleep(89 * time.Second) // 1:30
			a.answer(http.StatusOK, http.MethodPut, "/jobs/"+a.id, strings.Replace(everyMinute, "/hook", "/other", 1), "If-Match", "*")
			written := a.entry(2)
			if first.DefinitionID == written.DefinitionID {
				t.Fatal("the update makes no definition")
			}
			r := job.SkippedRange{From: a.at(c.from), To: a.at(c.to), Count: c.to - c.from + 1}
			e := job.SkippedEvent(first, job.TargetRef{}, r, job.DispositionSkippedMissed, a.at(5))
			must(t, a.deps.History.Record(t.Context(), jobstore.Unencoded(&e)))
			a.publishChanges()
			must(t, a.pending.MarkDone(t.Context(), []job.Locator{written.Locator}))
			time.Sleep(4 * time.Minute) // 5:30
			for _, size := range []int{1, 100} {
				got, _ := a.account("", size)
				wantAccount(t, got, append(c.want, "1 succeeded fired 1"))
			}
		})
	}
}

// The row of an occurrence that a stop refused says no more than that it is not called, as if it had been missed. (Seed 20146 of the
// simulation.)
func TestAccountDoesNotTakeARefusalForAMissedOccurrence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(90 * time.Second)
		e := a.entry(1)
		must(t, a.pending.Put(t.Context(), []job.Entry{e}))
		must(t, a.pending.Decide(t.Context(), e.Locator, job.Decision{}))
		got, _ := a.account("", 1)
		wantAccount(t, got, []string{"1 skipped skipped_missed"})
		a.answer(http.StatusOK, http.MethodPost, "/jobs/"+a.id+"/cancel", "")
		got, _ = a.account("", 1)
		wantAccount(t, got, []string{"1 pending"})
	})
}

// What a stop refused stands on its row before it is on record, and the job may run again by then. (Seed 600382.)
func TestAccountDoesNotTakeARefusalForAMissedOccurrenceAfterAResume(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(3*time.Minute + 30*time.Second)
		e := a.entry(1)
		must(t, a.pending.Put(t.Context(), []job.Entry{e}))
		must(t, a.pending.Decide(t.Context(), e.Locator, job.Decision{
			Skipped: &job.SkippedRange{From: a.at(2), To: a.at(3), Count: 2}, Disposition: job.DispositionSkippedPaused,
		}))
		got, _ := a.account("", 100)
		wantAccount(t, got, []string{"3 skipped skipped_paused", "2 skipped skipped_paused", "1 pending"})
	})
}

// page reads a page, and returns the minutes that it names and the cursor of the next one.
func (a *accounted) page(query string) (minutes []int, next string) {
	page, _ := a.answer(http.StatusOK, http.MethodGet, "/jobs/"+a.id+"/occurrences?"+query, "")
	for _, item := range page["items"].([]any) {
		at, err := time.Parse(time.RFC3339Nano, item.(map[string]any)["nominal_at"].(string))
		must(a.t, err)
		minutes = append(minutes, int(at.Sub(a.began)/time.Minute))
	}
	next, _ = page["next_cursor"].(string)
	return minutes, next
}

func TestAccountGoesOnWhateverHappensBetweenTwoPages(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		path := "/jobs/" + a.id
		time.Sleep(3*time.Minute + 9*time.Second) // 3:10
		a.answer(http.StatusOK, http.MethodPost, path+"/pause", "")
		time.Sleep(2 * time.Minute) // 5:10
		a.answer(http.StatusOK, http.MethodPut, path, strings.Replace(everyMinute, "* * * * *", "1-59/2 * * * *", 1), "If-Match", "*")
		time.Sleep(2 * time.Minute) // 7:10
		first, next := a.page("limit=2")
		if !slices.Equal(first, []int{7, 5}) {
			t.Errorf("the first page has %v", first)
		}
		a.answer(http.StatusOK, http.MethodPost, path+"/resume", "") // with the odd minutes from 3:10 on
		if second, _ := a.page("limit=10&cursor=" + next); !slices.Equal(second, []int{3, 2, 1}) {
			t.Errorf("the second page has %v", second)
		}
		first, next = a.page("limit=3&to=9999-12-31T23:59:59Z")
		second, _ := a.page("limit=3&to=9999-12-31T23:59:59Z&cursor=" + next)
		if len(first) != 3 || len(second) != 3 || first[2]-second[0] != 2 {
			t.Errorf("pages at the end of time have %v and %v", first, second)
		}
	})
}

// Around an update two definitions may have an entry for one instant. One of them gives its fire up; the other still waits.
func TestExecutionWaitsAsLongAsOneOfItsDefinitionsDoes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		shown := func() int {
			page, _ := a.answer(http.StatusOK, http.MethodGet, "/jobs/"+a.id+"/executions", "")
			return len(page["items"].([]any))
		}
		time.Sleep(2 * time.Minute)
		old := &job.Fire{Entry: a.entry(1)}
		fresh := *old
		fresh.DefinitionID += "later"
		for _, c := range []struct {
			event job.Event
			shown int
		}{
			{job.DeferredEvent(old, job.TargetRef{}, a.at(5), a.at(1)), 1},
			{job.ReleasedEvent(old, job.TargetRef{}, a.at(1)), 0},
			{job.DeferredEvent(&job.Fire{Entry: fresh.Entry, TakenAt: a.at(2)}, job.TargetRef{}, a.at(6), a.at(2)), 1},
		} {
			if c.event.Entry.DefinitionID == fresh.DefinitionID {
				c.event.ID += "later"
			}
			must(t, a.deps.History.Record(t.Context(), jobstore.Unencoded(&c.event)))
			if n := shown(); n != c.shown {
				t.Errorf("after %s, %d executions are shown, want %d", c.event.ID, n, c.shown)
			}
		}
	})
}

// Each page goes on where the definitions of the one before it ended, however many there are.
func TestAccountGoesBackOverManyDefinitions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		path := "/jobs/" + a.id
		var want []string
		for n := range 450 {
			if n%2 == 0 {
				a.answer(http.StatusOK, http.MethodPatch, path, `{"name":"another"}`, "If-Match", "*")
				a.publishChanges()
			}
			time.Sleep(time.Minute)
			a.attempt(n+1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
			want = append(want, fmt.Sprintf("%d succeeded fired 1", n+1))
		}
		slices.Reverse(want)
		for _, size := range []int{7, 500} {
			got, _ := a.account("", size)
			wantAccount(t, got, want)
		}
	})
}

func TestAccountEndsWithTheLastOccurrence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		for _, schedule := range []string{`"type":"cron","cron_expr":"* * * * *"`, `"type":"interval","every":"1m","start_at":"` + a.at(1).Format(time.RFC3339) + `"`} {
			body := strings.Replace(everyMinute, `"type":"cron","cron_expr":"* * * * *"`, schedule+`,"max_occurrences":3`, 1)
			a.id = a.create(body)
			got, _ := a.account(until(a.at(1000)), 2)
			wantAccount(t, got, []string{"3 planned", "2 planned", "1 planned"})
		}
		a.id = a.create(strings.Replace(everyMinute, `"type":"cron","cron_expr":"* * * * *"`, `"type":"one_shot","delay":"119s"`, 1))
		got, _ := a.account(until(a.at(1000)), 2)
		wantAccount(t, got, []string{"2 planned"})
	})
}

// What was triggered by hand between two occurrences is read, but not without a bound.
func TestAccountGoesOnWhereMuchElseIsOnRecord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		time.Sleep(2*time.Minute + 30*time.Second)
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		a.attempt(2, 1, job.Outcome{Kind: job.OutcomeSucceeded})
		var triggered []jobstore.Recorded
		for n := range 12_000 {
			e := a.entry(1)
			e.Trigger, e.NominalAt = job.TriggerManual, a.at(1).Add(time.Duration(n+1)*time.Millisecond)
			e.ExecutionID = fmt.Sprintf("exe_%s-m%s%05d", strings.TrimPrefix(a.id, job.JobPrefix), "01ARZ3NDEKTSV4RRFFQ69", n)
			event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded}, e.NominalAt)
			triggered = append(triggered, jobstore.Unencoded(&event)...)
		}
		for page := range slices.Chunk(triggered, 500) {
			must(t, a.deps.History.Record(t.Context(), page))
		}
		for _, size := range []int{1, 100} {
			got, _ := a.account("", size)
			wantAccount(t, got, []string{"2 succeeded fired 1", "1 succeeded fired 1"})
		}
	})
}

func TestAccountSaysInWhichAttemptAnExecutionWasToWhichOthersGaveWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		a.id = a.create(strings.Replace(everyMinute, `"type"`, `"overlap_policy":"skip","type"`, 1))
		record := func(n, k int, o job.Outcome) {
			f := &job.Fire{Entry: a.entry(n), Retry: job.RetryPolicy{MaxAttempts: 3, Window: time.Hour}}
			f.Attempt = k
			e := job.AttemptEvent(f, job.TargetRef{}, o, a.at(n))
			must(t, a.deps.History.Record(t.Context(), jobstore.Unencoded(&e)))
		}
		fails := func(n, k int, from, to time.Duration) {
			record(n, k, job.Outcome{
				Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, Timeline: job.Timeline{Invoked: a.at(n).Add(from), Completed: a.at(n).Add(to)},
			})
		}
		givesWay := func(n, to int) {
			record(n, 1, job.Outcome{Kind: job.OutcomeSkipped, Disposition: job.DispositionSkippedOverlap, GaveWayTo: a.at(to), Timeline: job.Timeline{Completed: a.at(n)}})
		}
		fails(1, 1, 0, time.Second)
		fails(1, 2, 50*time.Second, 130*time.Second)
		fails(5, 1, 0, time.Second)
		fails(5, 2, 100*time.Second, 110*time.Second)
		for n, to := range map[int]int{2: 1, 3: 1, 4: 1, 6: 5, 8: 7} {
			givesWay(n, to)
		}
		time.Sleep(8*time.Minute + 30*time.Second)
		for _, size := range []int{1, 100} {
			_, reasons := a.account("", size)
			for n, word := range map[int]string{
				2: "in attempt 2, and the", 3: "in attempt 2, and the", 4: "in progress after attempt 2, and the", 6: "in the pause before attempt 2, and the", 8: "still in progress, and the",
			} {
				if !strings.Contains(reasons[n], word) {
					t.Errorf("in pages of %d it says of %d: %s", size, n, reasons[n])
				}
			}
		}
	})
}

func TestExecutionIsShownAsCancelledWhileAnotherTakesItsPlace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		a.id = a.create(strings.Replace(everyMinute, `"type"`, `"overlap_policy":"cancel_other","type"`, 1))
		time.Sleep(3*time.Minute + 30*time.Second)
		for n := 1; n <= 3; n++ {
			e := a.entry(n)
			e.Alone = true
			must(t, a.pending.Put(t.Context(), []job.Entry{e}))
		}
		row, err := a.jobs.Get(t.Context(), a.id)
		must(t, err)
		row.Version, row.StoppedBefore = row.Version+1, a.at(3)
		must(t, a.jobs.Replace(t.Context(), row))
		for n := 1; n <= 3; n++ {
			m, _ := a.answer(http.StatusOK, http.MethodGet, "/executions/"+job.ScheduleExecutionID(a.id, a.at(n)), "")
			if (m["cancelling"] == true) != (n < 3) {
				t.Errorf("execution %d is shown as %v", n, m)
			}
		}
		_, reasons := a.account("", 100)
		if !strings.Contains(reasons[2], "cancelled") || strings.Contains(reasons[3], "cancelled") {
			t.Errorf("the account says of 2: %s, and of 3: %s", reasons[2], reasons[3])
		}
	})
}

func TestExecutionThatSomebodyAskedForHasItsLocalTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAccounted(t)
		a.id = a.create(strings.Replace(everyMinute, `"type"`, `"timezone":"Asia/Kolkata","type"`, 1))
		time.Sleep(90 * time.Second)
		a.attempt(1, 1, job.Outcome{Kind: job.OutcomeFailed})
		for _, path := range []string{"/jobs/" + a.id + "/trigger", "/executions/" + job.ScheduleExecutionID(a.id, a.at(1)) + "/replay"} {
			asked, _ := a.answer(http.StatusAccepted, http.MethodPost, path, "")
			id, _ := asked["execution_id"].(string)
			m, _ := a.answer(http.StatusOK, http.MethodGet, "/executions/"+id, "")
			if at, _ := m["local"].(string); !strings.HasPrefix(at, "2000-01-01T05:31:3") || !strings.HasSuffix(at, "+05:30") {
				t.Errorf("%s: it waits as %v", path, m)
			}
			noted := false
			a.eachEntry(func(e *job.Entry) {
				noted = noted || e.ExecutionID == id && e.Note != nil && e.Note.TZData != "" && e.Note.UTCOffset == 19800
			})
			if !noted {
				t.Errorf("%s: the entry does not have the zone", path)
			}
		}
	})
}
