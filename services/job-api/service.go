// Package jobapi is the job-api: the REST interface through which jobs are registered, changed and looked at.
//
// It promises: a 201 means that the job is durable and will fire, whatever crashes afterwards. A change that was
// acknowledged holds (no attempt that it stops begins later). Bad input is answered with all of its faults at once and
// leaves nothing half-written. No submitted value is repeated in a problem document, and logs name only ids, which were
// checked.
//
// This package holds the configuration and the wiring. internal/edge checks requests and answers them, internal/form is how
// clients write a job and see it again, internal/reads shows what is there, and internal/writes changes it; internal/access finds
// out who asks, internal/accounts carries out what concerns tenants and keys, and internal/tasks hands tasks to workers. Imports go in this
// order only: access, edge, form, reads, writes; accounts needs the first two, tasks the first three.
package jobapi

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
	"github.com/minutehand/minutehand/services/job-api/internal/accounts"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
	"github.com/minutehand/minutehand/services/job-api/internal/removal"
	"github.com/minutehand/minutehand/services/job-api/internal/tasks"
	"github.com/minutehand/minutehand/services/job-api/internal/writes"
)

// Config holds what an operator may change.
type Config struct {
	// Partitions is the store's partition count.
	Partitions int
	// AuthToken is the bearer token of an admin of the installation; empty means none.
	AuthToken string
	// Tokens says which JSON Web Tokens are accepted; without Keys none are.
	Tokens TokenConfig
	// ClientCertificates is set if TLS verifies the certificates of clients. Without it, a token or a key set, everybody is let in
	// as an admin of the installation.
	ClientCertificates bool
	// TLS is the configuration of the listener; nil means that it answers in plain text.
	TLS *tls.Config
	// Grace is how long an entry without a job row is kept; a writer may take half of it from entry to row.
	Grace time.Duration
	// MaxBodyBytes bounds a request's body, MaxBatchBytes that of a batch of jobs.
	MaxBodyBytes, MaxBatchBytes int64
	// MaxWriteThroughs bounds the entries whose write-through failed and is tried again in the background.
	MaxWriteThroughs int
	// MaxConnections bounds the open connections, three quarters of it those from one address. Idle connections make room.
	MaxConnections int
	// LocalHostsOnly refuses requests whose Host is neither localhost nor an address. It is for an API on loopback without a
	// credential: a page in a browser must not reach it under a name of the page's own.
	LocalHostsOnly bool
	// DrainLimit is how long a stop waits for requests in flight, AnswerLimit how long a client may take to read an answer.
	DrainLimit, AnswerLimit time.Duration
}

// DefaultConfig returns the configuration of an API whose operator sets nothing else.
func DefaultConfig() Config {
	return Config{
		Partitions: bucket.DefaultPartitions, Grace: 2 * time.Minute, MaxBodyBytes: 512 << 10, MaxBatchBytes: 16 << 20,
		MaxWriteThroughs: 10_000, MaxConnections: 4096,
		DrainLimit: 10 * time.Second, AnswerLimit: 30 * time.Second,
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.Partitions < 1 || c.Partitions > bucket.MaxPartitions {
		errs = append(errs, errors.New("job-api: partitions must be 1 to 16384"))
	}
	if c.Grace <= 0 || c.MaxBodyBytes <= 0 || c.MaxBatchBytes <= 0 || c.MaxWriteThroughs <= 0 || c.DrainLimit < 0 || c.AnswerLimit <= 0 || c.MaxConnections <= 0 {
		errs = append(errs, errors.New("job-api: grace, answer limit, max body bytes, max connections and max write-throughs must be over 0"))
	}
	return errors.Join(errs...)
}

// Deps are the ports that the API works on.
type Deps struct {
	Jobs     jobstore.Jobs
	Pending  jobstore.Pending
	History  jobstore.History
	Settings jobstore.Settings
	Hot      hotbucket.Buckets
	Records  attempts.Records
	// Log is where the ends of tasks are published, Pools where the tasks are.
	Log   dispatch.Log
	Pools pools.Queue
	// Listener is where the API listens; nil when only Handler is used.
	Listener net.Listener
	// Full reports whether the store has no room for new work; nil means never.
	Full func() bool
	// Entropy is the source of ids, safe for concurrent use; nil means crypto/rand, so that no id can be guessed from
	// another.
	Entropy io.Reader
	// Admin answers the admin paths on the API's listener; nil for none.
	Admin   http.Handler
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is the time of this machine.
	Clock clock.Clock
}

// TokenConfig says which JSON Web Tokens are accepted, and what their claims mean.
type TokenConfig = access.TokenConfig

// Service is the job-api.
type Service struct {
	listener net.Listener
	edge     *edge.Edge
	guard    *access.Guard
	writes   *writes.Writes
	removal  *removal.Removal
	tasks    *tasks.Tasks
}

// holdingShare is the share of connections, one in holdingShare, that may wait until a change holds.
const holdingShare = 4

// Warm does what the first New does for all of a process, so that it is like those after it: it compiles the OpenAPI document.
func Warm() error {
	_, err := edge.LoadDocument()
	return err
}

// New returns an API that does not listen yet. It fails if the OpenAPI document and the operations do not agree.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Entropy == nil {
		deps.Entropy = &ulid.LockedMonotonicReader{MonotonicReader: ulid.Monotonic(rand.Reader, 0)}
	}
	document, err := edge.LoadDocument()
	if err != nil {
		return nil, err
	}
	var write *writes.Writes
	recorder := jobchange.Recorder{
		Pending: deps.Pending, Clock: deps.Clock, Entropy: deps.Entropy, Partitions: cfg.Partitions, Grace: cfg.Grace,
		Near: func(ctx context.Context, entries []job.Entry) { write.Near(ctx, entries) },
	}
	directory := tenants.New(deps.Settings, recorder, deps.Clock)
	guard, err := access.New(access.Config{Token: cfg.AuthToken, Open: cfg.open(), Tokens: cfg.Tokens}, directory, deps.Clock, deps.Logger)
	if err != nil {
		return nil, fmt.Errorf("job-api: %w", err)
	}
	problems := edge.NewProblems(deps.Logger)
	known := &pools.Known{Store: deps.Settings, Clock: deps.Clock}
	read := &reads.Reads{
		Jobs: deps.Jobs, Pending: deps.Pending, History: deps.History, Settings: deps.Settings, Outcomes: deps.Records,
		Bulk: &operations.Store{Settings: deps.Settings, Recorder: recorder, Clock: deps.Clock}, Pools: known,
		Clock: deps.Clock, Partitions: cfg.Partitions,
	}
	write = writes.New(writes.Config{
		Partitions: cfg.Partitions, Grace: cfg.Grace, MaxBodyBytes: cfg.MaxBodyBytes, MaxWriteThroughs: cfg.MaxWriteThroughs,
		MaxHolding: cfg.MaxConnections / holdingShare,
	}, writes.Deps{
		Jobs: deps.Jobs, Pending: deps.Pending, History: deps.History, Settings: deps.Settings, Hot: deps.Hot, Stops: deps.Records,
		Recorder: recorder, Reads: read, Document: document, Problems: problems, Entropy: deps.Entropy, Logger: deps.Logger, Clock: deps.Clock,
		Missed: missedWriteThroughs(deps.Metrics), Pools: deps.Pools,
	})
	operations := write.Operations()
	maps.Copy(operations, read.Operations())
	remove := &removal.Removal{
		Jobs: deps.Jobs, History: deps.History, Settings: deps.Settings, Directory: directory, Clock: deps.Clock, Logger: deps.Logger,
		Change: jobchange.Changer{Jobs: deps.Jobs, Stops: deps.Records, Recorder: recorder},
		Worker: ulid.MustNew(uint64(deps.Clock.Now().UnixMilli()), deps.Entropy).String(),
	}
	maps.Copy(operations, (&accounts.Accounts{Directory: directory, Removal: remove, Settings: deps.Settings, Recorder: recorder, Clock: deps.Clock}).Operations())
	handing := tasks.New(tasks.Deps{
		Queue: deps.Pools, Records: deps.Records, Log: deps.Log, Settings: deps.Settings, Known: known, Recorder: recorder, History: deps.History,
		Holds: read.DispatchHold, Jobs: deps.Jobs, Hot: deps.Hot, Near: write.Near,
		Logger: deps.Logger, Metrics: deps.Metrics, Clock: deps.Clock, MaxWaiting: cfg.MaxConnections / 2,
	})
	maps.Copy(operations, handing.Operations())
	answering, err := edge.New(edge.Config{
		TLS: cfg.TLS, LocalHostsOnly: cfg.LocalHostsOnly, MaxBodyBytes: cfg.MaxBodyBytes, MaxBatchBytes: cfg.MaxBatchBytes,
		MaxConnections: cfg.MaxConnections, DrainLimit: cfg.DrainLimit, AnswerLimit: cfg.AnswerLimit,
	}, edge.Deps{
		Document: document, Problems: problems, Guard: guard, JobOfKey: deps.Jobs.JobOfKey, Full: deps.Full, Entropy: deps.Entropy, Admin: deps.Admin,
		Logger: deps.Logger, Metrics: deps.Metrics, Clock: deps.Clock,
	}, operations)
	if err != nil {
		return nil, err
	}
	return &Service{listener: deps.Listener, edge: answering, guard: guard, writes: write, removal: remove, tasks: handing}, nil
}

func missedWriteThroughs(metrics prometheus.Registerer) prometheus.Counter {
	missed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "minutehand_job_api_missed_write_throughs_total",
		Help: "Entries due soon that the hot tier missed and for which there was no room to try again: their buckets are read once more.",
	})
	if metrics != nil {
		metrics.MustRegister(missed)
	}
	return missed
}

// Handler returns the handler that answers the API's requests.
func (s *Service) Handler() http.Handler { return s.edge.Handler() }

// Run serves until ctx ends, then lets the requests in flight finish, at most for DrainLimit.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	background := make(chan struct{})
	go func() {
		defer close(background)
		var all sync.WaitGroup
		all.Go(func() { s.guard.Run(ctx) })
		all.Go(func() { s.removal.Run(ctx) })
		all.Go(func() { s.tasks.Run(ctx) })
		s.writes.Run(ctx)
		all.Wait()
	}()
	defer func() {
		cancel() // also when the listener fails
		<-background
	}()
	if s.listener == nil {
		<-ctx.Done()
		return nil
	}
	return s.edge.Serve(ctx, s.listener)
}
