package jobapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
)

// FuzzRequests sends any bytes to every operation that takes a body. CI runs the seeds; to look for more:
//
//	go test ./services/job-api -run NONE -fuzz FuzzRequests -fuzztime 30m
func FuzzRequests(f *testing.F) {
	for _, seed := range append(malformed(),
		goodJob, `{"jobs":[`+goodJob+`]}`, `{"type":"cron","cron_expr":"H/15 9-17 * * MON-FRI","timezone":"Europe/Berlin"}`,
		`{"name":"a","type":"interval","every":"1s","jitter":"500ms","target":{"kind":"http_webhook","url":"http://h/"}}`,
		`{"filter":{"reason":"permanent"},"rate_per_second":1}`, `{"label":"team=pay"}`, `{"labels":null,"target":{"body":null}}`,
	) {
		f.Add([]byte(seed))
	}
	s := newServer(f, nil)
	id := s.create(goodJob)
	targets := [][2]string{
		{http.MethodPost, "/jobs"},
		{http.MethodPost, "/jobs:batch"},
		{http.MethodPut, "/jobs/" + id},
		{http.MethodPatch, "/jobs/" + id},
		{http.MethodPost, "/schedules/preview"},
		{http.MethodPost, "/dispatch/pause"},
		{http.MethodPost, "/dispatch/resume"},
		{http.MethodPost, "/dead-letters:redrive"},
		{http.MethodPost, "/dead-letters:redrive-all"},
		{http.MethodPost, "/jobs:replan"},
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &server{t: t, jobs: s.jobs, pending: s.pending, handler: s.handler}
		for _, target := range targets {
			w := s.do(target[0], target[1], string(body), "If-Match", "*")
			if w.Code >= http.StatusInternalServerError {
				t.Errorf("%s %s: %d %s", target[0], target[1], w.Code, w.Body)
			}
			if w.Code >= http.StatusBadRequest && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s %s: %d is not a problem document: %q", target[0], target[1], w.Code, w.Body)
			}
		}
	})
}
