//go:build servers && upgrade

package cluster_test

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

var from = flag.String("cluster.from", "", "folder of the binaries of the release before, which make upgrade-test builds")

const (
	// now is the folder of the binaries of this release.
	now = "../../.bin"
	// settled is how long each release runs alone, after the last process was replaced.
	settled = 15 * time.Second
)

// A roll forward and back, as an operator makes it, who migrates first. Changes are not held against the archive, because the release
// before does not tell of them.
func TestUpgradeAndDowngradeUnderLoadLoseAndDoubleNothing(t *testing.T) {
	if _, err := os.Stat(filepath.Join(*from, "job-api")); err != nil {
		t.Fatal("run make upgrade-test, which builds the release before")
	}
	c := newInstallation(t, func(c *installation) { c.empty = true })
	c.migrate(*from)
	f := c.processes("MINUTEHAND_DRAIN_LIMIT=30s")
	f.Binaries = *from
	f.must(f.StartAll(t.Context(), 2))
	begin := time.Now().Add(5 * time.Second).Truncate(time.Second)
	var jobs []map[string]any
	for range steadyJobs {
		jobs = append(jobs, map[string]any{
			"name": "every second", "type": "interval", "every": "1s", "start_at": begin,
			"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + "/ok"},
		})
	}
	ids := f.register(jobs)
	u := f.users(60, 150*time.Second, func(c *users.Config) { c.NoTenants = true })
	f.migrate(now)
	for _, to := range []string{now, *from} {
		f.callsPerFire(settled)
		began := time.Now()
		f.Binaries = to
		for n := range 2 {
			for _, s := range fleet.Services() {
				f.must(f.Member(s, n).Stop())
				f.restart(s, n)
			}
		}
		t.Logf("twelve processes were replaced in %.0f s; %d calls", time.Since(began).Seconds(), len(f.sink.all()))
	}
	f.callsPerFire(settled)
	for i, id := range ids {
		a, err := f.ask(t.Context(), i%2, http.MethodPost, "/jobs/"+id+"/cancel", nil)
		f.must(err)
		if a.status != http.StatusOK {
			t.Fatalf("a cancel was answered %d: %s", a.status, a.body)
		}
	}
	u.Wait()
	f.check(func(a *ledger.Account) { a.Crashed, a.Requests = false, nil })
	t.Logf("%d calls of jobs of every second, %d twice; users: %s", len(f.sink.all()), doubled(f.sink.all()), u.Summary())
}

// migrate makes what a release needs on the servers.
func (c *installation) migrate(binaries string) {
	c.t.Helper()
	f, err := fleet.New(binaries, c.t.TempDir(), c.config, "MINUTEHAND_CASSANDRA_REPLICATION="+c.config.Replication,
		fmt.Sprint("MINUTEHAND_KAFKA_PARTITIONS=", kafkaPartitions), "MINUTEHAND_KAFKA_REPLICATION=1")
	c.must(err)
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(binaries, "minutehand"), "migrate")
	cmd.Env = append(os.Environ(), f.Variables...)
	if text, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("migrate: %v: %s", err, text)
	}
}

// callsPerFire logs how many calls of the ports all processes make for a fire, over a while: what a release costs beside another.
func (f *platform) callsPerFire(d time.Duration) {
	f.t.Helper()
	count := func() (calls map[string]float64, fires int) {
		calls = map[string]float64{}
		for _, m := range f.Members {
			for line := range strings.Lines(f.scrape(m)) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				port, ok := strings.CutPrefix(name, "minutehand_port_call_seconds_count{")
				n, err := strconv.ParseFloat(value, 64)
				if ok && err == nil {
					_, port, _ = strings.Cut(port, `port="`)
					port, _, _ = strings.Cut(port, `"`)
					calls[port] += n
				}
			}
		}
		return calls, len(f.sink.all())
	}
	before, began := count()
	time.Sleep(d)
	after, ended := count()
	text := ""
	for _, port := range slices.Sorted(maps.Keys(after)) {
		text += fmt.Sprintf("  %s %.3f", port, (after[port]-before[port])/float64(ended-began))
	}
	f.t.Logf("calls for each of %d fires, users beside them:%s", ended-began, text)
}

func doubled(calls []ledger.Call) (n int) {
	seen := map[string]bool{}
	for _, c := range calls {
		if seen[c.ExecutionID] {
			n++
		}
		seen[c.ExecutionID] = true
	}
	return n
}
