//go:build servers

package cluster_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

// platform is the services as separate processes.
type platform struct {
	*installation
	*fleet.Fleet
	// ports are the test's own connections.
	ports *cluster.Cluster
	// played are the users that work with it, if any.
	played *users.Users

	// mixed is set if a release that keeps changes among a job's executions wrote some of the history: a change that both releases
	// recorded is there twice then, under one id.
	mixed bool

	mu sync.Mutex
	// requests are those for changes that the test itself made.
	requests []ledger.Request
}

// fleet starts two of each service, and waits until they are ready.
func (c *installation) fleet(variables ...string) *platform {
	c.t.Helper()
	f := c.processes(variables...)
	c.must(f.StartAll(c.t.Context(), 2))
	return f
}

// processes returns a platform in which nothing has started yet.
func (c *installation) processes(variables ...string) *platform {
	c.t.Helper()
	f := &platform{installation: c}
	var err error
	f.ports, err = cluster.Open(c.t.Context(), c.config, c.logger(), prometheus.NewRegistry())
	c.must(err)
	c.t.Cleanup(f.ports.Close)
	f.Fleet, err = fleet.New("../../.bin", c.t.TempDir(), c.config, append([]string{
		"MINUTEHAND_ARCHIVE_CLOSE_AFTER=3s",
		"MINUTEHAND_REDIS_OUTCOMES_TOGETHER=true",
	}, variables...)...)
	c.must(err)
	c.t.Cleanup(f.end)
	return f
}

// end kills what still runs, and prints the ends of the logs if the test failed.
func (f *platform) end() {
	f.Kill()
	for _, m := range f.Members {
		if text, err := os.ReadFile(m.Log); err == nil && f.t.Failed() && len(text) > 0 {
			const most = 4000
			f.t.Logf("%s:\n%s", m, text[max(0, len(text)-most):])
		}
	}
}

// restart starts the n-th process of a service again, and waits until it is ready.
func (f *platform) restart(service string, n int) {
	f.t.Helper()
	m, err := f.Start(service, n)
	f.must(err)
	f.must(m.AwaitReady(f.t.Context()))
}

// answer is an answer of the API.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask makes a request to the n-th API, and keeps what it asked for. Its error is that of the connection.
func (f *platform) ask(ctx context.Context, n int, method, path string, body any) (answer, error) {
	a, err := f.send(ctx, n, method, path, body)
	if err != nil {
		a.status = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, ledger.RequestsOf(method, path, a.status, a.header, ledger.JobsIn(a.body))...)
	return a, err
}

func (f *platform) send(ctx context.Context, n int, method, path string, body any) (answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.Member("job-api", n).Listen+"/api/v1"+path, bytes.NewReader(text))
	if err != nil {
		return answer{}, err
	}
	if body == nil {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return answer{resp.StatusCode, resp.Header, b}, err
}

// oneShot returns a job that calls the sink's path at an instant.
func (f *platform) oneShot(at time.Time, path string) map[string]any {
	return map[string]any{
		"name": "one-shot", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z07:00"),
		"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + path, "timeout": "60s"},
	}
}

// register registers jobs in batches over both APIs, and returns their ids in order.
func (f *platform) register(jobs []map[string]any) []string {
	f.t.Helper()
	const batch, clients = 250, 4
	ids := make([]string, len(jobs))
	chunks := slices.Collect(slices.Chunk(jobs, batch))
	work := make(chan int, len(chunks))
	for i := range chunks {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for c := range clients {
		wg.Go(func() {
			for i := range work {
				got, err := f.registerBatch(c%2, chunks[i])
				mu.Lock()
				failed = cmp.Or(failed, err)
				mu.Unlock()
				copy(ids[i*batch:], got)
			}
		})
	}
	wg.Wait()
	f.must(failed)
	return ids
}

func (f *platform) registerBatch(api int, jobs []map[string]any) ([]string, error) {
	a, err := f.ask(f.t.Context(), api, http.MethodPost, "/jobs:batch", map[string]any{"jobs": jobs})
	if err != nil {
		return nil, err
	}
	var got struct {
		Results []struct {
			Status int `json:"status"`
			Job    struct {
				ID string `json:"job_id"`
			} `json:"job"`
		} `json:"results"`
	}
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != http.StatusOK {
		return nil, fmt.Errorf("a batch was answered %d: %s", a.status, a.body[:min(len(a.body), 500)])
	}
	ids := make([]string, len(jobs))
	for i, r := range got.Results {
		if r.Status != http.StatusCreated {
			return nil, fmt.Errorf("a job of a batch was answered %d", r.Status)
		}
		ids[i] = r.Job.ID
	}
	return ids, nil
}

// stampede registers n jobs that are due within a second, early enough that all are registered before, and returns that
// instant.
func (f *platform) stampede(n int, path string) (ids []string, due time.Time) {
	f.t.Helper()
	due = time.Now().Add(5*time.Second + time.Duration(n)*time.Millisecond)
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = f.oneShot(due.Add(time.Duration(i)*time.Second/time.Duration(n)), path)
	}
	ids = f.register(jobs)
	if ahead := time.Until(due); ahead < 0 {
		f.t.Logf("registration ended %s behind the first instant", -ahead)
	}
	return ids, due
}

// local runs a command of infra/local.
func local(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute) // it also ends what a test has begun
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join("..", "..", "infra", "local", "local"), args...).CombinedOutput() //nolint:gosec // a script of this project
	if err != nil {
		t.Fatalf("infra/local/local %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
