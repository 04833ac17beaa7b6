package jobapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/wire"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// list returns a JSON list of so many ones, and object an object of so many members.
func list(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }

func object(n int) string {
	members := make([]string, n)
	for i := range members {
		members[i] = `"m` + strconv.Itoa(i) + `":1`
	}
	return "{" + strings.Join(members, ",") + "}"
}

// A target's body may hold so much, too. Nothing but bytes, values and depth bounds it.
func TestWhatAWorkerReportsMayBeAnyJSON(t *testing.T) {
	for name, report := range map[string]string{
		"a long list": list(1001), "a wide object": object(1001), "within another": `{"done":` + list(5000) + `,"of":{"x":` + object(200) + `}}`, "many values": list(19_000),
	} {
		bubble.Test(t, func(t *testing.T) {
			log := &told{}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = log })
			key := s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			path, token := "/pools/work/tasks/"+task.ID, `{"fencing_token":"`+task.Token+`",`
			if w := s.do(http.MethodPost, path+"/heartbeat", token+`"progress":`+report+`}`); w.Code != http.StatusOK {
				t.Errorf("%s: progress was answered %d: %s", name, w.Code, w.Body)
			}
			if kept, err := s.deps.Settings.Items(t.Context(), "progress/"+key.ExecutionID, "", 10); err != nil || len(kept) != 1 || string(kept[0].Value) != report {
				t.Errorf("%v: %d items are kept", err, len(kept))
			}
			if w := s.do(http.MethodPost, path+"/complete", token+`"result":`+report+`}`); w.Code != http.StatusNoContent {
				t.Fatalf("a result was answered %d: %s", w.Code, w.Body)
			}
			if e, err := wire.EventOf(&log.last); err != nil || e.Outcome.ResponseBytes != int64(len(report)) {
				t.Errorf("%v: a result of %d bytes is kept as one of %d", err, len(report), e.Outcome.ResponseBytes)
			}
		})
	}
	bubble.Test(t, testReportsThatAreNot)
}

func testReportsThatAreNot(t *testing.T) {
	s := newServer(t, nil)
	s.waiting(func(of string) string { return of })
	task := s.poll()[0]
	for name, c := range map[string]struct{ member, report, code string }{
		"too many values":      {"progress", list(20_001), "too-many-values"},
		"too many bytes":       {"progress", `"` + strings.Repeat("x", 64<<10) + `"`, "too-large"},
		"a member of no beat":  {"other", list(1001), "max-items"},
		"a wide unknown value": {"other", object(129), "max-properties"},
	} {
		w := s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/heartbeat", `{"fencing_token":"`+task.Token+`","`+c.member+`":`+c.report+`}`)
		if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"`+c.code+`"`) {
			t.Errorf("%s: answered %d: %s", name, w.Code, w.Body)
		}
	}
}

func TestExampleInAFaultOfATaskIDIsOne(t *testing.T) {
	s := newServer(t, nil)
	poll := func(id string) (status int, message string) {
		w := s.do(http.MethodPost, "/pools/work/poll", `{"poll_id":"poll-0001","worker":"w","handlers":["do"],"running":["`+id+`"]}`)
		var p struct{ Errors []struct{ Message string } }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		if len(p.Errors) > 0 {
			message = p.Errors[0].Message
		}
		return w.Code, message
	}
	status, message := poll("x")
	example := regexp.MustCompile(`"(exe_[^"]+)"`).FindStringSubmatch(message)
	if status != http.StatusUnprocessableEntity || example == nil {
		t.Fatalf("answered %d: %s", status, message)
	}
	if status, message := poll(example[1]); status != http.StatusOK {
		t.Errorf("%s was answered %d: %s", example[1], status, message)
	}
}

// beside returns a server that shares everything with another one, but the clock, and the queue if it is given.
func (s *server) beside(ahead time.Duration, queue pools.Queue) *server {
	return newServer(s.t, func(_ *jobapi.Config, d *jobapi.Deps) {
		d.Log, d.Jobs, d.Records, d.History, d.Settings, d.Pools = s.deps.Log, s.deps.Jobs, s.deps.Records, s.deps.History, s.deps.Settings, s.deps.Pools
		d.Hot, d.Clock = s.deps.Hot, clock.AheadBy(ahead)
		if queue != nil {
			d.Pools = queue
		}
	})
}

// tell tells something of a task, and returns how that was answered.
func (s *server) tell(task handed, what string) int {
	return s.do(http.MethodPost, "/pools/work/tasks/"+task.ID+"/"+what, `{"fencing_token":"`+task.Token+`"}`).Code
}

// owned lets the tenant have the job of the tasks that wait.
func (s *server) owned() {
	s.t.Helper()
	must(s.t, s.deps.Jobs.Create(s.t.Context(), job.Job{ID: "job_01M7ZJW5E6D77SAJPXRW35C2CA", Tenant: job.DefaultTenant, Version: 1, Status: job.StatusActive}, true))
}

// The history has an end a moment after it was answered. A worker that lost the answer repeats it at once.
func TestEndIsAnsweredAlikeWhenItIsRepeatedAtOnce(t *testing.T) {
	for what, others := range map[string][]string{"complete": {"fail", "release"}, "fail": {"complete", "release"}} {
		bubble.Test(t, func(t *testing.T) {
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Log = &told{} })
			s.owned()
			s.waiting(func(of string) string { return of })
			task := s.poll()[0]
			for range 2 {
				if status := s.tell(task, what); status != http.StatusNoContent {
					t.Errorf("%s was answered %d", what, status)
				}
			}
			for _, other := range others {
				if status := s.tell(task, other); status != http.StatusConflict {
					t.Errorf("%s after %s was answered %d", other, what, status)
				}
			}
			if status := s.tell(handed{task.ID, task.Token[:len(task.Token)-1] + "f"}, what); status != http.StatusConflict {
				t.Errorf("%s by another worker was answered %d", what, status)
			}
			// Another process does not know that it is on the log.
			if status := s.beside(0, nil).tell(task, what); status != http.StatusServiceUnavailable {
				t.Errorf("%s was answered %d by another process before it is on record", what, status)
			}
		})
	}
}

var requestID = regexp.MustCompile(`"(request_id|instance)":"[^"]*"`)

// What the hot tier has of an attempt does not say whose it is.
func TestTaskOfAnotherTenantIsAnsweredAsOneThatIsNotThere(t *testing.T) {
	w := newTwo(t, nil)
	now := time.Now()
	e := &job.Entry{Locator: job.Locator{ExecutionID: job.ScheduleExecutionID(w.jobs["acme"], job.Instant(now)), Attempt: 1}, JobID: w.jobs["acme"]}
	key := attempts.KeyOf(e)
	memory, err := w.deps.Records.Memory(t.Context(), e.JobID)
	must(t, err)
	rec, _, err := w.deps.Records.Acquire(t.Context(), key, attempts.Holder{Name: "task"}, now, now.Add(time.Minute))
	must(t, err)
	fence, _, err := w.deps.Records.Start(t.Context(), key, rec.Token, attempts.Check{Entry: e, Incarnation: memory.Incarnation})
	must(t, err)
	o := job.Outcome{Kind: job.OutcomeSucceeded, Fence: fence}
	_, err = w.deps.Records.Finish(t.Context(), []attempts.Completion{{Key: key, Token: rec.Token, Outcome: &o}}, now)
	must(t, err)
	ask := func(tenant, id string) (int, string) {
		got := w.do(http.MethodPost, "/pools/work/tasks/"+id+"/complete", `{"fencing_token":"`+fence.String()+`"}`, as(w.keys[tenant])...)
		return got.Code, requestID.ReplaceAllString(got.Body.String(), "")
	}
	if status, _ := ask("acme", pools.IDOf(key)); status != http.StatusServiceUnavailable {
		t.Errorf("its own worker was answered %d", status)
	}
	status, body := ask("globex", pools.IDOf(key))
	if none, want := ask("globex", pools.IDOf(attempts.Key{ExecutionID: key.ExecutionID, Attempt: 2})); status != none || status != http.StatusConflict || body != want {
		t.Errorf("another tenant's worker was answered %d %s, and for no task %d %s", status, body, none, want)
	}
}

// seenQueue counts how often workers are noted.
type seenQueue struct {
	pools.Queue
	seen int
}

func (q *seenQueue) See(ctx context.Context, p pools.Pool, w *pools.Worker) error {
	q.seen++
	return q.Queue.See(ctx, p, w)
}

// A worker that has no room for more does not poll. It would vanish after ten minutes, and jobs be called unserved.
func TestWorkerThatOnlySendsHeartbeatsIsShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var queue *seenQueue
		s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { queue = &seenQueue{Queue: d.Pools}; d.Pools = queue })
		s.waiting(func(of string) string { return of })
		polled := `{"poll_id":"poll-0001","worker":"w","version":"7","handlers":["do","more"]}`
		got := s.do(http.MethodPost, "/pools/work/poll", polled)
		var answer struct{ Tasks []handed }
		if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil || len(answer.Tasks) != 1 {
			t.Fatalf("the poll was answered %s", got.Body)
		}
		const beats = 12 * 60 / 5
		for range beats {
			time.Sleep(5 * time.Second)
			if status := s.tell(answer.Tasks[0], "heartbeat"); status != http.StatusOK {
				t.Fatalf("a heartbeat was answered %d", status)
			}
		}
		shown, _ := s.answer(http.StatusOK, http.MethodGet, "/pools/work", "")
		workers, _ := shown["workers"].([]any)
		want := map[string]any{"name": "w", "version": "7", "handlers": []any{"do", "more"}, "running": 1.0, "seen_at": time.Now().UTC().Format(time.RFC3339)}
		if len(workers) != 1 {
			t.Fatalf("the workers are shown as %v", workers)
		}
		w, _ := workers[0].(map[string]any)
		at, err := time.Parse(time.RFC3339, w["seen_at"].(string))
		if err != nil || time.Since(at) >= 20*time.Second {
			t.Errorf("it was seen at %v, and it is %v", w["seen_at"], want["seen_at"])
		}
		delete(w, "seen_at")
		delete(want, "seen_at")
		if !reflect.DeepEqual(w, want) {
			t.Errorf("shown is %v, want %v", w, want)
		}
		if most := 1 + beats/4; queue.seen > most {
			t.Errorf("it was noted %d times in %d heartbeats, want %d at most", queue.seen, beats, most)
		}
		// It is no longer noted once it has lost its task.
		time.Sleep(time.Minute)
		noted := queue.seen
		if status := s.tell(answer.Tasks[0], "heartbeat"); status != http.StatusConflict || queue.seen != noted {
			t.Errorf("a late heartbeat was answered %d, and noted %d times", status, queue.seen-noted)
		}
	})
}

// Otherwise the link would have nothing in the place of the execution, and lead nowhere.
func TestWorkerIsShownWithALinkToItsLogsOnlyIfThatNeedsNoExecution(t *testing.T) {
	s := newServer(t, nil)
	s.poll()
	for template, want := range map[string]any{
		"https://logs.example.com/{pool}/{worker}":                "https://logs.example.com/work/w",
		"https://logs.example.com/":                               "https://logs.example.com/",
		"https://logs.example.com/{pool}/{worker}/{execution_id}": nil,
		"https://logs.example.com/{worker}?n={attempt}":           nil,
		"https://logs.example.com/{worker}?job={job_id}":          nil,
	} {
		s.answer(http.StatusOK, http.MethodPut, "/pools/work", `{"logs_url":"`+template+`"}`)
		shown, _ := s.answer(http.StatusOK, http.MethodGet, "/pools/work", "")
		workers, _ := shown["workers"].([]any)
		if len(workers) != 1 {
			t.Fatalf("the workers are shown as %v", shown["workers"])
		}
		if w, _ := workers[0].(map[string]any); w["logs_url"] != want {
			t.Errorf("with %s, the worker is shown with %v, want %v", template, w["logs_url"], want)
		}
	}
}
