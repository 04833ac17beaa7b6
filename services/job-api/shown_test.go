package jobapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

func TestSecretsOfATargetAreNotShownAndStayWhenTheirMasksAreSentBack(t *testing.T) {
	s := newServer(t, nil)
	const secret = "Bearer s3cr3t"
	body := func(value string) string {
		return `{"name":"n","type":"one_shot","run_at":"2030-01-01T00:00:00Z","target":{"kind":"http_webhook","url":"https://t.example/","headers":{"X-Api-Key":"` + value + `","X-Colour":"red"}}}`
	}
	w := s.do(http.MethodPost, "/jobs", body(secret), "Idempotency-Key", "a")
	if w.Code != http.StatusCreated || strings.Contains(w.Body.String(), "s3cr3t") || !strings.Contains(w.Body.String(), `"X-Colour":"red"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	path := strings.TrimPrefix(w.Header().Get("Location"), "/api/v1")
	id := path[strings.LastIndexByte(path, '/')+1:]
	stands := func(what string, want string) {
		t.Helper()
		if got := s.row(id).Definition.Target.Headers["X-Api-Key"]; got != want {
			t.Errorf("%s: the header is %q, want %q", what, got, want)
		}
	}
	for _, answer := range []string{
		s.do(http.MethodPost, "/jobs", body(secret), "Idempotency-Key", "a").Body.String(), // replayed
		s.do(http.MethodGet, path, "").Body.String(), s.do(http.MethodGet, "/jobs", "").Body.String(),
		s.do(http.MethodPatch, path, `{"name":"m"}`, "If-Match", "*").Body.String(),
	} {
		if strings.Contains(answer, "s3cr3t") || !strings.Contains(answer, id) {
			t.Errorf("it shows %s", answer)
		}
	}
	stands("after a patch of something else", secret)
	if w := s.do(http.MethodPut, path, body("********"), "If-Match", "*"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	stands("after its mask was sent back", secret)
	if w := s.do(http.MethodPut, path, body("another"), "If-Match", "*"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	stands("after a new value", "another")
	s.fault(http.StatusUnprocessableEntity, "/target/headers/X-Api-Key", "masked", http.MethodPost, "/jobs", body("********"))
}

// Nobody could redrive them, or look at their executions.
func TestDeadLettersOfADeletedJobAreNotListed(t *testing.T) {
	var letters jobstore.History
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { letters = d.History })
	ids := []string{s.create(everySecond), s.create(everySecond)}
	for i, id := range ids {
		now := job.Instant(time.Now().Add(time.Duration(i) * time.Second))
		e := job.Event{Type: job.EventAttempt, Entry: job.Entry{
			Locator: job.Locator{ExecutionID: job.ScheduleExecutionID(id, now), Attempt: 1}, JobID: id, NominalAt: now,
		}}
		if err := letters.PutDeadLetter(t.Context(), job.DeadLetter{Event: e, Reason: "permanent", At: now}); err != nil {
			t.Fatal(err)
		}
	}
	if w := s.do(http.MethodDelete, "/jobs/"+ids[0], ""); w.Code >= 300 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	w := s.do(http.MethodGet, "/dead-letters", "")
	if text := w.Body.String(); w.Code != http.StatusOK || strings.Contains(text, ids[0]) || !strings.Contains(text, ids[1]) {
		t.Errorf("%d %s", w.Code, text)
	}
}
