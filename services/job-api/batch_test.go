package jobapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/pools"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

type batchAnswer struct {
	Results []struct {
		Status  int
		Job     map[string]any
		Problem map[string]any
	}
}

func (s *server) batch(body string, headers ...string) (b batchAnswer) {
	s.t.Helper()
	w := s.do(http.MethodPost, "/jobs:batch", body, headers...)
	if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil || w.Code != http.StatusOK {
		s.t.Fatalf("%d %.300s %v", w.Code, w.Body, err)
	}
	return b
}

// batchOf returns a batch of n right jobs with a wrong one at each of the places.
func batchOf(n int, wrong ...int) string {
	jobs := make([]string, n)
	for i := range jobs {
		jobs[i] = fmt.Sprintf(`{"name":"job %d","type":"one_shot","delay":"1h","target":{"kind":"http_webhook","url":"http://h/"}}`, i)
	}
	for _, i := range wrong {
		jobs[i] = `{"name":"wrong","type":"one_shot","target":{"kind":"http_webhook","url":"http://h/"}}`
	}
	return `{"jobs":[` + strings.Join(jobs, ",") + `]}`
}

func TestBatchGivesEveryJobAResultOfItsOwn(t *testing.T) {
	s := newServer(t, nil)
	b := s.batch(batchOf(1000, 0, 500, 999))
	for i, r := range b.Results {
		wrong := i == 0 || i == 500 || i == 999
		if wrong && (r.Status != http.StatusUnprocessableEntity || r.Problem["errors"] == nil || r.Job != nil) {
			t.Errorf("job %d: %+v", i, r)
		}
		if !wrong && (r.Status != http.StatusCreated || r.Job["name"] != fmt.Sprint("job ", i) || r.Problem != nil) {
			t.Errorf("job %d: %+v", i, r)
		}
	}
	if n := s.entries(); len(b.Results) != 1000 || n != 997 {
		t.Errorf("%d results and %d entries, want 1000 and 997", len(b.Results), n)
	}
	id := b.Results[1].Job["job_id"].(string)
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/"+id, "")
	if m["status"] != "active" || m["next_run_at"] == nil {
		t.Errorf("job %v", m)
	}
	s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs:batch", batchOf(1001))
	s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs:batch", `{"jobs":[]}`)
}

func TestBatchThatIsCutShortIsCompletedUnderItsKey(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; n <= 4; n++ { // claim, entries, rows, answer
			f := &flaky{left: n, after: after}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
				d.Jobs, d.Pending = flakyJobs{d.Jobs, f}, flakyPending{d.Pending, f}
			})
			s.answer(http.StatusServiceUnavailable, http.MethodPost, "/jobs:batch", batchOf(20, 3), "Idempotency-Key", "k")
			first := s.batch(batchOf(20, 3), "Idempotency-Key", "k")
			again := s.batch(batchOf(20, 3), "Idempotency-Key", "k")
			for i := range first.Results {
				if a, b := first.Results[i], again.Results[i]; a.Status != b.Status || a.Job["job_id"] != b.Job["job_id"] {
					t.Errorf("write %d (after: %v): job %d is %v, then %v", n, after, i, a, b)
				}
			}
			m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs", "")
			if jobs := len(m["items"].([]any)); jobs != 19 || s.entries() != 19 || len(s.changes()["createJobs"]) != 19 {
				t.Errorf("write %d (after: %v): %d jobs, %d entries, want 19", n, after, jobs, s.entries())
			}
		}
	}
}

func TestJobsOfABatchMayHaveKeysOfTheirOwn(t *testing.T) {
	s := newServer(t, nil)
	keyed := strings.Replace(goodJob, "{", `{"idempotency_key":"k1",`, 1)
	id := s.create(goodJob, "Idempotency-Key", "k1")
	for range 2 {
		b := s.batch(`{"jobs":[` + keyed + `,` + goodJob + `]}`)
		if b.Results[0].Status != http.StatusCreated || b.Results[0].Job["job_id"] != id {
			t.Errorf("the keyed job is %v, want %s", b.Results[0], id)
		}
	}
}

func TestListsCanBeFiltered(t *testing.T) {
	s := newServer(t, nil)
	ids := map[string]string{}
	for name, labels := range map[string]string{"a": `{"team":"pay","env":"prod"}`, "b": `{"team":"pay"}`, "c": `{}`} {
		ids[name] = s.create(strings.Replace(goodJob, "{", `{"labels":`+labels+`,`, 1))
	}
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+ids["b"]+"/pause", "")
	s.answer(http.StatusOK, http.MethodPost, "/jobs/"+ids["c"]+"/cancel", "")
	for query, want := range map[string]string{
		"":                               "abc",
		"?status=active":                 "a",
		"?status=paused":                 "b",
		"?status=cancelled":              "c",
		"?status=completed":              "",
		"?label=team":                    "ab",
		"?label=team=pay":                "ab",
		"?label=team=ops":                "",
		"?label=env=prod&status=active":  "a",
		"?label=team=pay&status=paused":  "b",
		"?label=none":                    "",
		"?label=team=pay&limit=1":        "1",
		"?status=active&label=team=pay=": "",
	} {
		m, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs"+query, "")
		items := m["items"].([]any)
		if want == "1" {
			if len(items) != 1 || m["next_cursor"] == nil {
				t.Errorf("%s: %v", query, m)
			}
			continue
		}
		got := ""
		for _, name := range []string{"a", "b", "c"} {
			for _, item := range items {
				if item.(map[string]any)["job_id"] == ids[name] {
					got += name
				}
			}
		}
		if got != want || len(items) != len(want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func TestScheduleThatItsHashMakesImpossibleIsRefused(t *testing.T) {
	s := newServer(t, nil)
	accepted, refused := 0, 0
	for range 200 { // the 30th of a month that H picks: never, if that is February
		w := s.do(http.MethodPost, "/jobs", strings.Replace(goodJob, "0 9 * * MON", "0 0 30 H *", 1))
		switch w.Code {
		case http.StatusCreated:
			accepted++
		case http.StatusUnprocessableEntity:
			refused++
			if !strings.Contains(w.Body.String(), `"/cron_expr"`) {
				t.Errorf("%s", w.Body)
			}
		default:
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if accepted == 0 || refused == 0 || s.entries() != accepted {
		t.Errorf("%d accepted, %d refused, %d entries", accepted, refused, s.entries())
	}
}

// looks counts how often a pool is shown; it answers nothing while it is away.
type looks struct {
	pools.Queue
	n    int
	away bool
}

func (l *looks) Show(ctx context.Context, p pools.Pool, now time.Time) (*pools.State, error) {
	if l.n++; l.away {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Queue.Show(ctx, p, now)
}

func TestAnswerToABatchDoesNotWaitForEachPoolThatItNames(t *testing.T) {
	for _, away := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			queue := &looks{away: away}
			s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { queue.Queue, d.Pools = d.Pools, queue })
			list := make([]string, 100)
			for i := range list {
				list[i] = fmt.Sprintf(`{"name":"n","type":"one_shot","delay":"1h","target":{"kind":"pool","pool":"p%d","handler":"h"}}`, i)
			}
			began := time.Now()
			answer, _ := s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+strings.Join(list, ",")+`]}`)
			warned := strings.Count(fmt.Sprint(answer), "code:unserved")
			if most := 20; away && (queue.n != 1 || warned != 0) || !away && (queue.n != most || warned != most) || time.Since(began) > 5*time.Second {
				t.Errorf("away %t: %d pools were looked up and %d jobs warned in %s", away, queue.n, warned, time.Since(began))
			}
		})
	}
}
