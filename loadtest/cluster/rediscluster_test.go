//go:build servers

package cluster_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
)

// A server of the cluster is killed, and its replica replaces it with what has reached the replica.
func TestServerOfARedisClusterThatFailsOverLosesNothing(t *testing.T) {
	c := newInstallation(t, onRedisCluster)
	processes := []*process{c.start(), c.start()}
	target := map[string]any{"kind": "http_webhook", "url": c.sink.url}
	var ids []string
	for i := range 200 { // due from before until after the failover
		id, _ := processes[i%2].request(t, http.StatusCreated, http.MethodPost, "/jobs", map[string]any{
			"name": fmt.Sprint("one-shot ", i), "type": "one_shot", "delay": fmt.Sprintf("%dms", 5000+100*i), "target": target,
		})["job_id"].(string)
		ids = append(ids, id)
	}
	all := make([]int, partitions)
	for p := range all {
		all[p] = p
	}
	before, err := processes[0].Hot.Incarnations(t.Context(), all)
	c.must(err)
	eventually(t, "the first jobs are invoked", time.Minute, func() bool { return c.sink.of(ids[5]) > 0 })

	master, _ := servertest.RedisServers(t, "{p0}")
	master.Signal(syscall.SIGKILL)
	defer local(t, "up", "--cluster", "redis")
	eventually(t, "every job is invoked", 2*time.Minute, func() bool {
		for _, id := range ids {
			if c.sink.of(id) == 0 {
				return false
			}
		}
		return true
	})
	repeated := 0
	for _, id := range ids {
		repeated += c.sink.of(id) - 1
	}
	late := time.Duration(0)
	for _, call := range c.sink.all() {
		late = max(late, call.At.Sub(call.ScheduledFor))
	}
	after, err := processes[0].Hot.Incarnations(t.Context(), all)
	c.must(err)
	changed := 0
	for p := range all {
		if after[p] != before[p] {
			changed++
		}
	}
	t.Logf("the latest call came %.1f s late; %d of %d jobs were called again; %d of %d partitions have another incarnation",
		late.Seconds(), repeated, len(ids), changed, partitions)
	if after[0] == before[0] || changed == partitions {
		t.Error("the incarnation of its partitions has to be another, and of the others the same")
	}
}
