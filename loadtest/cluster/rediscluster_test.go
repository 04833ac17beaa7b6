//go:build servers

package cluster_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// A server of the cluster is restarted: what it held is there again, but nothing may rely on that.
func TestServerOfARedisClusterThatIsRestartedTouchesItsPartitionsOnly(t *testing.T) {
	c := newInstallation(t, onRedisCluster)
	processes := []*process{c.start(), c.start()}
	target := map[string]any{"kind": "http_webhook", "url": c.sink.url}
	var ids []string
	for i := range 200 { // due from before until after the server is away
		id, _ := processes[i%2].request(t, http.StatusCreated, http.MethodPost, "/jobs", map[string]any{
			"name": fmt.Sprint("one-shot ", i), "type": "one_shot", "delay": fmt.Sprintf("%dms", 3000+100*i), "target": target,
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

	node := goredis.NewClient(&goredis.Options{Addr: c.config.Redis.Address})
	defer func() { _ = node.Close() }()
	of, err := node.Do(t.Context(), "CLUSTER", "SLOTS").Slice()
	c.must(err)
	_ = node.ShutdownNoSave(t.Context()).Err() // it answers nothing
	time.Sleep(4 * time.Second)                // longer than the others take to notice
	local(t, "up", "--cluster", "redis")
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
	t.Logf("%d of %d jobs were called again", repeated, len(ids))
	after, err := processes[0].Hot.Incarnations(t.Context(), all)
	c.must(err)
	changed := 0
	for p := range all {
		if after[p] != before[p] {
			changed++
		}
	}
	if changed == 0 || changed == partitions {
		t.Errorf("of %d partitions %d have another incarnation; the servers hold %v", partitions, changed, of)
	}
}
