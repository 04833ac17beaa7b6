package jobapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/minutehand/minutehand/schemas"
)

// canary is in every submitted text; no answer to a bad request may repeat it.
const canary = "cAnArY7f3a"

// leastRequests is the minimum number of hostile requests that the suite makes.
const leastRequests = 20_000

// hostile drives the API with requests made from its own document by one mutation each.
type hostile struct {
	t        *testing.T
	s        *server
	doc      map[string]any
	jobID    string
	requests int
	accepted int             // requests that were right after all, and wrote an entry
	aimed    []member        // members of right bodies
	keywords map[string]bool // hit, of those that occur
	ops      map[string]bool
}

// member is a place in a valid body that mutations were aimed at.
type member struct {
	method, path, base string
	at                 []string
	schema             map[string]any
}

// validation returns the keywords of the document that say what is accepted.
func validation() []string {
	return []string{
		"type", "enum", "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "required",
		"additionalProperties", "maxItems", "maxProperties", "propertyNames",
	}
}

func TestNoHostileRequestIsAnsweredBadly(t *testing.T) {
	h := &hostile{t: t, s: newServer(t, nil), keywords: map[string]bool{}, ops: map[string]bool{}}
	if err := yaml.Unmarshal(schemas.OpenAPI, &h.doc); err != nil {
		t.Fatal(err)
	}
	w := h.s.do(http.MethodPost, "/jobs", goodJob)
	var j map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &j); err != nil || w.Code != http.StatusCreated {
		t.Fatalf("%d %s %v", w.Code, w.Body, err)
	}
	h.jobID = j["job_id"].(string)
	before := h.s.entries()
	paths := h.doc["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path].(map[string]any)
		for _, method := range slices.Sorted(maps.Keys(item)) {
			if method != "parameters" {
				h.operation(path, strings.ToUpper(method), item, item[method].(map[string]any))
			}
		}
	}
	for i := range 500 {
		h.noise(i)
	}
	for r := rand.New(rand.NewPCG(1, 2)); h.requests < leastRequests; {
		h.twoAtOnce(r)
	}
	if after := h.s.entries(); after-before != h.accepted {
		t.Errorf("%d requests were accepted, but there are %d new entries", h.accepted, after-before)
	}
	h.coverage()
}

// coverage fails for every operation and keyword that nothing was aimed at.
func (h *hostile) coverage() {
	occurring := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, child := range v {
				occurring[k] = true
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	walk(h.doc["components"].(map[string]any)["parameters"])
	for _, name := range []string{"JobCreate", "JobDefinition", "PreviewRequest", "Target", "RetryPolicy", "Duration", "Instant"} {
		walk(h.schema("#/components/schemas/" + name))
	}
	for _, k := range validation() {
		if occurring[k] && !h.keywords[k] {
			h.t.Errorf("no request was aimed at the keyword %s", k)
		}
	}
	for path, item := range h.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			if method != "parameters" && !h.ops[op.(map[string]any)["operationId"].(string)] {
				h.t.Errorf("no request was aimed at %s %s", method, path)
			}
		}
	}
	h.t.Logf("%d requests, %d operations, %d keywords", h.requests, len(h.ops), len(h.keywords))
}

func (h *hostile) schema(ref string) map[string]any {
	var v any = h.doc
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		v = v.(map[string]any)[part]
	}
	return v.(map[string]any)
}

func (h *hostile) resolve(s map[string]any) map[string]any {
	if ref, ok := s["$ref"].(string); ok {
		return h.schema(ref)
	}
	return s
}

// operation aims mutations at one operation's parameters and body.
func (h *hostile) operation(path, method string, item, op map[string]any) {
	h.ops[op["operationId"].(string)] = true
	good := named(path, h.jobID)
	for _, list := range []any{item["parameters"], op["parameters"]} {
		refs, _ := list.([]any)
		for _, r := range refs {
			h.parameter(path, good, method, h.resolve(r.(map[string]any)))
		}
	}
	h.send(http.StatusBadRequest, method, good+"?"+canary+"=1", "", "If-Match", "*")
	body, ok := op["requestBody"].(map[string]any)
	if !ok {
		h.send(0, method, good, `{"a":"`+canary+`"}`)
		return
	}
	for _, content := range body["content"].(map[string]any) {
		schema := h.resolve(content.(map[string]any)["schema"].(map[string]any))
		base := goodJob
		if schema["properties"] == nil { // a merge patch: its result is checked instead
			schema, base = h.schema("#/components/schemas/JobDefinition"), `{}`
		}
		if b, ok := bases()[path]; ok {
			base = b
		}
		h.members(method, good, base, schema, nil)
		for _, text := range malformed() {
			h.send(0, method, good, text, "If-Match", "*")
		}
		h.send(http.StatusUnsupportedMediaType, method, good, base, "If-Match", "*", "Content-Type", "text/"+canary)
	}
}

// bases returns valid bodies of the operations that do not take a job.
func bases() map[string]string {
	return map[string]string{
		"/schedules/preview": `{"type":"cron","cron_expr":"0 9 * * MON"}`, "/jobs:batch": `{"jobs":[` + goodJob + `]}`,
		"/dead-letters:redrive": `{"filter":{},"rate_per_second":5}`, "/dead-letters:redrive-all": `{"filter":{},"rate_per_second":5}`, "/jobs:replan": `{"rate_per_second":5}`, "/dispatch/pause": `{}`, "/dispatch/resume": `{}`,
		"/tenants": `{"name":"acme"}`, "/keys": `{"name":"deploy","role":"viewer"}`, "/keys/{key_id}/rotate": `{}`,
		"/jobs/{id}/replay":   `{"from":"1999-01-01T00:00:00Z","to":"1999-03-01T00:00:00Z","states":["dead"]}`,
		"/jobs/{id}/backfill": `{"from":"1999-01-01T00:00:00Z","to":"1999-03-01T00:00:00Z"}`, "/operations/{operation_id}/resume": `{"rate_per_second":20}`,
		"/connections/{connection}":               `{"kafka":{"brokers":["kafka.example.com:9092"],"tls":true,"username":"jobs","password":"secret"}}`,
		"/pools/{pool}":                           `{"max_running":5,"handlers":[{"name":"generate","max_running":2}],"logs_url":"https://logs.example.com/{worker}?execution={execution_id}"}`,
		"/pools/{pool}/poll":                      `{"poll_id":"poll-0001","worker":"worker-1","version":"1.0","handlers":["generate"],"max":2,"wait":"1ms","running":["exe_01ARZ3NDEKTSV4RRFFQ69G5FAV-s1893456000000.1"]}`,
		"/pools/{pool}/tasks/{task_id}/heartbeat": `{"fencing_token":"` + aToken + `","progress":{"at":1}}`,
		"/pools/{pool}/tasks/{task_id}/complete":  `{"fencing_token":"` + aToken + `","result":{"rows":1}}`,
		"/pools/{pool}/tasks/{task_id}/fail":      `{"fencing_token":"` + aToken + `","error":"no","retryable":true,"retry_after":"1s"}`,
		"/pools/{pool}/tasks/{task_id}/release":   `{"fencing_token":"` + aToken + `"}`,
	}
}

// aToken is a fencing token that nobody has.
const aToken = "0000-060000000000a0-000000000001-0000000000100001"

// named puts a job, an execution of it, a tenant, a key and an operation into a path of the document.
func named(path, jobID string) string {
	return strings.NewReplacer("{id}", jobID, "{execution_id}", "exe_"+jobID[4:]+"-s1893456000000", "{tenant}", "acme",
		"{key_id}", "mh_default_1", "{operation_id}", "op_"+jobID[4:], "{connection}", "orders",
		"{pool}", "invoices", "{task_id}", "exe_"+jobID[4:]+"-s1893456000000.1").Replace(path)
}

func malformed() []string {
	return []string{
		"{", `{"name":`, "[]", "null", `{"retry_policy":{"jitter":1e1000001}}`, `{"a":1` + strings.Repeat("0", 2000) + "}", `"` + canary + `"`, "1e999", "{} {}", "\xff\xfe", `{"a":"` + canary + "\x00" + `"}`,
		`{"name":"` + canary + `","name":1}`, strings.Repeat("[", 20_000), strings.Repeat(`{"a":`, 9_000) + "1",
		`{"name":"` + strings.Repeat("x", 600<<10) + `"}`, " ", `{"\ud800":1}`, `{"name":"\ud800` + canary + `"}`,
	}
}

// parameter aims at one parameter.
func (h *hostile) parameter(path, good, method string, p map[string]any) {
	name, in := p["name"].(string), p["in"].(string)
	for keyword := range h.resolve(p["schema"].(map[string]any)) {
		h.keywords[keyword] = true
	}
	for _, value := range []string{
		canary, "", "0", "-1", "501", "1e3", "99999999999999999999", "null", "%00", "' OR 1=1 --", strings.Repeat("z", 5000), "é", "job_", "\"x\"", "*1",
	} {
		switch in {
		case "query":
			h.send(0, method, good+"?"+name+"="+strings.NewReplacer(" ", "%20", "\"", "%22", "é", "%C3%A9").Replace(value), "")
		case "header":
			h.send(0, method, good, goodJob, name, value)
		default:
			h.send(0, method, strings.ReplaceAll(path, "{"+name+"}", strings.Trim(value, "/")), "", "If-Match", "*")
		}
	}
	if in == "query" {
		h.send(http.StatusBadRequest, method, good+"?"+name+"=1&"+name+"=2", "")
	}
}

// members aims at every member of a schema, at any depth.
func (h *hostile) members(method, path, base string, schema map[string]any, at []string) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		s := h.resolve(properties[name].(map[string]any))
		here := append(slices.Clone(at), name)
		for keyword := range s {
			h.keywords[keyword] = true
		}
		h.aimed = append(h.aimed, member{method, path, base, here, s})
		for _, v := range values(s) {
			h.sendBody(method, path, base, here, v)
		}
		if s["properties"] != nil || s["additionalProperties"] != nil {
			h.members(method, path, base, s, here)
			h.sendBody(method, path, base, append(here, canary+"-member"), "x")
		}
	}
	if required, ok := schema["required"].([]any); ok {
		h.keywords["required"] = true
		for _, name := range required {
			h.sendBody(method, path, base, append(slices.Clone(at), name.(string)), nil)
		}
	}
	if schema["additionalProperties"] == false {
		h.keywords["additionalProperties"] = true
		for _, name := range []string{"unknown", "Name", "a b", "", strings.Repeat("n", 300), "__proto__", "é"} {
			h.sendBody(method, path, base, append(slices.Clone(at), name), canary)
		}
	}
}

// values returns bad, or at least odd, values for a schema.
func values(s map[string]any) []any {
	many := map[string]any{}
	for i := range 70 {
		many[fmt.Sprint("k", i)] = "v"
	}
	list := make([]any, 101)
	for i := range list {
		list[i] = "1s"
	}
	odd := []any{
		nil, true, 0, -1, 1.5, json.Number("1e400"), json.Number("99999999999999999999"), canary, "", " ", "\u0000" + canary,
		"\r\n" + canary, strings.Repeat(canary, 1000),
		[]any{},
		list,
		map[string]any{},
		many,
		map[string]any{canary + " x": 1},
		map[string]any{"a\r\nb": canary},
		"\u00a0", "é" + canary, "9999-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "2030-02-30T00:00:00Z",
		"24:00", "-5s", "1h1h", "99999999h", "0s", "999999999999ms", "*/0 * * * *", "1,,2 * * * *", "0 0 30 2 *", "H * * * *", "@every 1s",
		"TZ=UTC * * * * *", "Local", "../etc/passwd", "America/Nowhere", "ftp://" + canary, "http://", "http://u:" + canary + "@h/", "http://h:99999/",
		"http://h/#" + canary, "//h", "http://[::1", "kafka", "skip", canary + "@",
	}
	if _, ok := s["maximum"]; ok {
		odd = append(odd, 1<<40)
	}
	return odd
}

// twoAtOnce aims at two members of one body; the seed makes every run the same.
func (h *hostile) twoAtOnce(r *rand.Rand) {
	h.t.Helper()
	a := h.aimed[r.IntN(len(h.aimed))]
	b := h.aimed[r.IntN(len(h.aimed))]
	for b.path != a.path || b.method != a.method {
		b = h.aimed[r.IntN(len(h.aimed))]
	}
	pick := func(m member) any { v := values(m.schema); return v[r.IntN(len(v))] }
	h.sendBody(a.method, a.path, string(h.with(a.base, a.at, pick(a))), b.at, pick(b))
}

// sendBody sends base with one member set, or removed when v is nil.
func (h *hostile) sendBody(method, path, base string, at []string, v any) {
	h.t.Helper()
	text := h.with(base, at, v)
	h.send(0, method, path, string(text), "If-Match", `"999"`) // a version that never existed
	if path == "/jobs" {
		h.alike(text)
	}
}

// with returns base with one member set, or removed when v is nil.
func (h *hostile) with(base string, at []string, v any) []byte {
	h.t.Helper()
	var tree map[string]any
	d := json.NewDecoder(strings.NewReader(base))
	d.UseNumber() // 1e400 has no place in a float64
	if err := d.Decode(&tree); err != nil {
		h.t.Fatal(err)
	}
	m := tree
	for _, name := range at[:len(at)-1] {
		child, ok := m[name].(map[string]any)
		if !ok {
			child = map[string]any{}
			m[name] = child
		}
		m = child
	}
	if v == nil {
		delete(m, at[len(at)-1])
	} else {
		m[at[len(at)-1]] = v
	}
	text, err := json.Marshal(tree)
	if err != nil {
		h.t.Fatal(err)
	}
	return text
}

// alike sends a job alone and as the only job of a batch: both must report the same faults.
func (h *hostile) alike(body []byte) {
	h.t.Helper()
	one := h.send(0, http.MethodPost, "/jobs", string(body))
	w := h.send(http.StatusOK, http.MethodPost, "/jobs:batch", `{"jobs":[`+string(body)+`]}`)
	var batch struct {
		Results []struct {
			Status  int             `json:"status"`
			Problem json.RawMessage `json:"problem"`
		} `json:"results"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &batch); err != nil || len(batch.Results) != 1 {
		h.t.Errorf("%.200q: answer of the batch: %v %.200s", body, err, w.Body)
		return
	}
	result := batch.Results[0]
	if replayed := one.Header().Get("Idempotency-Replayed") != ""; result.Status != one.Code ||
		one.Code >= 400 && string(result.Problem) != one.Body.String() {
		h.t.Errorf("%.200q: by itself %d %s, in a batch %d %s (replayed %v)", body, one.Code, one.Body, result.Status,
			result.Problem, replayed)
	}
	if result.Status == http.StatusCreated && !strings.Contains(string(body), "idempotency_key") {
		h.accepted++
	}
}

// noise makes requests that follow no plan at all.
func (h *hostile) noise(i int) {
	methods := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"}
	paths := []string{"/", "/job", "/jobs/", "/jobs//pause", "/jobs/x/y/z", "/executions", "/schedules/preview/", "/dead-letters/" + canary, "/..%2f", "/jobs:batch"}
	h.send(0, methods[i%len(methods)], paths[i/len(methods)%len(paths)], strings.Repeat(canary, i%3))
}

// send makes a request and judges the answer; want 0 means any status that is not a server error.
func (h *hostile) send(want int, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	h.t.Helper()
	h.requests++
	w := h.s.do(method, path, body, headers...)
	what := fmt.Sprintf("%s %.80s %.200q", method, path, body)
	if want != 0 && w.Code != want {
		h.t.Errorf("%s: status %d, want %d: %s", what, w.Code, want, w.Body)
	}
	if w.Header().Get("Request-Id") == "" {
		h.t.Errorf("%s: no Request-Id", what)
	}
	written := w.Code == http.StatusCreated && w.Header().Get("Idempotency-Replayed") == "" && strings.HasPrefix(path, "/jobs")
	if written || w.Code == http.StatusAccepted && strings.HasSuffix(path, "/trigger") || w.Code == http.StatusOK && (method == "PUT" || method == "PATCH") && strings.HasPrefix(path, "/jobs") {
		h.accepted++
	}
	if w.Code < 300 && (strings.HasPrefix(path, "/connections/") || method == http.MethodPut && strings.HasPrefix(path, "/pools/")) { // a setting takes no more than 32 changes that workers have not published
		h.s.publishChanges()
	}
	if w.Code >= 500 {
		h.t.Errorf("%s: status %d: %s", what, w.Code, w.Body)
	}
	if w.Code >= 400 {
		h.problem(what, method, w)
	}
	if answers := h.answers(method, path); answers != nil && answers[strconv.Itoa(w.Code)] == nil {
		h.t.Errorf("%s: the document has no answer %d: %s", what, w.Code, w.Body)
	}
	return w
}

// answers returns those that the document has for a request; nil if it has no operation for it.
func (h *hostile) answers(method, path string) map[string]any {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	for template, item := range h.doc["paths"].(map[string]any) {
		op, ok := item.(map[string]any)[strings.ToLower(method)].(map[string]any)
		if ok && slices.EqualFunc(strings.Split(template, "/"), parts, func(want, part string) bool {
			return want == part || strings.HasPrefix(want, "{")
		}) {
			return op["responses"].(map[string]any)
		}
	}
	return nil
}

func (h *hostile) problem(what, method string, w *httptest.ResponseRecorder) {
	h.t.Helper()
	if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
		h.t.Errorf("%s: %d with content type %q", what, w.Code, ct)
	}
	if method == http.MethodHead {
		return
	}
	var p struct {
		Type, Title, Detail string
		Status              int
		Errors              []struct{ Pointer, Code, Message string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Type == "" || p.Title == "" || p.Detail == "" || p.Status != w.Code {
		h.t.Errorf("%s: not a problem document: %s", what, w.Body)
	}
	if (w.Code == http.StatusUnprocessableEntity || w.Code == http.StatusBadRequest) && len(p.Errors) == 0 {
		h.t.Errorf("%s: %d without a pointer: %s", what, w.Code, w.Body)
	}
	for _, e := range p.Errors {
		if e.Code == "" || e.Message == "" || e.Pointer != "" && e.Pointer[0] != '/' {
			h.t.Errorf("%s: fault %+v", what, e)
		}
		if strings.Contains(e.Message, canary) {
			h.t.Errorf("%s: a message repeats the canary: %s", what, e.Message)
		}
	}
	if strings.Contains(p.Detail, canary) || strings.Contains(p.Title, canary) {
		h.t.Errorf("%s: the canary is repeated: %s", what, w.Body)
	}
}
