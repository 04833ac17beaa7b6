package jobapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// foresee stores a forecast of the whole installation, and of the default tenant, in which each minute has usual fires, and others more.
func (s *server) foresee(asOf time.Time, usual int, more map[int64]int) {
	s.t.Helper()
	table := forecast.NewTable(job.Minute(asOf) + 1)
	for m := range int64(forecast.Minutes) {
		minute := job.Minute(asOf) + 1 + m
		for range usual + more[minute] {
			table.Add(minute, 1)
		}
	}
	f := table.Estimate(asOf, 256, 256)
	must(s.t, forecast.Store{Lists: s.stored}.Put(s.t.Context(), &f, map[job.Tenant]*forecast.Forecast{job.DefaultTenant: &f}))
}

func TestAForecastIsShownByMinutesAndInSteps(t *testing.T) {
	s := newServer(t, nil)
	m, _ := s.answer(http.StatusOK, http.MethodGet, "/forecast", "")
	if got := fmt.Sprint(m["share"], m["as_of"], m["items"]); got != "0 <nil> []" {
		t.Errorf("without a forecast: %s", got)
	}
	now := time.Now().Truncate(time.Hour).Add(time.Hour)
	s.foresee(now.Add(-30*time.Minute), 2, map[int64]int{job.Minute(now): 100})
	span := "from=" + now.UTC().Format(time.RFC3339) + "&to=" + now.Add(2*time.Hour).UTC().Format(time.RFC3339)
	for step, want := range map[string]string{
		"": "120 340 0 102", "&step=5m": "24 340 0 110", "&step=15m": "8 340 0 130", "&step=1h": "2 340 0 220",
	} {
		m, _ = s.answer(http.StatusOK, http.MethodGet, "/forecast?"+span+step, "")
		items := m["items"].([]any)
		first := items[0].(map[string]any)
		if got := fmt.Sprint(len(items), " ", m["planned"], " ", m["error"], " ", first["planned"]); got != want {
			t.Errorf("step %q: %s, want %s", step, got, want)
		}
		if first["at"] != now.UTC().Format(time.RFC3339) || m["share"] != 1.0 {
			t.Errorf("step %q begins at %v, share %v", step, first["at"], m["share"])
		}
	}
	m, _ = s.answer(http.StatusOK, http.MethodGet, "/forecast", "")
	if first, from := m["items"].([]any)[0].(map[string]any), now.Add(-29*time.Minute); first["at"].(string) < from.UTC().Format(time.RFC3339) {
		t.Errorf("it begins at %v", first["at"])
	}
	s.foresee(now.Add(-7*time.Hour), 2, nil)
	if m, _ = s.answer(http.StatusOK, http.MethodGet, "/forecast", ""); m["share"] != 0.0 {
		t.Errorf("an old forecast is shown: %v", m)
	}
	for _, bad := range []string{"step=2m", "step=0s", "from=yesterday"} {
		s.answer(http.StatusBadRequest, http.MethodGet, "/forecast?"+bad, "")
	}
}

func TestARangeWithNothingOfAForecastIsRefused(t *testing.T) {
	s := newServer(t, nil)
	now := time.Now().UTC().Truncate(time.Minute)
	in := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	for _, made := range []bool{false, true} {
		if made {
			s.foresee(now.Add(-3*time.Hour), 1, nil)
		}
		for query, want := range map[string]string{
			"from=" + in(25*time.Hour):                             "/query/from beyond-forecast",
			"from=2100-01-01T09:00:00Z&to=2100-01-01T12:00:00Z":    "/query/from beyond-forecast",
			"from=" + in(3*time.Hour) + "&to=" + in(2*time.Hour):   "/query/to before-from",
			"from=" + in(3*time.Hour) + "&to=" + in(3*time.Hour):   "/query/to before-from",
			"to=" + in(-time.Hour):                                 "/query/to past",
			"from=" + in(-4*time.Hour) + "&to=" + in(-time.Hour):   "/query/to past",
			"from=" + in(-4*time.Hour) + "&to=" + in(time.Hour):    "",
			"from=" + in(20*time.Hour) + "&to=" + in(99*time.Hour): "",
		} {
			if want == "" {
				m, _ := s.answer(http.StatusOK, http.MethodGet, "/forecast?"+query, "")
				if items := m["items"].([]any); (len(items) > 0) != made {
					t.Errorf("%s has %d items, a forecast was made: %v", query, len(items), made)
				}
				continue
			}
			m, _ := s.answer(http.StatusBadRequest, http.MethodGet, "/forecast?"+query, "")
			fault := m["errors"].([]any)[0].(map[string]any)
			if got := fmt.Sprint(fault["pointer"], " ", fault["code"]); got != want {
				t.Errorf("%s is refused for %s, want %s", query, got, want)
			}
		}
	}
	m, _ := s.answer(http.StatusBadRequest, http.MethodGet, "/forecast?from="+in(22*time.Hour), "") // it was made three hours ago
	if got := fmt.Sprint(m["errors"]); !strings.Contains(got, "to "+in(21*time.Hour+time.Minute)) {
		t.Errorf("it does not say what is forecast: %s", got)
	}
}

func TestAJobInACrowdedMinuteIsCreatedWithAWarning(t *testing.T) {
	s := newServer(t, nil)
	crowded := time.Now().Truncate(time.Hour).Add(3 * time.Hour)
	minute := job.Minute(crowded)
	s.foresee(time.Now(), 10, map[int64]int{minute: 5000, minute + 1: 5000, minute - 1: 5000})
	at := func(t time.Time) string {
		return fmt.Sprintf(`{"name":"n","type":"one_shot","run_at":%q,"target":{"kind":"http_webhook","url":"https://t.example/"}}`, t.UTC().Format(time.RFC3339))
	}
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", at(crowded), "Idempotency-Key", "k")
	list, _ := m["warnings"].([]any)
	if len(list) != 1 {
		t.Fatalf("warnings: %v", m["warnings"])
	}
	w := list[0].(map[string]any)
	if w["code"] != "crowded-minute" || w["pointer"] != "/run_at" || w["offset_minutes"] != 2.0 || !strings.Contains(fmt.Sprint(w["message"]), "2 minutes later is calmer.") {
		t.Errorf("%v", w)
	}
	again, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", at(crowded), "Idempotency-Key", "k")
	if fmt.Sprint(again["warnings"]) != fmt.Sprint(m["warnings"]) {
		t.Errorf("the repeated request was answered %v", again["warnings"])
	}
	batch, _ := s.answer(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+at(crowded)+`,`+strings.Replace(at(crowded), `"name"`, `"key":"k","name"`, 1)+`]}`)
	for _, result := range batch["results"].([]any) {
		if job := result.(map[string]any)["job"].(map[string]any); fmt.Sprint(job["warnings"]) != fmt.Sprint(m["warnings"]) {
			t.Errorf("in a batch it is created with the warnings %v", job["warnings"])
		}
	}
	daily := fmt.Sprintf(`{"name":"n","type":"cron","cron_expr":"0 %d * * *","target":{"kind":"http_webhook","url":"https://t.example/"}}`, crowded.UTC().Hour())
	m, _ = s.answer(http.StatusCreated, http.MethodPost, "/jobs", daily)
	if got := fmt.Sprint(m["warnings"]); !strings.Contains(got, "/cron_expr") || !strings.Contains(got, "spread") {
		t.Errorf("a job of each day: %s", got)
	}
	delayed := strings.Replace(at(crowded), fmt.Sprintf(`"run_at":%q`, crowded.UTC().Format(time.RFC3339)), fmt.Sprintf(`"delay":"%ds"`, int(time.Until(crowded.Add(30*time.Second)).Seconds())), 1)
	m, _ = s.answer(http.StatusCreated, http.MethodPost, "/jobs", delayed)
	if got := fmt.Sprint(m["warnings"]); !strings.Contains(got, "/delay") || strings.Contains(got, "spread") {
		t.Errorf("a delay: %s", got)
	}
	spread := strings.Replace(daily, `"name"`, `"spread":"auto","spread_within":"1h","name"`, 1)
	for range 3 { // by an hour, most are moved out of the crowd
		m, _ = s.answer(http.StatusCreated, http.MethodPost, "/jobs", spread)
		due, _ := time.Parse(time.RFC3339, m["next_run_at"].(string))
		if d := due.Sub(crowded); d < 0 || d >= time.Hour {
			t.Errorf("moved by %v", d)
		}
		if (m["warnings"] != nil) != (due.Sub(crowded) < 2*time.Minute) {
			t.Errorf("due %v after the full hour: %v", due.Sub(crowded), m["warnings"])
		}
	}
	for name, body := range map[string]string{
		"another minute":        at(crowded.Add(5 * time.Minute)),
		"each minute":           strings.Replace(daily, fmt.Sprintf(`"0 %d`, crowded.UTC().Hour()), `"* *`, 1),
		"beyond what is known":  at(crowded.Add(48 * time.Hour)),
		"before what was known": strings.Replace(at(crowded), `"run_at":"`+crowded.UTC().Format(time.RFC3339), `"delay":"1s`, 1),
	} {
		m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", body)
		if m["warnings"] != nil {
			t.Errorf("%s: %v", name, m["warnings"])
		}
	}
}

func TestAForecastThatCannotBeReadKeepsNoJobFromBeingCreated(t *testing.T) {
	s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) { d.Settings = forgetful{d.Settings} })
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", goodJob)
	if m["warnings"] != nil {
		t.Error(m["warnings"])
	}
}

// forgetful reads no forecast.
type forgetful struct{ jobstore.Settings }

func (s forgetful) Items(ctx context.Context, list, after string, limit int) ([]jobstore.Item, error) {
	if strings.HasPrefix(list, "forecast") {
		return nil, errFlaky
	}
	return s.Settings.Items(ctx, list, after, limit)
}

func TestWhatSpreadSaysIsChecked(t *testing.T) {
	s := newServer(t, nil)
	for members, want := range map[string]string{
		`"spread":"auto"`:                                     "/spread_within",
		`"spread_within":"10m"`:                               "/spread",
		`"spread":"auto","spread_within":"0s"`:                "/spread_within",
		`"spread":"auto","spread_within":"61m"`:               "/spread_within",
		`"spread":"auto","spread_within":"999ms"`:             "/spread_within",
		`"spread":"none","spread_within":"1m"`:                "/spread",
		`"spread":"auto","spread_within":"10m","jitter":"1m"`: "/jitter",
	} {
		m, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", strings.Replace(goodJob, `"name"`, members+`,"name"`, 1))
		if got := m["errors"].([]any)[0].(map[string]any)["pointer"]; got != want {
			t.Errorf("%s: %v", members, m["errors"])
		}
	}
	m, _ := s.answer(http.StatusCreated, http.MethodPost, "/jobs", strings.Replace(goodJob, `"name"`, `"spread":"auto","spread_within":"10m","name"`, 1))
	if got := fmt.Sprint(m["spread"], m["spread_within"]); got != "auto10m" && got != "auto 10m" {
		t.Error(got)
	}
	m, _ = s.answer(http.StatusOK, http.MethodPatch, "/jobs/"+m["job_id"].(string), `{"spread":null,"spread_within":null}`, "If-Match", "*")
	if m["spread"] != nil || m["spread_within"] != nil {
		t.Error(m["spread"], m["spread_within"])
	}
}
