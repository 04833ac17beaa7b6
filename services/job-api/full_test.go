package jobapi_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	jobapi "github.com/minutehand/minutehand/services/job-api"
)

func TestFullDiskTakesNothingNewButStopsWhatItIsAskedTo(t *testing.T) {
	var full atomic.Bool
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Full = full.Load })
	id := s.create(goodJob)
	full.Store(true)
	before := s.entries()
	for path, body := range map[string]string{
		"/jobs": goodJob, "/jobs:batch": `{"jobs":[` + goodJob + `]}`, "/jobs/" + id + "/trigger": "",
		"/dead-letters:redrive": `{}`, "/dead-letters:redrive-all": `{}`, "/jobs:replan": `{}`,
	} {
		_, h := s.answer(http.StatusServiceUnavailable, http.MethodPost, path, body)
		if h.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
	}
	s.answer(http.StatusServiceUnavailable, http.MethodPatch, "/jobs/"+id, `{"name":"x"}`, "If-Match", "*")
	if n := s.entries(); n != before {
		t.Errorf("%d entries were written", n-before)
	}
	s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", strings.Replace(goodJob, "cron_expr", "cron", 1))
	s.answer(http.StatusOK, http.MethodGet, "/jobs/"+id, "")
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/pause", "")
	s.answer(http.StatusOK, http.MethodPost, "/dispatch/pause", "{}")
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/cancel", "")
	full.Store(false)
	s.create(goodJob)
}
