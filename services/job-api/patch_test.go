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
