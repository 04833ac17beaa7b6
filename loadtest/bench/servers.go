package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/schemas"
)

const (
	// stampedeFires is how many jobs fall due at one instant on the real servers. In the steady loads, calmRate fall due per
	// second, and busyRate when CPU is counted.
	stampedeFires, calmRate, busyRate = 10_000, 200, 500
	// warmUps is the number of rounds that do not count, in which the servers' compilers warm up.
	warmUps = 2
	// serverPartitions is the installation's partition count.
	serverPartitions = 32
)

// onServers is a measurement on the real servers: one process of each service, every server, and the sink, all on this
// machine.
type onServers struct {
	fleet  *fleet.Fleet
	ports  *cluster.Cluster
	target string
	client *http.Client
	state  string // the folder of infra/local
	// config has the names of the installation's keyspace, topics and bucket; partitions is its partition count.
	config     cluster.Config
	partitions int
}

// round holds the results of one round.
type round struct {
	stampede, early float64
	calm, busy      lateness
	// cpu is what each process used per fire of the busy load, in µs; whole is the sum over all processes of the machine.
	cpu   map[string]float64
	whole float64
}

// lateness of a steady load, in ms.
type lateness struct{ p50, p99 float64 }

// runOnServers measures three fresh installations, each after rounds that do not count: one without jobs at rest, one with,
// and again one without. The difference between the first and the last shows what the servers' age, and not the jobs, does
// to the figures.
func runOnServers(ctx context.Context, rounds, rest int, steady time.Duration) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	fmt.Printf("%d cores, %s, shared by one process of each service, the servers, the sink and the load generator\n\n", runtime.NumCPU(), memory())
	var without, with []round
	for i, n := range []int{0, rest, 0} {
		if i > 0 && rest == 0 {
			break
		}
		all, err := measureInstallation(ctx, target, n, rounds, steady)
		if err != nil {
			return err
		}
		if n > 0 {
			with = append(with, all...)
		} else {
			without = append(without, all...)
		}
		printRounds(os.Stdout, fmt.Sprintf("installation %d, %d jobs at rest", i+1, n), all, steady)
	}
	if rest > 0 {
		printRounds(os.Stdout, "both installations without jobs at rest", without, steady)
		printBeside(os.Stdout, without, with, steady)
	}
	return nil
}

// measureInstallation makes an installation with jobs at rest, measures it, and removes it.
func measureInstallation(ctx context.Context, target string, rest, rounds int, steady time.Duration) (all []round, err error) {
	err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
		if rest > 0 {
			if err := b.fill(ctx, rest); err != nil {
				return err
			}
		}
		if err := b.fleet.StartAll(ctx, 1); err != nil {
			return err
		}
		if _, err := b.rounds(ctx, warmUps, steady); err != nil {
			return err
		}
		if all, err = b.rounds(ctx, rounds, steady); err != nil {
			return err
		}
		return b.fleet.StopAll()
	})
	return all, err
}

// withInstallation makes an installation, measures something on it, and removes it.
func withInstallation(ctx context.Context, target string, partitions int, measure func(b *onServers) error) (err error) {
	b := &onServers{target: target, partitions: partitions, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}
	if b.state, err = filepath.Abs(cmp.Or(os.Getenv("MINUTEHAND_LOCAL_DIR"), ".data/local")); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config, err := localServers(partitions)
	if err != nil {
		return err
	}
	shards := 16 // as an installation has it that does not go back to the release before (runbooks/upgrade.md)
	config.HistoryShards = &shards
	b.config = config
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := cluster.Migrate(ctx, config, schemas.Cassandra(), logger); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Remove(config)) }()
	if b.ports, err = cluster.Open(ctx, config, logger, prometheus.NewRegistry()); err != nil {
		return err
	}
	defer b.ports.Close()
	if b.fleet, err = fleet.New(".bin", dir, config, "MINUTEHAND_LOG_LEVEL=warn", "MINUTEHAND_REDIS_OUTCOMES_TOGETHER=true"); err != nil {
		return err
	}
	defer b.fleet.Kill()
	return measure(b)
}

// localServers returns the servers that infra/local started, with names used only by this measurement.
func localServers(partitions int) (cluster.Config, error) {
	var missing []string
	address := func(name string) string {
		port := os.Getenv(name + "_PORT")
		if port == "" {
			missing = append(missing, name+"_PORT")
		}
		return "127.0.0.1:" + port
	}
	name := fmt.Sprintf("bench%d", time.Now().Unix())
	c := cluster.Config{
		Partitions:  partitions,
		Cassandra:   cassandra.Options{Hosts: []string{address("CASSANDRA")}, Keyspace: name, Timeout: 20 * time.Second},
		Replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}",
		Kafka:       kafka.Options{Brokers: []string{address("KAFKA")}, Prefix: name + ".", Partitions: 8, Replication: 1},
		Redis:       redis.Options{Address: address("REDIS"), Prefix: name + ":"},
		ZooKeeper:   zookeeper.Options{Servers: []string{address("ZOOKEEPER")}, Root: "/" + name, Partitions: partitions},
		S3: s3.Options{
			Bucket: name, Region: "us-east-1", Endpoint: "http://" + address("S3"), AccessKey: "minutehand", SecretKey: "minutehand-local",
		},
	}
	if len(missing) > 0 {
		return c, fmt.Errorf("%s not set; run make bench-servers", strings.Join(missing, ", "))
	}
	return c, nil
}

func (b *onServers) rounds(ctx context.Context, n int, steady time.Duration) (all []round, err error) {
	for i := range n {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", i+1, n)
		var r round
		if err := errors.Join(b.stampede(ctx, &r), b.steady(ctx, &r, calmRate, &r.calm, steady), b.steady(ctx, &r, busyRate, &r.busy, steady)); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// api returns the job-api's address as a process of the other measurements, whose requests are the same.
func (b *onServers) api() *process {
	return &process{api: "http://" + b.fleet.Member("job-api", 0).Listen, client: b.client}
}

// registerAt registers one_shots in batches; at returns the instant of each.
func (b *onServers) registerAt(ctx context.Context, n int, at func(i int) time.Time) error {
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": at(i).UTC().Format("2006-01-02T15:04:05.000Z"),
			"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"hello": "world"}},
		}
	}
	return b.api().registerJobs(ctx, jobs)
}

func (b *onServers) stampede(ctx context.Context, r *round) error {
	p := b.api()
	if err := p.reset(ctx, b.target); err != nil {
		return err
	}
	at := time.Now().Add(15 * time.Second).Truncate(time.Millisecond)
	if err := b.registerAt(ctx, stampedeFires, func(int) time.Time { return at }); err != nil {
		return err
	}
	if time.Now().After(at) {
		return errors.New("registration took longer than planned for")
	}
	t, err := p.await(ctx, b.target, stampedeFires)
	if err != nil {
		return err
	}
	r.stampede = stampedeFires / t.Last.Sub(at).Seconds()
	return b.quiet(ctx)
}

// quiet waits until every entry of the last minutes is done, so that what comes next is measured on its own.
func (b *onServers) quiet(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		done := true
		now := job.Minute(time.Now())
		for p := range b.partitions {
			for minute := now - 2; minute <= now && done; minute++ {
				rows, err := b.ports.Pending.Scan(ctx, p, minute, nil, 100_000)
				if err != nil {
					return err
				}
				done = !slices.ContainsFunc(rows, func(row job.PendingRow) bool { return !row.Done && row.DueAt.Before(time.Now()) })
			}
		}
		if done {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("entries are still not done a minute after they were called")
		}
	}
}

func (b *onServers) steady(ctx context.Context, r *round, rate int, late *lateness, d time.Duration) error {
	p := b.api()
	if err := p.reset(ctx, b.target); err != nil {
		return err
	}
	n := int(d.Seconds()) * rate
	from := time.Now().Add(5*time.Second + time.Duration(n)*time.Second/1000)
	if err := b.registerAt(ctx, n, func(i int) time.Time { return from.Add(time.Duration(i) * time.Second / time.Duration(rate)) }); err != nil {
		return err
	}
	if time.Now().After(from) {
		return errors.New("registration took longer than planned for")
	}
	time.Sleep(time.Until(from))
	before, err := b.usage()
	if err != nil {
		return err
	}
	if _, err := p.await(ctx, b.target, n); err != nil {
		return err
	}
	after, err := b.usage()
	if err != nil {
		return err
	}
	t, err := p.tally(ctx, b.target, true)
	if err != nil {
		return err
	}
	sort.Slice(t.Late, func(i, j int) bool { return t.Late[i] < t.Late[j] })
	late.p50, late.p99 = float64(t.Late[len(t.Late)/2])/1000, float64(t.Late[len(t.Late)*99/100])/1000
	r.early += float64(t.Early)
	r.cpu = map[string]float64{}
	for name, used := range after {
		r.cpu[name] = (used - before[name]) / float64(n) * 1e6
	}
	r.whole = r.cpu[wholeMachine]
	delete(r.cpu, wholeMachine)
	rest := r.whole
	for _, used := range r.cpu {
		rest -= used
	}
	r.cpu["the machine's other processes"] = rest
	return b.quiet(ctx)
}

// wholeMachine is the name under which usage returns the sum over all processes.
const wholeMachine = "whole"

// processes returns the processes that take part, by name.
func (b *onServers) processes() (map[string][]int, error) {
	pids := map[string][]int{"load generator": {os.Getpid()}}
	for _, m := range b.fleet.Members {
		pids[m.Service] = append(pids[m.Service], m.Pid())
	}
	threads, err := filepath.Glob("/proc/self/task/*/children") // a process is a child of the thread that started it
	if err != nil {
		return nil, err
	}
	for _, file := range threads {
		children, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended, and its children belong to another
		}
		for _, c := range strings.Fields(string(children)) {
			pid, _ := strconv.Atoi(c)
			if !slices.ContainsFunc(b.fleet.Members, func(m *fleet.Member) bool { return m.Pid() == pid }) {
				pids["sink"] = append(pids["sink"], pid)
			}
		}
	}
	for name, file := range map[string]string{"Cassandra": "cassandra-1", "Kafka": "kafka", "ZooKeeper": "zookeeper", "Redis": "redis", "S3": "s3"} {
		text, err := os.ReadFile(filepath.Join(b.state, "run", file+".pid"))
		if err != nil {
			return nil, fmt.Errorf("%s does not run: %w", name, err)
		}
		pid, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.Atoi(pid)
		if err != nil {
			return nil, err
		}
		pids[name] = append(pids[name], n)
	}
	return pids, nil
}

// usage returns the CPU time that each process has used, in seconds.
func (b *onServers) usage() (map[string]float64, error) {
	pids, err := b.processes()
	if err != nil {
		return nil, err
	}
	used := map[string]float64{}
	var errs []error
	for name, of := range pids {
		for _, pid := range of {
			s, err := cpuOf(pid)
			used[name] += s
			errs = append(errs, err)
		}
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, entry := range all {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			if s, err := cpuOf(pid); err == nil { // otherwise it has ended
				used[wholeMachine] += s
			}
		}
	}
	return used, errors.Join(errs...)
}

// fill puts n one_shots at rest into Cassandra, due over the weeks from tomorrow on, written as a registration writes them.
func (b *onServers) fill(ctx context.Context, n int) error {
	const size = 2000
	began := time.Now()
	told := began
	tomorrow := began.Add(24 * time.Hour).Truncate(time.Minute)
	chunks := n / size
	for c := range chunks {
		at := job.Instant(tomorrow.Add(time.Duration(c) * 20 * 24 * time.Hour / time.Duration(chunks)))
		jobs, entries := oneShots(size, b.target+"/hook", job.Instant(time.Now()), at)
		for i := range entries {
			entries[i].Partition = bucket.Partition(jobs[i].ID, b.partitions)
		}
		if err := errors.Join(b.ports.Pending.Put(ctx, entries), b.ports.Jobs.CreateMany(ctx, jobs)); err != nil {
			return err
		}
		if time.Since(told) > 15*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%d of %d jobs at rest after %s\n", (c+1)*size, n, told.Sub(began).Round(time.Second))
		}
	}
	took := time.Since(began)
	err := b.calm()
	fmt.Printf("%d jobs were put at rest in %.0f s; Cassandra was quiet again after %.0f s.\n\n", chunks*size, took.Seconds(), time.Since(began).Seconds())
	return err
}

// calm waits until Cassandra has compacted what was written.
func (b *onServers) calm() error {
	const every, most = 10 * time.Second, 10 * time.Minute
	last, err := b.usage()
	for deadline := time.Now().Add(most); err == nil && time.Now().Before(deadline); {
		time.Sleep(every)
		var now map[string]float64
		if now, err = b.usage(); err == nil && now["Cassandra"]-last["Cassandra"] < 0.1*every.Seconds() {
			return nil
		}
		last = now
	}
	return err
}
