package jobapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// TestEveryOperationThatChangesSomethingNamesWhoMadeIt makes every such operation of the document. A new one is tried without a line
// here.
func TestEveryOperationThatChangesSomethingNamesWhoMadeIt(t *testing.T) {
	w := newTwo(t, nil)
	operator := append(as(adminToken), "Minutehand-Tenant", "acme")
	credential := append(operator[:4:4], "If-Match", "*")
	before := map[string]func(){
		"resumeJob": func() {
			w.answer(http.StatusOK, http.MethodPost, "/jobs/"+w.jobs["acme"]+"/pause", "", operator...)
		},
		"deleteConnection": func() {
			w.answer(http.StatusCreated, http.MethodPut, "/connections/orders", bases()["/connections/{connection}"], operator...)
		},
		"resumeDispatch": func() {
			w.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", "{}", operator...)
		},
	}
	tried := 0
	for _, op := range loadDocument(t).operations() {
		if op.method == http.MethodGet || op.id == "previewSchedule" || strings.HasPrefix(op.path, "/api/v1/pools/{pool}/") {
			continue // what a worker does with a task is part of the execution
		}
		tried++
		w.renew("acme")
		w.operate("acme")
		m, _ := w.answer(http.StatusAccepted, http.MethodPost, "/jobs/"+w.jobs["acme"]+"/trigger", "", as(w.keys["acme"])...)
		k, _ := w.answer(http.StatusCreated, http.MethodPost, "/keys", `{"name":"x","role":"viewer"}`, as(w.keys["acme"])...)
		if f := before[op.id]; f != nil {
			f()
		}
		template := strings.TrimPrefix(op.path, "/api/v1")
		body := ""
		if op.body != nil {
			if body = goodJob; strings.Contains(op.contentType, "merge-patch") {
				body = `{"name":"another"}`
			}
			if b, ok := bases()[template]; ok {
				body = b
			}
		}
		headers := append(credential[:6:6], "Content-Type", max(op.contentType, "application/json"))
		if op.id == "createTenant" {
			body, headers = `{"name":"fresh"}`, as(adminToken)
		}
		path := strings.NewReplacer("{id}", w.jobs["acme"], "{execution_id}", m["execution_id"].(string), "{key_id}", k["key_id"].(string),
			"{tenant}", "fresh", "{operation_id}", w.operations["acme"], "{connection}", "orders", "{pool}", "work").Replace(template)
		got := w.do(op.method, path, body, headers...)
		if got.Code >= http.StatusBadRequest {
			t.Errorf("%s: %d %s", op.id, got.Code, got.Body)
			continue
		}
		want := job.Author{Subject: "token", Role: "admin", Request: got.Header().Get("Request-Id"), Source: "192.0.2.1"}
		acme := tenantOf(t, w, w.jobs["acme"])
		named := 0
		w.eachEntry(func(e *job.Entry) {
			if e.By == nil || e.By.Request != want.Request {
				return
			}
			named++
			tenant := acme
			if strings.HasPrefix(e.JobID, job.InstallationSettings()) {
				tenant = job.DefaultTenant
			}
			if *e.By != want || e.Tenant != tenant || e.Change != nil && e.Change.Operation != op.id {
				t.Errorf("%s: an entry of tenant %s names %+v and %+v", op.id, e.Tenant, e.By, e.Change)
			}
		})
		if named == 0 {
			t.Errorf("%s: no entry names who made it", op.id)
		}
	}
	if tried < 17 {
		t.Errorf("only %d operations", tried)
	}
}

func TestChangesOfAJobAreListedNewestFirstInPages(t *testing.T) {
	w := newTwo(t, nil)
	path := "/jobs/" + w.jobs["acme"]
	for range 3 {
		w.answer(http.StatusOK, http.MethodPost, path+"/pause", "", as(w.keys["acme"])...)
		w.answer(http.StatusOK, http.MethodPost, path+"/resume", "", as(w.keys["acme"])...)
	}
	w.eachEntry(func(e *job.Entry) { // as workers publish them, and the audit-writer records them
		if e.Change != nil {
			event := job.ChangeEvent(*e, e.DueAt)
			must(t, w.jobsHistory.Record(t.Context(), jobstore.Unencoded(&event)))
		}
	})
	var operations []string
	for query := "?limit=2"; ; {
		page, _ := w.answer(http.StatusOK, http.MethodGet, path+"/changes"+query, "", as(w.keys["acme"])...)
		for _, x := range page["items"].([]any) {
			c := x.(map[string]any)
			operations = append(operations, c["operation"].(string))
			if c["by"] != "key:"+w.keyIDs["acme"] || c["role"] != "admin" || c["request_id"] == "" || c["version"] != float64(8-len(operations)) {
				t.Errorf("listed %v", c)
			}
		}
		next, ok := page["next_cursor"].(string)
		if !ok {
			break
		}
		query = "?limit=2&cursor=" + next
	}
	if got := strings.Join(operations, " "); got != "resumeJob pauseJob resumeJob pauseJob resumeJob pauseJob createJob" {
		t.Errorf("listed %s", got)
	}
	w.answer(http.StatusOK, http.MethodGet, path+"/executions", "", as(w.keys["acme"])...)
	w.answer(http.StatusBadRequest, http.MethodGet, "/executions/"+job.ChangeExecutionID(w.jobs["acme"], w.jobs["acme"][4:]), "", as(w.keys["acme"])...)
	keys, _ := w.answer(http.StatusOK, http.MethodGet, "/changes", "", as(w.keys["acme"])...)
	var objects []any // both may have been changed in one millisecond
	for _, item := range keys["items"].([]any) {
		objects = append(objects, item.(map[string]any)["object"])
	}
	if len(objects) != 2 || !slices.Contains(objects, any("only-acme")) || !slices.Contains(objects, any(w.keyIDs["acme"])) {
		t.Errorf("changes of the tenant: %v", keys)
	}
	all, _ := w.answer(http.StatusOK, http.MethodGet, "/changes?installation=true", "", as(adminToken)...)
	if items := all["items"].([]any); len(items) != 2 || items[0].(map[string]any)["operation"] != "createTenant" {
		t.Errorf("changes of the installation: %v", all)
	}
}

// A row that names as many changes as it may takes no more until workers have published some.
func TestChangesThatNobodyPublishesAreHeldBack(t *testing.T) {
	s := newServer(t, nil)
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", goodJob)
	path := "/jobs/" + m["job_id"].(string)
	for n := range job.MaxChanges + 1 {
		want := http.StatusOK
		if n == job.MaxChanges {
			want = http.StatusServiceUnavailable
		}
		p, h := s.answer(want, http.MethodPatch, path, `{"name":"`+strings.Repeat("x", n+1)+`"}`, "If-Match", "*")
		if want != http.StatusOK && (h.Get("Retry-After") == "" || !strings.Contains(p["detail"].(string), "Nothing was changed")) {
			t.Errorf("answered %v %v", p, h)
		}
	}
	for _, e := range s.changes()["patchJob"] {
		must(t, s.pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
	}
	s.answer(http.StatusOK, http.MethodPatch, path, `{"name":"y"}`, "If-Match", "*")
}

// A worker dropped the creation's entry, because the row came late, and the job has fired since. The request that is repeated tells of the
// creation, and writes no first entry, which would fire again.
func TestRepeatedRegistrationTellsOfACreationWhoseEntryWasDropped(t *testing.T) {
	slowly(t, func(t *testing.T, s *server, store *slow) {
		store.finish = errFlaky
		s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs", everySecond, "Idempotency-Key", "k")
		dropped := s.changes()["createJob"]
		if len(dropped) != 1 || len(store.puts) != 1 {
			t.Fatalf("written: %v, %v", dropped, store.puts)
		}
		must(t, s.pending.MarkDone(t.Context(), []job.Locator{dropped[0].Locator}))
		fired := job.AttemptEvent(&job.Fire{Entry: store.puts[0]}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired}, time.Now())
		must(t, s.deps.History.Record(t.Context(), jobstore.Unencoded(&fired)))
		time.Sleep(10 * time.Minute)
		s.answer(http.StatusCreated, http.MethodPost, "/jobs", everySecond, "Idempotency-Key", "k")
		alive := 0
		for _, e := range s.changes()["createJob"] {
			if row, err := s.pending.Row(t.Context(), e.Locator); err == nil && !row.Done {
				alive++
			}
		}
		if alive != 1 || len(store.puts) != 1 {
			t.Errorf("%d entries tell of the creation, %d first entries were written; want one of each", alive, len(store.puts))
		}
	})
}
