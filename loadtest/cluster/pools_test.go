//go:build servers

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// workers fetch the tasks of a pool through all APIs, as programs would that nobody can call.
type workers struct {
	f *platform

	mu sync.Mutex
	// handed are the tokens under which an execution was handed out, in the order of the answers; ended is the token whose end was answered
	// with success.
	handed map[string][]string
	ended  map[string]string
	// waits are how long tasks had been due when they were handed out.
	waits           []time.Duration
	abandoned, beat int
	// resumed counts the tasks that came with progress, inPython those that workers of the Python client were handed.
	resumed, inPython int
}

type handedTask struct {
	ID           string          `json:"task_id"`
	Execution    string          `json:"execution_id"`
	Token        string          `json:"fencing_token"`
	Progress     json.RawMessage `json:"progress"`
	ScheduledFor time.Time       `json:"scheduled_for"`
}

// say asks any API until one answers; a worker that has been told no leaves its task.
func (ws *workers) say(ctx context.Context, path string, body any) (status int, answer []byte) {
	for n := rand.IntN(2); ctx.Err() == nil; n = 1 - n {
		a, err := ws.f.send(ctx, n, http.MethodPost, path, body)
		if err == nil && a.status < http.StatusInternalServerError {
			return a.status, a.body
		}
		time.Sleep(100 * time.Millisecond)
	}
	return 0, nil
}

// work is the loop of a worker. One task in twenty it abandons half done, as if it had been killed.
func (ws *workers) work(ctx context.Context, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		status, body := ws.say(ctx, "/pools/work/poll", map[string]any{
			"poll_id": fmt.Sprintf("%s-%06d", name, n), "worker": name, "handlers": []string{"do"}, "max": 4, "wait": "5s",
		})
		if ctx.Err() != nil {
			return
		}
		var got struct {
			Tasks []handedTask `json:"tasks"`
		}
		if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK {
			ws.f.t.Errorf("a poll was answered %d: %s (%v)", status, body, err)
			return
		}
		for _, t := range got.Tasks {
			ws.one(ctx, &t)
		}
	}
}

// balancer is one address of all APIs, as clients have it.
func (f *platform) balancer() string {
	var n atomic.Uint64
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", f.Member("job-api", int(n.Add(1)%2)).Listen
		},
		ErrorLog: log.New(io.Discard, "", 0), // one of them is killed now and then
	}
	server := httptest.NewServer(proxy)
	f.t.Cleanup(server.Close)
	return server.URL
}

// python lets processes of the Python client work, one after the other: each ends amid a task, sooner or later.
func (ws *workers) python(ctx context.Context, server, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		cmd := exec.CommandContext(ctx, "python3", "worker.py", server, fmt.Sprint(name, n))
		cmd.Stderr = ws.f.t.Output()
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			ws.f.t.Error(err)
			return
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if err := ws.said(strings.Fields(lines.Text())); err != nil {
				ws.f.t.Errorf("a worker of Python said %q: %v", lines.Text(), err)
			}
		}
		_ = cmd.Wait() // how it ended is in what it said
	}
}

func (ws *workers) said(words []string) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case words[0] == "handed" && len(words) == 5:
		due, err := time.Parse(time.RFC3339Nano, words[3])
		if err != nil {
			return err
		}
		ws.handed[words[1]] = append(ws.handed[words[1]], words[2])
		ws.waits = append(ws.waits, time.Since(due))
		ws.inPython++
		if words[4] == "half" {
			ws.resumed++
		}
	case words[0] == "told" && len(words) == 2:
		ws.beat++
		if words[1] == "abandoned" {
			ws.abandoned++
		}
	case words[0] == "ended" && len(words) == 3:
		return ws.accepted(words[1], words[2])
	default:
		return errors.New("it is not known")
	}
	return nil
}

// accepted notes an end that was answered with success.
func (ws *workers) accepted(execution, token string) error {
	if before := ws.ended[execution]; before != "" && before != token {
		return fmt.Errorf("%s was ended under %s and then under %s", execution, before, token)
	}
	ws.ended[execution] = token
	return nil
}

func (ws *workers) one(ctx context.Context, t *handedTask) {
	path := "/pools/work/tasks/" + t.ID
	ws.mu.Lock()
	ws.handed[t.Execution] = append(ws.handed[t.Execution], t.Token)
	ws.waits = append(ws.waits, time.Since(t.ScheduledFor))
	abandon := rand.IntN(20) == 0
	if string(t.Progress) == `"half"` {
		ws.resumed++
	}
	ws.mu.Unlock()
	if abandon || rand.IntN(4) == 0 {
		if status, _ := ws.say(ctx, path+"/heartbeat", map[string]any{"fencing_token": t.Token, "progress": "half"}); status != http.StatusOK {
			return // it was lost
		}
		ws.mu.Lock()
		ws.beat++
		if abandon {
			ws.abandoned++
		}
		ws.mu.Unlock()
	}
	if abandon {
		return
	}
	status, body := ws.say(ctx, path+"/complete", map[string]any{"fencing_token": t.Token})
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch status {
	case http.StatusNoContent:
		if err := ws.accepted(t.Execution, t.Token); err != nil {
			ws.f.t.Error(err)
		}
	case http.StatusConflict, 0: // it was lost
	default:
		ws.f.t.Errorf("an end was answered %d: %s", status, body)
	}
}

func (ws *workers) done() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.ended)
}

// untold returns the jobs, due one after the other, of whose ends no worker was told.
func (ws *workers) untold(ids []string, from time.Time, lasts time.Duration) (list []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for i, id := range ids {
		at := from.Add(time.Duration(i) * lasts / time.Duration(len(ids))).Truncate(time.Millisecond)
		if ws.ended[job.ScheduleExecutionID(id, at)] == "" {
			list = append(list, id)
		}
	}
	return list
}

// explain says what became of the first tasks that no worker was told to have ended.
func (ws *workers) explain(ids []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	said := 0
	ws.f.t.Logf("%d of %d tasks were ended", len(ws.ended), len(ids))
	for _, id := range ids {
		x := ws.f.executionOf(id)
		if ws.ended[x.ID] == "" && said < 5 {
			said++
			ws.f.t.Logf("%s: %s (%s), handed out under %v", id, x.ID, x.State, ws.handed[x.ID])
		}
	}
}

func TestTasksOfAPoolAreCompletedWhateverIsKilled(t *testing.T) {
	n, many, lasts := sized(600, 50_000), sized(24, 200), sized(20*time.Second, 6*time.Minute)
	f := newInstallation(t).fleet()
	from := time.Now().Add(8*time.Second + time.Duration(n)*time.Millisecond) // once they are registered
	jobs := make([]map[string]any, n)
	for i := range jobs {
		j := f.oneShot(from.Add(time.Duration(i)*lasts/time.Duration(n)), "")
		j["target"] = map[string]any{"kind": "pool", "pool": "work", "handler": "do", "body": map[string]any{"n": i}, "heartbeat_timeout": "5s"}
		j["retry_policy"] = map[string]any{"backoff": "fixed", "base_delay": "1s", "max_attempts": 40, "jitter": 0}
		j["priority"] = []string{"high", "normal", "low"}[i%3]
		jobs[i] = j
	}
	ids := f.register(jobs)
	ws := &workers{f: f, handed: map[string][]string{}, ended: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for w := range many {
		all.Go(func() { ws.work(ctx, fmt.Sprint("worker-", w)) })
	}
	server := f.balancer()
	for w := range 2 {
		all.Go(func() { ws.python(ctx, server, fmt.Sprintf("python-%d-", w)) })
	}
	defer func() {
		if t.Failed() {
			ws.explain(ids)
		}
	}()
	kill := func(service string, i int) {
		victim := f.Member(service, i)
		victim.Signal(syscall.SIGKILL)
		<-victim.Ended
		time.Sleep(lasts / 20)
		f.restart(service, i)
	}
	eventually(t, "tasks are completed", time.Minute, func() bool { return ws.done() > n/20 })
	ws.mu.Lock()
	calm := slices.Clone(ws.waits)
	ws.mu.Unlock()
	kill("job-api", 0)
	kill("executor", 1)
	local(t, "kill", "redis") // and with it all that it held in memory
	time.Sleep(time.Second)
	local(t, "up", "redis")
	kill("job-api", 1)
	// A worker may not be told of its end: the job-api that stored it was killed before it answered, and Redis forgot it before the history had it.
	mostUntold := 1 + n/10_000
	var untold []string
	eventually(t, "every task is completed", 5*time.Minute, func() bool {
		if n-ws.done() > mostUntold {
			return false
		}
		untold = ws.untold(ids, from, lasts)
		return !slices.ContainsFunc(untold, func(id string) bool { return f.executionOf(id).State != "succeeded" })
	})
	took := time.Since(from)
	cancel()
	all.Wait()

	again := 0
	for x, token := range ws.ended {
		if handed := ws.handed[x]; token != slices.Max(handed) {
			t.Errorf("%s was ended under %s, and was handed out under %v", x, token, handed)
		} else if len(handed) > 1 {
			again++
		}
	}
	for _, id := range ids[:min(n, 600)] {
		eventually(t, "it is on record that a task succeeded", time.Minute, func() bool { return f.executionOf(id).State == "succeeded" })
	}
	if ws.abandoned > 0 && ws.resumed == 0 {
		t.Error("no task came again with its progress")
	}
	if ws.inPython == 0 {
		t.Error("no worker of Python was handed a task")
	}
	slices.Sort(calm)
	t.Logf("%d tasks by %d workers of Go and two of Python, which were handed %d, in %.0f s; of %d ends no worker was told; %d abandoned, %d handed out several times, %d with progress; before anything was killed the median wait was %s, p99 %s",
		n, many, ws.inPython, took.Seconds(), len(untold), ws.abandoned, again, ws.resumed, calm[len(calm)/2].Round(time.Millisecond), calm[len(calm)*99/100].Round(time.Millisecond))
}
