package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

const (
	// poolName is the pool of the run, poolJobs how many jobs have their tasks there, workerCount how many workers fetch them, each up to workerTasks at
	// a time.
	poolName                           = "work"
	poolJobs, workerCount, workerTasks = 3, 3, 2
	// pollWait is how long a poll waits; a worker waits answerWait longer for the answer, and for any other.
	pollWait, answerWait = 8 * time.Second, 10 * time.Second
	// beatWait is how long a worker waits for the answer to a heartbeat: its lease does not wait. What it gave up may come after the next one.
	beatWait = 2 * time.Second
	// steps is how much there is to do in a task that tells of its progress, longSteps in a long one.
	steps, longSteps = 4, 12
	// mostVersions bounds the definitions of a job, each of which has a handler of its own.
	mostVersions = 20
)

// withPools decides whether a run has pools: half of the runs do, and all that aim at one of their operations.
func (w *world) withPools() bool {
	if w.variant != nil {
		return false
	}
	aims := slices.ContainsFunc(ofPools(), func(o *Op) bool { return o.Port == w.faults.aimed.Port && o.Name == w.faults.aimed.Op })
	return aims || w.faults.dice.roll("pools?") < 0.5
}

// beginPools is the client of jobs whose executions are tasks, and the workers that fetch these.
func (w *world) beginPools() {
	d := w.faults.dice
	for i := range poolJobs {
		n := fmt.Sprintf("p%d", i)
		s := script{
			name: n, begin: time.Duration(d.roll("begin/%s", n)*60_000)*time.Millisecond + time.Duration(20+i)*time.Millisecond, body: map[string]any{"name": n},
			attempts: pick(d, []int{2, 6, 12}, "attempts/%s", n), pause: 3 * time.Second,
		}
		s.body["target"] = map[string]any{
			"kind": "pool", "pool": poolName, "handler": "v0", "timeout": "1m", "heartbeat_timeout": pick(d, []string{"5s", "8s", "20s"}, "heartbeat/%s", n),
			"body": map[string]any{"does": pick(d, []string{"quick", "steps", "steps", "long", "flaky", "bad", "back"}, "does/%s", n)},
		}
		s.body["retry_policy"] = map[string]any{"base_delay": "4s", "max_attempts": s.attempts, "backoff": "fixed"}
		s.body["priority"] = pick(d, []string{"high", "normal", "low"}, "priority/%s", n)
		s.body["missed_run_policy"] = pick(d, []string{"skip", "fire_once", "backfill"}, "missed/%s", n)
		s.body["catch_up_window"] = pick(d, []string{"10s", "1m"}, "window/%s", n)
		switch pick(d, []string{"one_shot", "interval", "interval", "cron"}, "type/%s", n) {
		case "one_shot":
			s.body["type"], s.body["delay"] = "one_shot", fmt.Sprintf("%ds", int(1+d.roll("run/%s", n)*400))
		case "interval":
			s.body["type"], s.body["every"] = "interval", pick(d, []string{"20s", "40s", "60s"}, "every/%s", n)
		case "cron":
			s.body["type"], s.body["timezone"], s.body["cron_expr"] = "cron", "UTC", "*/30 * * * * *"
		}
		s.changes = changes(d, &s)
		w.background.Go(func() { w.play([]script{s}) })
	}
	for n := range workerCount {
		x := &worker{w: w, name: fmt.Sprintf("worker-%d", n+1), has: map[string]*handed{}}
		w.background.Go(x.work)
	}
}

// ofPool reports whether the executions of a script's job are tasks.
func (s *script) ofPool() bool {
	target, _ := s.body["target"].(map[string]any)
	return target["kind"] == "pool"
}

// worker fetches tasks and does them. It repeats what was not answered, and leaves a task that it has lost.
type worker struct {
	w    *world
	name string

	mu  sync.Mutex
	has map[string]*handed // by task
}

// handed is a task that a worker has.
type handed struct {
	x                        *worker
	id, execution, job, does string
	attempt                  int
	token                    string
	progress                 int
	// call is which of the run's calls it is.
	call  int
	until time.Time
	// cancelled is closed when a poll has told that the task was cancelled, or lost.
	cancelled chan struct{}
}

// taskAnswer is a task in the answer to a poll.
type taskAnswer struct {
	ID           string `json:"task_id"`
	Execution    string `json:"execution_id"`
	Job          string `json:"job_id"`
	Attempt      int    `json:"attempt"`
	Handler      string `json:"handler"`
	Token        string `json:"fencing_token"`
	Key          string `json:"idempotency_key"`
	Payload      struct{ Does string }
	Progress     int       `json:"progress"`
	ScheduledFor time.Time `json:"scheduled_for"`
	LeaseEndsAt  time.Time `json:"lease_ends_at"`
}

func (x *worker) work() {
	for n := 0; x.w.base.Err() == nil; n++ {
		x.mu.Lock()
		running := []string{}
		for id := range x.has {
			running = append(running, id)
		}
		x.mu.Unlock()
		slices.Sort(running)
		tasks, cancelled := x.poll(n, running)
		for i := range tasks {
			x.take(&tasks[i])
		}
		x.mu.Lock()
		for _, id := range cancelled {
			if h := x.has[id]; h != nil {
				select {
				case <-h.cancelled:
				default:
					close(h.cancelled)
				}
			}
		}
		x.mu.Unlock()
		x.w.after(time.Duration(100+n%7)*time.Millisecond, func() {})
	}
}

// poll asks for tasks until it is answered, for as long as the answer stays the same.
func (x *worker) poll(n int, running []string) (tasks []taskAnswer, cancelled []string) {
	handlers := make([]string, mostVersions)
	for v := range handlers {
		handlers[v] = fmt.Sprintf("v%d", v)
	}
	body := map[string]any{
		"poll_id": fmt.Sprintf("%s-%05d", x.name, n), "worker": x.name, "handlers": handlers, "max": max(workerTasks-len(running), 0), "wait": pollWait.String(), "running": running,
	}
	for began := time.Now(); x.w.base.Err() == nil && time.Since(began) < pools.PollKept-answerWait; {
		var answer struct {
			Tasks     []taskAnswer
			Cancelled []string
		}
		switch status := x.w.ask(x.name, "/pools/"+poolName+"/poll", body, &answer, pollWait+answerWait); status {
		case http.StatusOK:
			return answer.Tasks, answer.Cancelled
		case 0, http.StatusServiceUnavailable:
		default:
			x.w.violate("API", "", "a poll was answered %d", status)
			return nil, nil
		}
		x.w.after(time.Second, func() {})
	}
	return nil, nil
}

// take begins a task, unless its lease may be over by now, or the worker has it already.
func (x *worker) take(t *taskAnswer) {
	w, now := x.w, time.Now()
	k := attempts.Key{ExecutionID: t.Execution, Attempt: t.Attempt}
	h := &handed{
		x: x, id: t.ID, execution: t.Execution, job: t.Job, does: t.Payload.Does, attempt: t.Attempt, token: t.Token, progress: t.Progress, until: t.LeaseEndsAt,
		cancelled: make(chan struct{}),
	}
	x.mu.Lock()
	before := x.has[t.ID]
	again := before != nil && before.token == t.Token
	if !again {
		x.has[t.ID] = h
	}
	x.mu.Unlock()
	if again || now.After(t.LeaseEndsAt.Add(-clock.MaxDifference)) {
		if !again {
			x.drop(h)
		}
		return
	}
	w.mu.Lock()
	check := w.checked[tokenKey(k, t.Token)]
	h.call = len(w.calls)
	w.calls = append(w.calls, ledger.Call{
		Host: t.Handler, JobID: t.Job, ExecutionID: t.Execution, Key: t.Key, Attempt: t.Attempt, ScheduledFor: t.ScheduledFor, Token: t.Token, At: now,
		Ahead: -clock.MaxDifference / 2, AheadAtEnd: -clock.MaxDifference / 2, AheadAtLook: w.aheadOf(k), CheckedAt: check.at, Replaced: check.replaced,
		Pool: true, Progress: t.Progress, Failed: true, // until it is told otherwise
	})
	w.callers = append(w.callers, nil)
	w.mu.Unlock()
	w.tell(x.name, fmt.Sprintf("%s/%d", t.Execution, t.Attempt), fmt.Sprintf("takes under token %s with progress %d", t.Token, t.Progress))
	w.background.Go(func() {
		h.do()
		x.drop(h)
	})
}

// aheadOf returns by how much a clock was ahead at most when an attempt was found due. The caller holds mu.
func (w *world) aheadOf(k attempts.Key) (most time.Duration) {
	first := true
	for l, ahead := range w.ahead {
		if l.attempt == attemptKey(k) && (first || ahead > most) {
			most, first = ahead, false
		}
	}
	return most
}

func (x *worker) drop(h *handed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.has[h.id] == h {
		delete(x.has, h.id)
	}
}

// do does the task. Some workers die with it or stand still for longer than they may, some give it back, and some do not stop when they are told to.
func (h *handed) do() {
	d := h.x.w.faults.dice
	roll := func(what string) float64 { return d.roll("%s/%s/%d/%s", what, h.execution, h.attempt, h.token) }
	deaf := roll("deaf") < 0.5
	if fate := roll("fate"); time.Since(h.x.w.began) < faultsFor {
		switch {
		case fate < 0.07:
			h.rest(time.Duration(roll("dies after")*6_000)*time.Millisecond, false)
			return
		case fate < 0.14:
			h.rest(time.Duration(5_000+roll("stands still for")*25_000)*time.Millisecond, false)
			h.end(ledger.WordCompleted, nil)
			return
		}
	}
	switch h.does {
	case "steps", "long":
		all := steps
		if h.does == "long" {
			all = longSteps
		}
		for at := h.progress; at < all; {
			stops := !h.rest(time.Duration(1_000+roll(fmt.Sprintf("step %d", at))*2_000)*time.Millisecond, !deaf)
			at++
			told, lost := h.beat(at)
			if lost {
				return
			}
			if (stops || told) && !deaf {
				h.end(ledger.WordFailed, map[string]any{"error": "it was cancelled"})
				return
			}
			for told = told && deaf; told && !lost; { // until it is not believed any more
				h.rest(2*time.Second, false)
				_, lost = h.beat(0)
			}
			if lost {
				return
			}
		}
	case "flaky":
		if roll("flaky") < 0.5 {
			h.end(ledger.WordFailed, map[string]any{"error": "it did not work"})
			return
		}
	case "bad":
		h.end(ledger.WordFailed, map[string]any{"error": "it cannot work", "retryable": false})
		return
	case "back":
		if roll("back") < 0.4 {
			h.end(ledger.WordReleased, nil)
			return
		}
	default:
		h.rest(200*time.Millisecond, false)
	}
	h.end(ledger.WordCompleted, map[string]any{"result": map[string]any{"done": true}})
}

// rest waits; if it listens it reports false as soon as the task is cancelled.
func (h *handed) rest(d time.Duration, listens bool) (goesOn bool) {
	cancelled := h.cancelled
	if !listens {
		cancelled = nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-cancelled:
		return false
	case <-h.x.w.base.Done():
		return false
	}
}

// verbs are the operations by which a worker tells of its task, with the status of their success.
var verbs = map[ledger.WordKind]struct {
	path   string
	status int
}{
	ledger.WordHeartbeat: {"heartbeat", http.StatusOK}, ledger.WordCompleted: {"complete", http.StatusNoContent},
	ledger.WordFailed: {"fail", http.StatusNoContent}, ledger.WordReleased: {"release", http.StatusNoContent},
}

// say tells something of the task until it is answered, and reports whether it was with success. An end is worth telling for a while after the
// lease.
func (h *handed) say(kind ledger.WordKind, progress int, body map[string]any, answer any) (ok bool) {
	w, verb := h.x.w, verbs[kind]
	told := map[string]any{"fencing_token": h.token}
	for k, v := range body {
		told[k] = v
	}
	until, wait := h.until, beatWait
	if kind != ledger.WordHeartbeat {
		until, wait = until.Add(time.Minute), answerWait
	}
	for first := time.Now(); w.base.Err() == nil && time.Now().Before(until); {
		sent := time.Now()
		status := w.ask(h.x.name, "/pools/"+poolName+"/tasks/"+h.id+"/"+verb.path, told, answer, wait)
		switch status {
		case verb.status:
			beat, _ := answer.(*beatAnswer)
			word := ledger.Word{
				Kind: kind, JobID: h.job, ExecutionID: h.execution, Attempt: h.attempt, Token: h.token, FirstAt: first, SentAt: sent, AckedAt: time.Now(), Progress: progress, Stops: beat != nil && beat.Cancelled,
			}
			w.mu.Lock()
			w.words = append(w.words, word)
			w.mu.Unlock()
			w.tell(h.x.name, fmt.Sprintf("%s/%d", h.execution, h.attempt), fmt.Sprintf("was answered that it has %s (%d, %t)", kind, progress, word.Stops))
			return true
		case 0, http.StatusServiceUnavailable:
		case http.StatusConflict:
			w.tell(h.x.name, fmt.Sprintf("%s/%d", h.execution, h.attempt), "has lost it")
			w.mu.Lock()
			w.tasksLost++
			w.mu.Unlock()
			return false
		default:
			w.violate("API", h.job, "%s of %s was answered %d", kind, h.execution, status)
			return false
		}
		w.after(500*time.Millisecond, func() {})
	}
	return false
}

type beatAnswer struct {
	Cancelled   bool      `json:"cancelled"`
	LeaseEndsAt time.Time `json:"lease_ends_at"`
}

// beat tells that the worker still has the task, and how far it has come; 0 for nothing.
func (h *handed) beat(progress int) (stops, lost bool) {
	body, answer := map[string]any{}, &beatAnswer{}
	if progress > 0 {
		body["progress"], body["sequence"] = progress, progress
	}
	if !h.say(ledger.WordHeartbeat, progress, body, answer) {
		return false, true
	}
	h.until = answer.LeaseEndsAt
	return answer.Cancelled, false
}

// end ends the task.
func (h *handed) end(kind ledger.WordKind, body map[string]any) {
	w := h.x.w
	if kind == ledger.WordReleased { // it may be handed out again although no answer comes
		w.mu.Lock()
		w.calls[h.call].GivenBack, w.calls[h.call].Failed = true, false
		w.mu.Unlock()
	}
	ok := h.say(kind, 0, body, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.calls[h.call]
	if ok {
		c.EndedAt = time.Now()
	}
	c.Failed = c.Failed && ok && kind == ledger.WordFailed && body["retryable"] == nil // otherwise nobody owes another attempt
}

// ask sends what a worker asks to one of the APIs, in turn, and waits for a while. The status is 0 if no answer came.
func (w *world) ask(who, path string, body, answer any, within time.Duration) (status int) {
	w.mu.Lock()
	w.asks++
	name := fmt.Sprintf("job-api-%d", 1+w.asks%replicas)
	p, service := w.processes[name], w.apis[name]
	w.mu.Unlock()
	if service == nil || p.isDead() {
		return 0
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // a map of numbers and texts
	}
	ctx, cancel := context.WithTimeout(p.ctx, within)
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/api/v1"+path, bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	rec, done := httptest.NewRecorder(), make(chan error, 1)
	w.background.Go(func() {
		defer cancel()
		service.Handler().ServeHTTP(rec, r)
		done <- p.ready()
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		return 0
	}
	if err != nil || p.ctx.Err() != nil {
		return 0
	}
	if answer != nil && rec.Code < http.StatusMultipleChoices {
		if err := json.Unmarshal(rec.Body.Bytes(), answer); err != nil {
			w.violate("API", "", "%s: %s was answered %q: %v", who, path, rec.Body.Bytes(), err)
		}
	}
	return rec.Code
}

// isPooled reports whether the executions of a job are tasks.
func (w *world) isPooled(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range poolJobs {
		if w.idOf[fmt.Sprintf("p%d", n)] == id {
			return true
		}
	}
	return false
}
