// Package jobapi is the job-api: the REST interface through which jobs are registered, changed and looked at.
//
// It promises: a 201 means that the job is durable and will fire, whatever crashes afterwards; a change that was
// acknowledged holds (no attempt that it stops begins later); bad input gets every fault told at once and leaves
// nothing half-written; no submitted value is repeated in an error or a log.
package jobapi

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/lifecycle"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// Config is what an operator may change.
type Config struct {
	// Partitions is the store's partition count.
	Partitions int
	// AuthToken is the bearer token that requests must carry; empty means none.
	AuthToken string
	// Grace is how long an entry without a job row is kept; a writer may take half of it from entry to row.
	Grace time.Duration
	// MaxBodyBytes bounds a request's body, MaxBatchBytes that of a batch of jobs.
	MaxBodyBytes, MaxBatchBytes int64
	// MaxWriteThroughs bounds the entries whose write-through failed and is tried again in the background.
	MaxWriteThroughs int
	// MaxConnections bounds the connections that are open, three quarters of it those from one address. Idle ones make room.
	MaxConnections int
	// LocalHostsOnly refuses requests whose Host is neither localhost nor an address. It is for an API on loopback without a
	// token: a page in a browser must not reach it under a name of its own.
	LocalHostsOnly bool
	// DrainLimit is how long a stop waits for requests under way, AnswerLimit how long a client may take to read an answer.
	DrainLimit, AnswerLimit time.Duration
}

// DefaultConfig is what the API runs with unless told otherwise.
func DefaultConfig() Config {
	return Config{
		Partitions: bucket.DefaultPartitions, Grace: 2 * time.Minute, MaxBodyBytes: 512 << 10, MaxBatchBytes: 16 << 20,
		MaxWriteThroughs: 10_000, MaxConnections: 4096,
		DrainLimit: 10 * time.Second, AnswerLimit: 30 * time.Second,
	}
}

// Validate tells everything that is wrong with c.
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
	Outcomes dedupe.Outcomes
	Stops    dedupe.Stops
	// Listener is where the API listens; nil when only Handler is used.
	Listener net.Listener
	// Full tells that the store has no room for new work; nil means never.
	Full func() bool
	// Entropy is what ids are made of, safe for concurrent use; nil means crypto/rand, so that none can be guessed from another.
	Entropy io.Reader
	// Admin answers the admin paths on the API's listener; nil for none.
	Admin   http.Handler
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Clock is the time of this machine.
	Clock clock.Clock
}

// Service is the job-api.
type Service struct {
	cfg      Config
	deps     Deps
	change   lifecycle.Changer
	document *edge.Document
	problems *edge.Problems
	reads    *reads.Reads
	edge     *edge.Edge
	// holding has a place for each answer that waits until its change holds; stopping is closed when the service is told to stop.
	holding, stopping chan struct{}
	// cold holds entries whose write-through failed.
	cold chan job.Entry
	// heatAgain is when answers wait for the hot tier again, in nanoseconds since the Unix epoch.
	heatAgain atomic.Int64
}

// New returns an API that does not listen yet. It fails if the OpenAPI document and the handlers do not agree.
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
	s := &Service{
		cfg: cfg, deps: deps, document: document, problems: edge.NewProblems(deps.Logger),
		reads: &reads.Reads{
			Jobs: deps.Jobs, Pending: deps.Pending, History: deps.History, Settings: deps.Settings, Outcomes: deps.Outcomes,
			Clock: deps.Clock, Partitions: cfg.Partitions,
		},
		change:  lifecycle.Changer{Jobs: deps.Jobs, Stops: deps.Stops},
		holding: make(chan struct{}, max(cfg.MaxConnections/holdingShare, 1)), stopping: make(chan struct{}),
		cold: make(chan job.Entry, cfg.MaxWriteThroughs),
	}
	s.edge, err = edge.New(edge.Config{
		AuthToken: cfg.AuthToken, LocalHostsOnly: cfg.LocalHostsOnly, MaxBodyBytes: cfg.MaxBodyBytes, MaxBatchBytes: cfg.MaxBatchBytes,
		MaxConnections: cfg.MaxConnections, DrainLimit: cfg.DrainLimit, AnswerLimit: cfg.AnswerLimit,
	}, edge.Deps{
		Document: document, Problems: s.problems, Full: deps.Full, Entropy: deps.Entropy, Admin: deps.Admin,
		Logger: deps.Logger, Metrics: deps.Metrics, Clock: deps.Clock,
	}, s.operations())
	return s, err
}

func (s *Service) operations() map[string]edge.Operation {
	all := map[string]edge.Operation{
		"createJob": s.createJob, "createJobs": s.createJobs, "replaceJob": s.replaceJob, "patchJob": s.patchJob,
		"deleteJob": s.deleteJob, "pauseJob": s.pauseJob, "resumeJob": s.resumeJob, "cancelJob": s.cancelJob, "triggerJob": s.triggerJob,
		"cancelExecution": s.cancelExecution, "redriveDeadLetters": s.redriveDeadLetters,
		"pauseDispatch": s.pauseDispatch, "resumeDispatch": s.resumeDispatch,
	}
	maps.Copy(all, s.reads.Operations())
	return all
}

// Handler answers the API's requests.
func (s *Service) Handler() http.Handler { return s.edge.Handler() }

// Run serves until ctx ends, then lets the requests under way finish, at most for DrainLimit.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { close(s.stopping) })
	background := make(chan struct{})
	go func() {
		defer close(background)
		s.writeThroughLoop(ctx)
	}()
	defer func() {
		cancel() // also when the listener fails
		<-background
	}()
	if s.deps.Listener == nil {
		<-ctx.Done()
		return nil
	}
	return s.edge.Serve(ctx, s.deps.Listener)
}

// writeThrough adds an entry to its hot bucket when it is due before the horizon. The horizon is read after the entry
// was acknowledged: a loader that has published a later one reads the bucket afterwards and finds the entry there.
// A failure is made good in the background; the entry is durable all the same, and the loader's sweeps would find it.
func (s *Service) writeThrough(ctx context.Context, e job.Entry) {
	s.writeThroughAll(ctx, []job.Entry{e})
}

const (
	// heatWithin is how long an answer waits for the hot tier, which it does not need: it goes on behind the answer.
	heatWithin = 250 * time.Millisecond
	// heatPause is how long answers do not wait for it at all after one has waited in vain.
	heatPause = time.Second
)

// writeThroughAll is writeThrough for many.
func (s *Service) writeThroughAll(ctx context.Context, entries []job.Entry) {
	now := s.deps.Clock.Now().UnixNano()
	if s.heatAgain.Load() <= now {
		short, cancel := context.WithTimeout(ctx, heatWithin)
		err := s.heat(short, entries)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, hotbucket.ErrFull) {
			s.heatAgain.Store(now + int64(heatPause))
		}
	}
	for _, e := range entries {
		select {
		case s.cold <- e:
		default: // the loader's sweeps find it
		}
	}
}

func (s *Service) heat(ctx context.Context, entries []job.Entry) error {
	near, err := hotbucket.Near(ctx, s.deps.Hot, entries)
	if err != nil || len(near) == 0 {
		return err
	}
	return s.deps.Hot.Add(ctx, near)
}

func (s *Service) writeThroughLoop(ctx context.Context) {
	for {
		select {
		case e := <-s.cold:
			err := run.Patiently(ctx, s.deps.Logger, "write an entry through", func(ctx context.Context) error {
				return s.heat(ctx, []job.Entry{e})
			})
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
