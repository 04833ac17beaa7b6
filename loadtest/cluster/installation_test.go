//go:build servers

package cluster_test

import (
	"flag"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/schemas"
)

// Partition counts of an installation.
const (
	partitions      = 8
	kafkaPartitions = 4
)

var full = flag.Bool("cluster.full", false, "outages, stampedes and backlogs as large as in make release")

// sized returns the size for make test, or for make release.
func sized[T any](test, release T) T {
	if *full {
		return release
	}
	return test
}

// installation is this test's own installation on the servers.
type installation struct {
	t      *testing.T
	name   string
	config cluster.Config
	sink   *sink
	// empty is set to leave the servers without tables and topics.
	empty bool
}

// newInstallation returns an installation; settings change it from the usual.
func newInstallation(t *testing.T, settings ...func(*installation)) *installation {
	t.Helper()
	name := fmt.Sprintf("e2e%d", time.Now().UnixNano())
	c := &installation{t: t, name: name, sink: newSink(t), config: cluster.Config{
		Partitions:  partitions,
		Cassandra:   cassandra.Options{Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: name, Timeout: 20 * time.Second},
		Replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}",
		Kafka:       kafka.Options{Brokers: []string{servertest.Address(t, "KAFKA")}, Prefix: name + ".", Partitions: kafkaPartitions, Replication: 1},
		Redis:       redis.Options{Address: servertest.Address(t, "REDIS"), Prefix: name + ":"},
		ZooKeeper:   zookeeper.Options{Servers: []string{servertest.Address(t, "ZOOKEEPER")}, Root: "/" + name, Partitions: partitions},
		S3: s3.Options{
			Bucket: name, Region: "us-east-1", Endpoint: "http://" + servertest.Address(t, "S3"), AccessKey: "minutehand", SecretKey: "minutehand-local",
		},
	}}
	for _, set := range settings {
		set(c)
	}
	t.Cleanup(func() { // last of all, because otherwise a server collects hundreds of tables
		if err := fleet.Remove(c.config); err != nil {
			t.Error(err)
		}
	})
	if c.empty {
		return c
	}
	shards := 16
	c.config.HistoryShards = &shards
	for range 2 { // it may be run again
		c.must(cluster.Migrate(t.Context(), c.config, schemas.Cassandra(), c.logger()))
	}
	return c
}

// onRedisCluster makes an installation use a cluster of Redis servers, which it starts if necessary.
func onRedisCluster(c *installation) {
	local(c.t, "up", "--cluster", "redis")
	c.config.Redis.Address, c.config.Redis.Cluster = servertest.Address(c.t, "REDIS_CLUSTER"), true
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
