package jobapi_test

import (
	"net/http"
	"strings"
	"testing"

	jobapi "github.com/minutehand/minutehand/services/job-api"
)

func TestPatchLeavesTheTargetsBodyAsItWasSent(t *testing.T) {
	s := newServer(t, nil)
	large := `{"html": "` + strings.Repeat("<", 100_000) + `", "odd":  "\ud800"}`
	id := s.create(strings.Replace(goodJob, `{"a":1}`, large, 1))
	for range 2 {
		s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"name":"other","target":{"timeout":"10s"}}`, "If-Match", "*")
	}
	if got := s.do(http.MethodGet, "/jobs/"+id, "").Body.String(); !strings.Contains(got, `"timeout":"10s"`) {
		t.Errorf("the timeout is not set: %.200s", got)
	}
	row, err := s.jobs.Get(t.Context(), id)
	if err != nil || string(row.Definition.Target.Body) != large {
		t.Errorf("the body has %d bytes, want %d: %v", len(row.Definition.Target.Body), len(large), err)
	}
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"target":{"body":["<b>"]}}`, "If-Match", "*")
	if row, err = s.jobs.Get(t.Context(), id); err != nil || string(row.Definition.Target.Body) != `["<b>"]` {
		t.Errorf("the new body is %s, %v", row.Definition.Target.Body, err)
	}
}

// An object takes the place of a body, so a job has one of them, however it came about.
func TestJobHasEitherABodyOrAnObjectInItsPlace(t *testing.T) {
	s := newServer(t, nil)
	ref := `"body_ref":{"url":"https://objects.example.com/a?signature=x","sha256":"` + strings.Repeat("0a", 32) + `"}`
	with := strings.Replace(goodJob, `"body":{"a":1}`, ref, 1)
	if with == goodJob {
		t.Fatal("goodJob has no body")
	}
	id := s.create(with)
	if got := s.do(http.MethodGet, "/jobs/"+id, "").Body.String(); !strings.Contains(got, ref) {
		t.Errorf("the job is shown as %s", got)
	}
	refused := func(method, path, body, pointer string) {
		t.Helper()
		w := s.do(method, path, body, "If-Match", "*")
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"pointer":"`+pointer+`"`) {
			t.Errorf("%s %s was answered %d: %s", method, body, w.Code, w.Body)
		}
	}
	refused(http.MethodPost, "/jobs", strings.Replace(goodJob, `"body":{"a":1}`, `"body":{"a":1},`+ref, 1), "/target/body_ref")
	refused(http.MethodPost, "/jobs", strings.Replace(with, "0a0a", "0A0A", 1), "/target/body_ref/sha256")
	refused(http.MethodPost, "/jobs", strings.Replace(with, "https://objects", "s3://objects", 1), "/target/body_ref/url")
	refused(http.MethodPost, "/jobs", strings.Replace(strings.Replace(with, `"http_webhook"`, `"kafka","connection":"a","topic":"b"`, 1), `"url":"https://example.com/hook",`, "", 1), "/target/body_ref")
	refused(http.MethodPatch, "/jobs/"+id, `{"target":{"body":1}}`, "/target/body_ref")
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"target":{"body":1,"body_ref":null}}`, "If-Match", "*")
	refused(http.MethodPatch, "/jobs/"+id, `{"target":{`+ref+`}}`, "/target/body_ref")
	s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"target":{"body":null,`+ref+`}}`, "If-Match", "*")
}

func TestAPIOnLoopbackAnswersNoForeignName(t *testing.T) {
	s := newServer(t, func(c *jobapi.Config, _ *jobapi.Deps) { c.LocalHostsOnly = true })
	for host, want := range map[string]int{
		"localhost:8080": 200, "LOCALHOST": 200, "127.0.0.1:8080": 200, "[::1]:8080": 200, "10.0.0.1": 200,
		"evil.example": 403, "localhost.evil.example:8080": 403, "127.0.0.1.evil.example": 403, "": 403,
	} {
		if w := s.doAt(host, http.MethodGet, "/jobs"); w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
	}
}
