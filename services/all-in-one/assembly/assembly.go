// Package assembly wires the six services onto ports, whatever their adapters: those of one process, of the simulation, or
// of real servers in a test. (The main of a service wires only that service, onto the servers that it needs.)
package assembly

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/pools"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	bucketloader "github.com/minutehand/minutehand/services/bucket-loader"
	"github.com/minutehand/minutehand/services/executor"
	jobapi "github.com/minutehand/minutehand/services/job-api"
	retrymanager "github.com/minutehand/minutehand/services/retry-manager"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// Ports are all the ports that the services work on.
type Ports struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Records  attempts.Records
	Log      dispatch.Log
	Coord    coord.Coordinator
	Archive  archive.Archive
	Board    capacity.Board
	// Messengers open the connections of tenants, by the kind of their targets.
	Messengers map[string]messaging.Open
	// Pools holds the tasks of workers; nil where nobody fetches any.
	Pools pools.Queue
	// Transport carries webhooks; nil means the executor's own.
	Transport http.RoundTripper
	// Owners carries what the owners of jobs are told; nil means the bucket-loader's own.
	Owners http.RoundTripper
}

// Surroundings are what a process provides to its services.
type Surroundings struct {
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Clock   clock.Clock
	// Nap is the executor's; see [executor.Deps].
	Nap func(time.Duration)

	// Entropy is the source of ids, safe for concurrent use; nil means crypto/rand.
	Entropy io.Reader

	// What only the job-api asks for; see [jobapi.Deps].
	Listener net.Listener
	Full     func() bool
	Admin    http.Handler
}

// of returns the logger of one service, whose lines name it.
func (s Surroundings) of(service string) *slog.Logger { return s.Logger.With("service", service) }

// JobAPI makes a job-api.
func JobAPI(cfg jobapi.Config, p *Ports, s Surroundings) (*jobapi.Service, error) {
	return jobapi.New(cfg, jobapi.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Log: p.Log, Pools: p.Pools,
		Listener: s.Listener, Full: s.Full, Entropy: s.Entropy, Admin: s.Admin,
		Logger: s.of("job-api"), Metrics: s.Metrics, Clock: s.Clock,
	})
}

// BucketLoader makes a bucket-loader.
func BucketLoader(cfg bucketloader.Config, p *Ports, s Surroundings) (*bucketloader.Service, error) {
	return bucketloader.New(cfg, bucketloader.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Records: p.Records, Log: p.Log, Coord: p.Coord,
		Targets: p.Owners, Entropy: s.Entropy, Logger: s.of("bucket-loader"), Metrics: s.Metrics, Clock: s.Clock,
	})
}

// SchedulerWorker makes a scheduler-worker.
func SchedulerWorker(cfg schedulerworker.Config, p *Ports, s Surroundings) (*schedulerworker.Service, error) {
	return schedulerworker.New(cfg, schedulerworker.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Settings: p.Settings, Hot: p.Hot, Outcomes: p.Records, Stops: p.Records,
		Log: p.Log, Coord: p.Coord, Board: p.Board,
		Entropy: s.Entropy, Logger: s.of("scheduler-worker"), Metrics: s.Metrics, Clock: s.Clock,
	})
}

// Executor makes an executor.
func Executor(cfg executor.Config, p *Ports, s Surroundings) (*executor.Service, error) {
	return executor.New(cfg, executor.Deps{
		Jobs: p.Jobs, Pending: p.Pending, Records: p.Records, Log: p.Log, Coord: p.Coord, Board: p.Board, Connections: p.Settings, Messengers: p.Messengers, Pools: p.Pools,
		Transport: p.Transport, Nap: s.Nap,
		Logger: s.of("executor"), Metrics: s.Metrics, Clock: s.Clock,
	})
}

// RetryManager makes a retry-manager.
func RetryManager(cfg retrymanager.Config, p *Ports, s Surroundings) (*retrymanager.Service, error) {
	return retrymanager.New(cfg, retrymanager.Deps{
		Jobs: p.Jobs, Pending: p.Pending, History: p.History, Hot: p.Hot, Stops: p.Records, Log: p.Log, Settings: p.Settings,
		Entropy: s.Entropy, Logger: s.of("retry-manager"), Metrics: s.Metrics, Clock: s.Clock,
	})
}

// AuditWriter makes an audit-writer.
func AuditWriter(cfg auditwriter.Config, p *Ports, s Surroundings) (*auditwriter.Service, error) {
	return auditwriter.New(cfg, auditwriter.Deps{
		History: p.History, Archive: p.Archive, Log: p.Log,
		Logger: s.of("audit-writer"), Metrics: s.Metrics, Clock: s.Clock,
	})
}
