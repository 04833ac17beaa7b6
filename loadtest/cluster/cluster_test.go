//go:build servers

// Package cluster runs the six services, several of each, on the real servers that infra/local started.
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

// cluster is an installation of its own on the servers.
type cluster struct {
	t    *testing.T
	name string
	sink *sink
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, name: fmt.Sprintf("e2e%d", time.Now().UnixNano()), sink: newSink(t)}
	o := c.cassandra()
	c.must(cassandra.Migrate(t.Context(), o, "{'class': 'SimpleStrategy', 'replication_factor': 1}", schemas.Cassandra()))
	store, err := cassandra.Open(o)
	c.must(err)
	defer store.Close()
	c.must(store.SetUp(t.Context(), partitions, job.Minute(time.Now())))
	log, err := kafka.Open(c.kafka())
	c.must(err)
	defer log.Close()
	c.must(log.EnsureTopics(t.Context()))
	archive, err := s3.NewArchive(t.Context(), c.s3())
	c.must(err)
	c.must(archive.CreateBucket(t.Context()))
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) cassandra() cassandra.Options {
	return cassandra.Options{Hosts: []string{port(c.t, "CASSANDRA")}, Keyspace: c.name, Timeout: 20 * time.Second}
}

func (c *cluster) kafka() kafka.Options {
	return kafka.Options{
		Brokers: []string{port(c.t, "KAFKA")}, Prefix: c.name + ".", Partitions: 4, Replication: 1, Logger: c.logger(),
	}
}

func (c *cluster) s3() s3.Options {
	return s3.Options{
		Bucket: c.name, Region: "us-east-1", Endpoint: "http://" + port(c.t, "S3"), AccessKey: "minutehand",
		SecretKey: "minutehand-local",
	}
}

func (c *cluster) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// process is the six services with connections of their own.
type process struct {
	api     *api.Service
	history *cassandra.History
	archive *s3.Archive
	stop    func()
}

// start starts one; it is stopped at the end of the test, or before by stop.
func (c *cluster) start() *process {
	c.t.Helper()
	store, err := cassandra.Open(c.cassandra())
	c.must(err)
	log, err := kafka.Open(c.kafka())
	c.must(err)
	tier := redis.Open(redis.Options{Address: port(c.t, "REDIS"), Prefix: c.name + ":"})
	hot, records := redis.NewHotBuckets(tier), redis.NewRecords(tier)
	owners, err := zookeeper.Open(zookeeper.Options{
		Servers: []string{port(c.t, "ZOOKEEPER")}, Root: "/" + c.name, Partitions: partitions, Logger: c.logger(),
	})
	c.must(err)
	archive, err := s3.NewArchive(c.t.Context(), c.s3())
	c.must(err)
	jobs, pending := cassandra.NewJobStore(store), cassandra.NewPending(store)
	history, settings := cassandra.NewHistory(store), cassandra.NewSettings(store)
	logger, metrics := c.logger(), prometheus.NewRegistry()

	loading, err := loader.New(loader.DefaultConfig(), loader.Deps{
		Pending: pending, Hot: hot, Records: records, Log: log, Coord: owners, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	apiConfig := api.DefaultConfig()
	apiConfig.Partitions = partitions
	answering, err := api.New(apiConfig, api.Deps{
		Jobs: jobs, Pending: pending, History: history, Settings: settings, Hot: hot, Records: records, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	working, err := worker.New(worker.DefaultConfig(), worker.Deps{
		Jobs: jobs, Pending: pending, Settings: settings, Hot: hot, Records: records, Log: log, Coord: owners, Logger: logger,
		Metrics: metrics,
	})
	c.must(err)
	executing := executor.DefaultConfig()
	executing.AllowPrivateTargets = true
	invoking, err := executor.New(executing, executor.Deps{
		Jobs: jobs, Pending: pending, Records: records, Log: log, Coord: owners, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	settling, err := settler.New(settler.DefaultConfig(), settler.Deps{
		Jobs: jobs, Pending: pending, History: history, Hot: hot, Records: records, Log: log, Logger: logger, Metrics: metrics,
	})
	c.must(err)
	auditConfig := auditor.DefaultConfig()
	auditConfig.CloseAfter = 2 * time.Second
	auditing, err := auditor.New(auditConfig, auditor.Deps{
		History: history, Archive: archive, Log: log, Logger: logger, Metrics: metrics,
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
		_ = hot.Close()
		_, _ = tier.Close(), owners.Close()
		log.Close()
		store.Close()
	})
	c.t.Cleanup(stop)
	return &process{answering, history, archive, stop}
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
	c := newCluster(t)
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
			events, err := processes[0].history.Execution(t.Context(), executionOf(t, processes[0], id))
			if err != nil || len(events) == 0 {
				return false
			}
		}
		return true
	})
	eventually(t, "the archive holds every outcome", 60*time.Second, func() bool {
		archived, err := auditor.ReadArchive(t.Context(), processes[0].archive)
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
	c := newCluster(t)
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
