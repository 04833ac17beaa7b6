package jobapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/schemas"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// oneShot returns a one_shot at an instant, with more members after it.
func oneShot(at time.Time, more string) string {
	return fmt.Sprintf(`{"name":"x","type":"one_shot","run_at":%q,"target":{"kind":"http_webhook","url":"http://x/"}%s}`,
		at.UTC().Format(time.RFC3339Nano), more)
}

// fault fails the test unless the answer to the request has the status and a fault with this pointer and code.
func (s *server) fault(status int, pointer, code, method, path, body string, headers ...string) {
	s.t.Helper()
	m, _ := s.answer(status, method, path, body, headers...)
	list, _ := m["errors"].([]any)
	for _, e := range list {
		if f := e.(map[string]any); f["pointer"] == pointer && f["code"] == code {
			return
		}
	}
	s.t.Errorf("%s %s %.120s: no fault %s at %q in %v", method, path, body, code, pointer, list)
}

func TestMemberGivenTwiceIsRefused(t *testing.T) {
	// A struct would merge the two objects, so that something which the schema never saw gets into the job.
	s := newServer(t, nil)
	for _, body := range []string{
		strings.Replace(goodJob, `"target":`, `"target":{"kind":"http_webhook","url":"http://x/","headers":{"X: y\r\nZ":"a\r\nb"}},"target":`, 1),
		strings.Replace(goodJob, `"name"`, `"retry_policy":{"max_attempts":100000},"retry_policy":{},"name"`, 1),
		strings.Replace(goodJob, `"a":1`, `"a":1,"\u0061":2`, 1),
	} {
		s.fault(http.StatusBadRequest, "", "malformed-json", http.MethodPost, "/jobs", body)
	}
	s.create(strings.Replace(goodJob, `"a":1`, `"a":{"a":"a"},"b":[{"a":1},{"a":1},"b","b"]`, 1))
}

func TestBodyNestsOnlyAsDeepAsItCanBeReadBack(t *testing.T) {
	s := newServer(t, nil)
	nested := func(depth int) string {
		return strings.Replace(goodJob, `{"a":1}`, strings.Repeat("[", depth)+strings.Repeat("]", depth), 1)
	}
	s.answer(http.StatusOK, http.MethodGet, "/jobs/"+s.create(nested(998)), "")
	for _, depth := range []int{999, 9_990, 9_998, 50_000} {
		s.fault(http.StatusBadRequest, "", "malformed-json", http.MethodPost, "/jobs", nested(depth))
	}
	s.answer(http.StatusOK, http.MethodGet, "/jobs", "")
}

func TestFaultsOfASchedulePointAtTheMemberThatWasGiven(t *testing.T) {
	s := newServer(t, nil)
	target := `,"name":"x","target":{"kind":"http_webhook","url":"http://x/"}}`
	now := time.Now()
	for _, c := range []struct{ pointer, code, body string }{
		{"/delay", "horizon", `{"type":"one_shot","delay":"99999h"` + target},
		{"/delay", "conflict", `{"type":"one_shot","delay":"1h","run_at":"2030-01-01T00:00:00Z"` + target},
		{"/delay", "conflict", `{"type":"cron","cron_expr":"@daily","delay":"1h"` + target},
		{"/run_at", "required", `{"type":"one_shot"` + target},
		{"/run_at", "horizon", oneShot(now.Add(job.MaxHorizon+time.Hour), "")},
		{"/run_at", "in-the-past", oneShot(now.Add(-2*time.Minute), "")},
		{"/run_at", "in-the-past", oneShot(now.Add(-6*time.Second), `,"catch_up_window":"5s"`)},
		{"/cron_expr", "invalid-schedule", `{"type":"cron","cron_expr":"0 0 30 2 *"` + target},
		{"/cron_expr", "invalid-schedule", `{"type":"cron","cron_expr":"0 0 9 * * * H"` + target},
		{"/type", "no-occurrence", `{"type":"cron","cron_expr":"@daily","end_at":"2001-01-01T00:00:00Z"` + target},
		{"/overlap_policy", "conflict", `{"type":"cron","cron_expr":"@daily","precision":"precise","overlap_policy":"cancel_other"` + target},
		{"/target/pool", "required", strings.Replace(goodJob, "http_webhook", "pool", 1)},
	} {
		s.fault(http.StatusUnprocessableEntity, c.pointer, c.code, http.MethodPost, "/jobs", c.body)
	}
	if n := s.entries(); n != 0 {
		t.Errorf("refused creates left %d entries", n)
	}
	for _, late := range []string{oneShot(now.Add(-50*time.Second), ""), oneShot(now.Add(-time.Hour), `,"catch_up_window":"2h"`)} {
		s.create(late) // within its catch-up window, so it fires at once
	}
}

func TestParametersAreToldByTheirPointers(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(goodJob)
	for _, c := range []struct{ pointer, code, method, path, header, value string }{
		{"/query/limit", "type", http.MethodGet, "/jobs?limit=" + canary, "", ""},
		{"/query/limit", "maximum", http.MethodGet, "/dead-letters?limit=501", "", ""},
		{"/query/limit", "repeated", http.MethodGet, "/jobs?limit=1&limit=1", "", ""},
		{"/query", "malformed", http.MethodGet, "/jobs?limit=%zz", "", ""},
		{"/query", "malformed", http.MethodGet, "/jobs?limit=1;cursor=x", "", ""},
		{"/query/offset", "unknown-parameter", http.MethodGet, "/jobs?offset=1", "", ""},
		{"/query/cursor", "cursor", http.MethodGet, "/jobs?cursor=" + canary, "", ""},
		{"/query/cursor", "cursor", http.MethodGet, path + "/executions?cursor=" + canary, "", ""},
		{"/query/cursor", "cursor", http.MethodGet, "/dead-letters?cursor=" + canary, "", ""},
		{"/path/id", "pattern", http.MethodGet, "/jobs/" + canary, "", ""},
		{"/path/execution_id", "pattern", http.MethodGet, "/executions/" + canary, "", ""},
		{"/header/If-Match", "pattern", http.MethodPatch, path, "If-Match", canary},
		{"/header/Idempotency-Key", "pattern", http.MethodPost, path + "/trigger", "Idempotency-Key", "a b"},
	} {
		s.fault(http.StatusBadRequest, c.pointer, c.code, c.method, c.path, "", c.header, c.value)
	}
	for _, unknown := range []string{
		"/jobs/job_01ARZ3NDEKTSV4RRFFQ69G5FAV", "/jobs/job_01ARZ3NDEKTSV4RRFFQ69G5FAV/executions",
		"/executions/exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-s1893456000000",
	} {
		s.answer(http.StatusNotFound, http.MethodGet, unknown, "")
	}
}

func TestTokenIsNotAskedForHealth(t *testing.T) {
	s := newServer(t, func(c *jobapi.Config, d *jobapi.Deps) {
		c.AuthToken = "a-long-random-token"
		d.Admin = admin.Handler(prometheus.NewRegistry(), "2199a", func() []string { return nil })
	})
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusUnauthorized, "/openapi.json": http.StatusUnauthorized,
	} {
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != want || w.Header().Get("Request-Id") == "" {
			t.Errorf("%s: %d %v, want %d", path, w.Code, w.Header(), want)
		}
	}
}

// gone is a store in which nothing answers.
type gone struct {
	jobstore.Jobs
	jobstore.History
	jobstore.Settings
}

func (gone) Setting(context.Context, string) ([]byte, error) { return nil, errFlaky }

func (gone) Items(context.Context, string, string, int) ([]jobstore.Item, error) {
	return nil, errFlaky
}

func (gone) Executions(context.Context, jobstore.Of, jobstore.Cursor, time.Time, int) ([]job.Event, error) {
	return nil, errFlaky
}
func (gone) Get(context.Context, string) (job.Job, error) { return job.Job{}, errFlaky }
func (gone) List(context.Context, job.Tenant, string, int) ([]job.Job, string, error) {
	return nil, "", errFlaky
}
func (gone) Create(context.Context, job.Job, bool) error { return errFlaky }
func (gone) CreateMany(context.Context, []job.Job) error { return errFlaky }
func (gone) DeadLetters(context.Context, job.Tenant, string, int) ([]job.DeadLetter, string, error) {
	return nil, "", errFlaky
}

func TestEveryOperationOnAStoreThatIsAwayAnswers503(t *testing.T) {
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Jobs, d.History, d.Settings = gone{}, gone{}, gone{} })
	tried := 0
	for _, op := range loadDocument(t).operations() {
		if op.id == "previewSchedule" || op.id == "whoAmI" || slices.Contains(strings.Split(op.path, "/"), "pools") {
			continue // they ask no store, or another one
		}
		tried++
		template := strings.TrimPrefix(op.path, "/api/v1")
		path := named(template, "job_01ARZ3NDEKTSV4RRFFQ69G5FAV")
		body := ""
		if op.body != nil {
			body = goodJob
			if b, ok := bases()[template]; ok {
				body = b
			}
		}
		_, h := s.answer(http.StatusServiceUnavailable, op.method, path, body, "If-Match", "*")
		if h.Get("Retry-After") == "" || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: headers %v", op.id, h)
		}
	}
	if tried != 46 { // those of pools ask another one
		t.Errorf("%d operations were tried", tried)
	}
}

func TestTriggersUnderOneKeyAreOneExecution(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(goodJob) + "/trigger"
	before := s.entries()
	var executions sync.Map
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			w := s.do(http.MethodPost, path, "", "Idempotency-Key", "k")
			executions.Store(w.Body.String(), true)
			if w.Code != http.StatusAccepted {
				t.Errorf("answered %d %s", w.Code, w.Body)
			}
		})
	}
	wg.Wait()
	answers := 0
	executions.Range(func(any, any) bool { answers++; return true })
	if answers != 1 || s.entries()-before < 1 {
		t.Errorf("%d different answers, %d entries", answers, s.entries()-before)
	}
}

func TestKeysInHeaderAndBodyMustAgree(t *testing.T) {
	s := newServer(t, nil)
	withKey := strings.Replace(goodJob, `"name"`, `"idempotency_key":"k1","name"`, 1)
	id := s.create(withKey, "Idempotency-Key", "k1")
	s.fault(http.StatusUnprocessableEntity, "/idempotency_key", "conflict", http.MethodPost, "/jobs", withKey, "Idempotency-Key", "k2")
	if again := s.create(goodJob, "Idempotency-Key", "k1"); again != id {
		t.Errorf("the key made %s and %s", id, again)
	}
}

// TestAnswersAreWhatTheDocumentDeclares checks answers with a validator other than the service's own.
func TestAnswersAreWhatTheDocumentDeclares(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(schemas.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	var history jobstore.History
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { history = d.History })
	id := s.create(goodJob)
	failed := deadEvent(id)
	if err := history.Record(t.Context(), jobstore.Unencoded(&failed)); err != nil {
		t.Fatal(err)
	}
	letter := job.DeadLetter{Event: failed, Reason: "max_attempts", At: failed.At}
	if err := history.PutDeadLetter(t.Context(), letter); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{http.MethodPost, "/jobs", goodJob, 201},
		{http.MethodGet, "/jobs?limit=1", "", 200},
		{http.MethodGet, "/jobs/" + id, "", 200},
		{http.MethodPut, "/jobs/" + id, goodJob, 200},
		{http.MethodPatch, "/jobs/" + id, `{"labels":{"a":"b"}}`, 200},
		{http.MethodPost, "/jobs/" + id + "/pause", "", 200},
		{http.MethodPost, "/jobs/" + id + "/resume", "", 200},
		{http.MethodPost, "/jobs/" + id + "/trigger", "", 202},
		{http.MethodGet, "/jobs/" + id + "/executions", "", 200},
		{http.MethodGet, "/executions/" + failed.Entry.ExecutionID, "", 200},
		{http.MethodGet, "/dead-letters", "", 200},
		{http.MethodPost, "/schedules/preview", `{"type":"interval","every":"1m"}`, 200},
		{http.MethodPost, "/jobs/" + id + "/cancel", "", 200},
		{http.MethodPost, "/jobs/" + id + "/trigger", "", 409},
		{http.MethodDelete, "/jobs/" + id, "", 204},
		{http.MethodGet, "/jobs/" + id, "", 404},
		{http.MethodPost, "/jobs", "{}", 422},
	} {
		w := s.do(c.method, c.path, c.body, "If-Match", "*")
		if w.Code != c.status {
			t.Errorf("%s %s: answered %d %s", c.method, c.path, w.Code, w.Body)
		}
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/api/v1"+c.path, nil)
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Fatal(err)
		}
		input := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: route, PathParams: params},
			Status:                 w.Code, Header: w.Header(),
		}
		input.SetBodyBytes(w.Body.Bytes())
		if err := openapi3filter.ValidateResponse(t.Context(), input); err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
		}
	}
}

// deadEvent returns the one failed attempt of an execution that was due a minute ago.
func deadEvent(jobID string) job.Event {
	at := job.Instant(time.Now().Add(-time.Minute))
	e := job.NewEntry(job.Entry{
		Locator: job.Locator{DueAt: at, ExecutionID: job.ScheduleExecutionID(jobID, at), Attempt: 1},
		JobID:   jobID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
	}, at)
	retry := job.DefaultRetryPolicy()
	retry.MaxAttempts = 1
	return job.AttemptEvent(&job.Fire{Entry: e, Retry: retry}, job.TargetRef{}, job.Outcome{
		Kind: job.OutcomeFailed, Retryable: true, Disposition: job.DispositionFired, StatusCode: 503, Fence: job.Fence{Epoch: 1_700_000_000_000_000, Counter: 3, Start: 4},
		ResponseBody: bytes.Repeat([]byte("x"), 10), Timeline: job.Timeline{Taken: at, Published: at, Consumed: at, Invoked: at, Completed: at},
	}, at)
}

// An instant that was both fired and skipped, as can follow a loss of the hot tier, has one place among the pages.
func TestPagesOfExecutionsLeaveNothingOutWhereARunWasSkippedAtTheSameInstant(t *testing.T) {
	var history jobstore.History
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { history = d.History })
	id := s.create(goodJob)
	fired := deadEvent(id)
	at := fired.Entry.NominalAt
	skipped := job.SkippedEvent(fired.Entry, job.TargetRef{}, job.SkippedRange{From: at, To: at.Add(time.Second), Count: 2}, job.DispositionSkippedMissed, at)
	before := deadEvent(id)
	before.ID, before.Entry.NominalAt = "before", at.Add(-time.Minute)
	before.Entry.ExecutionID = job.ScheduleExecutionID(id, before.Entry.NominalAt)
	if err := history.Record(t.Context(), jobstore.Unencoded(&fired, &skipped, &before)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for cursor := ""; ; {
		page, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/"+id+"/executions?limit=1"+cursor, "")
		for _, x := range page["items"].([]any) {
			item := x.(map[string]any)
			seen[fmt.Sprint(item["execution_id"], " ", item["skipped"] != nil)]++
		}
		next, _ := page["next_cursor"].(string)
		if next == "" {
			break
		}
		cursor = "&cursor=" + next
	}
	want := map[string]int{
		fired.Entry.ExecutionID + " false": 1, fired.Entry.ExecutionID + " true": 1, before.Entry.ExecutionID + " false": 1,
	}
	if !maps.Equal(seen, want) {
		t.Errorf("the pages hold %v, want %v", seen, want)
	}
}

func TestExecutionsAreShownNewestFirstWithWhatBecameOfThem(t *testing.T) {
	var history jobstore.History
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { history = d.History })
	id := s.create(goodJob)
	e := deadEvent(id)
	if err := history.Record(t.Context(), jobstore.Unencoded(&e)); err != nil {
		t.Fatal(err)
	}
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/executions/"+e.Entry.ExecutionID, "")
	attempts, _ := m["attempts"].([]any)
	if m["state"] != "dead" || len(attempts) != 1 || m["lateness_ms"] != 0.0 || m["timeline"] == nil {
		t.Errorf("execution is %v", m)
	}
	path := "/jobs/" + id
	x, _ := s.answer(http.StatusAccepted, http.MethodPost, path+"/trigger", "")
	m, _ = s.answer(http.StatusOK, http.MethodGet, "/executions/"+x["execution_id"].(string), "")
	if m["state"] != "pending" || m["trigger"] != "manual" {
		t.Errorf("triggered execution is %v", m)
	}
	m, _ = s.answer(http.StatusOK, http.MethodGet, path+"/executions", "")
	if items, err := json.Marshal(m["items"]); err != nil || !strings.Contains(string(items), e.Entry.ExecutionID) {
		t.Errorf("executions are %s %v", items, err)
	}
}

// An executor that stalled may give an attempt that has ended another outcome, which is retried: the cancel must hold for
// that too.
func TestCancelOfAnExecutionThatHasJustEndedIsKept(t *testing.T) {
	for _, c := range []struct {
		ago  time.Duration
		kept bool
	}{{time.Second, true}, {50 * time.Minute, true}, {2 * time.Hour, false}} {
		bubble.Test(t, func(t *testing.T) {
			var history jobstore.History
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { history = d.History })
			id := s.create(everySecond)
			at := job.Instant(time.Now())
			e := job.AttemptEvent(&job.Fire{Entry: job.Entry{
				Locator: job.Locator{ExecutionID: job.ScheduleExecutionID(id, at), DueAt: at, Attempt: 1}, JobID: id, Trigger: job.TriggerSchedule,
				NominalAt: at, ScheduledFor: at,
			}}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Timeline: job.Timeline{Completed: at}}, at)
			if err := history.Record(t.Context(), jobstore.Unencoded(&e)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.ago)
			x, _ := s.answer(http.StatusAccepted, http.MethodPost, "/executions/"+e.Entry.ExecutionID+"/cancel", "")
			row, err := s.jobs.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if kept := row.State().Stops(e.Entry.ExecutionID); kept != c.kept || x["state"] != "succeeded" || x["cancelling"] != nil {
				t.Errorf("%s after its end: kept %t, answered %v", c.ago, kept, x)
			}
		})
	}
}
