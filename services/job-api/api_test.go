package jobapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// answer decodes a response and checks its status.
func (s *server) answer(want int, method, path, body string, headers ...string) (map[string]any, http.Header) {
	s.t.Helper()
	w := s.do(method, path, body, headers...)
	if w.Code != want {
		s.t.Fatalf("%s %s: %d, want %d: %s", method, path, w.Code, want, w.Body)
	}
	var m map[string]any
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
			s.t.Fatal(err)
		}
	}
	return m, w.Header()
}

func (s *server) create(body string, headers ...string) string {
	s.t.Helper()
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", body, headers...)
	return m["job_id"].(string)
}

func TestCreatedJobIsShownWithItsDefaults(t *testing.T) {
	s := newServer(t, nil)
	m, h := s.answer(http.StatusCreated, http.MethodPost, "/jobs", goodJob)
	if h.Get("Location") != "/api/v1/jobs/"+m["job_id"].(string) || h.Get("ETag") != `"1"` {
		t.Errorf("headers %v", h)
	}
	got, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/"+m["job_id"].(string), "")
	retry := got["retry_policy"].(map[string]any)
	if got["status"] != "active" || got["next_run_at"] == nil || got["missed_run_policy"] != "fire_once" ||
		retry["base_delay"] != "30s" || retry["max_attempts"] != 5.0 || got["target"].(map[string]any)["timeout"] != "30s" {
		t.Errorf("job is %v", got)
	}
}

func TestFaultsAreToldAllAtOnceWithTheirPointers(t *testing.T) {
	s := newServer(t, nil)
	for body, want := range map[string][]string{
		`{"type":"cron","cron_expr":"61 * * * *","target":{"kind":"http_webhook","url":"x","timeout":"1h"}}`:               {"/name"},
		strings.Replace(goodJob, "0 9 * * MON", "0 0 30 2 *", 1):                                                           {"/cron_expr"},
		strings.Replace(goodJob, "0 9 * * MON", "0 0 9 * * * H", 1):                                                        {"/cron_expr"},
		strings.Replace(goodJob, `"name"`, `"overlap_policy":"sometimes","name"`, 1):                                       {"/overlap_policy"},
		strings.Replace(goodJob, "http_webhook", "pool", 1):                                                                {"/target/url", "/target/pool", "/target/handler"},
		strings.Replace(goodJob, `"http_webhook"`, `"http_webhook","pool":"a","handler":"b","heartbeat_timeout":"30s"`, 1): {"/target/pool", "/target/handler", "/target/heartbeat_timeout"},
		strings.Replace(goodJob, `"type"`, `"priority":"high","type"`, 1):                                                  {"/priority"},
		strings.Replace(goodJob, "X-A", "Webhook-Id", 1):                                                                   {"/target/headers"},
		strings.Replace(goodJob, "https://example.com/hook", "ftp://x", 1):                                                 {"/target/url"},
		strings.Replace(goodJob, `"name"`, `"naming":"x","name"`, 1):                                                       {"/naming"},
		strings.Replace(goodJob, "Europe/Berlin", "Europe/Nowhere", 1):                                                     {"/timezone"},
		`{"name":"x","type":"one_shot","run_at":"2001-01-01T00:00:00Z","target":{"kind":"http_webhook","url":"http://x/"}}`: {
			"/run_at",
		},
		`{"name":"x","type":"one_shot","run_at":"2101-01-01T00:00:00Z","target":{"kind":"http_webhook","url":"gopher://x/","timeout":"6m"}}`: {
			"/run_at", "/target/url", "/target/timeout",
		},
	} {
		m, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", body)
		pointers := map[string]bool{}
		for _, e := range m["errors"].([]any) {
			pointers[e.(map[string]any)["pointer"].(string)] = true
		}
		for _, p := range want {
			if !pointers[p] {
				t.Errorf("%s: pointers %v, want %s", body, pointers, p)
			}
		}
	}
	if n := s.entries(); n != 0 {
		t.Errorf("refused creates left %d entries", n)
	}
}

func TestChangesNeedTheVersionTheyChange(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(goodJob)
	s.answer(http.StatusPreconditionRequired, http.MethodPatch, path, `{"name":"new"}`)
	s.answer(http.StatusPreconditionFailed, http.MethodPatch, path, `{"name":"new"}`, "If-Match", `"7"`)
	m, h := s.answer(http.StatusOK, http.MethodPatch, path, `{"name":"new","timezone":null,"target":{"headers":{"X-B":"c"}}}`, "If-Match", `"1"`)
	headers := m["target"].(map[string]any)["headers"].(map[string]any)
	if m["name"] != "new" || m["timezone"] != nil || headers["X-A"] != "b" || headers["X-B"] != "c" || h.Get("ETag") != `"2"` {
		t.Errorf("job is %v, ETag %s", m, h.Get("ETag"))
	}
	m, _ = s.answer(http.StatusOK, http.MethodPut, path,
		`{"name":"other","type":"interval","every":"15m","target":{"kind":"http_webhook","url":"http://x/"}}`, "If-Match", "*")
	if m["type"] != "interval" || m["cron_expr"] != nil || m["every"] != "15m" {
		t.Errorf("job is %v", m)
	}
	s.answer(http.StatusUnprocessableEntity, http.MethodPatch, path, `{"every":"1ms"}`, "If-Match", "*")
	s.answer(http.StatusUnprocessableEntity, http.MethodPut, path,
		`{"name":"x","type":"one_shot","run_at":"2001-01-01T00:00:00Z","target":{"kind":"http_webhook","url":"http://x/"}}`, "If-Match", "*")
}

func TestPauseResumeCancelDelete(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(goodJob)
	if m, _ := s.answer(http.StatusOK, http.MethodPost, path+"/pause", ""); m["status"] != "paused" || m["next_run_at"] != nil {
		t.Errorf("paused: %v", m)
	}
	s.answer(http.StatusOK, http.MethodPost, path+"/pause", "")
	if m, _ := s.answer(http.StatusOK, http.MethodPost, path+"/resume", ""); m["status"] != "active" || m["next_run_at"] == nil {
		t.Errorf("resumed: %v", m)
	}
	if m, _ := s.answer(http.StatusOK, http.MethodPost, path+"/cancel", ""); m["status"] != "cancelled" {
		t.Errorf("cancelled: %v", m)
	}
	for _, verb := range []string{"/pause", "/resume", "/trigger"} {
		s.answer(http.StatusConflict, http.MethodPost, path+verb, "")
	}
	s.answer(http.StatusConflict, http.MethodPatch, path, `{"name":"new"}`, "If-Match", "*")
	for range 2 {
		s.answer(http.StatusNoContent, http.MethodDelete, path, "")
	}
	s.answer(http.StatusNotFound, http.MethodGet, path, "")
	if m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs", ""); len(m["items"].([]any)) != 0 {
		t.Errorf("a deleted job is listed: %v", m)
	}
}

func TestJobsAreListedInPages(t *testing.T) {
	s := newServer(t, nil)
	for range 5 {
		s.create(goodJob)
	}
	seen := map[string]bool{}
	path := "/jobs?limit=2"
	for range 4 {
		m, _ := s.answer(http.StatusOK, http.MethodGet, path, "")
		for _, item := range m["items"].([]any) {
			seen[item.(map[string]any)["job_id"].(string)] = true
		}
		next, ok := m["next_cursor"].(string)
		if !ok {
			break
		}
		path = "/jobs?limit=2&cursor=" + next
	}
	if len(seen) != 5 {
		t.Errorf("saw %d of 5", len(seen))
	}
}

func TestPreviewTellsWhatTheClocksDo(t *testing.T) {
	s := newServer(t, nil)
	m, _ := s.answer(http.StatusOK, http.MethodPost, "/schedules/preview",
		`{"type":"cron","cron_expr":"30 2 * * *","timezone":"America/New_York","after":"2026-03-08T00:00:00-05:00","count":1}`)
	first := m["occurrences"].([]any)[0].(map[string]any)
	if first["scheduled_for"] != "2026-03-08T07:30:00Z" || first["local"] != "2026-03-08T03:30:00-04:00" || first["note"] == nil {
		t.Errorf("preview: %v", first)
	}
}

func TestPreviewForAJobTellsWhereJitterAndSpreadMoveIt(t *testing.T) {
	s := newServer(t, nil)
	for _, moved := range []string{`"jitter":"30m"`, `"spread":"auto","spread_within":"30m"`} {
		schedule := `"type":"cron","cron_expr":"0 21 * * *",` + moved
		m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", `{"name":"moved",`+schedule+`,"target":{"kind":"http_webhook","url":"https://example.com/hook"}}`)
		p, _ := s.answer(http.StatusOK, http.MethodPost, "/schedules/preview", `{`+schedule+`,"count":1,"job_id":"`+m["job_id"].(string)+`"}`)
		first := p["occurrences"].([]any)[0].(map[string]any)
		nominal, _ := first["occurrence"].(string)
		if first["scheduled_for"] != m["next_run_at"] || first["local"] != m["next_run_at"] || !strings.HasSuffix(nominal, "T21:00:00Z") {
			t.Errorf("with %s the preview shows %v, and the job is due at %v", moved, first, m["next_run_at"])
		}
		p, _ = s.answer(http.StatusOK, http.MethodPost, "/schedules/preview", `{`+schedule+`,"count":1}`)
		if first := p["occurrences"].([]any)[0].(map[string]any); first["occurrence"] != nil || !strings.HasSuffix(first["scheduled_for"].(string), "T21:00:00Z") {
			t.Errorf("with %s and for no job the preview shows %v", moved, first)
		}
	}
}

func TestTokenIsDemandedWhereOneIsSet(t *testing.T) {
	s := newServer(t, func(c *jobapi.Config, _ *jobapi.Deps) { c.AuthToken = "a-long-random-token" })
	s.answer(http.StatusUnauthorized, http.MethodGet, "/jobs", "")
	s.answer(http.StatusUnauthorized, http.MethodGet, "/jobs", "", "Authorization", "Bearer wrong")
	s.answer(http.StatusOK, http.MethodGet, "/jobs", "", "Authorization", "Bearer a-long-random-token")
}

// away is a store that does not answer.
type away struct{ jobstore.Pending }

func (away) Put(context.Context, []job.Entry) error { return errors.New("connection refused") }

func TestStoreThatIsAwayGives503AndWhenToTryAgain(t *testing.T) {
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Pending = away{d.Pending} })
	_, h := s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", goodJob)
	if h.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestOneKeyMakesOneJob(t *testing.T) {
	s := newServer(t, nil)
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			id := s.create(goodJob, "Idempotency-Key", "k1")
			mu.Lock()
			defer mu.Unlock()
			ids[id] = true
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("%d jobs", len(ids))
	}
	w := s.do(http.MethodPost, "/jobs", goodJob, "Idempotency-Key", "k1")
	if w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", strings.Replace(goodJob, "report", "other", 1), "Idempotency-Key", "k1")
	inBody := strings.Replace(goodJob, `"name"`, `"idempotency_key":"k1","name"`, 1)
	if id := s.create(inBody); !ids[id] {
		t.Error("the key in the body made another job")
	}
	if n, changes := s.entries(), s.changes()["createJob"]; n != 1 || len(changes) != 1 {
		t.Errorf("%d entries, and the changes %v", n, changes)
	}
	path := "/jobs/" + s.create(goodJob) + "/trigger"
	one, _ := s.answer(http.StatusAccepted, http.MethodPost, path, "", "Idempotency-Key", "k2")
	two, _ := s.answer(http.StatusAccepted, http.MethodPost, path, "", "Idempotency-Key", "k2")
	if one["execution_id"] != two["execution_id"] {
		t.Errorf("one key executed %v and %v", one, two)
	}
}

// flaky fails the n-th write, before or after it took effect.
type flaky struct {
	mu    sync.Mutex
	left  int
	after bool
}

var errFlaky = errors.New("lost connection")

func (f *flaky) call(do func() error) error {
	f.mu.Lock()
	f.left--
	fail := f.left == 0
	f.mu.Unlock()
	if fail && !f.after {
		return errFlaky
	}
	if err := do(); err != nil {
		return err
	}
	if fail {
		return errFlaky
	}
	return nil
}

type flakyJobs struct {
	jobstore.Jobs
	*flaky
}

func (j flakyJobs) ClaimKey(ctx context.Context, tenant job.Tenant, key string, c jobstore.Claim) (standing jobstore.Claim, won bool, err error) {
	err = j.call(func() (err error) { standing, won, err = j.Jobs.ClaimKey(ctx, tenant, key, c); return err })
	return standing, won, err
}

func (j flakyJobs) Create(ctx context.Context, row job.Job, exclusive bool) error {
	return j.call(func() error { return j.Jobs.Create(ctx, row, exclusive) })
}

func (j flakyJobs) CreateMany(ctx context.Context, rows []job.Job) error {
	return j.call(func() error { return j.Jobs.CreateMany(ctx, rows) })
}

func (j flakyJobs) FinishKey(ctx context.Context, tenant job.Tenant, key string, a jobstore.Answer) error {
	return j.call(func() error { return j.Jobs.FinishKey(ctx, tenant, key, a) })
}

type flakyPending struct {
	jobstore.Pending
	*flaky
}

func (p flakyPending) Put(ctx context.Context, entries []job.Entry) error {
	return p.call(func() error { return p.Pending.Put(ctx, entries) })
}

func TestCrashBetweenClaimAndRowsIsCompletedByTheRetry(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; n <= 4; n++ { // claim, entry, row, answer
			f := &flaky{left: n, after: after}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
				d.Jobs, d.Pending = flakyJobs{d.Jobs, f}, flakyPending{d.Pending, f}
			})
			s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", goodJob, "Idempotency-Key", "k")
			first := s.create(goodJob, "Idempotency-Key", "k")
			if again := s.create(goodJob, "Idempotency-Key", "k"); again != first {
				t.Errorf("write %d (after: %v): jobs %s and %s", n, after, first, again)
			}
			m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs", "")
			if jobs, entries := len(m["items"].([]any)), s.entries(); jobs != 1 || entries != 1 || len(s.changes()["createJob"]) != 1 {
				t.Errorf("write %d (after: %v): %d jobs, %d entries", n, after, jobs, entries)
			}
		}
	}
}
