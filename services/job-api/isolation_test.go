package jobapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// calls counts the calls of every method of the stores, whatever methods they have.
type calls struct{ n atomic.Int64 }

// countedStore is every port that an operation may ask, with each call counted.
type countedStore struct {
	jobstore.Jobs
	jobstore.Pending
	jobstore.History
	jobstore.Settings
	c *calls
}

func (s countedStore) Get(ctx context.Context, id string) (job.Job, error) {
	s.c.n.Add(1)
	return s.Jobs.Get(ctx, id)
}

func (s countedStore) GetSerial(ctx context.Context, id string) (job.Job, error) {
	s.c.n.Add(1)
	return s.Jobs.GetSerial(ctx, id)
}

func (s countedStore) GetMany(ctx context.Context, ids []string) (map[string]*job.Job, error) {
	s.c.n.Add(1)
	return s.Jobs.GetMany(ctx, ids)
}

func (s countedStore) Replace(ctx context.Context, j job.Job) error {
	s.c.n.Add(1)
	return s.Jobs.Replace(ctx, j)
}

func (s countedStore) PutDefinition(ctx context.Context, id string, d job.Definition) error {
	s.c.n.Add(1)
	return s.Jobs.PutDefinition(ctx, id, d)
}

func (s countedStore) List(ctx context.Context, t job.Tenant, cursor string, limit int) ([]job.Job, string, error) {
	s.c.n.Add(1)
	return s.Jobs.List(ctx, t, cursor, limit)
}

func (s countedStore) Put(ctx context.Context, entries []job.Entry) error {
	s.c.n.Add(1)
	return s.Pending.Put(ctx, entries)
}

func (s countedStore) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	s.c.n.Add(1)
	return s.Pending.Row(ctx, l)
}

func (s countedStore) Execution(ctx context.Context, id string) ([]job.Event, error) {
	s.c.n.Add(1)
	return s.History.Execution(ctx, id)
}

func (s countedStore) Executions(ctx context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int) ([]job.Event, error) {
	s.c.n.Add(1)
	return s.History.Executions(ctx, of, before, oldest, limit)
}

func (s countedStore) DeadLetters(ctx context.Context, t job.Tenant, cursor string, limit int) ([]job.DeadLetter, string, error) {
	s.c.n.Add(1)
	return s.History.DeadLetters(ctx, t, cursor, limit)
}

func (s countedStore) Setting(ctx context.Context, name string) ([]byte, error) {
	s.c.n.Add(1)
	return s.Settings.Setting(ctx, name)
}

func (s countedStore) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	s.c.n.Add(1)
	return s.Settings.SwapSetting(ctx, name, old, value)
}

func (s countedStore) Items(ctx context.Context, list, after string, limit int) ([]jobstore.Item, error) {
	s.c.n.Add(1)
	return s.Settings.Items(ctx, list, after, limit)
}

// countedRecords counts what is asked of the hot tier.
type countedRecords struct {
	attempts.Records
	c *calls
}

func (r countedRecords) Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	r.c.n.Add(1)
	return r.Records.Lookup(ctx, keys)
}

func (r countedRecords) SetStop(ctx context.Context, id string, s job.State) (time.Duration, error) {
	r.c.n.Add(1)
	return r.Records.SetStop(ctx, id, s)
}

// two is an API with two tenants, each of which has something of every kind.
type two struct {
	*server
	calls       *calls
	keys        map[string]string // an admin's key of each tenant
	jobs        map[string]string
	executions  map[string]string
	keyIDs      map[string]string
	operations  map[string]string
	cursors     map[string][]string
	jobsHistory jobstore.History
	// report is told what one tenant sees of another.
	report func(format string, args ...any)
}

const adminToken = "the-admin-of-the-installation"

func newTwo(t *testing.T, between func(jobstore.Jobs) jobstore.Jobs) *two {
	t.Helper()
	w := &two{
		calls: &calls{}, keys: map[string]string{}, jobs: map[string]string{}, executions: map[string]string{}, keyIDs: map[string]string{}, operations: map[string]string{},
		cursors: map[string][]string{}, report: t.Errorf,
	}
	w.server = newServer(t, func(c *jobapi.Config, d *jobapi.Deps) {
		c.AuthToken = adminToken
		w.jobsHistory = d.History
		if between != nil {
			d.Jobs = between(d.Jobs)
		}
		s := countedStore{d.Jobs, d.Pending, d.History, d.Settings, w.calls}
		d.Jobs, d.Pending, d.History, d.Settings = s, s, s, s
		d.Records = countedRecords{d.Records, w.calls}
	})
	for _, tenant := range []string{"acme", "globex"} {
		w.answer(http.StatusCreated, http.MethodPost, "/tenants", `{"name":"`+tenant+`"}`, as(adminToken)...)
		w.answer(http.StatusCreated, http.MethodPut, "/connections/only-"+tenant, `{"kafka":{"brokers":["only-`+tenant+`:9092"]}}`, append(as(adminToken), "Minutehand-Tenant", tenant)...)
		m, _ := w.answer(http.StatusCreated, http.MethodPost, "/keys", `{"name":"`+tenant+`","role":"admin"}`, append(as(adminToken), "Minutehand-Tenant", tenant)...)
		w.keys[tenant], w.keyIDs[tenant] = m["key"].(string), m["key_id"].(string)
		for range 3 {
			w.renew(tenant)
		}
		for _, path := range []string{"/jobs?limit=1", "/dead-letters?limit=1", "/incidents?limit=1"} {
			m, _ = w.answer(http.StatusOK, http.MethodGet, path, "", as(w.keys[tenant])...)
			w.cursors[tenant] = append(w.cursors[tenant], m["next_cursor"].(string))
		}
	}
	return w
}

// renew gives a tenant another job, with an execution that failed for good.
func (w *two) renew(tenant string) {
	w.t.Helper()
	body := strings.Replace(goodJob, `"report"`, `"only `+tenant+`"`, 1)
	m, _ := w.answer(http.StatusCreated, http.MethodPost, "/jobs", body, as(w.keys[tenant])...)
	w.jobs[tenant] = m["job_id"].(string)
	dead := deadEvent(w.jobs[tenant])
	dead.Entry.Tenant = tenantOf(w.t, w, w.jobs[tenant])
	must(w.t, w.jobsHistory.Record(w.t.Context(), jobstore.Unencoded(&dead)))
	must(w.t, w.jobsHistory.PutDeadLetter(w.t.Context(), job.DeadLetter{Event: dead, Reason: "permanent", At: dead.At}))
	w.executions[tenant] = dead.Entry.ExecutionID
	at := job.Instant(time.Now())
	must(w.t, incidents.Store{Lists: w.stored}.Put(w.t.Context(), &incidents.Incident{
		ID: incidents.ID(w.jobs[tenant], incidents.StartWithin, at), Tenant: dead.Entry.Tenant, JobID: w.jobs[tenant], JobName: "only " + tenant,
		Deadline: incidents.StartWithin, Within: time.Second, Cause: incidents.CauseHeld, Reason: "only " + tenant, First: at, Last: at, Missed: 1,
	}))
}

// operate gives a tenant another operation instead of the one it had.
func (w *two) operate(tenant string) {
	w.t.Helper()
	for _, op := range []string{"backfillJob", "cancelOperation", "pauseOperation", "resumeOperation"} {
		for _, e := range w.changes()[op] { // as if they were published
			must(w.t, w.pending.MarkDone(w.t.Context(), []job.Locator{e.Locator}))
		}
	}
	if id := w.operations[tenant]; id != "" { // there may be 20 at a time
		w.do(http.MethodPost, "/operations/"+id+"/cancel", "", as(w.keys[tenant])...)
	}
	got := w.do(http.MethodPost, "/jobs/"+w.jobs[tenant]+"/backfill", bases()["/jobs/{id}/backfill"], as(w.keys[tenant])...)
	var begun struct {
		ID string `json:"operation_id"`
	}
	if must(w.t, json.Unmarshal(got.Body.Bytes(), &begun)); begun.ID == "" {
		begun.ID = "op_" + w.jobs[tenant][4:] // where the check of the tenant is broken on purpose
	}
	w.operations[tenant] = begun.ID
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tenantOf(t testing.TB, w *two, id string) job.Tenant {
	t.Helper()
	j, err := w.server.jobs.Get(t.Context(), id)
	must(t, err)
	return j.Tenant
}

func as(credential string) []string { return []string{"Authorization", "Bearer " + credential} }

// ask makes a request as a tenant, and returns the answer with the number of store calls.
func (w *two) ask(tenant string, op *described, path, body string) (*httptest.ResponseRecorder, int64) {
	before := w.calls.n.Load()
	headers := append(as(w.keys[tenant]), "If-Match", "*")
	if op.contentType != "" {
		headers = append(headers, "Content-Type", op.contentType)
	}
	answer := w.do(op.method, path, body, headers...)
	return answer, w.calls.n.Load() - before
}

// TestNothingOfOneTenantShowsInWhatAnotherIsAnswered makes every operation of the document with every id and cursor of another
// tenant, and with ids that do not exist. The two are answered alike, byte by byte, and cost as many calls of the stores; and no
// answer holds anything of the other tenant. A new operation, and a new kind of parameter, is tried without a line here.
func TestNothingOfOneTenantShowsInWhatAnotherIsAnswered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // time stands, so that no cached key grows too old between two requests that are compared
		w := newTwo(t, nil)
		w.tryAll()
		for tenant, id := range w.jobs {
			m, _ := w.answer(http.StatusOK, http.MethodGet, "/jobs/"+id, "", as(w.keys[tenant])...)
			if tenant == "acme" && (m["status"] != "active" || m["name"] != "only acme") {
				t.Errorf("the other tenant has changed a job: %v", m)
			}
		}
		w.answer(http.StatusOK, http.MethodGet, "/whoami", "", as(w.keys["acme"])...) // its key was not revoked
	})
}

// unchecked is a store that says of every job that it belongs to the tenant which asks: no check of the tenant finds anything wrong.
type unchecked struct {
	jobstore.Jobs
	asks *job.Tenant
}

func (u unchecked) Get(ctx context.Context, id string) (job.Job, error) {
	j, err := u.Jobs.Get(ctx, id)
	j.Tenant = *u.asks
	return j, err
}

func TestOperationWithoutACheckOfTheTenantIsNoticed(t *testing.T) {
	var asks job.Tenant
	w := newTwo(t, func(jobs jobstore.Jobs) jobstore.Jobs { return unchecked{jobs, &asks} })
	j, err := w.server.jobs.Get(t.Context(), w.jobs["globex"])
	must(t, err)
	asks = j.Tenant
	noticed := map[string]bool{}
	w.report = func(_ string, args ...any) { noticed[fmt.Sprint(args[0])] = true }
	w.tryAll()
	for _, op := range []string{
		"getJob", "replaceJob", "patchJob", "deleteJob", "pauseJob", "resumeJob", "cancelJob", "triggerJob", "listExecutions", "listOccurrences", "getExecution", "cancelExecution", "backfillJob", "replayJob", "replayExecution",
	} {
		if !noticed[op] {
			t.Errorf("%s shows or changes another tenant's job, and the test did not notice", op)
		}
	}
}

// tryAll makes every operation as globex, with what is acme's.
func (w *two) tryAll() {
	t := w.t
	absentJob := "job_01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, op := range loadDocument(t).operations() {
		template := strings.TrimPrefix(op.path, "/api/v1")
		w.renew("acme")
		if w.operate("acme"); op.id == "listOperations" {
			w.operate("globex")
		}
		theirs := map[string]string{
			"{id}": w.jobs["acme"], "{execution_id}": w.executions["acme"], "{key_id}": w.keyIDs["acme"], "{tenant}": "acme",
			"{operation_id}": w.operations["acme"],
		}
		if op.method == http.MethodGet { // who changes a connection changes one of its own, whatever its name
			theirs["{connection}"] = "only-acme"
		}
		absent := map[string]string{
			"{id}": absentJob, "{execution_id}": "exe_" + absentJob[4:] + w.executions["acme"][len("exe_"+absentJob[4:]):], "{key_id}": "mh_0000ffff_1", "{tenant}": "nobody",
			"{operation_id}": "op_" + absentJob[4:], "{connection}": "nobody",
		}
		body := ""
		if op.body != nil {
			if body = goodJob; strings.Contains(op.contentType, "merge-patch") {
				body = `{"name":"mine now"}`
			}
			if b, ok := bases()[template]; ok {
				body = b
			}
		}
		for parameter := range theirs {
			if !strings.Contains(template, parameter) {
				continue
			}
			w.alike(&op, strings.Replace(template, parameter, theirs[parameter], 1), strings.Replace(template, parameter, absent[parameter], 1), body)
		}
		for _, p := range op.parameters {
			if p["name"] == "cursor" {
				for _, c := range w.cursors["acme"] {
					answer, _ := w.ask("globex", &op, named(template, w.jobs["globex"])+"?cursor="+c, body)
					w.clean(&op, answer)
				}
			}
		}
		if !strings.Contains(template, "{") {
			answer, _ := w.ask("globex", &op, template, body)
			w.clean(&op, answer)
		}
		if strings.HasPrefix(op.id, "redrive") {
			w.alike(&op, template, template, `{"filter":{"job_id":"`+w.jobs["acme"]+`"}}`)
		}
	}
}

// alike fails the test unless two requests are answered in the same way, as a tenant to which both are strange.
func (w *two) alike(op *described, theirs, absent, body string) {
	w.t.Helper()
	a, callsA := w.ask("globex", op, theirs, body)
	b, callsB := w.ask("globex", op, absent, body)
	if theirs != absent && a.Code != http.StatusNotFound && a.Code != http.StatusForbidden {
		w.report("%s: what belongs to another tenant is answered %d %s", op.id, a.Code, a.Body)
	}
	if a.Code != b.Code || a.Body.String() != b.Body.String() || !reflect.DeepEqual(headers(a), headers(b)) {
		w.report("%s: another's is answered %d %v %s, what does not exist %d %v %s", op.id, a.Code, headers(a), a.Body, b.Code, headers(b), b.Body)
	}
	if callsA != callsB {
		w.report("%s: another's costs %d calls of the stores, what does not exist %d", op.id, callsA, callsB)
	}
	w.clean(op, a)
}

func headers(w *httptest.ResponseRecorder) http.Header {
	h := w.Header().Clone()
	h.Del("Request-Id")
	return h
}

// clean fails the test if an answer to globex holds anything of acme.
func (w *two) clean(op *described, answer *httptest.ResponseRecorder) {
	w.t.Helper()
	if answer.Code >= 500 {
		w.report("%s: %d %s", op.id, answer.Code, answer.Body)
	}
	text := answer.Body.String() + fmt.Sprint(answer.Header())
	secrets := append(slices.Clone(w.cursors["acme"]), "only acme", "only-acme:9092", w.jobs["acme"], w.jobs["acme"][4:], w.executions["acme"], w.keyIDs["acme"], w.keys["acme"])
	if op.id == "createTenant" { // the operators' own
		secrets = nil
	}
	for _, s := range secrets {
		if strings.Contains(text, s) {
			w.report("%s: the answer to globex holds %s of acme: %s", op.id, s, answer.Body)
		}
	}
}

func TestIdempotencyKeysOfTwoTenantsHaveNothingToDoWithEachOther(t *testing.T) {
	w := newTwo(t, nil)
	bodies := map[string]string{"acme": goodJob, "globex": strings.Replace(goodJob, "report", "other", 1)}
	for tenant, body := range bodies {
		m, h := w.answer(http.StatusCreated, http.MethodPost, "/jobs", body, append(as(w.keys[tenant]), "Idempotency-Key", "k")...)
		if h.Get("Idempotency-Replayed") != "" || tenantOf(t, w, m["job_id"].(string)) == job.DefaultTenant {
			t.Errorf("%s: %v %v", tenant, m, h)
		}
	}
}

func TestEveryRowAndEntryNamesItsTenant(t *testing.T) {
	w := newTwo(t, nil)
	path := "/jobs/" + w.jobs["acme"]
	w.answer(http.StatusOK, http.MethodPatch, path, `{"cron_expr":"0 10 * * *"}`, append(as(w.keys["acme"]), "If-Match", "*")...)
	w.answer(http.StatusAccepted, http.MethodPost, path+"/trigger", "", as(w.keys["acme"])...)
	w.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{"filter":{}}`, as(w.keys["acme"])...)
	w.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+goodJob+`]}`, as(w.keys["acme"])...)
	seen := 0
	w.eachEntry(func(e *job.Entry) {
		seen++
		if e.Change != nil && e.Change.Setting != "" {
			if of := job.SettingsOf(e.Tenant); e.JobID != of && e.JobID != job.InstallationSettings() {
				t.Errorf("the change of %s names tenant %s, and lies with %s", e.Change.Setting, e.Tenant, e.JobID)
			}
			return
		}
		if want := tenantOf(t, w, e.JobID); e.Tenant != want || want == job.DefaultTenant {
			t.Errorf("the entry of %s (%s) names tenant %s, its job %s", e.ExecutionID, e.Trigger, e.Tenant, want)
		}
	})
	if seen < 10 {
		t.Errorf("only %d entries", seen)
	}
}

// An earlier release drops the tenant of an entry that it copies, so a dead letter may lie with the default tenant.
func TestDeadLetterThatLiesWithAnotherTenantIsNeitherShownNorRedrivenThere(t *testing.T) {
	w := newTwo(t, nil)
	stray := deadEvent(w.jobs["acme"])
	must(t, w.jobsHistory.PutDeadLetter(t.Context(), job.DeadLetter{Event: stray, Reason: "permanent", At: stray.At}))
	m, _ := w.answer(http.StatusOK, http.MethodGet, "/dead-letters", "", as(adminToken)...)
	if items, _ := m["items"].([]any); len(items) != 0 {
		t.Errorf("shown: %v", m)
	}
	m, _ = w.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{"filter":{}}`, as(adminToken)...)
	if m["redriven"] != 0.0 {
		t.Errorf("redriven: %v", m)
	}
}

func TestTenantHoldsItsOwnJobsOnly(t *testing.T) {
	w := newTwo(t, nil)
	w.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", `{}`, as(w.keys["acme"])...)
	w.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", `{"label":"a"}`, as(w.keys["globex"])...)
	for _, c := range []struct {
		who    []string
		paused bool
		labels string
	}{
		{as(w.keys["acme"]), true, "[]"},
		{as(w.keys["globex"]), false, "[a]"},
		{as(adminToken), false, "[]"},
		{append(as(adminToken), "Minutehand-Tenant", "acme"), true, "[]"},
	} {
		m, _ := w.answer(http.StatusOK, http.MethodGet, "/dispatch", "", c.who...)
		if m["paused"] != c.paused || fmt.Sprint(m["paused_labels"]) != c.labels {
			t.Errorf("%v: %v", c.who, m)
		}
	}
	w.answer(http.StatusOK, http.MethodPost, "/dispatch/resume", `{}`, as(w.keys["acme"])...)
	raw, err := w.stored.Setting(t.Context(), jobstore.SettingDispatchHold)
	must(t, err)
	var h job.DispatchHold
	must(t, json.Unmarshal(raw, &h))
	if h.All || len(h.Tenants) != 1 {
		t.Errorf("held: %s", raw)
	}
}
