package jobapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
)

// tells returns goodJob with whom it tells.
func tells(list string) string {
	return strings.Replace(goodJob, `"name"`, `"notify":[`+list+`],"name"`, 1)
}

func TestWhomAJobTellsIsShownWithoutItsSecretsAndKept(t *testing.T) {
	s := newServer(t, nil)
	one := `{"on":["dead_letter","recovered"],"target":{"kind":"http_webhook","url":"https://team.example/x","headers":{"Authorization":"Bearer s3cret","X-Team":"red"}}}`
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", tells(one))
	id := m["job_id"].(string)
	want := "[map[on:[dead_letter recovered] quiet_period:1h target:map[headers:map[Authorization:******** X-Team:red] kind:http_webhook url:https://team.example/x]]]"
	if got := fmt.Sprint(m["notify"]); got != want {
		t.Errorf("shown is %s", got)
	}
	m, _ = s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"notify":[`+strings.Replace(one, "Bearer s3cret", "********", 1)+`],"name":"other"}`, "If-Match", "*")
	if got := fmt.Sprint(m["notify"]); got != want {
		t.Errorf("shown is %s", got)
	}
	if j := s.row(id); len(j.Notify) != 1 || j.Notify[0].Target.Headers["Authorization"] != "Bearer s3cret" {
		t.Error("the secret did not stay")
	}
	m, _ = s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+id, `{"notify":null}`, "If-Match", "*")
	if m["notify"] != nil || len(s.row(id).Notify) != 0 {
		t.Errorf("%v is told still", m["notify"])
	}
}

func TestJobThatWouldTellOfDeadlinesWithoutOneIsWarned(t *testing.T) {
	s := newServer(t, nil)
	list := `{"on":["dead_letter","sla_missed"],"target":{"kind":"http_webhook","url":"https://team.example/x"}}`
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", tells(list))
	if w := fmt.Sprint(m["warnings"]); !strings.Contains(w, "code:no-deadline") || !strings.Contains(w, "pointer:/notify/0/on") {
		t.Errorf("it is warned of %s", w)
	}
	for _, body := range []string{strings.Replace(tells(list), `"name"`, `"sla":{"start_within":"1m"},"name"`, 1), tells(strings.Replace(list, `,"sla_missed"`, "", 1))} {
		if m, _ = s.answer(http.StatusCreated, http.MethodPost, "/jobs", body); m["warnings"] != nil {
			t.Errorf("it is warned of %v", m["warnings"])
		}
	}
}

func TestWhomAJobCannotTellIsRefusedAtItsPlace(t *testing.T) {
	s := newServer(t, nil)
	good := `{"on":["sla_missed"],"target":{"kind":"http_webhook","url":"https://team.example/x"}}`
	for _, c := range []struct{ list, pointer, code string }{
		{strings.Replace(good, `"sla_missed"`, ``, 1), "/notify/0/on", "required"},
		{strings.Replace(good, `"sla_missed"`, `"sla_missed","sla_missed"`, 1), "/notify/0/on", "duplicate"},
		{strings.Replace(good, `"sla_missed"`, `"recovered"`, 1), "/notify/0/on", "conflict"},
		{strings.Replace(good, `"sla_missed"`, `"lunch"`, 1), "/notify/0/on/0", "enum"},
		{strings.Replace(good, `https`, `ftp`, 1), "/notify/0/target/url", "url"},
		{good + "," + good, "/notify/1/target/url", "duplicate"},
		{strings.Replace(good, `{"on"`, `{"quiet_period":"30s","on"`, 1), "/notify/0/quiet_period", "range"},
		{strings.Replace(good, `"kind"`, `"headers":{"Minutehand-Hops":"0"},"kind"`, 1), "/notify/0/target/headers", "reserved-header"},
		{strings.Replace(good, `"kind"`, `"headers":{"Authorization":"********"},"kind"`, 1), "/notify/0/target/headers/Authorization", "masked"},
	} {
		s.fault(http.StatusUnprocessableEntity, c.pointer, c.code, http.MethodPost, "/jobs", tells(c.list))
	}
}

// A notification may trigger a job, whose failure may cause the next one. That comes to an end.
func TestTriggerTakesANotificationAndRefusesTooManyInARow(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(goodJob) + "/trigger"
	header := []string{"Content-Type", "application/json", "Idempotency-Key", "ntf_x", "Minutehand-Hops", "10"}
	m, _ := s.answer(http.StatusAccepted, http.MethodPost, path, `{"notification_id":"ntf_x","cause":"dead_letter","reason":"a"}`, header...)
	again, _ := s.answer(http.StatusAccepted, http.MethodPost, path, `{"notification_id":"ntf_x","cause":"dead_letter","reason":"b"}`, header...)
	if again["execution_id"] != m["execution_id"] {
		t.Errorf("%v, and again %v", m, again)
	}
	found := 0
	s.eachEntry(func(e *job.Entry) {
		if e.ExecutionID == m["execution_id"] && e.Note != nil && e.Note.Hops == 10 {
			found++
		}
	})
	if found != 1 {
		t.Errorf("%d entries know how many notifications led to them", found)
	}
	s.fault(http.StatusBadRequest, "", "unexpected-body", http.MethodPost, path, `{"cause":"dead_letter"}`, "Content-Type", "application/json")
	s.fault(http.StatusBadRequest, "/header/Minutehand-Hops", "pattern", http.MethodPost, path, "", "Minutehand-Hops", "11")
}
