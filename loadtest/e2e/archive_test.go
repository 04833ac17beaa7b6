package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/schemas"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

// answers is an HTTP target that notes what it was asked and what it answered: the witness of the queries.
type answers struct {
	url, host string
	mu        sync.Mutex
	seen      []answered
}

type answered struct {
	execution       string
	attempt         string
	status          int
	request, answer int64
	late            time.Duration
}

// newAnswers starts a target that answers as decide says of the n-th call in all and the attempt.
func newAnswers(t *testing.T, decide func(n int, attempt string) (status int, body string)) *answers {
	a := &answers{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		size, _ := io.Copy(io.Discard, r.Body)
		scheduled, _ := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
		a.mu.Lock()
		defer a.mu.Unlock() // calls are counted and answered in one order
		attempt := r.Header.Get("Minutehand-Attempt")
		status, body := decide(len(a.seen), attempt)
		a.seen = append(a.seen, answered{r.Header.Get("Webhook-Id"), attempt, status, size, int64(len(body)), now.Sub(scheduled)})
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	a.url, a.host = server.URL, strings.TrimPrefix(server.URL, "http://")
	return a
}

func (a *answers) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.seen)
}

// executions returns the status of the last answer that each execution got, and how many failures it had before.
func (a *answers) executions() (last map[string]int, failures map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, failures = map[string]int{}, map[string]int{}
	for _, s := range a.seen {
		last[s.execution] = s.status
		if s.status >= 300 {
			failures[s.execution]++
		}
	}
	return last, failures
}

const (
	// ofEach is how many occurrences the outage and the beat have, redrives how many executions are redriven.
	ofEach, redrives = 14, 20
)

// witnessed is what the client of a run knows, with the archive that the run left.
type witnessed struct {
	dir string
	// from and to are when the run began and ended.
	from, to                                   time.Time
	steady, flaky, failing, gone, outage, beat *answers
	all                                        []*answers
	// cancelled are the jobs, and stopped the executions, whose cancel was answered; redriven the executions that a redrive replaced.
	cancelled, stopped, redriven map[string]bool
	// oneShots is how many one_shots were not cancelled, triggers how many executions were asked for.
	oneShots, triggers int
	changes            map[string]int
	// job is one of the flaky ones.
	job string
}

// api makes a request, whose answer must be want.
func api(t *testing.T, p *process.Process, method, path string, body any, want int) map[string]any {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, p.URL+"/api/v1"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		r.Body = http.NoBody
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != want {
		t.Fatalf("%s %s: %d, want %d: %v %v", method, path, resp.StatusCode, want, answer, err)
	}
	return answer
}

// witness makes a run with every kind of ending, and stops the process, so that all of it is in the archive.
func witness(t *testing.T) *witnessed {
	t.Helper()
	p := newProcess(t)
	p.Start()
	ok := func(int, string) (int, string) { return 200, "done" }
	w := &witnessed{
		dir: p.Dir, from: time.Now().UTC(), cancelled: map[string]bool{}, stopped: map[string]bool{}, redriven: map[string]bool{}, changes: map[string]int{},
		steady: newAnswers(t, ok), beat: newAnswers(t, ok),
		flaky: newAnswers(t, func(_ int, attempt string) (int, string) {
			if attempt == "1" {
				return 503, "not now"
			}
			return 200, ""
		}),
		failing: newAnswers(t, func(int, string) (int, string) { return 500, "broken" }),
		gone:    newAnswers(t, func(int, string) (int, string) { return 404, "" }),
		outage: newAnswers(t, func(n int, _ string) (int, string) {
			if n >= 3 && n < 11 {
				return 502, ""
			}
			return 200, ""
		}),
	}
	w.all = []*answers{w.steady, w.beat, w.flaky, w.failing, w.gone, w.outage}
	due := time.Now().Add(6 * time.Second)
	window := sized(4*time.Second, 20*time.Second)
	many := sized(1, 10)
	policy := func(attempts int) map[string]any {
		return map[string]any{"retry_policy": map[string]any{"max_attempts": attempts, "backoff": "fixed", "base_delay": "1s", "jitter": 0}}
	}
	register := func(n int, at *answers, members map[string]any, body any) []string {
		w.changes["createJobs"] += n
		w.oneShots += n
		return p.Register(n, func(i int) map[string]any {
			job := process.Once(at.url+"/hook", due.Add(window*time.Duration(i)/time.Duration(n)), members)
			if body != nil {
				job["target"].(map[string]any)["body"] = body
			}
			return job
		})
	}
	with := func(members map[string]any, finish string) map[string]any {
		members["sla"] = map[string]any{"start_within": "1h", "finish_within": finish}
		return members
	}
	register(1800*many, w.steady, with(map[string]any{}, "1h"), map[string]any{"order": "a body of some size"})
	late := with(policy(3), "1s")
	late["retry_policy"].(map[string]any)["base_delay"] = "1500ms"
	w.job = register(120*many, w.flaky, late, nil)[0]
	register(60*many, w.failing, with(policy(2), "1h"), nil)
	register(30*many, w.gone, nil, nil)
	// One call at a time, so that client and archive see one order.
	outage := process.Once(w.outage.url+"/hook", due, policy(1))
	delete(outage, "run_at")
	maps.Copy(outage, map[string]any{"type": "interval", "every": "1s", "max_occurrences": ofEach, "name": "outage"})
	api(t, p, http.MethodPost, "/jobs", outage, http.StatusCreated)
	beat := maps.Clone(outage)
	maps.Copy(beat, map[string]any{"name": "beat", "target": map[string]any{"kind": "http_webhook", "url": w.beat.url + "/hook"}, "missed_run_policy": "skip", "catch_up_window": "1s"})
	paused := api(t, p, http.MethodPost, "/jobs", beat, http.StatusCreated)["job_id"].(string)
	w.changes["createJob"] += 2

	for i, id := range register(40*many, w.steady, nil, nil) {
		if i%2 == 0 {
			api(t, p, http.MethodPost, "/jobs/"+id+"/cancel", nil, http.StatusOK)
			w.cancelled[id] = true
			w.changes["cancelJob"]++
			w.oneShots--
			continue
		}
		pending := api(t, p, http.MethodGet, "/jobs/"+id+"/executions", nil, http.StatusOK)["items"].([]any)
		if len(pending) == 1 && i%4 == 1 {
			execution := pending[0].(map[string]any)["execution_id"].(string)
			api(t, p, http.MethodPost, "/executions/"+execution+"/cancel", nil, http.StatusOK)
			w.stopped[execution] = true
			w.changes["cancelExecution"]++
			w.oneShots--
		}
	}
	process.WaitFor(t, time.Minute, "the beat was heard", func() bool { return w.beat.count() >= 3 })
	api(t, p, http.MethodPost, "/jobs/"+paused+"/pause", nil, http.StatusOK)
	w.changes["pauseJob"]++
	heard := w.beat.count()
	process.WaitFor(t, time.Minute, "the outage is over", func() bool { return w.outage.count() >= 12 })
	api(t, p, http.MethodPost, "/jobs/"+paused+"/resume", nil, http.StatusOK)
	w.changes["resumeJob"]++
	process.WaitFor(t, time.Minute, "the beat is heard again", func() bool { return w.beat.count() > heard })
	process.WaitFor(t, time.Minute, "every job was called", func() bool { return w.steady.count() >= w.oneShots-210*many && w.outage.count() == ofEach })
	process.WaitFor(t, time.Minute, "what fails is given up", func() bool { return w.failing.count() >= 2*60*many && w.flaky.count() >= 2*120*many })
	atRest(t, p, 30*time.Second)

	// Some of what was given up is redriven, in vain, and some jobs are triggered.
	answer := api(t, p, http.MethodPost, "/dead-letters:redrive", map[string]any{
		"filter": map[string]any{"reason": "max_attempts"}, "limit": redrives, "rate_per_second": 100,
	}, http.StatusAccepted)
	for _, e := range answer["executions"].([]any) {
		w.redriven[e.(map[string]any)["source_execution_id"].(string)] = true
	}
	if len(w.redriven) != redrives {
		t.Fatalf("%d executions were redriven", len(w.redriven))
	}
	const triggers = 5
	triggered := w.beat.count() + triggers
	for range triggers {
		api(t, p, http.MethodPost, "/jobs/"+paused+"/trigger", nil, http.StatusAccepted)
		w.triggers++
	}
	process.WaitFor(t, time.Minute, "what was redriven has ended", func() bool {
		return !slices.ContainsFunc(answer["executions"].([]any), func(e any) bool {
			id := e.(map[string]any)["execution_id"].(string)
			state := api(t, p, http.MethodGet, "/executions/"+id, nil, http.StatusOK)["state"]
			return state != "dead" && state != "succeeded"
		})
	})
	process.WaitFor(t, time.Minute, "what was triggered was called", func() bool { return w.beat.count() >= triggered })
	atRest(t, p, 30*time.Second)
	w.to = time.Now().UTC()
	p.Stop()
	return w
}

// engine answers a statement by the names of its columns, every value as text, null as "".
type engine func(t *testing.T, statement string) []map[string]string

// onThisMachine is the engine behind minutehand archive query.
func onThisMachine(w *witnessed) engine {
	return func(t *testing.T, statement string) []map[string]string {
		t.Helper()
		a, err := embedded.OpenArchive(filepath.Join(w.dir, "archive"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := archivesql.Run(t.Context(), a, archivesql.Range{
			Region: "local", From: w.from.Truncate(24 * time.Hour), To: w.to.Truncate(24 * time.Hour),
		}, statement, nil)
		if err != nil {
			t.Fatal(err)
		}
		list := make([]map[string]string, len(res.Rows))
		for i, row := range res.Rows {
			list[i] = map[string]string{}
			for k, name := range res.Columns {
				if row[k] != nil {
					list[i][name] = fmt.Sprint(row[k])
				}
			}
		}
		return list
	}
}

func TestNamedQueriesAnswerWhatTheClientSaw(t *testing.T) {
	t.Parallel()
	w := witness(t)
	w.compare(t, onThisMachine(w))
}

// rowsOf answers a named query.
func (w *witnessed) rowsOf(t *testing.T, ask engine, name string) []map[string]string {
	t.Helper()
	queries, err := schemas.ArchiveQueries()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(queries, func(q schemas.Query) bool { return q.Name == name })
	if i < 0 {
		t.Fatalf("there is no query %s", name)
	}
	return ask(t, queries[i].With(map[string]string{
		schemas.ParameterFrom: w.from.Format(archivesql.Day), schemas.ParameterTo: w.to.Format(archivesql.Day), schemas.ParameterJob: w.job,
	}))
}

// compare holds every named query against what the client saw.
func (w *witnessed) compare(t *testing.T, ask engine) {
	t.Helper()
	compared := map[string]func(rows []map[string]string){
		"account":  func(rows []map[string]string) { w.checkAccount(t, rows) },
		"lateness": func(rows []map[string]string) { w.checkLateness(t, rows) },
		"failures": func(rows []map[string]string) { w.checkFailures(t, rows) },
		"job": func(rows []map[string]string) {
			if len(rows) != 3 || rows[0]["operation"] != "createJobs" || rows[1]["status_code"] != "503" || rows[2]["outcome"] != "succeeded" {
				t.Errorf("job: %v", rows)
			}
		},
		"not_fired":    func(rows []map[string]string) { w.checkNotFired(t, rows) },
		"cost":         func(rows []map[string]string) { w.checkCost(t, rows) },
		"recovered":    func(rows []map[string]string) { w.checkRecovered(t, rows) },
		"dead_letters": func(rows []map[string]string) { w.checkDeadLetters(t, rows) },
		"changes":      func(rows []map[string]string) { w.checkChanges(t, rows) },
		"outages":      func(rows []map[string]string) { w.checkOutages(t, rows) },
		"deadlines":    func(rows []map[string]string) { w.checkDeadlines(t, rows) },
		"plan":         func(rows []map[string]string) { w.checkPlan(t, rows) },
		"duplicates":   func(rows []map[string]string) { empty(t, "duplicates", rows) },
		"gaps":         func(rows []map[string]string) { empty(t, "gaps", rows) },
	}
	queries, err := schemas.ArchiveQueries()
	if err != nil || len(queries) != len(compared) {
		t.Fatalf("%d queries, %d are compared: %v", len(queries), len(compared), err)
	}
	for _, q := range queries {
		rows := w.rowsOf(t, ask, q.Name)
		t.Logf("%s: %d rows", q.Name, len(rows))
		compared[q.Name](rows)
	}
}

func number(text string) (n int) {
	n, _ = strconv.Atoi(text)
	return n
}

func empty(t *testing.T, what string, rows []map[string]string) {
	t.Helper()
	if len(rows) > 0 {
		t.Errorf("%s: %v", what, rows)
	}
}

// countFirst is how many executions were called.
func (a *answers) countFirst() int { last, _ := a.executions(); return len(last) }

func (w *witnessed) checkAccount(t *testing.T, rows []map[string]string) {
	t.Helper()
	beats := w.beat.countFirst() - w.triggers
	want := map[string]string{
		"fired": fmt.Sprint(w.oneShots + ofEach + beats), "cancelled": fmt.Sprint(len(w.cancelled) + len(w.stopped)),
		"skipped": fmt.Sprint(ofEach - beats),
	}
	sums := map[string]int{} // a run may go on past midnight
	for _, r := range rows {
		kind, _, _ := strings.Cut(r["disposition"], "_")
		sums[kind] += number(r["occurrences"])
	}
	got := map[string]string{}
	for kind, n := range sums {
		got[kind] = fmt.Sprint(n)
	}
	if !maps.Equal(got, want) || sums["skipped"] == 0 {
		t.Errorf("account: %v, the client saw %v", got, want)
	}
}

// What failed at first comes after its deadline, and what always fails never does.
func (w *witnessed) checkDeadlines(t *testing.T, rows []map[string]string) {
	t.Helper()
	flaky, _ := w.flaky.executions()
	failing, _ := w.failing.executions()
	missed := map[string]bool{}
	for _, r := range rows {
		id := r["execution_id"]
		_, late := flaky[id]
		_, never := failing[id]
		if late == never || r["deadline"] != "finish_within" || (r["met_at"] == "") != never || late && number(r["late_ms"]) <= 0 || r["attempts"] != "2" {
			t.Errorf("deadlines: %v", r)
		}
		missed[id] = true
	}
	want := len(flaky) // redrives are no occurrences
	for id := range failing {
		if ref, err := job.ParseExecutionID(id); err == nil && ref.Trigger == job.TriggerSchedule {
			want++
		}
	}
	if len(missed) != len(rows) || len(missed) != want || want == 0 {
		t.Errorf("deadlines: %d rows of %d executions; the client saw %d", len(rows), len(missed), want)
	}
}

func (w *witnessed) checkPlan(t *testing.T, rows []map[string]string) {
	t.Helper()
	got := map[string]int{}
	for _, r := range rows {
		for _, column := range []string{"planned", "succeeded_at_once", "succeeded_later", "dead", "not_ended", "skipped", "cancelled"} {
			got[column] += number(r[column])
		}
	}
	beats := w.beat.countFirst() - w.triggers
	want := map[string]int{
		"planned": w.oneShots + 2*ofEach + len(w.cancelled) + len(w.stopped), "skipped": ofEach - beats, "cancelled": len(w.cancelled) + len(w.stopped), "not_ended": 0,
	}
	for _, a := range w.all {
		last, failures := a.executions()
		for id, status := range last {
			switch ref, err := job.ParseExecutionID(id); {
			case err != nil || ref.Trigger != job.TriggerSchedule:
			case status >= 300:
				want["dead"]++
			case failures[id] > 0:
				want["succeeded_later"]++
			default:
				want["succeeded_at_once"]++
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("plan: %v, the client saw %v", got, want)
	}
}

func (w *witnessed) checkLateness(t *testing.T, rows []map[string]string) {
	t.Helper()
	var occurrences, most int
	for _, r := range rows {
		occurrences, most = occurrences+number(r["occurrences"]), max(most, number(r["max_ms"]))
	}
	seen := time.Duration(0)
	for _, a := range w.all {
		for _, s := range a.seen {
			if s.attempt == "1" {
				seen = max(seen, s.late)
			}
		}
	}
	fired := w.scheduledCalls()
	if occurrences != fired || time.Duration(most)*time.Millisecond > seen+time.Millisecond {
		t.Errorf("lateness: %d occurrences, at most %d ms; the client saw %d, at most %s", occurrences, most, fired, seen)
	}
}

// scheduledCalls is how many occurrences of schedules were called.
func (w *witnessed) scheduledCalls() int {
	n := -w.triggers - redrives // triggers and redrives are none
	for _, a := range w.all {
		n += a.countFirst()
	}
	return n
}

func (w *witnessed) checkFailures(t *testing.T, rows []map[string]string) {
	t.Helper()
	want, got := map[string]int{}, map[string]int{}
	for _, a := range w.all {
		for _, s := range a.seen {
			if s.status >= 300 {
				want[fmt.Sprint(a.host, " ", s.status)]++
			}
		}
	}
	for _, r := range rows {
		got[r["target_host"]+" "+r["status_code"]] += number(r["attempts"])
	}
	if !maps.Equal(got, want) {
		t.Errorf("failures: %v, the client saw %v", got, want)
	}
}

func (w *witnessed) checkNotFired(t *testing.T, rows []map[string]string) {
	t.Helper()
	jobs, executions, skipped := 0, 0, 0
	for _, r := range rows {
		switch {
		case r["disposition"] == "skipped_missed" && r["reason"] == "missed": // after the pause
			skipped += number(r["occurrences"])
		case r["principal"] != "local" || r["request_id"] == "":
			t.Errorf("not_fired names nobody: %v", r)
		case r["operation"] == "cancelJob" && w.cancelled[r["job_id"]]:
			jobs++
		case r["operation"] == "cancelExecution":
			executions++
		case r["operation"] == "pauseJob" && r["disposition"] == "skipped_paused":
			skipped += number(r["occurrences"])
		default:
			t.Errorf("not_fired has %v", r)
		}
	}
	if want := ofEach - (w.beat.countFirst() - w.triggers); jobs != len(w.cancelled) || executions != len(w.stopped) || skipped != want {
		t.Errorf("not_fired: %d jobs, %d executions, %d skipped; the client saw %d, %d and %d", jobs, executions, skipped, len(w.cancelled), len(w.stopped), want)
	}
}

func (w *witnessed) checkCost(t *testing.T, rows []map[string]string) {
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	for _, a := range w.all {
		var request, answer int64
		for _, s := range a.seen {
			request, answer = request+s.request, answer+s.answer
		}
		want[a.host] = fmt.Sprint(a.countFirst(), " ", len(a.seen), " ", request, " ", answer)
	}
	for _, r := range rows {
		got[r["target_host"]] = r["executions"] + " " + r["calls"] + " " + r["request_bytes"] + " " + r["response_bytes"]
	}
	if !maps.Equal(got, want) {
		t.Errorf("cost: %v, the client saw %v", got, want)
	}
}

func (w *witnessed) checkRecovered(t *testing.T, rows []map[string]string) {
	t.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, a := range w.all {
		last, failures := a.executions()
		for id, status := range last {
			if status < 300 && failures[id] > 0 {
				want[id] = true
			}
		}
	}
	for _, r := range rows {
		if got[r["execution_id"]] = true; r["failures"] != "1" || r["attempts"] != "2" || r["first_failure"] != "the target answered 503" {
			t.Errorf("recovered: %v", r)
		}
	}
	if !maps.Equal(got, want) || len(got) == 0 {
		t.Errorf("recovered: %d executions, the client saw %d", len(got), len(want))
	}
}

func (w *witnessed) checkDeadLetters(t *testing.T, rows []map[string]string) {
	t.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, a := range w.all {
		last, _ := a.executions()
		for id, status := range last {
			if status >= 300 && !w.redriven[id] {
				want[id] = true
			}
		}
	}
	for _, r := range rows {
		got[r["execution_id"]] = true
	}
	if !maps.Equal(got, want) || len(got) == 0 {
		t.Errorf("dead_letters: %d executions, the client saw %d", len(got), len(want))
	}
}

func (w *witnessed) checkChanges(t *testing.T, rows []map[string]string) {
	t.Helper()
	got := map[string]int{}
	for _, r := range rows {
		if got[r["operation"]]++; r["principal"] != "local" || r["role"] != "admin" || r["source"] != "127.0.0.1" {
			t.Errorf("changes: %v", r)
		}
	}
	if !maps.Equal(got, w.changes) {
		t.Errorf("changes: %v, the client made %v", got, w.changes)
	}
}

func (w *witnessed) checkOutages(t *testing.T, rows []map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, r := range rows {
		got[r["target_host"]] += r["calls"] + " "
	}
	for a, want := range map[*answers]string{w.outage: "8 ", w.gone: fmt.Sprint(len(w.gone.seen), " "), w.failing: fmt.Sprint(len(w.failing.seen), " ")} {
		if got[a.host] != want {
			t.Errorf("outages of %s: %q, the client saw %q", a.host, got[a.host], want)
		}
	}
	if got[w.steady.host] != "" || got[w.beat.host] != "" {
		t.Errorf("outages of hosts that always answered: %v", got)
	}
}
