package cluster_test

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
)

func TestServersThatAreAwayAreAnErrorOfOpen(t *testing.T) {
	cfg, err := cluster.FromEnv(&cluster.Env{Lookup: func(name string) (string, bool) {
		return "127.0.0.1:1", name == "MINUTEHAND_CASSANDRA_HOSTS"
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Open(t.Context(), cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil {
		t.Error("opened without Cassandra")
	}
}
