package jobapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// bodies returns valid definitions, one of each schedule type, in which every free text carries the canary.
func bodies() map[string]string {
	const rest = `"name":"` + canary + `","labels":{"k1":"` + canary + `"},"target":{"kind":"http_webhook",` +
		`"url":"https://example.com/` + canary + `","method":"PUT","headers":{"k1":"` + canary + `"},"body":{"a":"` + canary +
		`"},"timeout":"10s"},"retry_policy":{"backoff":"linear","max_attempts":3,"base_delay":"1s","max_delay":"1m",` +
		`"jitter":0.5,"window":"1h"},"missed_run_policy":"backfill","catch_up_window":"5m","max_backfill":7,` +
		`"overlap_policy":"allow_all","priority":"normal","precision":"fast","max_occurrences":9,"jitter":"1s",` +
		`"start_at":"2030-01-01T00:00:00Z","end_at":"2035-01-01T00:00:00Z","timezone":"America/New_York"}`
	return map[string]string{
		"one_shot": `{"type":"one_shot","run_at":"2031-01-02T03:04:05Z",` + rest,
		"cron":     `{"type":"cron","cron_expr":"30 2 * * *","dst":{"gap":"skip","fold":"both"},` + rest,
		"interval": `{"type":"interval","every":"15m",` + rest,
	}
}

// mutation makes one member of a body wrong, or odd.
type mutation struct {
	at    []string
	value any // nil removes the member
	// wrong is the pointer at which the answer, 422, must have a fault; "" if the body may be right.
	wrong string
}

func pointerTo(at []string) string { return "/" + strings.Join(at, "/") }

// mutations returns those of every keyword below a schema.
func (d *document) mutations(schema map[string]any, at []string) []mutation {
	schema = d.resolve(schema)
	var all []mutation
	for _, keyword := range slices.Sorted(maps.Keys(schema)) {
		all = append(all, d.mutate(keyword, schema[keyword], schema, at)...)
	}
	for i := range all {
		if len(all[i].at) == 0 { // the body itself is not a member
			all[i].at = nil
		}
	}
	return slices.DeleteFunc(all, func(m mutation) bool { return m.at == nil })
}

func (d *document) mutate(keyword string, v any, schema map[string]any, at []string) []mutation {
	here, below := pointerTo(at), func(name string) []string { return append(slices.Clone(at), name) }
	wrong := func(values ...any) (all []mutation) {
		for _, value := range values {
			all = append(all, mutation{at, value, here})
		}
		return all
	}
	odd := func(values ...string) (all []mutation) {
		for _, value := range values {
			all = append(all, mutation{at, value, ""})
		}
		return all
	}
	number, _ := v.(float64)
	switch keyword {
	case "properties":
		members, _ := v.(map[string]any)
		var all []mutation
		for _, name := range slices.Sorted(maps.Keys(members)) {
			s, _ := members[name].(map[string]any)
			all = append(all, mutation{at: below(name)})
			all = append(all, d.mutations(s, below(name))...)
		}
		return all
	case "additionalProperties":
		if s, ok := v.(map[string]any); ok {
			return d.mutations(s, below("k1"))
		}
		return []mutation{
			{below("no_such_member"), canary, pointerTo(below("no_such_member"))},
			{below("Type"), canary, pointerTo(below("Type"))},
			{below("a\r\nb"), canary, here},
		}
	case "items":
		s, _ := v.(map[string]any)
		all := d.mutations(s, at)
		for i := range all {
			all[i].value = []any{"1s", all[i].value}
			if all[i].wrong != "" {
				all[i].wrong += "/1"
			}
		}
		return all
	case "required":
		var all []mutation
		for name := range d.names(v) {
			all = append(all, mutation{below(name), nil, pointerTo(below(name))})
		}
		return all
	case "type":
		return wrong(d.otherTypes(v)...)
	case "enum":
		var all []mutation
		for name := range d.names(v) {
			all = append(all, odd(name)...)
		}
		return append(all, wrong(canary, "", "SKIP", " ")...)
	case "minLength":
		return wrong("")
	case "maxLength":
		return wrong(strings.Repeat(canary, int(number)/len(canary)+1))
	case "minimum":
		return wrong(number-1, json.Number("-1e400"))
	case "maximum":
		return append(wrong(number+1, json.Number("1e400"), json.Number("99999999999999999999")),
			mutation{at, json.Number("1e999"), here}, mutation{at, json.Number("1.0"), ""}, mutation{at, json.Number("1e0"), ""},
			mutation{at, json.Number("1e-400"), ""}, mutation{at, json.Number("-0"), ""})
	case "maxItems":
		return wrong(slices.Repeat([]any{"1s"}, int(number)+1))
	case "maxProperties":
		many := map[string]any{}
		for i := range int(number) + 1 {
			many[fmt.Sprint("k", i)] = canary
		}
		return wrong(many)
	case "propertyNames":
		return wrong(map[string]any{canary + " \x00": "v"}, map[string]any{"": "v"}, map[string]any{"é": canary})
	case "pattern":
		return append(odd("\u00a0", "%00"+canary, "<script>"+canary, "'; DROP--"+canary, "${jndi:"+canary+"}", "😀"+canary, "\u202e"+canary),
			wrong(canary+"\x00", "\r\nX-Evil: "+canary, "\x7f"+canary)...)
	case "format":
		if v == "minutehand-duration" {
			return append(odd(durations()...), wrong("-5s", "5", "s", "1d", "1us", "1h1h", "24:00", "9999999999999h", "9223372037s", "5s"+canary)...)
		}
		return append(odd(instants()...), wrong("2030-12-31T23:59:60Z", "2030-01-02T24:00:00Z", "2030-02-30T00:00:00Z",
			"2030-01-02 03:04:05Z", "2030-01-02T03:04:05", "2030-01-02T3:04:05Z", "2030-01-02T03:04:05,5Z", "2030-01-02T03:04:05+24:00",
			"9999-12-31T23:59:59-14:00", "0000-01-01T00:00:00+14:00", "10000-01-01T00:00:00Z", "now", "2030-01-02T03:04:05Z"+canary)...)
	case "default", "description":
		return nil
	}
	d.t.Errorf("no mutation is made for the keyword %s at %s", keyword, here)
	return nil
}

func (*document) names(v any) map[string]bool {
	names := map[string]bool{}
	list, _ := v.([]any)
	for _, e := range list {
		if s, ok := e.(string); ok {
			names[s] = true
		}
	}
	return names
}

func (*document) otherTypes(t any) []any {
	all := []any{json.RawMessage("null"), true}
	for name, v := range map[string]any{"string": canary, "number": 1.5, "array": []any{canary}, "object": map[string]any{"k1": canary}} {
		if name != t && (name != "number" || t != "integer") {
			all = append(all, v)
		}
	}
	return all
}

func durations() []string {
	return []string{
		"0s", "0ms", "1ms", "999ms", "1s", "720h", "720h1ms", "8784h", "8785h", "99999h", "999999h", "9223372036s",
		"99999999m", "999999999999ms", "0h0m0s0ms", "00001s",
	}
}

func instants() []string {
	return []string{
		"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2000-01-01T00:00:00Z",
		"2030-06-01T00:00:00.123456789Z", "2030-06-01T00:00:00+23:59", "2199-12-31T23:59:59Z", "2200-01-01T00:00:00Z",
		"2262-04-11T23:47:17Z", "9999-12-31T23:59:59Z",
	}
}

// apply returns the body with the mutation applied; ok is false if the body has no place for it.
func (m *mutation) apply(t testing.TB, body string) (text string, ok bool) {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal([]byte(body), &tree); err != nil {
		t.Fatal(err)
	}
	place := tree
	for _, name := range m.at[:len(m.at)-1] {
		if place, ok = place[name].(map[string]any); !ok {
			return "", false
		}
	}
	last := m.at[len(m.at)-1]
	if m.value == nil {
		delete(place, last)
	} else {
		place[last] = m.value
	}
	b, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), true
}

// TestEveryWrongMemberIsToldAtItsPointerAndEveryAcceptedJobStaysUsable makes each mutation of each valid definition, for
// create, replace and patch. A member that violates the document is reported exactly where it is, and nothing is written.
// An accepted job is answered as the document says, can be read again, and can be changed.
func TestEveryWrongMemberIsToldAtItsPointerAndEveryAcceptedJobStaysUsable(t *testing.T) {
	for kind, base := range bodies() {
		for _, verb := range []string{http.MethodPost, http.MethodPut, http.MethodPatch} {
			t.Run(kind+" "+verb, func(t *testing.T) {
				t.Parallel()
				d, made := loadDocument(t), 0
				a := &accepted{t: t, d: d, count: &counter{}}
				a.s = newServer(t, func(_ *jobapi.Config, deps *jobapi.Deps) {
					deps.Jobs, deps.Pending = countedJobs{deps.Jobs, a.count}, countedPending{deps.Pending, a.count}
				})
				for _, m := range d.mutations(d.at("/components/schemas/JobDefinition"), nil) {
					if text, ok := m.apply(t, base); ok {
						a.try(verb, base, text, &m)
						made++
					}
				}
				if made < 400 {
					t.Errorf("only %d mutations were made", made)
				}
			})
		}
	}
}

type accepted struct {
	t     *testing.T
	d     *document
	s     *server
	count *counter
	job   string
}

func (a *accepted) try(verb, base, text string, m *mutation) {
	a.t.Helper()
	path, want := "/jobs", http.StatusCreated
	if verb != http.MethodPost {
		if a.job == "" {
			a.job = a.s.create(base)
		}
		path, want = "/jobs/"+a.job, http.StatusOK
	}
	wrong := m.wrong
	if verb == http.MethodPatch && (m.value == nil || string(raw(m.value)) == "null") {
		wrong = "" // this mutation removes the member, or leaves it
	}
	before := a.count.writes.Load()
	w := a.s.do(verb, path, text, "If-Match", "*")
	what := fmt.Sprintf("%s with %s = %.100s", verb, pointerTo(m.at), raw(m.value))
	switch {
	case w.Code == http.StatusUnprocessableEntity:
		a.refused(what, wrong, w)
		if a.count.writes.Load() != before {
			a.t.Errorf("%s: refused, but something was written", what)
		}
	case w.Code != want:
		a.t.Errorf("%s: answered %d %.300s", what, w.Code, w.Body)
	case wrong != "":
		a.t.Errorf("%s: answered %d, want 422 at %s", what, w.Code, wrong)
	default:
		a.job = ""
		a.usable(what, w)
	}
}

func raw(v any) []byte {
	b, _ := json.Marshal(v) // only for a message
	return b
}

func (a *accepted) refused(what, wrong string, w *httptest.ResponseRecorder) {
	a.t.Helper()
	if err := a.d.check("/components/schemas/Problem", w.Body.Bytes()); err != nil {
		a.t.Errorf("%s: not a problem: %v", what, err)
	}
	if strings.Contains(w.Body.String(), canary) {
		a.t.Errorf("%s: a submitted value is repeated: %s", what, w.Body)
	}
	var p struct{ Errors []struct{ Pointer string } }
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		a.t.Fatal(err)
	}
	found := wrong == ""
	for _, e := range p.Errors {
		found = found || e.Pointer == wrong || wrong == "/" && e.Pointer == ""
		if e.Pointer == "" && wrong != "/" {
			a.t.Errorf("%s: a fault of a member has no pointer: %s", what, w.Body)
		}
	}
	if !found || len(p.Errors) == 0 {
		a.t.Errorf("%s: no fault at %s: %s", what, wrong, w.Body)
	}
}

// usable fails the test unless the job in the answer can be read and changed, and looks as the document says each time.
func (a *accepted) usable(what string, w *httptest.ResponseRecorder) {
	a.t.Helper()
	var j struct {
		ID string `json:"job_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &j); err != nil {
		a.t.Fatal(err)
	}
	path := "/jobs/" + j.ID
	for _, answer := range []*httptest.ResponseRecorder{
		w, a.s.do(http.MethodGet, path, ""), a.s.do(http.MethodPatch, path, `{"name":"other"}`, "If-Match", "*"),
	} {
		if answer.Code >= 300 {
			a.t.Errorf("%s: accepted, and then answered %d %.300s", what, answer.Code, answer.Body)
		} else if err := a.d.check("/components/schemas/Job", answer.Body.Bytes()); err != nil {
			a.t.Errorf("%s: the answer is not a Job: %.400v", what, err)
		}
	}
}
