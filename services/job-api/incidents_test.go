package jobapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
)

// watchedJob is goodJob with deadlines.
var watchedJob = strings.Replace(goodJob, `"name"`, `"owner":"payments","sla":{"start_within":"30s","finish_within":"1h30m"},"name"`, 1)

// listed returns the definitions of a job that the watchdog is to look at.
func (s *server) listed(jobID string) (n int) {
	s.t.Helper()
	list, err := incidents.Store{Lists: s.stored}.Watched(s.t.Context(), incidents.SliceOf(jobID), incidents.Watched{}, 100)
	must(s.t, err)
	for _, w := range list {
		if w.JobID == jobID {
			n++
		}
	}
	return n
}

func TestDeadlinesAreShownAndWatchedFromEachDefinitionOn(t *testing.T) {
	s := newServer(t, nil)
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", watchedJob)
	id := m["job_id"].(string)
	if got := fmt.Sprint(m["owner"], m["sla"]); got != "paymentsmap[finish_within:1h30m start_within:30s]" {
		t.Error(got)
	}
	if n := s.listed(id); n != 1 {
		t.Errorf("%d definitions are listed", n)
	}
	m, _ = s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"sla":{"finish_within":null},"owner":null}`, "If-Match", "*")
	if got := fmt.Sprint(m["owner"], m["sla"]); got != "<nil> map[start_within:30s]" {
		t.Error(got)
	}
	if n := s.listed(id); n != 2 {
		t.Errorf("%d definitions are listed", n)
	}
	m, _ = s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"sla":null}`, "If-Match", "*")
	if m["sla"] != nil || s.listed(id) != 2 {
		t.Errorf("%v, %d definitions are listed", m["sla"], s.listed(id))
	}
	m, _ = s.answer(http.StatusCreated, http.MethodPost, "/jobs", goodJob)
	if n := s.listed(m["job_id"].(string)); n != 0 {
		t.Errorf("a job without deadlines is listed %d times", n)
	}
	m, _ = s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+goodJob+`,`+watchedJob+`]}`)
	for n, x := range m["results"].([]any) {
		created := x.(map[string]any)["job"].(map[string]any)["job_id"].(string)
		if got := s.listed(created); got != n {
			t.Errorf("job %d of the batch is listed %d times", n, got)
		}
	}
}

func TestDeadlinesOutOfRangeAreRefused(t *testing.T) {
	s := newServer(t, nil)
	for _, c := range [][2]string{
		{`{"start_within":"0s"}`, "/sla/start_within"},
		{`{"finish_within":"0s"}`, "/sla/finish_within"},
		{`{"start_within":"999ms"}`, "/sla/start_within"},
		{`{"finish_within":"24h1s"}`, "/sla/finish_within"},
		{`{"within":"1s"}`, "/sla/within"},
	} {
		body := strings.Replace(goodJob, `"name"`, `"sla":`+c[0]+`,"name"`, 1)
		m, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", body)
		if got := m["errors"].([]any)[0].(map[string]any)["pointer"]; got != c[1] {
			t.Errorf("%s: %v", c[0], m["errors"])
		}
	}
}

func TestIncidentsAreListedPageByPageWithoutThoseOfDeletedJobs(t *testing.T) {
	s := newServer(t, nil)
	var ids []string
	for range 2 {
		m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", watchedJob)
		ids = append(ids, m["job_id"].(string))
	}
	store := incidents.Store{Lists: s.stored}
	now := job.Instant(time.Now())
	var want []string
	for n := range 9 { // over three days
		at := now.Add(-time.Duration(n) * 7 * time.Hour)
		i := &incidents.Incident{
			ID: incidents.ID(ids[n%2], incidents.FinishWithin, at), Tenant: job.DefaultTenant, JobID: ids[n%2], JobName: "n", Deadline: incidents.FinishWithin,
			Within: 90 * time.Minute, Cause: incidents.CauseLate, Reason: "It came late.", First: at, Last: at, Missed: 1, DeadlineAt: at, NoticedAt: at,
		}
		if n > 4 {
			i.ClosedAt, i.Closed = at, "It is over."
		}
		must(t, store.Put(t.Context(), i))
		want = append(want, i.ID)
	}
	all := func(query string) (got []string) {
		for cursor := ""; ; {
			m, _ := s.answer(http.StatusOK, http.MethodGet, "/incidents?limit=2"+query+cursor, "")
			for _, x := range m["items"].([]any) {
				got = append(got, x.(map[string]any)["incident_id"].(string))
			}
			next, more := m["next_cursor"].(string)
			if !more {
				return got
			}
			cursor = "&cursor=" + next
		}
	}
	if got := all(""); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%v, want %v", got, want)
	}
	if got := all("&status=closed"); strings.Join(got, " ") != strings.Join(want[5:], " ") {
		t.Errorf("closed: %v", got)
	}
	if got := all("&status=open&job_id=" + ids[1]); strings.Join(got, " ") != want[1]+" "+want[3] {
		t.Errorf("open of one job: %v", got)
	}
	s.answer(http.StatusNoContent, http.MethodDelete, "/jobs/"+ids[0], "")
	if got := all(""); len(got) != 4 {
		t.Errorf("after one job was deleted: %v", got)
	}
	s.answer(http.StatusBadRequest, http.MethodGet, "/incidents?cursor=inc_x", "")
}

func TestIncidentsAreThoseOfTheJobOfAKey(t *testing.T) {
	s := newServer(t, nil)
	ids := map[string]string{}
	for _, key := range []string{"one", "two"} {
		m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", strings.Replace(watchedJob, `"name"`, `"key":"`+key+`","name"`, 1))
		id := m["job_id"].(string)
		at := job.Instant(time.Now())
		must(t, incidents.Store{Lists: s.stored}.Put(t.Context(), &incidents.Incident{
			ID: incidents.ID(id, incidents.FinishWithin, at), Tenant: job.DefaultTenant, JobID: id, Deadline: incidents.FinishWithin, First: at, Last: at,
		}))
		ids[key] = id
	}
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/incidents?job_id=key:two", "")
	items := m["items"].([]any)
	if len(items) != 1 || items[0].(map[string]any)["job_id"] != ids["two"] {
		t.Errorf("%v, want those of %s", items, ids["two"])
	}
	m, _ = s.answer(http.StatusBadRequest, http.MethodGet, "/incidents?job_id=key:three", "")
	if got := fmt.Sprint(m["errors"]); !strings.Contains(got, "/query/job_id") || !strings.Contains(got, "No job has this key") {
		t.Errorf("a key of no job: %s", got)
	}
}
