package e2e

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// A replay that goes elsewhere calls that target with the job's body and none of its headers, and nothing comes of it: the job is not paused, has
// no dead letter, nobody follows it or is told, and a later replay does not repeat it.
func TestNothingComesOfAReplayThatGoesElsewhereButItsCalls(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		var refusals []string
		var answer atomic.Int32
		staging := func(r *http.Request, c ledger.Call) (int, error) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.Method != http.MethodPut || string(body) != `{"order":1}` || r.Header.Get("Authorization") != "" || r.Header.Get("X-Staging") != "yes" {
				w.T.Errorf("a call elsewhere: %s %s with %v (%v)", r.Method, body, r.Header, err)
			}
			if status := int(answer.Load()); status != http.StatusServiceUnavailable || c.Attempt < 2 {
				return status, nil
			}
			return http.StatusGone, nil
		}
		w.Targets.Set("staging.elsewhere", staging)
		id := w.Create(yearly("a", "target", map[string]any{
			"target": map[string]any{
				"kind": "http_webhook", "url": "http://target/", "method": "PUT", "headers": map[string]any{"Authorization": "Bearer production"}, "body": map[string]any{"order": 1},
			},
			"retry_policy": map[string]any{"max_attempts": 3, "backoff": "fixed", "base_delay": "1s", "jitter": 0},
			"notify":       []any{map[string]any{"on": []any{"dead_letter", "paused_by_410"}, "target": map[string]any{"kind": "http_webhook", "url": "http://owner/"}}},
		}))
		follows := w.Create(follower("b", "follower", parents("any", id)))
		began := time.Now()
		first := trigger(w, id)
		time.Sleep(10 * time.Second)
		until := time.Now()
		replay := func(from, to time.Time, target any) map[string]any {
			body := map[string]any{"from": from, "to": to}
			if target != nil {
				body["target"] = target
			}
			return w.Must(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/replay", body)
		}
		elsewhere := map[string]any{"kind": "http_webhook", "url": "http://staging.elsewhere/", "headers": map[string]any{"X-Staging": "yes", "X-Api-Token": "a secret"}}
		for _, status := range []int32{http.StatusOK, http.StatusBadRequest, http.StatusGone, http.StatusServiceUnavailable} {
			answer.Store(status)
			o := replay(began.Add(-time.Second), until, elsewhere)
			shown, _ := o["target"].(map[string]any)
			if headers, _ := shown["headers"].(map[string]any); shown["url"] != "http://staging.elsewhere/" || headers["X-Staging"] != "yes" || headers["X-Api-Token"] != "********" {
				w.T.Errorf("the operation shows %v", shown)
			}
			time.Sleep(20 * time.Second)
		}
		count := func(host string) (n int) {
			for _, c := range w.Targets.Calls() {
				if c.Host == host {
					n++
				}
			}
			return n
		}
		if there, here := count("staging.elsewhere"), count("target"); there != 5 || here != 1 {
			w.T.Errorf("%d calls elsewhere and %d of the target, want 5 and 1", there, here)
		}
		if j := w.Must(http.StatusOK, http.MethodGet, "/jobs/"+id, nil); j["status"] != "active" {
			w.T.Errorf("the job is %v", j["status"])
		}
		if letters := w.Must(http.StatusOK, http.MethodGet, "/dead-letters", nil)["items"].([]any); len(letters) != 0 || count("owner") != 0 {
			w.T.Errorf("%d dead letters, and the owner was told %d times", len(letters), count("owner"))
		}
		for _, x := range w.Executions(id) {
			went, _ := x["target"].(map[string]any)
			if replayed := x["trigger"] == "replay"; replayed != (went["url"] == "http://staging.elsewhere/") || went["headers"] != nil {
				w.T.Errorf("%v is shown as gone to %v", x["execution_id"], went)
			}
		}
		for _, x := range w.Executions(id) {
			if x["target"] != nil {
				w.Must(http.StatusConflict, http.MethodPost, "/executions/"+x["execution_id"].(string)+"/replay", nil)
			}
		}
		for _, o := range w.Must(http.StatusOK, http.MethodGet, "/operations", nil)["items"].([]any) {
			if shown, _ := o.(map[string]any)["target"].(map[string]any); shown["url"] != "http://staging.elsewhere/" || shown["headers"] != nil {
				w.T.Errorf("an operation that is over shows %v", shown)
			}
		}
		wantSources(w, "of what went elsewhere", follows, first)
		events, err := w.Platform.Adapters.History.Executions(w.T.Context(), jobstore.Of{ID: id}, jobstore.Cursor{}, began.Add(-time.Hour), 100)
		if err != nil || len(events) != 6 {
			w.T.Errorf("%d events, %v", len(events), err)
		}
		for _, e := range events {
			if x := e.Entry.Elsewhere(); e.Entry.Trigger == job.TriggerReplay && (x == nil || x.URL != "http://staging.elsewhere/" || x.Headers != nil) {
				w.T.Errorf("%s is kept with %+v", e.Entry.ExecutionID, x)
			}
		}
		// What was only reproduced is not what the job did.
		replay(began.Add(-time.Second), time.Now(), nil)
		time.Sleep(20 * time.Second)
		if there, here := count("staging.elsewhere"), count("target"); there != 5 || here != 2 {
			w.T.Errorf("%d calls elsewhere and %d of the target, want 5 and 2", there, here)
		}
		for _, bad := range []map[string]any{
			{"kind": "http_webhook", "url": "file:///etc/passwd"},
			{"kind": "http_webhook", "url": "http://x/", "headers": map[string]any{"Webhook-Id": "1"}},
			{"kind": "http_webhook", "url": "http://x/", "headers": map[string]any{"X-Api-Token": "********"}},
			{"kind": "kafka", "url": "http://x/"},
		} {
			status, p := w.Do(http.MethodPost, "/jobs/"+id+"/replay", map[string]any{"from": began, "to": until, "target": bad})
			faults, _ := p["errors"].([]any)
			if status != http.StatusUnprocessableEntity && status != http.StatusBadRequest || len(faults) != 1 {
				w.T.Errorf("%v was answered with %d: %v", bad, status, p)
				continue
			}
			refusals = append(refusals, faults[0].(map[string]any)["pointer"].(string))
		}
		if want := []string{"/target/url", "/target/headers", "/target/headers/X-Api-Token", "/target/kind"}; !slices.Equal(refusals, want) {
			w.T.Errorf("refused at %s", strings.Join(refusals, " "))
		}
	})
}
