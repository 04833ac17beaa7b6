package cluster_test

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
)

func TestServersThatAreAwayAreAnErrorOfOpen(t *testing.T) {
	cfg := cluster.Config{Partitions: 1, Cassandra: cassandra.Options{Hosts: []string{"127.0.0.1:1"}, Keyspace: "none"}}
	if _, err := cluster.Open(t.Context(), cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil {
		t.Error("opened without Cassandra")
	}
}
