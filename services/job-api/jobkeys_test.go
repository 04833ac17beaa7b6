package jobapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

const keyedJob = `{"key":"nightly:report","name":"report","type":"cron","cron_expr":"0 3 * * *","target":{"kind":"http_webhook","url":"https://example.com/hook"}}`

// taken checks that a job with the key is refused because of another job, or because another request was faster (id is "").
func (s *server) taken(id string, headers ...string) {
	s.t.Helper()
	p, _ := s.answer(http.StatusConflict, http.MethodPost, "/jobs", keyedJob, headers...)
	faults := p["errors"].([]any)
	fault := faults[0].(map[string]any)
	if len(faults) != 1 || fault["pointer"] != "/key" || !strings.Contains(fault["message"].(string), id) {
		s.t.Errorf("the key is refused by %v, want that %q has it", p, id)
	}
}

func TestWrittenKeyStandsForTheJobThatHasItNow(t *testing.T) {
	s := newServer(t, nil)
	s.create(keyedJob)
	const follows = `{"name":"after","type":"after","after":[{"job":"key:nightly:report"}],"target":{"kind":"http_webhook","url":"https://example.com/hook"}}`
	id := s.create(follows)
	parent := func() string {
		t.Helper()
		row, err := s.jobs.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return row.Definition.Schedule.After[0].JobID
	}
	former := parent()
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/key:nightly:report", "")
	for _, c := range [][2]string{{http.MethodPut, follows}, {http.MethodPatch, `{"after":[{"job":"key:nightly:report"}]}`}} {
		s.answer(http.StatusOK, c[0], "/jobs/"+id, c[1], "If-Match", "*") // nobody has the key
		if parent() != former {
			t.Errorf("after %s it follows %s while nobody has the key, want %s as before", c[0], parent(), former)
		}
	}
	present := s.create(keyedJob)
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"other"}`, "If-Match", "*")
	if parent() != former {
		t.Errorf("it follows %s, though only its name was changed", parent())
	}
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"after":[{"job":"key:nightly:report","on":"any"}]}`, "If-Match", "*")
	if parent() != present {
		t.Errorf("it follows %s, want %s, which has the key", parent(), present)
	}
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/key:nightly:report", "")
	present = s.create(keyedJob)
	s.answer(http.StatusOK, http.MethodPut, "/jobs/"+id, follows, "If-Match", "*")
	if parent() != present {
		t.Errorf("after PUT it follows %s, want %s, which has the key", parent(), present)
	}
}

func TestJobIsFoundUnderItsKey(t *testing.T) {
	s := newServer(t, nil)
	id := s.create(keyedJob)
	for _, c := range []struct {
		status             int
		method, path, body string
	}{
		{http.StatusOK, http.MethodGet, "", ""},
		{http.StatusOK, http.MethodPatch, "", `{"name":"other"}`},
		{http.StatusOK, http.MethodPut, "", keyedJob},
		{http.StatusOK, http.MethodPut, "", strings.Replace(keyedJob, `"key":"nightly:report",`, "", 1)},
		{http.StatusOK, http.MethodPost, "/pause", ""},
		{http.StatusOK, http.MethodPost, "/resume", ""},
		{http.StatusAccepted, http.MethodPost, "/trigger", ""},
		{http.StatusOK, http.MethodGet, "/executions", ""},
		{http.StatusOK, http.MethodGet, "/occurrences", ""},
		{http.StatusOK, http.MethodGet, "/changes", ""},
		{http.StatusOK, http.MethodPost, "/cancel", ""},
	} {
		m, _ := s.answer(c.status, c.method, "/jobs/key:nightly:report"+c.path, c.body, "If-Match", "*")
		if got := m["job_id"]; m["items"] == nil && got != id {
			t.Errorf("%s %s is about job %v, want %s", c.method, c.path, got, id)
		}
		if c.path != "/trigger" && m["items"] == nil && m["key"] != "nightly:report" {
			t.Errorf("%s %s shows the key %v", c.method, c.path, m["key"])
		}
	}
	s.answer(http.StatusNotFound, http.MethodGet, "/jobs/key:nightly", "")
	s.answer(http.StatusBadRequest, http.MethodGet, "/jobs/key:", "")
	for path, want := range map[string]int{ // as clients escape them
		"key%3Anightly%3Areport": http.StatusOK, "key:nightly%3areport": http.StatusOK, "key%3Aa%2Fb": http.StatusBadRequest,
		"key:nightly%253Areport": http.StatusBadRequest,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/jobs/"+path, http.NoBody)
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s is answered %d, want %d: %s", path, w.Code, want, w.Body)
		}
	}
}

func TestBodyMayNameAJobByItsKey(t *testing.T) {
	s := newServer(t, nil)
	id := s.create(keyedJob)
	dead := deadEvent(id)
	must(t, s.deps.History.PutDeadLetter(t.Context(), job.DeadLetter{Event: dead, Reason: "permanent", At: dead.At}))
	preview := `{"type":"cron","cron_expr":"H H * * *","job_id":"JOB"}`
	byID, _ := s.answer(http.StatusOK, http.MethodPost, "/schedules/preview", strings.Replace(preview, "JOB", id, 1))
	byKey, _ := s.answer(http.StatusOK, http.MethodPost, "/schedules/preview", strings.Replace(preview, "JOB", "key:nightly:report", 1))
	if byID["description"] != byKey["description"] {
		t.Errorf("H is %v by id, and %v by key", byID["description"], byKey["description"])
	}
	m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{"filter":{"job_id":"key:nightly:report"}}`)
	if m["redriven"] != 1.0 {
		t.Errorf("redriven: %v", m)
	}
	for path, c := range map[string][2]string{
		"/schedules/preview":    {strings.Replace(preview, "JOB", "key:other", 1), "/job_id"},
		"/dead-letters:redrive": {`{"filter":{"job_id":"key:other"}}`, "/filter/job_id"},
	} {
		p, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, path, c[0])
		if fault := p["errors"].([]any)[0].(map[string]any); fault["pointer"] != c[1] {
			t.Errorf("%s with a key that no job has: %v", path, p)
		}
	}
}

func TestRequestThatNamesAJobByItsKeyIsAboutOneJob(t *testing.T) {
	s := newServer(t, nil)
	first := s.create(keyedJob)
	trigger := func(want int, reference string) map[string]any {
		m, _ := s.answer(want, http.MethodPost, "/jobs/"+reference+"/trigger", "", "Idempotency-Key", "once")
		return m
	}
	x := trigger(http.StatusAccepted, "key:nightly:report")["execution_id"]
	if again := trigger(http.StatusAccepted, first)["execution_id"]; again != x {
		t.Errorf("by its id the job was triggered as %v, by its key as %v", again, x)
	}
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/"+first, "")
	s.create(keyedJob)
	trigger(http.StatusUnprocessableEntity, "key:nightly:report")
}

func TestBatchHasEachKeyOnce(t *testing.T) {
	s := newServer(t, nil)
	results := s.batch(`{"jobs":[` + keyedJob + `,` + keyedJob + `]}`).Results
	if results[0].Status != http.StatusCreated || results[1].Status != http.StatusUnprocessableEntity {
		t.Errorf("%+v", results)
	}
}

func TestKeyBelongsToOneJobUntilItIsDeleted(t *testing.T) {
	s := newServer(t, nil)
	first := s.create(keyedJob)
	s.taken(first)
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+first+"/cancel", "")
	s.taken(first)
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/key:nightly:report", "")
	s.answer(http.StatusNotFound, http.MethodGet, "/jobs/key:nightly:report", "")
	second := s.create(keyedJob)
	s.taken(second)
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/"+first, "") // again
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/key:nightly:report", "")
	if m["job_id"] != second || first == second {
		t.Errorf("the key names job %v, want %s", m["job_id"], second)
	}
}

func TestJobKeepsItsKey(t *testing.T) {
	s := newServer(t, nil)
	id, plain := s.create(keyedJob), s.create(goodJob)
	for path, body := range map[string]string{
		"/jobs/" + id:              `{"key":"weekly"}`,
		"/jobs/" + plain:           `{"key":"weekly"}`,
		"/jobs/key:nightly:report": `{"key":null}`,
	} {
		p, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPatch, path, body, "If-Match", "*")
		if fault := p["errors"].([]any)[0].(map[string]any); fault["pointer"] != "/key" || fault["code"] != "fixed" {
			t.Errorf("PATCH %s %s: %v", path, body, p)
		}
	}
	s.answer(http.StatusNotFound, http.MethodGet, "/jobs/key:weekly", "")
}

// overtaken makes a second request for a key while the first is about to create its job.
type overtaken struct {
	jobstore.Jobs
	second func()
}

func (o *overtaken) Create(ctx context.Context, j job.Job, exclusive bool) error {
	if second := o.second; second != nil && !j.IsVoid() {
		o.second = nil
		second()
	}
	return o.Jobs.Create(ctx, j, exclusive)
}

// Nobody can tell a request that stalls from one that has died. The key goes to the one that goes on; the other finds that out before it
// answers, and so does its client if it repeats the request.
func TestOfTwoRequestsForOneKeyOneCreatesAJob(t *testing.T) {
	store := &overtaken{}
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { store.Jobs, d.Jobs = d.Jobs, store })
	var second string
	store.second = func() { second = s.create(keyedJob) }
	s.taken("", "Idempotency-Key", "first")
	s.taken("", "Idempotency-Key", "first")
	s.taken(second)
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/key:nightly:report", "")
	page, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs", "")
	if items := page["items"].([]any); m["job_id"] != second || len(items) != 1 {
		t.Errorf("the key names job %v, want %s; %d jobs are listed", m["job_id"], second, len(items))
	}
}

// fails fails some writes of entries.
type fails struct {
	jobstore.Pending
	left atomic.Int64
}

func (f *fails) Put(ctx context.Context, entries []job.Entry) error {
	if f.left.Add(-1) >= 0 {
		return errFlaky
	}
	return f.Pending.Put(ctx, entries)
}

func TestKeyOfARequestThatDiedIsFree(t *testing.T) {
	store := &fails{}
	store.left.Store(2)
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { store.Pending, d.Pending = d.Pending, store })
	s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", keyedJob)
	s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", keyedJob, "Idempotency-Key", "same")
	s.answer(http.StatusNotFound, http.MethodGet, "/jobs/key:nightly:report", "")
	id := s.create(keyedJob, "Idempotency-Key", "same")
	s.taken(id)
}

func TestBatchWithKeysCreatesWhatIsMissingWhenItIsRepeated(t *testing.T) {
	store := &fails{}
	store.left.Store(1)
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { store.Pending, d.Pending = d.Pending, store })
	body := `{"jobs":[` + keyedJob + `,` + strings.Replace(keyedJob, "nightly", "weekly", 1) + `]}`
	ids := map[any]bool{}
	status := map[int]int{}
	for range 3 { // once with a failure, once more, and the answer that was kept
		for _, r := range s.batch(body, "Idempotency-Key", "k").Results {
			if status[r.Status]++; r.Status == http.StatusCreated {
				ids[r.Job["job_id"]] = true
			}
		}
	}
	if status[http.StatusServiceUnavailable] != 1 || status[http.StatusCreated] != 5 || len(ids) != 2 {
		t.Errorf("answered %v, with %d jobs", status, len(ids))
	}
	for _, r := range s.batch(body).Results {
		if r.Status != http.StatusConflict {
			t.Errorf("a batch with keys that are taken: %+v", r)
		}
	}
}
