package jobapi_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// day is a backfill of a day in which everyMinute has 1,440 instants.
const day = `{"from":"1999-06-01T00:00:00Z","to":"1999-06-02T00:00:00Z"}`

// settles makes every change's event known, so that a row takes another one.
func (s *server) settles() {
	s.t.Helper()
	for _, list := range s.changes() {
		for _, e := range list {
			must(s.t, s.pending.MarkDone(s.t.Context(), []job.Locator{e.Locator}))
		}
	}
}

func (s *server) operations() (items []map[string]any) {
	s.t.Helper()
	list, _ := s.answer(http.StatusOK, http.MethodGet, "/operations", "")
	for _, x := range list["items"].([]any) {
		items = append(items, x.(map[string]any))
	}
	return items
}

// lossy fails one of the writes of settings and answers, before or after it took effect.
type lossy struct {
	jobstore.Settings
	jobstore.Jobs
	left  int
	after bool
}

func (f *lossy) do(write func() error) error {
	f.left--
	if f.left == 0 && !f.after {
		return errFlaky
	}
	if err := write(); err != nil {
		return err
	}
	if f.left == 0 {
		return errFlaky
	}
	return nil
}

func (f *lossy) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	return f.do(func() error { return f.Settings.SwapSetting(ctx, name, old, value) })
}

func (f *lossy) FinishKey(ctx context.Context, tenant job.Tenant, key string, a jobstore.Answer) error {
	return f.do(func() error { return f.Jobs.FinishKey(ctx, tenant, key, a) })
}

// A request whose answer is lost at any of its writes, and that is repeated under its key, is one operation, which somebody carries out.
func TestOperationThatIsRepeatedUnderItsKeyIsOne(t *testing.T) {
	for _, what := range []string{"backfill", "replay"} {
		for _, after := range []bool{false, true} {
			for n := 1; n <= 3; n++ {
				bubble.Test(t, func(t *testing.T) {
					f := &lossy{after: after}
					s := newServer(t, func(_ *jobapi.Config, d *jobapi.Deps) {
						f.Settings, f.Jobs = d.Settings, d.Jobs
						d.Settings, d.Jobs = f, f
					})
					path := "/jobs/" + s.create(everyMinute) + "/" + what
					f.left = n
					s.answer(http.StatusServiceUnavailable, http.MethodPost, path, day, "Idempotency-Key", "k")
					time.Sleep(time.Hour)
					m, h := s.answer(http.StatusAccepted, http.MethodPost, path, day, "Idempotency-Key", "k")
					again, _ := s.answer(http.StatusAccepted, http.MethodPost, path, day, "Idempotency-Key", "k")
					list := s.operations()
					index, err := s.stored.Setting(t.Context(), "operations")
					if must(t, err); len(list) != 1 || list[0]["operation_id"] != m["operation_id"] || m["operation_id"] != again["operation_id"] || !strings.Contains(string(index), `"tenants":[0]`) {
						t.Errorf("%s, after %t, %d: there are %v, answered %v and %v; the index is %s", what, after, n, list, m, again, index)
					}
					if want := "/api/v1/operations/" + fmt.Sprint(m["operation_id"]); h.Get("Location") != want {
						t.Errorf("Location %q, want %q", h.Get("Location"), want)
					}
				})
			}
		}
	}
}

func TestRangesThatCannotBeAreRefusedWithAPointer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		id := s.create(everyMinute)
		at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }
		for _, c := range []struct{ what, from, to, more, pointer string }{
			{"backfill", at(-time.Hour), at(time.Second), "", "/to"},
			{"backfill", at(-time.Hour), at(-time.Hour), "", "/to"},
			{"backfill", at(-time.Hour), at(-2 * time.Hour), "", "/to"},
			{"backfill", at(-time.Hour), at(-time.Hour + time.Millisecond), `,"dry_run":true`, ""},
			{"backfill", at(-time.Hour + time.Millisecond), at(-time.Hour + time.Minute), "", "/from"},
			{"backfill", at(-3 * 365 * 24 * time.Hour), at(0), "", "/to"}, // more than a million
			{"backfill", at(-time.Hour), at(0), `,"rate_per_second":0`, "/rate_per_second"},
			{"backfill", at(-time.Hour), at(0), `,"rate_per_second":1001`, "/rate_per_second"},
			{"backfill", at(-time.Hour), at(0), `,"order":"random"`, "/order"},
			{"backfill", "0001-01-01T00:00:00Z", at(0), "", "/from"},
			{"replay", at(-time.Hour), at(time.Second), "", "/to"},
			{"replay", at(-time.Hour), at(0), `,"states":[]`, "/states"},
			{"replay", at(-time.Hour), at(0), `,"states":["skipped"]`, "/states/0"},
			{"replay", at(-time.Hour), at(0), `,"order":"oldest_first"`, "/order"},
		} {
			body := fmt.Sprintf(`{"from":%q,"to":%q%s}`, c.from, c.to, c.more)
			if c.pointer == "" {
				s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/"+c.what, body)
				continue
			}
			p, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, "/jobs/"+id+"/"+c.what, body)
			if faults, _ := p["errors"].([]any); len(faults) != 1 || faults[0].(map[string]any)["pointer"] != c.pointer {
				t.Errorf("%s %s: faults %v, want one at %s", c.what, body, faults, c.pointer)
			}
		}
		if list := s.operations(); len(list) != 0 {
			t.Errorf("there are operations: %v", list)
		}
		s.answer(http.StatusOK, http.MethodPost, "/jobs/"+id+"/cancel", "")
		for _, what := range []string{"backfill", "replay"} {
			s.answer(http.StatusConflict, http.MethodPost, "/jobs/"+id+"/"+what, day)
		}
	})
}

// Instants are whole milliseconds. A range need not begin or end at one, and an operation takes what is shown in it.
func TestOperationTakesWhatIsShownInItsRange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		id, at := s.create(everyMinute), time.Now().Add(-time.Hour).UTC()
		e := job.Entry{JobID: id, Trigger: job.TriggerSchedule, NominalAt: at}
		e.ExecutionID, e.Attempt = job.ScheduleExecutionID(id, at), 1
		event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired}, at)
		must(t, s.deps.History.Record(t.Context(), jobstore.Unencoded(&event)))
		for _, c := range []struct {
			from, to time.Duration // after the instant
			has      bool
		}{
			{-time.Second, time.Microsecond, true},
			{time.Microsecond - time.Millisecond, time.Second, true},
			{0, 1, true},
			{-time.Second, time.Microsecond - time.Millisecond, false},
			{-time.Second, 0, false},
			{1, time.Second, false},
		} {
			from, to := at.Add(c.from).Format(time.RFC3339Nano), at.Add(c.to).Format(time.RFC3339Nano)
			list, _ := s.answer(http.StatusOK, http.MethodGet, "/jobs/"+id+"/executions?from="+from+"&to="+to, "")
			if has := len(list["items"].([]any)) == 1; has != c.has {
				t.Errorf("from %s to %s it is shown: %t", from, to, has)
			}
			body := fmt.Sprintf(`{"from":%q,"to":%q}`, from, to)
			replay, _ := s.answer(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/replay", body)
			redrive, _ := s.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive-all", `{"filter":`+body+`}`)
			for _, o := range []map[string]any{replay, redrive} {
				begin, err := time.Parse(time.RFC3339Nano, o["from"].(string))
				must(t, err)
				end, err := time.Parse(time.RFC3339Nano, o["to"].(string))
				if must(t, err); (!at.Before(begin) && at.Before(end)) != c.has {
					t.Errorf("the %s from %s to %s takes what is from %s to %s", o["type"], from, to, o["from"], o["to"])
				}
			}
			status := map[bool]int{true: http.StatusOK, false: http.StatusUnprocessableEntity}[c.has]
			s.answer(status, http.MethodPost, "/jobs/"+id+"/backfill", strings.TrimSuffix(body, "}")+`,"dry_run":true}`)
			s.settles()
		}
	})
}

// A request is accepted at a whole millisecond, and its range may end at the instant at which it was made.
func TestRangeEndsWhenItsOperationWasAskedForAtTheLatest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		path := "/jobs/" + s.create(everyMinute)
		time.Sleep(time.Minute + time.Microsecond)
		body := fmt.Sprintf(`{"from":"1999-12-31T00:00:00Z","to":%q}`, time.Now().UTC().Format(time.RFC3339Nano))
		for _, what := range []string{"/backfill", "/replay"} {
			if o, _ := s.answer(http.StatusAccepted, http.MethodPost, path+what, body); o["to"] != o["created_at"] {
				t.Errorf("%s: the range ends at %s, and it was asked for at %s", what, o["to"], o["created_at"])
			}
		}
	})
}

func TestDryRunSaysWhatABackfillWouldDoAndDoesNothing(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(everyMinute) + "/backfill"
	for range 2 {
		m, _ := s.answer(http.StatusOK, http.MethodPost, path, strings.TrimSuffix(day, "}")+`,"rate_per_second":100,"dry_run":true}`, "Idempotency-Key", "k")
		if want := "map[first:1999-06-01T00:00:00Z last:1999-06-01T23:59:00Z takes:14s total:1440]"; fmt.Sprint(m) != want {
			t.Errorf("answered %v, want %s", m, want)
		}
	}
	if list := s.operations(); len(list) != 0 {
		t.Errorf("there are operations: %v", list)
	}
	if m, _ := s.answer(http.StatusAccepted, http.MethodPost, path, day, "Idempotency-Key", "k"); m["total"] != float64(1440) { // the key is free
		t.Errorf("answered %v", m)
	}
}

func TestOperationsOfATenantAreBounded(t *testing.T) {
	s := newServer(t, nil)
	path := "/jobs/" + s.create(everyMinute) + "/backfill"
	var first string
	for n := range 20 {
		m, _ := s.answer(http.StatusAccepted, http.MethodPost, path, day)
		if s.settles(); n == 0 {
			first = fmt.Sprint(m["operation_id"])
		}
	}
	p, _ := s.answer(http.StatusConflict, http.MethodPost, path, day)
	if kind := fmt.Sprint(p["type"]); !strings.HasSuffix(kind, "/too-many-operations") {
		t.Errorf("refused as %s", kind)
	}
	for range 60 {
		id := s.operations()[0]["operation_id"]
		s.answer(http.StatusOK, http.MethodPost, fmt.Sprintf("/operations/%s/cancel", id), "")
		s.answer(http.StatusAccepted, http.MethodPost, path, day)
		s.settles()
	}
	list := s.operations()
	if len(list) != 50 {
		t.Errorf("%d operations are kept", len(list))
	}
	if !slices.ContainsFunc(list, func(o map[string]any) bool { return o["operation_id"] == first && o["status"] == "running" }) {
		t.Error("an operation that had not ended was forgotten")
	}
}

func TestOperationIsPausedResumedAndCancelled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/jobs/"+s.create(everyMinute)+"/backfill", day)
		path := "/operations/" + fmt.Sprint(m["operation_id"])
		for _, c := range []struct {
			what, body, status string
			rate               float64
		}{
			{"/pause", "", "paused", 10},
			{"/pause", "", "paused", 10},
			{"/resume", "", "running", 10},
			{"/resume", `{"rate_per_second":7}`, "running", 7},
			{"/resume", `{}`, "running", 7},
			{"/cancel", "", "cancelled", 7},
			{"/cancel", "", "cancelled", 7},
		} {
			time.Sleep(time.Second)
			o, _ := s.answer(http.StatusOK, http.MethodPost, path+c.what, c.body)
			shown, _ := s.answer(http.StatusOK, http.MethodGet, path, "")
			if o["status"] != c.status || o["rate_per_second"] != c.rate || fmt.Sprint(o) != fmt.Sprint(shown) || (o["ended_at"] != nil) != (c.status == "cancelled") {
				t.Errorf("%s %s: answered %v, shown %v", c.what, c.body, o, shown)
			}
		}
		for _, what := range []string{"/pause", "/resume"} {
			p, _ := s.answer(http.StatusConflict, http.MethodPost, path+what, "")
			if kind := fmt.Sprint(p["type"]); !strings.HasSuffix(kind, "/ended") {
				t.Errorf("%s: refused as %s", what, kind)
			}
		}
		if n := len(s.changes()["pauseOperation"]) + len(s.changes()["resumeOperation"]) + len(s.changes()["cancelOperation"]); n != 4 {
			t.Errorf("%d changes became entries, want 4: what changes nothing is none", n)
		}
	})
}

func TestRedriveOfAllIsOneOperationForEachKey(t *testing.T) {
	s := newServer(t, nil)
	id := s.create(everyMinute)
	const path = "/dead-letters:redrive-all"
	m, h := s.answer(http.StatusAccepted, http.MethodPost, path, `{"filter":{"reason":"permanent"},"rate_per_second":50}`, "Idempotency-Key", "k")
	again, _ := s.answer(http.StatusAccepted, http.MethodPost, path, `{"filter":{"reason":"permanent"},"rate_per_second":50}`, "Idempotency-Key", "k")
	if m["operation_id"] != again["operation_id"] || h.Get("Location") != "/api/v1/operations/"+m["operation_id"].(string) {
		t.Errorf("answered %v and %v", m, again)
	}
	for member, want := range map[string]any{
		"type": "redrive", "status": "running", "given_up_for": "permanent", "rate_per_second": 50.0, "handed_out": 0.0, "job_id": nil, "definition_id": nil,
		"to": m["created_at"], "order": "newest_first", "total": nil,
	} {
		if m[member] != want {
			t.Errorf("%s is %v, want %v", member, m[member], want)
		}
	}
	from, to := time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339), time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	m, _ = s.answer(http.StatusAccepted, http.MethodPost, path, `{"filter":{"job_id":"`+id+`","from":"`+from+`","to":"`+to+`"}}`)
	if m["job_id"] != id || m["from"] != from || m["to"] != to {
		t.Errorf("answered %v", m)
	}
	for body, pointer := range map[string]string{
		`{"filter":{"job_id":"job_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}`: "/filter/job_id",
		`{"filter":{"from":"` + to + `","to":"` + from + `"}}`:   "/filter/from",
		`{"filter":{"from":"2100-01-01T00:00:00Z"}}`:             "/filter/from",
		`{"filter":{"to":"1999-01-01T00:00:00Z"}}`:               "/filter/to",
		`{"rate_per_second":0}`:                                  "/rate_per_second",
		`{"limit":5}`:                                            "/limit",
	} {
		m, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, path, body)
		if faults := fmt.Sprint(m["errors"]); !strings.Contains(faults, pointer) {
			t.Errorf("%s is answered %s, want a fault at %s", body, faults, pointer)
		}
	}
	list, _ := s.answer(http.StatusOK, http.MethodGet, "/operations", "")
	if n := len(list["items"].([]any)); n != 2 {
		t.Errorf("%d operations are listed, want 2", n)
	}
}

func TestReplanOfJobsIsOneOperationForEachKey(t *testing.T) {
	s := newServer(t, nil)
	const path = "/jobs:replan"
	m, h := s.answer(http.StatusAccepted, http.MethodPost, path, `{"rate_per_second":50}`, "Idempotency-Key", "k")
	again, _ := s.answer(http.StatusAccepted, http.MethodPost, path, `{"rate_per_second":50}`, "Idempotency-Key", "k")
	if m["operation_id"] != again["operation_id"] || h.Get("Location") != "/api/v1/operations/"+m["operation_id"].(string) {
		t.Errorf("answered %v and %v", m, again)
	}
	for member, want := range map[string]any{
		"type": "replan", "status": "running", "rate_per_second": 50.0, "handed_out": 0.0, "job_id": nil, "definition_id": nil, "total": nil,
		"from": m["created_at"], "to": m["created_at"], "order": "newest_first",
	} {
		if m[member] != want {
			t.Errorf("%s is %v, want %v", member, m[member], want)
		}
	}
	for body, pointer := range map[string]string{`{"rate_per_second":0}`: "/rate_per_second", `{"old":"2025a"}`: "/old"} {
		p, _ := s.answer(http.StatusUnprocessableEntity, http.MethodPost, path, body)
		if faults := fmt.Sprint(p["errors"]); !strings.Contains(faults, pointer) {
			t.Errorf("%s is answered %s, want a fault at %s", body, faults, pointer)
		}
	}
}

// Whatever repeats an occurrence tells its target of that one's instant, and a key that is made of it is that of the occurrence.
func TestWhatRepeatsAnOccurrenceStandsForIt(t *testing.T) {
	s := newServer(t, nil)
	id := s.create(everyMinute)
	at := job.Instant(time.Now().Add(-time.Hour).Truncate(time.Minute))
	row, err := s.jobs.Get(t.Context(), id)
	must(t, err)
	var sources []string
	for n := range 3 {
		e := job.Entry{JobID: id, Trigger: job.TriggerSchedule, NominalAt: at.Add(time.Duration(n) * time.Minute)}
		e.ExecutionID, e.Attempt, e.DefinitionID = job.ScheduleExecutionID(id, e.NominalAt), 1, row.Definition.ID
		event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeFailed, Disposition: job.DispositionFired}, e.NominalAt)
		must(t, s.deps.History.Record(t.Context(), jobstore.Unencoded(&event)))
		must(t, s.deps.History.PutDeadLetter(t.Context(), job.DeadLetter{Event: event, Reason: "permanent", At: event.At}))
		sources = append(sources, e.ExecutionID)
	}
	s.answer(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", `{}`)
	m, _ := s.answer(http.StatusAccepted, http.MethodPost, "/executions/"+sources[1]+"/replay", "", "Idempotency-Key", "k")
	again, _ := s.answer(http.StatusAccepted, http.MethodPost, "/executions/"+sources[1]+"/replay", "", "Idempotency-Key", "k")
	if m["execution_id"] != again["execution_id"] {
		t.Errorf("answered %v and %v", m, again)
	}
	keys := map[string]int{}
	target := job.Target{KeyTemplate: "{run_at}"}
	s.eachEntry(func(e *job.Entry) {
		if e.Trigger != job.TriggerRedrive && e.Trigger != job.TriggerReplay {
			return
		}
		n := slices.Index(sources, e.Note.Source)
		if n < 0 || !e.Occurrence().Equal(at.Add(time.Duration(n)*time.Minute)) || e.NominalAt.Equal(e.Occurrence()) {
			t.Errorf("%s repeats %s, stands for %s", e.ExecutionID, e.Note.Source, e.Occurrence())
		}
		keys[string(e.Trigger)+" "+target.IdempotencyKey(e)]++
	})
	want := map[string]int{"replay " + at.Add(time.Minute).Format(time.RFC3339): 1}
	for n := range 3 {
		want["redrive "+at.Add(time.Duration(n)*time.Minute).Format(time.RFC3339)] = 1
	}
	if fmt.Sprint(keys) != fmt.Sprint(want) {
		t.Errorf("the keys are %v, want %v", keys, want)
	}
}
