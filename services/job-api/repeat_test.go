package jobapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// stalls stalls between a batch's entries and its rows, for longer than the grace. Meanwhile workers drop the entries,
// which have no job. Then the rows are written, and the process dies.
type stalls struct {
	jobstore.Jobs
	jobstore.Pending
	t       *testing.T
	written []job.Entry
	died    bool
}

func (s *stalls) Put(ctx context.Context, entries []job.Entry) error {
	s.written = append(s.written, entries...)
	return s.Pending.Put(ctx, entries)
}

func (s *stalls) CreateMany(ctx context.Context, rows []job.Job) error {
	if s.died {
		return s.Jobs.CreateMany(ctx, rows)
	}
	s.died = true
	time.Sleep(3 * time.Minute)
	var dropped []job.Locator
	for _, e := range s.written {
		dropped = append(dropped, e.Locator)
	}
	if err := s.MarkDone(ctx, dropped); err != nil {
		s.t.Error(err)
	}
	if err := s.Jobs.CreateMany(ctx, rows); err != nil {
		s.t.Error(err)
	}
	return errFlaky
}

func TestBatchThatIsRepeatedAfterAStallHasAnEntryForEveryJob(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := &stalls{t: t}
		s := newServer(t, func(c *jobapi.Config, d *jobapi.Deps) {
			store.Jobs, store.Pending = d.Jobs, d.Pending
			d.Jobs, d.Pending = store, store
			c.Grace = 2 * time.Minute
		})
		s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs:batch", batchOf(10), "Idempotency-Key", "k")
		for i, r := range s.batch(batchOf(10), "Idempotency-Key", "k").Results {
			id, alive := r.Job["job_id"], 0
			for _, e := range store.written {
				row, err := s.pending.Row(t.Context(), e.Locator)
				if err != nil {
					t.Fatal(err)
				}
				if e.JobID == id && !row.Done && e.Change == nil {
					alive++
				}
			}
			if r.Status != http.StatusCreated || alive != 1 {
				t.Errorf("job %d was answered with %d, and has %d entries that will fire", i, r.Status, alive)
			}
		}
	})
}

func TestExecutionOfATriggerThatWasRepeatedThroughAnOutageIsFound(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, 4 * time.Minute, time.Hour} {
		bubble.Test(t, func(t *testing.T) {
			f := &flaky{}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Pending = flakyPending{d.Pending, f} })
			trigger := "/jobs/" + s.create(goodJob) + "/trigger"
			f.left = 1
			s.answer(http.StatusServiceUnavailable, http.MethodPost, trigger, "", "Idempotency-Key", "k")
			time.Sleep(outage)
			m, _ := s.answer(http.StatusAccepted, http.MethodPost, trigger, "", "Idempotency-Key", "k")
			for _, waits := range []time.Duration{0, 20 * time.Minute} { // for room in its target's lane
				time.Sleep(waits)
				x, _ := s.answer(http.StatusOK, http.MethodGet, fmt.Sprint("/executions/", m["execution_id"]), "")
				if x["state"] != "pending" {
					t.Errorf("%s after the answer, and an outage of %s: %v", waits, outage, x)
				}
			}
		})
	}
}

func TestRequestThatIsRepeatedAfterItsEndHasTheSameAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		for kind, schedule := range map[string]string{"interval": `"every":"2s"`, "cron": `"cron_expr":"* * * * * *"`} {
			body := fmt.Sprintf(`{"name":"short","type":%q,%s,"end_at":%q,"target":{"kind":"http_webhook","url":"http://target/"}}`,
				kind, schedule, time.Now().Add(5*time.Second).Format(time.RFC3339))
			once := s.create(body, "Idempotency-Key", kind)
			time.Sleep(10 * time.Second)
			if again := s.create(body, "Idempotency-Key", kind); again != once {
				t.Errorf("%s: %s, then %s", kind, once, again)
			}
			s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", body, "Idempotency-Key", "another")
		}
	})
}

// ends makes a pending execution end, and its bucket close, between two reads.
type ends struct {
	jobstore.Pending
	execution func() // is over by then
}

func (e *ends) LowWater(ctx context.Context, partition int) (int64, error) {
	e.execution()
	return e.Pending.LowWater(ctx, partition)
}

func (e *ends) FirstOpen(context.Context, int, int64, int64) (int64, bool, error) {
	return 0, false, nil
}

func TestExecutionThatEndsWhileItIsLookedForIsFound(t *testing.T) {
	var history jobstore.History
	store := &ends{execution: func() {}}
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
		history, store.Pending = d.History, d.Pending
		d.Pending = store
	})
	job0 := s.create(goodJob)
	m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/jobs/"+job0+"/trigger", "")
	id := fmt.Sprint(m["execution_id"])
	store.execution = func() {
		ref, err := job.ParseExecutionID(id)
		if err != nil {
			t.Fatal(err)
		}
		e := deadEvent(job0)
		e.Entry.ExecutionID, e.Entry.Trigger, e.Entry.NominalAt, e.Entry.ScheduledFor = id, job.TriggerManual, ref.NominalAt, ref.NominalAt
		if err := history.Record(t.Context(), jobstore.Unencoded(&e)); err != nil {
			t.Error(err)
		}
	}
	if x, _ := s.answer(http.StatusAccepted, http.MethodPost, "/executions/"+id+"/cancel", ""); x["state"] != "dead" {
		t.Errorf("%v", x)
	}
}

// diesAfter fails once a number of letters were marked.
type diesAfter struct {
	jobstore.History
	marks int
}

func (h *diesAfter) MarkRedriven(ctx context.Context, d job.DeadLetter, executionID string) error {
	if h.marks--; h.marks == -1 {
		return errFlaky
	}
	return h.History.MarkRedriven(ctx, d, executionID)
}

func TestRedriveThatIsRepeatedNamesTheSameExecutions(t *testing.T) {
	for marks := range 4 {
		bubble.Test(t, func(t *testing.T) {
			var letters jobstore.History
			store := &slow{}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
				letters, store.Jobs, store.Pending = d.History, d.Jobs, d.Pending
				d.History, d.Pending = &diesAfter{letters, marks}, store
			})
			die := func(i int) {
				id := s.create(everySecond)
				now := job.Instant(time.Now().Add(time.Duration(i) * time.Second))
				e := job.Event{Type: job.EventAttempt, Entry: job.Entry{
					Locator: job.Locator{ExecutionID: job.ScheduleExecutionID(id, now), Attempt: 1}, JobID: id, NominalAt: now,
				}}
				if err := letters.PutDeadLetter(t.Context(), job.DeadLetter{Event: e, Reason: "permanent", At: now}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 4 {
				die(i)
			}
			store.puts = nil
			s.answer(http.StatusServiceUnavailable, http.MethodPost, "/dead-letters:redrive", `{}`, "Idempotency-Key", "k")
			time.Sleep(time.Second)
			first := store.puts
			die(4) // and comes before the others then
			store.puts = first
			m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{}`, "Idempotency-Key", "k")
			answered, written := map[string]bool{}, map[string]bool{}
			for _, x := range m["executions"].([]any) {
				answered[fmt.Sprint(x.(map[string]any)["execution_id"])] = true
			}
			places := map[string]time.Time{} // in the history
			for _, e := range store.puts {
				written[e.ExecutionID] = true
				if at, again := places[e.ExecutionID]; again && !at.Equal(e.NominalAt) {
					t.Errorf("%s stands at %s and at %s", e.ExecutionID, at, e.NominalAt)
				}
				places[e.ExecutionID] = e.NominalAt
			}
			if len(answered) != 5 || !maps.Equal(answered, written) {
				t.Errorf("it died after %d marks; then it answered %v, and wrote entries of %v", marks,
					slices.Sorted(maps.Keys(answered)), slices.Sorted(maps.Keys(written)))
			}
		})
	}
}

func TestAnswerWithoutAServerSaysWhatMayHaveBeenDone(t *testing.T) {
	const id = job.JobPrefix + "01M7ZJW5E6D77SAJPXRZ65CMZZ"
	log, down := &bytes.Buffer{}, &absentJobs{}
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
		down.Jobs, d.Jobs, d.Logger = d.Jobs, down, slog.New(slog.NewTextHandler(log, nil))
	})
	for _, c := range []struct{ method, path, body, key, want string }{
		{http.MethodGet, "/jobs/" + id, "", "", "Nothing was changed"},
		{http.MethodPost, "/jobs", goodJob, "k", "same Idempotency-Key"},
		{http.MethodPost, "/jobs", goodJob, "", "look before you try again"},
		{http.MethodPost, "/jobs", strings.Replace(goodJob, "{", `{"idempotency_key":"k",`, 1), "", "same Idempotency-Key"},
		{http.MethodPost, "/jobs/" + id + "/pause", "", "", "twice is the same as once"},
		{http.MethodDelete, "/jobs/" + id, "", "", "twice is the same as once"},
		{http.MethodPost, "/jobs/" + id + "/trigger", "", "", "look before you try again"},
		{http.MethodPatch, "/jobs/" + id, `{"name":"x"}`, "", "compare its ETag"},
	} {
		headers := []string{"If-Match", "*"}
		if c.key != "" {
			headers = append(headers, "Idempotency-Key", c.key)
		}
		m, _ := s.answer(http.StatusServiceUnavailable, c.method, c.path, c.body, headers...)
		if detail, _ := m["detail"].(string); !strings.Contains(detail, c.want) {
			t.Errorf("%s %s is told %q, want something with %q", c.method, c.path, detail, c.want)
		}
	}
	down.back = true
	s.answer(http.StatusNotFound, http.MethodGet, "/jobs/"+id, "")
	s.create(goodJob)
	if lines := strings.Count(log.String(), "requests cannot be answered"); lines != 1 {
		t.Errorf("%d lines say that requests cannot be answered, want one", lines)
	}
	if !strings.Contains(log.String(), "requests are answered again") {
		t.Error("no line says that requests are answered again")
	}
}

// absentJobs is a store that does not answer until it is back.
type absentJobs struct {
	jobstore.Jobs
	back bool
}

func (g *absentJobs) err() error {
	if g.back {
		return nil
	}
	return errFlaky
}

func (g *absentJobs) Get(ctx context.Context, id string) (j job.Job, err error) {
	if err := g.err(); err != nil {
		return j, err
	}
	return g.Jobs.Get(ctx, id)
}

func (g *absentJobs) Create(ctx context.Context, j job.Job, exclusive bool) error {
	return errors.Join(g.err(), g.Jobs.Create(ctx, j, exclusive))
}

func (g *absentJobs) ClaimKey(ctx context.Context, tenant job.Tenant, key string, c jobstore.Claim) (jobstore.Claim, bool, error) {
	if err := g.err(); err != nil {
		return c, false, err
	}
	return g.Jobs.ClaimKey(ctx, tenant, key, c)
}

func TestSchemeOfTheTokenIsTakenInAnyCase(t *testing.T) {
	token := strings.Repeat("t", 32)
	s := newServer(t, func(c *jobapi.Config, _ *jobapi.Deps) { c.AuthToken = token })
	for header, want := range map[string]int{
		"Bearer " + token: http.StatusOK, "bearer " + token: http.StatusOK, "BEARER " + token: http.StatusOK,
		"Basic " + token: http.StatusUnauthorized, token: http.StatusUnauthorized, "Bearer": http.StatusUnauthorized, "Bearer  " + token: http.StatusUnauthorized,
	} {
		s.answer(want, http.MethodGet, "/jobs", "", "Authorization", header)
	}
}

func TestPageOfAnotherOriginChangesNothingOnLoopback(t *testing.T) {
	s := newServer(t, func(c *jobapi.Config, _ *jobapi.Deps) { c.LocalHostsOnly = true })
	do := func(method, path, body string, headers ...string) int {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:8080/api/v1"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		method  string
		headers []string
		want    int
	}{
		{http.MethodPost, nil, http.StatusCreated},
		{http.MethodPost, []string{"Origin", "http://127.0.0.1:8080"}, http.StatusCreated},
		{http.MethodPost, []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		{http.MethodPost, []string{"Origin", "http://127.0.0.1:9999"}, http.StatusForbidden},
		{http.MethodPost, []string{"Origin", "null"}, http.StatusForbidden},
		{http.MethodPost, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{http.MethodPost, []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8080"}, http.StatusCreated},
		{http.MethodGet, []string{"Origin", "https://evil.example"}, http.StatusOK},
	} {
		body := map[string]string{http.MethodPost: goodJob}[c.method]
		if got := do(c.method, "/jobs", body, c.headers...); got != c.want {
			t.Errorf("%s with %v was answered %d, want %d", c.method, c.headers, got, c.want)
		}
	}
	if got := do(http.MethodPost, "/dispatch/pause", "{}", "Origin", "https://evil.example"); got != http.StatusForbidden {
		t.Errorf("pausing dispatch was answered %d", got)
	}
}
