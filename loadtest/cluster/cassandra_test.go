//go:build servers

package cluster_test

import (
	"testing"
	"time"
)

// onCassandra runs Cassandra with other options than usual for the duration of a test.
func onCassandra(t *testing.T, options ...string) {
	t.Helper()
	t.Cleanup(func() {
		local(t, "down", "cassandra")
		local(t, "up", "cassandra")
	})
	local(t, "down", "cassandra")
	local(t, append([]string{"up", "cassandra"}, options...)...)
}

// What a node acknowledged survives it. (By default it forgets the last second, which other replicas make up for.)
func TestJobsThatCassandraAcknowledgedOutliveItsKill(t *testing.T) {
	onCassandra(t, "--durable")
	f := newInstallation(t).fleet()
	due := time.Now().Add(45 * time.Second) // when it is back
	ids := make([]string, 0, 500)
	for range cap(ids) / 250 {
		jobs := make([]map[string]any, 250)
		for i := range jobs {
			jobs[i] = f.oneShot(due, "/ok")
		}
		ids = append(ids, f.register(jobs)...)
	}
	local(t, "kill", "cassandra")
	f.wantGone("cassandra")
	local(t, "up", "--durable", "cassandra")
	f.awaitCalls(ids)
	f.check(nil)
}
