//go:build servers

package cluster_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// tallied counts names.
type tallied struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tallied) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[name]++
}

func (t *tallied) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}

// What a fire costs on the servers is mostly its requests. One process fires 500 one-shots a second for six seconds, and the count goes
// on until all are done. Each bound is half as much again as was counted when it was set. If you make a fire cheaper, lower it.
func TestRequestsPerFireDoNotGrow(t *testing.T) {
	c := newInstallation(t)
	sent, asked := &requests{}, &tallied{n: map[string]int{}}
	c.config.Cassandra.Observe, c.config.Kafka.Observe = sent.observe, asked.add
	p := c.start()
	const fires, chunk = 3000, 250
	from := time.Now().Add(20 * time.Second)
	for i := 0; i < fires; i += chunk {
		var jobs []map[string]any
		for j := range chunk {
			at := from.Add(time.Duration(i+j) * 2 * time.Millisecond)
			jobs = append(jobs, map[string]any{
				"name": "requests", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z"),
				"target": map[string]any{"kind": "http_webhook", "url": c.sink.url},
			})
		}
		p.request(t, http.StatusOK, http.MethodPost, "/jobs:batch", map[string]any{"jobs": jobs})
	}
	// What tells of the creations comes within seconds, and is no part of the path either.
	eventually(t, "every creation is told", time.Minute, func() bool { return c.open(t, p) <= fires })
	if time.Now().After(from.Add(-3 * time.Second)) {
		t.Fatal("registration took longer than planned for")
	}
	time.Sleep(time.Until(from.Add(-time.Second))) // what idles is no part of it
	_, before := sent.since(0)
	kafkaBefore, redisBefore := asked.all(), c.redisReads(t)
	eventually(t, "every occurrence is called", 2*time.Minute, func() bool { return len(c.sink.all()) >= fires })
	eventually(t, "every entry is done", time.Minute, func() bool { return c.open(t, p) == 0 })
	path, _ := sent.since(before)
	kafka, byServer := asked.all(), map[string]float64{"Redis": c.redisReads(t) - redisBefore}
	for name, n := range kafka {
		byServer["Kafka"] += float64(n - kafkaBefore[name])
		t.Logf("%6.3f Kafka: %s", float64(n-kafkaBefore[name])/fires, name)
	}
	for _, q := range path {
		// What this test itself reads to see whether everything is done is no part of the path.
		if !strings.HasPrefix(q.Statements[0], "SELECT partition, minute") {
			byServer["Cassandra"]++
		}
	}
	// The busier the machine, the more batches the same fires make: 0.2 for Cassandra was exceeded by 0.006 once.
	bounds := map[string]float64{"Cassandra": 0.23, "Redis": 0.85, "Kafka": 0.3}
	for _, server := range slices.Sorted(maps.Keys(bounds)) {
		per := byServer[server] / fires
		t.Logf("%6.3f requests per fire: %s", per, server)
		if per > bounds[server] || per == 0 {
			t.Errorf("%.3f requests per fire to %s, want at most %.2f", per, server, bounds[server])
		}
	}
	if n := len(c.sink.all()); n != fires {
		t.Errorf("%d calls, want %d", n, fires)
	}
}

// redisReads returns how often Redis has read from its clients: once for the requests that arrive together.
func (c *installation) redisReads(t *testing.T) float64 {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("REDIS_PORT")})
	defer func() { _ = client.Close() }()
	info, err := client.Info(t.Context(), "stats").Result()
	c.must(err)
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "total_reads_processed:"); ok {
			n, err := strconv.ParseFloat(text, 64)
			c.must(err)
			return n
		}
	}
	t.Fatal(fmt.Errorf("no count of reads in %q", info))
	return 0
}
