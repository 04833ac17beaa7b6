//go:build servers

// Package cluster_test runs the six services, several of each, on the real servers that infra/local started.
package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/all-in-one/assembly"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	jobapi "github.com/minutehand/minutehand/services/job-api"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// process is the six services with their own connections.
type process struct {
	*cluster.Cluster
	api  *jobapi.Service
	stop func()
}

// start starts a process. It is stopped at the end of the test, or earlier by stop.
func (c *installation) start() *process {
	c.t.Helper()
	logger, metrics := c.logger(), prometheus.NewRegistry()
	p, err := cluster.Open(c.t.Context(), c.config, logger, metrics)
	c.must(err)
	if missing := p.Missing(c.t.Context(), cluster.Cassandra, cluster.Redis, cluster.Kafka, cluster.ZooKeeper, cluster.S3); len(missing) > 0 {
		c.t.Fatalf("%v do not answer", missing)
	}
	ports := &assembly.Ports{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord,
		Archive: p.Archive, Board: p.Board,
	}
	around := assembly.Surroundings{Logger: logger, Metrics: metrics}
	loaderConfig := bucketloader.DefaultConfig()
	loaderConfig.Partitions = partitions
	loading, err := assembly.BucketLoader(loaderConfig, ports, around)
	c.must(err)
	apiConfig := jobapi.DefaultConfig()
	apiConfig.Partitions = partitions
	answering, err := assembly.JobAPI(apiConfig, ports, around)
	c.must(err)
	workerConfig := schedulerworker.DefaultConfig()
	workerConfig.Partitions = partitions
	working, err := assembly.SchedulerWorker(workerConfig, ports, around)
	c.must(err)
	executing := executor.DefaultConfig()
	executing.AllowPrivateTargets = true
	invoking, err := assembly.Executor(executing, ports, around)
	c.must(err)
	settling, err := assembly.RetryManager(retrymanager.DefaultConfig(), ports, around)
	c.must(err)
	auditConfig := auditwriter.DefaultConfig()
	auditConfig.CloseAfter = 2 * time.Second
	auditing, err := assembly.AuditWriter(auditConfig, ports, around)
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

// request makes a request to the API and decodes its answer.
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

func TestEveryJobFiresOnceOnTheRealServersAndIsOnRecord(t *testing.T) {
	t.Run("one Redis server", func(t *testing.T) { newInstallation(t).firesAll(t) })
	t.Run("Redis Cluster", func(t *testing.T) { newInstallation(t, onRedisCluster).firesAll(t) })
}

func (c *installation) firesAll(t *testing.T) {
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
			if c.sink.of(id) == 0 {
				return false
			}
		}
		return c.sink.of(interval) == 10
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
		archived, err := auditwriter.ReadArchive(t.Context(), processes[0].Archive)
		if err != nil {
			t.Fatal(err)
		}
		return len(archived) >= len(oneShots)+10
	})
	for _, id := range oneShots {
		if n := c.sink.of(id); n != 1 {
			t.Errorf("%s was invoked %d times", id, n)
		}
	}
	for _, id := range cancelled {
		if n := c.sink.of(id); n != 0 {
			t.Errorf("%s was cancelled and invoked %d times", id, n)
		}
	}
	for _, call := range c.sink.all() {
		if early := call.ScheduledFor.Sub(call.At); early > 0 {
			t.Errorf("%s was invoked %s early", call.JobID, early)
		}
	}
}

// executionOf returns the one execution of a one_shot.
func executionOf(t *testing.T, p *process, jobID string) string {
	t.Helper()
	run, _ := p.request(t, http.StatusOK, http.MethodGet, "/jobs/"+jobID, nil)["run_at"].(string)
	at, err := time.Parse(time.RFC3339Nano, run)
	if err != nil {
		t.Fatalf("run_at of %s: %v", jobID, err)
	}
	return job.ScheduleExecutionID(jobID, at)
}

// A process that stops hands over its work: nothing is lost or doubled when one stops and another starts while jobs fall
// due.
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
	eventually(t, "firing begins", 60*time.Second, func() bool { return c.sink.of(ids[20]) > 0 })
	first.stop()
	third := c.start()
	eventually(t, "firing goes on", 60*time.Second, func() bool { return c.sink.of(ids[150]) > 0 })
	second.stop()
	eventually(t, "every job is invoked", 90*time.Second, func() bool {
		for _, id := range ids {
			if c.sink.of(id) == 0 {
				return false
			}
		}
		return true
	})
	for _, id := range ids {
		if n := c.sink.of(id); n != 1 {
			t.Errorf("%s was invoked %d times", id, n)
		}
	}
	third.stop()
}
