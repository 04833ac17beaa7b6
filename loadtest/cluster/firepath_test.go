//go:build servers

package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
)

// requests are the requests that went to Cassandra.
type requests struct {
	mu  sync.Mutex
	all []cassandra.Request
}

func (r *requests) observe(q cassandra.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, q)
}

// since returns the requests after the first n, and how many there are now.
func (r *requests) since(n int) ([]cassandra.Request, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all[n:]), len(r.all)
}

// conditional matches a lightweight transaction.
var conditional = regexp.MustCompile(`\bIF\b`)

// The cost of a fire is mostly that of its writes.
func TestFirePathUsesNoTransactionsAndDeletesNoRows(t *testing.T) {
	c := newInstallation(t)
	sent := &requests{}
	c.config.Cassandra.Observe = sent.observe
	processes := []*process{c.start(), c.start()}
	const each = 300
	for i := range each {
		for _, body := range []map[string]any{
			{"type": "one_shot", "delay": fmt.Sprintf("%dms", 9000+10*i)},
			{"type": "interval", "every": "2s", "start_at": time.Now().Add(9 * time.Second), "max_occurrences": 5},
		} {
			body["name"], body["target"] = "fire path", map[string]any{"kind": "http_webhook", "url": c.sink.url}
			processes[i%2].request(t, http.StatusCreated, http.MethodPost, "/jobs", body)
		}
	}
	_, registered := sent.since(0)
	const fires = each * (1 + 5)
	eventually(t, "every occurrence is called", 2*time.Minute, func() bool { return len(c.sink.all()) >= fires })
	eventually(t, "every entry is done", time.Minute, func() bool { return c.open(t, processes[0]) == 0 })
	path, _ := sent.since(registered)
	counts := map[string]int{}
	for _, q := range path {
		for _, statement := range q.Statements {
			counts[statement]++
			switch {
			case strings.Contains(statement, "partition_progress") || strings.Contains(statement, "cluster"):
				// once a minute and partition, not once a fire
			case conditional.MatchString(statement):
				t.Errorf("a transaction: %s", statement)
			case strings.HasPrefix(statement, "DELETE"):
				t.Errorf("a delete: %s", statement)
			case strings.Contains(statement, "INTO jobs") || strings.Contains(statement, "UPDATE jobs"):
				t.Errorf("a write of a job's row: %s", statement)
			}
		}
		onePartition(t, q)
	}
	for _, statement := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6.3f per fire: %s", float64(counts[statement])/fires, statement)
	}
	byMinute := func() (n int) {
		all, _ := sent.since(0) // the first may fire while the last are registered
		for _, q := range all {
			for _, statement := range q.Statements {
				if strings.Contains(statement, "INTO history_minutes") {
					n++
				}
			}
		}
		return n
	}
	eventually(t, "the history of all one-shots is written by minute", time.Minute, func() bool { return byMinute() >= each })
	if n := byMinute(); n > each+each/10 { // a few may be written again
		t.Errorf("%d events were written by minute, want those of %d one-shots", n, each)
	}
	c.wantNoTombstones(t, processes[0])
	for _, p := range processes {
		p.stop()
	}
	c.wantClosedBucketsGone(t)
	if n := len(c.sink.all()); n != fires {
		t.Errorf("%d calls, want %d", n, fires)
	}
}

// most is how many rows of several partitions may share a batch: Cassandra warns of more.
const most = 10

// onePartition checks that a batch stays within one partition, which the first columns of the tables' keys define, unless it is small.
func onePartition(t *testing.T, q cassandra.Request) {
	t.Helper()
	key := func(i int) string {
		v, s := q.Values[i], q.Statements[i]
		if strings.HasPrefix(s, "UPDATE") { // the key comes last: partition, minute, due, execution, attempt, definition
			v = v[len(v)-6:]
		}
		return fmt.Sprint(v[:2])
	}
	for i := range q.Statements {
		if len(q.Statements) > most && key(i) != key(0) {
			t.Errorf("a batch over several partitions: %s", q.Statements[i])
			return
		}
	}
}

// open counts the entries that are not done.
func (c *installation) open(t *testing.T, p *process) int {
	t.Helper()
	n := 0
	for part := range partitions {
		rows, err := openRows(t.Context(), p.Pending, part)
		c.must(err)
		for i := range rows {
			if !rows[i].Done {
				n++
			}
		}
	}
	return n
}

var cells = regexp.MustCompile(`Read (\d+) live rows and (\d+) tombstone cells`)

// wantNoTombstones reads every open bucket as the loader does, with tracing.
func (c *installation) wantNoTombstones(t *testing.T, p *process) {
	t.Helper()
	config := gocql.NewCluster(c.config.Cassandra.Hosts...)
	config.Keyspace, config.Timeout = c.config.Cassandra.Keyspace, 20*time.Second
	session, err := config.CreateSession()
	c.must(err)
	defer session.Close()
	live, read := 0, 0
	for part := range partitions {
		low, err := p.Pending.LowWater(t.Context(), part)
		c.must(err)
		for minute := low; minute <= job.Minute(time.Now())+1; minute++ {
			var text bytes.Buffer
			eventually(t, "the trace is there", 30*time.Second, func() bool {
				text.Reset()
				q := session.Query("SELECT * FROM pending WHERE partition = ? AND minute = ? LIMIT 500", part, minute)
				c.must(q.Trace(gocql.NewTraceWriter(session, &text)).ExecContext(t.Context()))
				return cells.Match(text.Bytes())
			})
			for _, m := range cells.FindAllStringSubmatch(text.String(), -1) {
				n, _ := strconv.Atoi(m[1])
				live, read = live+n, read+1
				if m[2] != "0" {
					t.Errorf("bucket %d of partition %d: %s", minute, part, m[0])
				}
			}
		}
	}
	t.Logf("%d traced reads of open buckets met %d live rows", read, live)
	if live == 0 {
		t.Error("no row was met: nothing was shown")
	}
}

// wantClosedBucketsGone closes past buckets with a loader whose clock is ahead, and looks for rows below the mark.
func (c *installation) wantClosedBucketsGone(t *testing.T) {
	t.Helper()
	p, err := cluster.Open(t.Context(), c.config, c.logger(), prometheus.NewRegistry())
	c.must(err)
	defer p.Close()
	service, err := bucketloader.New(bucketloader.DefaultConfig(), bucketloader.Deps{
		Pending: p.Pending, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord, Logger: c.logger(), Metrics: prometheus.NewRegistry(),
		Clock: clock.AheadBy(10 * time.Minute),
	})
	c.must(err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- run.InOrder(ctx, c.logger(), run.Stage{Name: "bucket-loader", Service: service}) }()
	now := job.Minute(time.Now())
	closed := func(part int) bool {
		low, err := p.Pending.LowWater(t.Context(), part)
		c.must(err)
		return low > now
	}
	for part := range partitions {
		eventually(t, "the buckets are closed", 2*time.Minute, func() bool { return closed(part) })
	}
	stop()
	c.must(<-stopped)
	for part := range partitions {
		if minute, ok, err := p.Pending.FirstOpen(t.Context(), part, now-30, now+1); err != nil || ok {
			t.Errorf("partition %d still has rows in minute %d, which is closed (%v)", part, minute, err)
		}
	}
}
