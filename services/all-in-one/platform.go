// Package platform is all six services in one process, wired onto the embedded adapters, and nothing else: the services are
// the ones that the cluster runs, and know ports only.
package platform

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/adapters/messengers"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/services/all-in-one/assembly"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	jobapi "github.com/minutehand/minutehand/services/job-api"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// Config says where the platform keeps its state and how its services run.
type Config struct {
	// Dir holds the store in DIR/store and the archive in DIR/archive.
	Dir string
	// FS is the file system; nil means the machine's.
	FS embedded.FS
	// Partitions is the partition count of a new store; 0 means the default, or what the store has.
	Partitions int
	// Memory is how much the process may use, at least 512 MiB.
	Memory Memory
	// BrokerConnections bounds the connections to brokers of tenants.
	BrokerConnections int
	// StoreFiles is roughly how many files the store keeps open; 0 means 1000.
	StoreFiles int

	API      jobapi.Config
	Loader   bucketloader.Config
	Worker   schedulerworker.Config
	Executor executor.Config
	Settler  retrymanager.Config
	Auditor  auditwriter.Config
}

// DefaultConfig returns the configuration of `minutehand run`.
func DefaultConfig(dir string) Config {
	audit := auditwriter.DefaultConfig()
	audit.CloseBytes = 8 << 20           // four buffers of it share this process's memory with everything else
	audit.Linger = 20 * time.Millisecond // this store has no use for larger batches, and who tries it looks at once
	return Config{
		Dir: dir, Memory: MachineMemory(), BrokerConnections: 128, API: jobapi.DefaultConfig(), Loader: bucketloader.DefaultConfig(), Worker: schedulerworker.DefaultConfig(),
		Executor: executor.DefaultConfig(), Settler: retrymanager.DefaultConfig(), Auditor: audit,
	}
}

// Within keeps files and connections within what the process may have open, and calls within its memory.
func (c *Config) Within(s descriptors.Share) {
	c.StoreFiles, c.API.MaxConnections = s.Store, min(c.API.MaxConnections, s.Clients)
	brokers, calls := messengers.Share(s.Calls)
	c.BrokerConnections = brokers
	c.Executor.Within(calls, int64(c.Memory))
}

// Outside is what the process provides to the platform.
type Outside struct {
	// Listener is where the API listens; nil when only Handler is used.
	Listener net.Listener
	// Transport carries webhooks; nil means the executor's own.
	Transport http.RoundTripper
	// Messengers opens the connections of tenants; nil means as the executor does on the servers.
	Messengers map[string]messaging.Open
	// Nap is the executor's; see [executor.Deps].
	Nap     func(time.Duration)
	Logger  *slog.Logger
	Metrics *prometheus.Registry
	// Fatal is called when the store cannot go on; it must not return.
	Fatal func(err error)
}

// Platform is an opened platform.
type Platform struct {
	db     *embedded.DB
	dir    string
	log    *embedded.Log
	logger *slog.Logger
	stages []run.Stage

	// API answers requests, with or without a listener.
	API *jobapi.Service
	// Adapters are what the services work on, for tests, the demo and metrics, which look behind the services.
	Adapters Adapters
}

// Adapters are the embedded adapters of a platform.
type Adapters struct {
	Jobs     *embedded.JobStore
	Pending  *embedded.Pending
	Settings *embedded.Settings
	History  *embedded.History
	Hot      *embedded.HotBuckets
	Records  *embedded.Records
	Log      *embedded.Log
	Coord    *embedded.Coordinator
	Archive  *embedded.Archive
	Board    *embedded.Board
	Pools    *embedded.Pools
}

// Open opens the store and makes the services; nothing runs yet. It must be closed, whether it ran or not.
func Open(cfg Config, out Outside) (*Platform, error) {
	db, err := embedded.Open(embedded.Options{
		Dir: filepath.Join(cfg.Dir, "store"), FS: cfg.FS, Partitions: cfg.Partitions, SetupMinute: job.Minute(time.Now()),
		CacheBytes: cfg.Memory.cacheBytes(), MemTableBytes: cfg.Memory.memTableBytes(), MaxOpenFiles: cfg.StoreFiles, Log: out.Logger, Fatal: out.Fatal,
	})
	if err != nil {
		return nil, err
	}
	p := &Platform{db: db, dir: cfg.Dir, logger: out.Logger}
	if err := p.wire(cfg, out); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Platform) wire(cfg Config, out Outside) (err error) {
	db := p.db
	if p.log, err = embedded.NewLog(db); err != nil {
		return err
	}
	records, err := embedded.NewRecords(context.Background(), db, cfg.Memory.maxRecords())
	if err != nil {
		return err
	}
	store, err := embedded.NewArchive(cfg.FS, filepath.Join(cfg.Dir, "archive"))
	if err != nil {
		return err
	}
	p.Adapters = Adapters{
		Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), Settings: embedded.NewSettings(db),
		History: embedded.NewHistory(db),
		Hot:     embedded.NewHotBuckets(db.Incarnation(), db.Partitions(), cfg.Memory.maxHotEntries()), Records: records, Log: p.log,
		Coord: embedded.NewCoordinator(db), Archive: store, Board: embedded.NewBoard(), Pools: embedded.NewPools(),
	}
	return p.serve(cfg, out)
}

// serve makes the services in the order in which work flows, which is also the order in which they stop.
func (p *Platform) serve(cfg Config, out Outside) error {
	a := p.Adapters
	ports := &assembly.Ports{
		Jobs: a.Jobs, Pending: a.Pending, History: a.History, Settings: a.Settings, Hot: a.Hot, Records: a.Records, Log: a.Log, Coord: a.Coord,
		Archive: a.Archive, Board: a.Board, Pools: a.Pools, Transport: out.Transport, Messengers: out.Messengers,
	}
	if ports.Messengers == nil {
		ports.Messengers = messengers.All(egress.Dialer(cfg.Executor.AllowPrivateTargets).DialContext, cfg.BrokerConnections)
	}
	around := assembly.Surroundings{Logger: out.Logger, Metrics: out.Metrics, Nap: out.Nap}
	cfg.Loader.Partitions = p.db.Partitions()
	loading, err := assembly.BucketLoader(cfg.Loader, ports, around)
	if err != nil {
		return err
	}
	cfg.API.Partitions = p.db.Partitions()
	cfg.Settler.Partitions = p.db.Partitions()
	cfg.Worker.Partitions = p.db.Partitions()
	cfg.Worker.MaxBytes = min(cfg.Worker.MaxBytes, cfg.Memory.workerBytes())
	cfg.Executor.MaxBytes = min(cfg.Executor.MaxBytes, cfg.Memory.executorBytes())
	space := embedded.NewSpace(cfg.FS, cfg.Dir, out.Logger)
	space.Register(out.Metrics)
	facing := around
	facing.Listener, facing.Full, facing.Admin = out.Listener, space.Low, admin.Handler(out.Metrics, schedule.TZDataVersion(), loading.Missing)
	if p.API, err = assembly.JobAPI(cfg.API, ports, facing); err != nil {
		return err
	}
	working, err := assembly.SchedulerWorker(cfg.Worker, ports, around)
	if err != nil {
		return err
	}
	executing, err := assembly.Executor(cfg.Executor, ports, around)
	if err != nil {
		return err
	}
	settling, err := assembly.RetryManager(cfg.Settler, ports, around)
	if err != nil {
		return err
	}
	auditing, err := assembly.AuditWriter(cfg.Auditor, ports, around)
	if err != nil {
		return err
	}
	p.register(out.Metrics)
	p.stages = []run.Stage{
		{Name: "job-api", Service: p.API},
		{Name: "bucket-loader", Service: loading},
		{Name: "scheduler-worker", Service: working},
		{Name: "executor", Service: executing},
		{Name: "retry-manager", Service: settling},
		{Name: "audit-writer", Service: auditing},
		{Name: "disk watch", Service: space},
		{Name: "housekeeper", Service: &embedded.Housekeeper{Jobs: a.Jobs, History: a.History, Log: out.Logger}},
	}
	return nil
}

// register makes the metrics that belong to no service.
func (p *Platform) register(metrics prometheus.Registerer) {
	lag := admin.Lag(p.Adapters.Log, dispatch.GroupExecutor, dispatch.GroupSettle, dispatch.GroupHistory, dispatch.GroupArchive)
	metrics.MustRegister(lag, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "minutehand_store_cache_bytes", Help: "What the store's caches hold.",
	}, func() float64 { return float64(p.db.CacheBytes()) }))
}

// Run runs the six services until ctx ends, then stops them one after the other.
func (p *Platform) Run(ctx context.Context) error { return run.InOrder(ctx, p.logger, p.stages...) }

// Close closes the store.
func (p *Platform) Close() error {
	if p.log != nil {
		p.log.Close()
	}
	return p.db.Close()
}
