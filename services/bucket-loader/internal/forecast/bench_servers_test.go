//go:build servers

package forecast

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/schemas"
)

// BenchmarkPassOnCassandra is BenchmarkPass on the real server. requests/op are those that a pass makes, server-cpu-ms/op what the node uses meanwhile,
// which has been left alone for a minute before. The keyspace stays: the server is for tests.
func BenchmarkPassOnCassandra(b *testing.B) {
	var requests atomic.Int64
	o := cassandra.Options{
		Hosts: []string{servertest.Address(b, "CASSANDRA")}, Keyspace: fmt.Sprintf("forecast%d", time.Now().UnixNano()), Timeout: time.Minute,
		Observe: func(cassandra.Request) { requests.Add(1) },
	}
	if err := cassandra.Migrate(b.Context(), o, "{'class': 'SimpleStrategy', 'replication_factor': 1}", schemas.Cassandra()); err != nil {
		b.Fatal(err)
	}
	store, err := cassandra.Open(o)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	if err := store.SetUp(b.Context(), bucket.DefaultPartitions, job.Minute(time.Now())); err != nil {
		b.Fatal(err)
	}
	f := &Forecaster{
		Config: DefaultConfig(), Jobs: cassandra.NewJobStore(store), Pending: cassandra.NewPending(store), Lists: cassandra.NewSettings(store),
		Partitions: bucket.DefaultPartitions, Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
	}
	began, settled := int64(0), false
	measure(b, f, func() time.Duration {
		if !settled {
			settled = true
			time.Sleep(time.Minute) // compactions that the registrations left behind
			began = requests.Load()
		}
		return cpuOfCassandra(b)
	})
	b.ReportMetric(float64(requests.Load()-began)/float64(b.N), "requests/op")
}

// cpuOfCassandra returns what the node on this machine has used.
func cpuOfCassandra(b *testing.B) time.Duration {
	b.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range all {
		if text, err := os.ReadFile(name); err != nil || !bytes.Contains(text, []byte("CassandraDaemon")) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		user, err1 := strconv.Atoi(fields[11])
		system, err2 := strconv.Atoi(fields[12])
		if err1 != nil || err2 != nil {
			b.Fatal(err1, err2)
		}
		return time.Duration(user+system) * 10 * time.Millisecond // in ticks
	}
	b.Fatal("Cassandra does not run on this machine")
	return 0
}
