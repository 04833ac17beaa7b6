//go:build servers && upgrade

package cluster_test

import (
	"encoding/json"
	"errors"
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
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
	"github.com/minutehand/minutehand/loadtest/users"
)

var (
	from      = flag.String("cluster.from", "", "folder of the binaries of the release before, which make upgrade-test builds")
	orderFile = flag.String("cluster.order", "", "file with what the chart renders of an upgrade, which make upgrade-test writes")
)

// order is what the chart renders of an upgrade: commands that run before anything else, and Deployments that are replaced all at once.
type order struct {
	Before      [][]string `json:"before"`
	Deployments []struct {
		Service     string `json:"service"`
		Replicas    int    `json:"replicas"`
		Surge       int    `json:"surge"`
		Unavailable int    `json:"unavailable"`
	} `json:"deployments"`
}

const (
	// now is the folder of the binaries of this release.
	now = "../../.bin"
	// settled is how long each release runs alone, after the last process was replaced.
	settled = 15 * time.Second
)

// A roll forward and back in the order in which the chart has it: first its hooks, then all Deployments side by side, each by as many
// processes more as its strategy allows. Changes are not held against the archive, because the release before does not tell of them.
func TestUpgradeAndDowngradeUnderLoadLoseAndDoubleNothing(t *testing.T) {
	if _, err := os.Stat(filepath.Join(*from, "job-api")); err != nil {
		t.Fatal("run make upgrade-test, which builds the release before")
	}
	upgrade := readOrder(t)
	c := newInstallation(t, func(c *installation) { c.empty = true })
	c.run(*from, []string{"/minutehand", "migrate"})
	f := c.processes("MINUTEHAND_DRAIN_LIMIT=30s", together+"=false")
	f.Binaries, f.mixed = *from, true
	processes := f.deploy(upgrade)
	end := f.rollable(150*time.Second, func(c *users.Config) { c.NoTenants, c.NoPrecision = true, true })
	for _, command := range upgrade.Before {
		c.run(now, command)
	}
	for _, to := range []string{now, *from} {
		f.callsPerFire(settled)
		began := time.Now()
		f.Binaries = to
		f.roll(upgrade)
		t.Logf("%d processes were replaced in %.0f s; %d calls", processes, time.Since(began).Seconds(), len(f.sink.all()))
	}
	f.callsPerFire(settled)
	end()
}

// The settings by which an installation says that it does not go back to the release before.
const (
	together = "MINUTEHAND_REDIS_OUTCOMES_TOGETHER"
	shards   = "MINUTEHAND_HISTORY_SHARDS"
)

// After the roll: what is kept in another place than the release before looks is found under both values of its setting, which run
// side by side while it is taken, and while it is taken back.
func TestSettingsOfAnUpgradeAreTakenAndTakenBackUnderLoad(t *testing.T) {
	upgrade := readOrder(t)
	c := newInstallation(t, func(c *installation) { c.empty = true })
	c.run(now, []string{"/minutehand", "migrate"})
	f := c.processes("MINUTEHAND_DRAIN_LIMIT=30s", together+"=false")
	processes := f.deploy(upgrade)
	const lasts = 6 * time.Minute // five steps, each of a roll and up to a minute's wait for the next one
	began := time.Now()
	end := f.rollable(lasts)
	for _, step := range []struct {
		setting          string
		together, byTime bool
	}{{}, {together + "=true", true, false}, {shards + "=16", true, true}, {shards + "=0", true, false}, {together + "=false", false, false}} {
		if step.setting != "" {
			f.Variables = append(f.Variables, step.setting)
			for _, command := range upgrade.Before {
				c.run(now, command, step.setting)
			}
			rolled := time.Now()
			f.roll(upgrade)
			t.Logf("%s: %d processes were replaced in %.0f s; %d calls", step.setting, processes, time.Since(rolled).Seconds(), len(f.sink.all()))
		}
		// The minute in which the last process was replaced may lie in both places.
		since := time.Now().Truncate(time.Minute).Add(time.Minute)
		var oneShots []map[string]any
		for range 20 {
			oneShots = append(oneShots, f.oneShot(since.Add(time.Second), "/ok"))
		}
		ids := f.register(oneShots)
		eventually(t, "the one-shots are called", 2*time.Minute, func() bool {
			missing, _ := f.sink.missing(ids)
			return missing == 0
		})
		var outcomes bool
		var byTime, byJob int
		eventually(t, "their history is written", time.Minute, func() bool {
			outcomes, byTime, byJob = f.ofMinute(since, ids)
			return byTime+byJob == len(ids)
		})
		if outcomes != step.together || step.byTime && byJob > 0 || !step.byTime && byTime > 0 {
			t.Errorf("after %q: outcomes of a minute together: %t, of %d one-shots the history lies %d times by minute, %d times by job",
				step.setting, outcomes, len(ids), byTime, byJob)
		}
	}
	if took := time.Since(began); took > lasts {
		t.Errorf("the last settings were taken back after %s, when the users had ended", took)
	}
	end()
}

// ofMinute reports whether a minute's outcomes lie together in Redis, and how many events of its one-shots lie where in Cassandra.
func (f *platform) ofMinute(at time.Time, oneShots []string) (together bool, byTime, byJob int) {
	f.t.Helper()
	hot := redis.NewClient(&redis.Options{Addr: f.config.Redis.Address})
	defer func() { _ = hot.Close() }()
	keys := hot.Scan(f.t.Context(), 0, fmt.Sprint(f.config.Redis.Prefix, "*ended:", job.Minute(at)), 10_000).Iterator()
	together = keys.Next(f.t.Context())
	f.must(keys.Err())
	cold := gocql.NewCluster(f.config.Cassandra.Hosts...)
	cold.Keyspace = f.config.Cassandra.Keyspace
	session, err := cold.CreateSession()
	f.must(err)
	defer session.Close()
	for shard := range 16 {
		var n int
		f.must(session.Query("SELECT COUNT(*) FROM history_minutes WHERE shard = ? AND minute = ? AND job_id IN ?",
			shard, job.Minute(at), oneShots).ScanContext(f.t.Context(), &n))
		byTime += n
	}
	f.must(session.Query("SELECT COUNT(*) FROM history_weeks WHERE job_id IN ? AND week = ? AND nominal_ms > ?",
		oneShots, job.Minute(at)/(7*24*60), at.UnixMilli()).ScanContext(f.t.Context(), &byJob))
	return together, byTime, byJob
}

// rollable registers jobs of every second and sends users for a while in which processes are replaced; end stops both, and judges.
func (f *platform) rollable(lasts time.Duration, change ...func(*users.Config)) (end func()) {
	f.t.Helper()
	begin := time.Now().Add(5 * time.Second).Truncate(time.Second)
	var jobs []map[string]any
	for range steadyJobs {
		jobs = append(jobs, map[string]any{
			"name": "every second", "type": "interval", "every": "1s", "start_at": begin,
			"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + "/ok"},
		})
	}
	ids := f.register(jobs)
	u := f.users(60, lasts, change...)
	return func() {
		f.t.Helper()
		for i, id := range ids {
			a, err := f.ask(f.t.Context(), i%2, http.MethodPost, "/jobs/"+id+"/cancel", nil)
			f.must(err)
			if a.status != http.StatusOK {
				f.t.Fatalf("a cancel was answered %d: %s", a.status, a.body)
			}
		}
		u.Wait()
		f.check(func(a *ledger.Account) { a.Crashed, a.Requests = false, nil })
		f.t.Logf("%d calls of jobs of every second, %d twice; users: %s", len(f.sink.all()), doubled(f.sink.all()), u.Summary())
	}
}

func readOrder(t *testing.T) (o order) {
	t.Helper()
	text, err := os.ReadFile(*orderFile)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// deploy starts as many processes of each service as its Deployment has.
func (f *platform) deploy(o order) (processes int) {
	f.t.Helper()
	for _, d := range o.Deployments {
		if d.Surge != 1 || d.Unavailable != 0 || d.Replicas < 2 {
			f.t.Fatalf("the chart rolls %+v, and this test one process more at a time", d)
		}
		for n := range d.Replicas {
			_, err := f.Start(d.Service, n)
			f.must(err)
		}
		processes += d.Replicas
	}
	for _, m := range f.Members {
		f.must(m.AwaitReady(f.t.Context()))
	}
	return processes
}

// roll replaces the processes of all services as their Deployments do.
func (f *platform) roll(o order) {
	f.t.Helper()
	errs := make([]error, len(o.Deployments))
	var wg sync.WaitGroup
	for i, d := range o.Deployments {
		wg.Go(func() {
			for n := range d.Replicas {
				before, err := f.Surge(f.t.Context(), d.Service, n)
				if err == nil {
					err = before.Stop()
				}
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	f.must(errors.Join(errs...))
}

// run runs a command of an image, such as the migration that a release needs.
func (c *installation) run(binaries string, command []string, variables ...string) {
	c.t.Helper()
	f, err := fleet.New(binaries, c.t.TempDir(), c.config, append(variables, "MINUTEHAND_CASSANDRA_REPLICATION="+c.config.Replication,
		fmt.Sprint("MINUTEHAND_KAFKA_PARTITIONS=", kafkaPartitions), "MINUTEHAND_KAFKA_REPLICATION=1")...)
	c.must(err)
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(binaries, command[0]), command[1:]...) //nolint:gosec // as the chart renders it
	cmd.Env = append(os.Environ(), f.Variables...)
	if text, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %v: %s", command, err, text)
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
