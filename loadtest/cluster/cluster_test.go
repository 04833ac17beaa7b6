//go:build servers

// Package cluster_test runs the six services, several of each, on the real servers that infra/local started.
package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/schemas"
	auditor "github.com/minutehand/minutehand/services/audit-writer"
	loader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	api "github.com/minutehand/minutehand/services/job-api"
	settler "github.com/minutehand/minutehand/services/retry-manager"
	worker "github.com/minutehand/minutehand/services/scheduler-worker"
)

const partitions = 8

// port is that of a server.
func port(t *testing.T, name string) string {
	t.Helper()
	p := os.Getenv(name + "_PORT")
	if p == "" {
		t.Fatalf("%s_PORT is not set; run make test-servers", name)
	}
	return "127.0.0.1:" + p
}

// installation is one of its own on the servers.
type installation struct {
	t      *testing.T
	config cluster.Config
	sink   *sink
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	name := fmt.Sprintf("e2e%d", time.Now().UnixNano())
	c := &installation{t: t, sink: newSink(t), config: cluster.Config{
		Partitions:  partitions,
		Cassandra:   cassandra.Options{Hosts: []string{port(t, "CASSANDRA")}, Keyspace: name, Timeout: 20 * time.Second},
		Replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}",
		Kafka:       kafka.Options{Brokers: []string{port(t, "KAFKA")}, Prefix: name + ".", Partitions: 4, Replication: 1},
		Redis:       redis.Options{Address: port(t, "REDIS"), Prefix: name + ":"},
		ZooKeeper:   zookeeper.Options{Servers: []string{port(t, "ZOOKEEPER")}, Root: "/" + name, Partitions: partitions},
		S3: s3.Options{
			Bucket: name, Region: "us-east-1", Endpoint: "http://" + port(t, "S3"), AccessKey: "minutehand", SecretKey: "minutehand-local",
		},
	}}
	for range 2 { // it may be run again
		c.must(cluster.Migrate(t.Context(), c.config, schemas.Cassandra(), c.logger()))
	}
	return c
}

func (c *installation) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *installation) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// process is the six services with connections of their own.
type process struct {
	*cluster.Cluster
	api  *api.Service
	stop func()
}

// start starts one; it is stopped at the end of the test, or before by stop.
func (c *installation) start() *process {
	c.t.Helper()
	logger, metrics := c.logger(), prometheus.NewRegistry()
	p, err := cluster.Open(c.t.Context(), c.config, logger)
	c.must(err)
	if missing := p.Missing(c.t.Context()); len(missing) > 0 {
		c.t.Fatalf("%v do not answer", missing)
	}
	loading, err := loader.New(loader.DefaultConfig(), loader.Deps{
		Pending: p.Pending, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	apiConfig := api.DefaultConfig()
	apiConfig.Partitions = partitions
	answering, err := api.New(apiConfig, api.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	working, err := worker.New(worker.DefaultConfig(), worker.Deps{
		Jobs: p.Jobs, Pending: p.Pending, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord, Logger: logger,
		Metrics: metrics,
	})
	c.must(err)
	executing := executor.DefaultConfig()
	executing.AllowPrivateTargets = true
	invoking, err := executor.New(executing, executor.Deps{
		Jobs: p.Jobs, Pending: p.Pending, Records: p.Records, Log: p.Log, Coord: p.Coord, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	settling, err := settler.New(settler.DefaultConfig(), settler.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Hot: p.Hot, Records: p.Records, Log: p.Log, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	auditConfig := auditor.DefaultConfig()
	auditConfig.CloseAfter = 2 * time.Second
	auditing, err := auditor.New(auditConfig, auditor.Deps{
		History: p.History, Archive: p.Archive, Log: p.Log, Logger: logger, Metrics: metrics,
	})
	c.must(err)

	ctx, cancel := context.WithCancel(c.t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- run.InOrder(ctx, logger, run.Stage{Name: "job-api", Service: answering}, run.Stage{Name: "bucket-loader", Service: loading},
			run.Stage{Name: "scheduler-worker", Service: working}, run.Stage{Name: "executor", Service: invoking},
			run.Stage{Name: "retry-manager", Service: settling}, run.Stage{Name: "audit-writer", Service: auditing})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			c.t.Errorf("a process ended with %v", err)
		}
		p.Close()
	})
	c.t.Cleanup(stop)
	return &process{p, answering, stop}
}

// request makes a request of the API and decodes its answer.
func (p *process) request(t *testing.T, want int, method, path string, body any) map[string]any {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1"+path, nil)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r = httptest.NewRequestWithContext(t.Context(), method, "/api/v1"+path, bytes.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	p.api.Handler().ServeHTTP(w, r)
	if w.Code != want {
		t.Fatalf("%s %s was answered %d: %s", method, path, w.Code, w.Body)
	}
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// sink is the target of all webhooks.
type sink struct {
	url string
	mu  sync.Mutex
	// calls of each job, and by how much any was early at worst.
	calls map[string]int
	early time.Duration
}

func newSink(t *testing.T) *sink {
	s := &sink{calls: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		due, err := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For"))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[r.Header.Get("Minutehand-Job-Id")]++
		if ahead := time.Until(due); err != nil || ahead > s.early {
			s.early = max(ahead, s.early)
		}
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *sink) count(jobID string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[jobID]
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, limit)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestEveryJobFiresOnceOnTheRealServersAndIsOnRecord(t *testing.T) {
	c := newInstallation(t)
	processes := []*process{c.start(), c.start()}
	target := map[string]any{"kind": "http_webhook", "url": c.sink.url}
	var oneShots, cancelled []string
	for i := range 200 {
		p := processes[i%2]
		id, _ := p.request(t, http.StatusCreated, http.MethodPost, "/jobs", map[string]any{
			"name": fmt.Sprint("one-shot ", i), "type": "one_shot", "delay": fmt.Sprintf("%dms", 8000+10*i), "target": target,
		})["job_id"].(string)
		if i%20 == 7 {
			processes[1-i%2].request(t, http.StatusOK, http.MethodPost, "/jobs/"+id+"/cancel", nil)
			cancelled = append(cancelled, id)
		} else {
			oneShots = append(oneShots, id)
		}
	}
	interval, _ := processes[0].request(t, http.StatusCreated, http.MethodPost, "/jobs", map[string]any{
		"name": "every second", "type": "interval", "every": "1s", "max_occurrences": 10, "target": target,
	})["job_id"].(string)

	eventually(t, "every job is invoked", 90*time.Second, func() bool {
		for _, id := range oneShots {
			if c.sink.count(id) == 0 {
				return false
			}
		}
		return c.sink.count(interval) == 10
	})
	eventually(t, "every job is on record", 30*time.Second, func() bool {
		for _, id := range oneShots {
			events, err := processes[0].History.Execution(t.Context(), executionOf(t, processes[0], id))
			if err != nil || len(events) == 0 {
				return false
			}
		}
		return true
	})
	eventually(t, "the archive holds every outcome", 60*time.Second, func() bool {
		archived, err := auditor.ReadArchive(t.Context(), processes[0].Archive)
		if err != nil {
			t.Fatal(err)
		}
		return len(archived) >= len(oneShots)+10
	})
	for _, id := range oneShots {
		if n := c.sink.count(id); n != 1 {
			t.Errorf("%s was invoked %d times", id, n)
		}
	}
	for _, id := range cancelled {
		if n := c.sink.count(id); n != 0 {
			t.Errorf("%s was cancelled and invoked %d times", id, n)
		}
	}
	if c.sink.early > 0 {
		t.Errorf("a job was invoked %s early", c.sink.early)
	}
}

// executionOf is the one execution of a one_shot.
func executionOf(t *testing.T, p *process, jobID string) string {
	t.Helper()
	run, _ := p.request(t, http.StatusOK, http.MethodGet, "/jobs/"+jobID, nil)["run_at"].(string)
	at, err := time.Parse(time.RFC3339Nano, run)
	if err != nil {
		t.Fatalf("run_at of %s: %v", jobID, err)
	}
	return job.ScheduleExecutionID(jobID, at)
}

// What stops hands over: nothing is lost or made twice when a process stops and another one starts while jobs fall due.
func TestRollingRestartLosesAndDoublesNothing(t *testing.T) {
	c := newInstallation(t)
	first, second := c.start(), c.start()
	target := map[string]any{"kind": "http_webhook", "url": c.sink.url}
	var ids []string
	for i := range 300 {
		id, _ := first.request(t, http.StatusCreated, http.MethodPost, "/jobs", map[string]any{
			"name": fmt.Sprint("one-shot ", i), "type": "one_shot", "delay": fmt.Sprintf("%dms", 8000+40*i), "target": target,
		})["job_id"].(string)
		ids = append(ids, id)
	}
	eventually(t, "firing begins", 60*time.Second, func() bool { return c.sink.count(ids[20]) > 0 })
	first.stop()
	third := c.start()
	eventually(t, "firing goes on", 60*time.Second, func() bool { return c.sink.count(ids[150]) > 0 })
	second.stop()
	eventually(t, "every job is invoked", 90*time.Second, func() bool {
		for _, id := range ids {
			if c.sink.count(id) == 0 {
				return false
			}
		}
		return true
	})
	for _, id := range ids {
		if n := c.sink.count(id); n != 1 {
			t.Errorf("%s was invoked %d times", id, n)
		}
	}
	third.stop()
}
