package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

const (
	// jobCount is how many jobs a run registers. togetherCount of these, the last ones, may come as a batch.
	jobCount, togetherCount = 14, 4
	// faultsFor is how long faults strike, settleFor how long everything then has to be repaired: what is due when the last
	// fault is over is invoked within that time, or within moreSettling times as long again where very much is.
	faultsFor    = 8 * time.Minute
	settleFor    = 5 * time.Minute
	moreSettling = 3
)

// mostRedriven is how many dead letters are redriven.
const mostRedriven = 10

// largeBody is the size of some jobs' bodies, so large that workers and executors hold few of them at a time.
const largeBody = 20 << 10

var large = strings.Repeat("x", largeBody)

// play is the client of jobs that are registered in one request. It repeats each request until it is answered, as a careful
// client does.
func (w *world) play(scripts []script) {
	w.after(scripts[0].begin, func() {
		for i, id := range w.register(scripts) {
			if id == "" {
				continue
			}
			w.mu.Lock()
			w.answered(scripts[i], id)
			w.mu.Unlock()
			w.tell("client", id, "registered "+scripts[i].name)
			w.background.Go(func() { w.follow(scripts[i], id) })
		}
	})
}

// answered notes that the registration of a job was answered. The caller holds mu.
func (w *world) answered(s script, id string) {
	w.registered, w.idOf[s.name] = append(w.registered, id), id
	w.answeredAt[id], w.attempts[id], w.pauses[id] = time.Now(), s.attempts, s.pause
}

// register returns the ids of the jobs, "" for a job whose end was past, or none if there was no answer until the end.
func (w *world) register(scripts []script) (ids []string) {
	name := scripts[0].name
	if len(scripts) == 1 {
		if id := w.registerOne(scripts[0]); id != "" {
			return []string{id}
		}
		return nil
	}
	bodies := make([]map[string]any, len(scripts))
	for i, s := range scripts {
		bodies[i] = s.body
	}
	from := time.Now()
	var results []any
	for try := 0; try == 0 || slices.ContainsFunc(results, unavailable); try++ { // which of them were created shows when the request is repeated
		if try > 0 {
			w.after(time.Second, func() {})
		}
		answer, ok := w.request(name, http.StatusOK, http.MethodPost, "/jobs:batch", map[string]any{"jobs": bodies}, "Idempotency-Key", name)
		if !ok {
			return nil
		}
		results, _ = answer["results"].([]any)
	}
	for i, r := range results {
		result, _ := r.(map[string]any)
		row, _ := result["job"].(map[string]any)
		id, _ := row["job_id"].(string)
		problem, _ := result["problem"].(map[string]any)
		w.wasKeyed(scripts[i], id, problem, from)
		if ended := result["status"] == float64(http.StatusUnprocessableEntity) && hasEnded(scripts[i].body); !ended &&
			(result["status"] != float64(http.StatusCreated) || id == "") {
			w.violate("API", "", "%s of a batch was answered %v", scripts[i].name, result)
			return nil
		}
		ids = append(ids, id)
		if id != "" {
			w.mu.Lock()
			w.together++
			w.mu.Unlock()
		}
	}
	return ids
}

// unavailable reports whether a result of a batch is that a server did not answer.
func unavailable(result any) bool {
	r, _ := result.(map[string]any)
	return r["status"] == float64(http.StatusServiceUnavailable)
}

// hasEnded reports whether a job's end is past, or so near that there may be no occurrence before it.
func hasEnded(body any) bool {
	members, _ := body.(map[string]any)
	end, ok := members["end_at"].(time.Time)
	return ok && time.Now().After(end.Add(-longest))
}

// longest is the longest time between two occurrences of the workload's schedules, with jitter.
const longest = 3 * time.Minute

// follow makes the changes to a job.
func (w *world) follow(s script, id string) {
	version := 0
	for n, c := range s.changes {
		if at := w.began.Add(c.at); time.Now().Before(at) {
			w.after(time.Until(at), func() {})
		}
		if w.base.Err() != nil || !w.change(s, id, n, c.what, &version) {
			return
		}
	}
	w.loseEntry(s, id)
}

// loseEntry removes the one entry from which the schedule of some jobs goes on, which nobody changes any more.
func (w *world) loseEntry(s script, id string) {
	if s.body["type"] == "one_shot" || s.body["type"] == "after" || s.body["max_occurrences"] != nil || s.body["end_at"] != nil {
		return // it may end before anybody looks
	}
	if d := w.faults.dice; w.variant != nil || w.faults.weather.Name == calm.Name || s.body["labels"] != nil || d.roll("loses/%s", s.name) > 0.15 {
		return
	}
	w.after(time.Duration(w.faults.dice.roll("lost/%s", s.name)*60_000)*time.Millisecond, func() {
		if row, err := w.cold.GetSerial(w.base, id); err != nil || row.Status != job.StatusActive || time.Since(w.began) > faultsFor {
			return
		}
		if l, ok := w.cold.LoseEntry(id, w.faults.dice.roll("buries/%s", s.name) < 0.5); ok {
			w.hot.Forget(l)
			w.tell("operator", locatorKey(l), "removes the entry of")
			w.mu.Lock()
			w.lostEntries[id], w.removed[l.ExecutionID] = true, true
			w.mu.Unlock()
		}
	})
}

// longestMend is how long after its look the audit of the schedules may write, if its process stalls in between.
const longestMend = 5 * time.Minute

// mends checks that jobs that were answered had lost the entries that the audit of the schedules writes.
func (w *world) mends(entries []job.Entry) {
	for i := range entries {
		if entries[i].Trigger != job.TriggerSchedule {
			continue // of an operation
		}
		w.mu.Lock()
		// What was not answered yet may have lost its entry: a worker drops it when its row comes too late.
		at, answered := w.answeredAt[entries[i].JobID]
		// A loader may have looked before the registration was answered, and have stood still since.
		lost := w.lostEntries[entries[i].JobID] || !answered || time.Since(at) < longestMend
		w.mu.Unlock()
		_, err := w.cold.Row(w.base, entries[i].Locator)
		if !lost && err != nil {
			w.violate("audit", entries[i].JobID, "%s was written, and the schedule had not lost its entry", locatorKey(entries[i].Locator))
		}
	}
}

// hold keeps jobs with a label from being dispatched for a while, as an operator does: for longer than it takes until a
// bucket may close.
func (w *world) hold() {
	w.after(time.Duration(w.faults.dice.roll("hold")*60_000)*time.Millisecond, func() {
		w.request("operator", http.StatusOK, http.MethodPost, "/dispatch/pause", map[string]any{"label": "held=yes"})
	})
	until := w.began.Add(time.Duration(400+w.faults.dice.roll("held")*60) * time.Second)
	w.after(time.Until(until), func() {
		w.request("operator", http.StatusOK, http.MethodPost, "/dispatch/resume", map[string]any{"label": "held=yes"})
	})
}

// change makes one change; it returns false if that ended the job.
func (w *world) change(s script, id string, n int, what string, version *int) (goesOn bool) {
	path := "/jobs/" + id
	if what != "trigger" {
		w.replaceBefore(id, n)
		w.mu.Lock()
		delete(w.resumed, id)
		w.mu.Unlock()
	}
	switch what {
	case "update", "reschedule", "replace":
		w.update(s, id, what, version)
	case "race":
		w.race(s, id, version)
	case "pause":
		if _, ok := w.request(s.name, http.StatusOK, http.MethodPost, path+"/pause", nil); ok {
			w.stopped(ledger.Stop{JobID: id, Kind: ledger.StopPause}, "")
		}
	case "resume":
		w.resume(s, id)
	case "trigger":
		w.trigger(s, id, n)
	case "cancel", "delete":
		w.cancel(s, id, what)
		return false
	}
	return true
}

func (w *world) update(s script, id, what string, version *int) {
	*version++
	method, body := http.MethodPatch, map[string]any{"target": s.aimAt(w.host(s, *version))}
	switch {
	case what == "reschedule" && s.body["type"] == "interval":
		body["every"] = "13s"
	case what == "replace":
		method = http.MethodPut
		target := maps.Clone(s.body["target"].(map[string]any))
		maps.Copy(target, body["target"].(map[string]any))
		body = maps.Clone(s.body)
		body["target"] = target
	}
	answer, ok := w.request(s.name, http.StatusOK, method, "/jobs/"+id, body, "If-Match", "*")
	if definition, _ := answer["definition_id"].(string); ok {
		w.stopped(ledger.Stop{JobID: id, Kind: ledger.StopUpdate, OldHosts: w.hosts(s, *version)}, definition)
	}
}

func (w *world) resume(s script, id string) {
	w.mu.Lock()
	for i := range w.stops {
		if p := &w.stops[i]; p.JobID == id && p.Kind == ledger.StopPause && p.ResumedAt.IsZero() {
			p.ResumedAt = time.Now()
		}
	}
	w.mu.Unlock()
	if _, ok := w.request(s.name, http.StatusOK, http.MethodPost, "/jobs/"+id+"/resume", nil); ok {
		w.mu.Lock()
		w.resumed[id] = true
		w.mu.Unlock()
	}
}

func (w *world) trigger(s script, id string, n int) {
	answer, ok := w.request(s.name, http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", nil,
		"Idempotency-Key", fmt.Sprintf("%s-trigger-%d", s.name, n))
	if execution, _ := answer["execution_id"].(string); ok {
		w.mu.Lock()
		w.triggers = append(w.triggers, ledger.Trigger{JobID: id, ExecutionID: execution, AckedAt: time.Now()})
		w.mu.Unlock()
		likely := 0.4
		if s.ofPool() { // some of them while a worker has the task
			likely = 0.7
			w.after(time.Duration(w.faults.dice.roll("cancelled after/%s/%d", s.name, n)*8_000)*time.Millisecond, func() {})
		}
		w.cancelExecution(s.name, n, id, execution, likely)
	}
}

func (w *world) cancel(s script, id, what string) {
	path := "/jobs/" + id
	method, status := http.MethodDelete, http.StatusNoContent
	if what == "cancel" {
		method, path, status = http.MethodPost, path+"/cancel", http.StatusOK
	}
	w.mu.Lock()
	w.deleted[id] = w.deleted[id] || what == "delete" // answered or not
	w.mu.Unlock()
	if _, ok := w.request(s.name, status, method, path, nil); ok {
		w.stopped(ledger.Stop{JobID: id, Kind: ledger.StopCancel}, "")
		if s.body["key"] != nil && what == "delete" {
			w.registerAgain(s)
		}
	}
}

// replaceBefore replaces the server that holds a job's part of the hot tier a moment before some changes. What these stop
// may be on its way through an executor that goes on with the old server. A replay does the same.
func (w *world) replaceBefore(id string, n int) {
	who, ok := w.faults.replaces(id, n)
	if !ok {
		return
	}
	at := (time.Since(w.forecast) + time.Second + 2*time.Millisecond).Truncate(time.Millisecond)
	w.plan(Fault{
		Kind: Replace, What: strconv.Itoa(bucket.Partition(id, partitions)) + who, At: at, For: attempts.ReplacedFor - time.Millisecond, Aimed: true,
	})
	w.after(1005*time.Millisecond+time.Duration(w.faults.dice.roll("replaced/%s/%d", id, n)*2500)*time.Millisecond, func() {})
	if w.faults.dice.roll("late check/%s/%d", id, n) < 0.5 {
		w.delaysCheck(id)
	}
}

// cancelExecution cancels some of the triggered executions.
func (w *world) cancelExecution(name string, n int, id, execution string, likely float64) {
	if w.faults.dice.roll("cancelled/%s/%d", name, n) < 1-likely {
		return
	}
	if _, ok := w.request(name, http.StatusAccepted, http.MethodPost, "/executions/"+execution+"/cancel", nil); ok {
		w.stopped(ledger.Stop{JobID: id, Kind: ledger.StopExecution, ExecutionID: execution}, "")
	}
}

// redrive redrives dead letters.
func (w *world) redrive() {
	w.after(time.Duration(200+w.faults.dice.roll("redriven")*260)*time.Second, func() {
		answer, ok := w.request("operator", http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", map[string]any{"limit": mostRedriven},
			"Idempotency-Key", "redrive")
		list, _ := answer["executions"].([]any)
		if !ok {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, x := range list {
			one, _ := x.(map[string]any)
			id, _ := one["job_id"].(string)
			execution, _ := one["execution_id"].(string)
			w.triggers = append(w.triggers, ledger.Trigger{JobID: id, ExecutionID: execution, AckedAt: time.Now()})
		}
		w.redriven += len(list)
	})
}

// stopped notes a stop that was acknowledged, and the definition that an update made.
func (w *world) stopped(s ledger.Stop, definition string) {
	if s.AckedAt.IsZero() {
		s.AckedAt = time.Now()
	}
	w.mu.Lock()
	w.stops = append(w.stops, s)
	w.updates = append(w.updates, definition)
	w.mu.Unlock()
	w.tell("client", s.JobID, "was acknowledged a "+string(s.Kind))
	if s.Kind == ledger.StopCancel && w.faults.forgets(s.JobID) {
		// A little later, so that a replay does not lose it earlier.
		at := (time.Since(w.forecast) + 2*time.Millisecond).Truncate(time.Millisecond)
		w.background.Go(func() {
			w.after(at-time.Since(w.forecast), func() { w.strike(Fault{Kind: LoseHot, At: at, Aimed: true}, 0) })
		})
	}
}

// request repeats a request until it is answered with the status, or with a conflict that its job's state explains.
func (w *world) request(
	who string, want int, method, path string, body any, headers ...string,
) (answer map[string]any, ok bool) {
	for try := 0; w.base.Err() == nil; try++ {
		status, etag, answer := w.once(fmt.Sprintf("job-api-%d", 1+(int(w.faults.dice.number(who))&1+try)%replicas), method, path, body, headers)
		if answer != nil {
			answer["ETag"] = etag
		}
		switch {
		case status == want:
			return answer, true
		case status == http.StatusPreconditionFailed && len(headers) > 1 && headers[1] != "*":
			return answer, false // another client was faster
		case status == http.StatusConflict:
			w.refused(path, answer)
			return answer, false // such as a change of a job that is cancelled by now
		case status == http.StatusNotFound && who == "watcher":
			return answer, false // the job is deleted by now
		case status == http.StatusUnprocessableEntity && strings.HasPrefix(who, "f"):
			return answer, false // the job that it is to follow is deleted by now
		case status == http.StatusUnprocessableEntity && (method == http.MethodPatch || method == http.MethodPut || hasEnded(body) || strings.HasSuffix(path, "/backfill")):
			return answer, false // such as an end that is past by now, or a range without an instant
		case status != 0 && status != http.StatusServiceUnavailable:
			w.violate("API", "", "%s %s was answered %d, want %d: %v", method, path, status, want, answer)
			return answer, false
		}
		w.after(time.Second, func() {})
	}
	return nil, false
}

// refused notes that a request for /jobs/ID/… was answered 409.
func (w *world) refused(path string, answer map[string]any) {
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/jobs/"), "/")
	kind, _ := answer["type"].(string)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusals = append(w.refusals, ledger.Refusal{JobID: id, Code: kind[strings.LastIndexAny(kind, "/:")+1:]})
}

// once makes a request to one API; the status is 0 if no answer came.
func (w *world) once(name, method, path string, body any, headers []string) (status int, etag string, answer map[string]any) {
	w.mu.Lock()
	p, service := w.processes[name], w.apis[name]
	w.mu.Unlock()
	if service == nil || p.ready() != nil {
		return 0, "", nil
	}
	var text []byte
	sent := time.Now()
	if body != nil {
		text, _ = json.Marshal(body)
	}
	r := httptest.NewRequestWithContext(p.ctx, method, "/api/v1"+w.named(method, path), bytes.NewReader(text))
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	service.Handler().ServeHTTP(rec, r)
	if p.ready() != nil || p.ctx.Err() != nil {
		w.asked(sent, method, path, 0, nil, nil)
		return 0, "", nil
	}
	if rec.Body.Len() > 0 {
		if err := json.Unmarshal(rec.Body.Bytes(), &answer); err != nil {
			w.violate("API", "", "%s %s: %v", method, path, err)
		}
	}
	w.asked(sent, method, path, rec.Code, rec.Header(), answer)
	return rec.Code, rec.Header().Get("ETag"), answer
}
