// Package embed is Minutehand inside a Go program: schedules whose tasks are functions of the program, durable in a folder, with the guarantees
// of the servers, no port and nothing beside it.
package embed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// pool is the one whose tasks the program runs.
const pool = "embed"

// Settings change what Open makes; those that are zero have defaults.
type Settings struct {
	// Concurrency is how many tasks run at a time, at most 256; 0 means 8.
	Concurrency int
	// Memory is how many bytes the caches and queues are made for, at least 512 MiB, which is the default.
	Memory int64
	// Worker says how tasks are drained and named; its Pool and Concurrency are set by Open.
	Worker worker.Settings
	// AllowPrivateTargets lets webhooks of jobs, if there are any, call loopback and private addresses.
	AllowPrivateTargets bool
	// Listener opens the API to others, without credentials. Nil opens nothing.
	Listener net.Listener
	// Logger is told of what goes wrong; nil means slog.Default().
	Logger *slog.Logger
	// Metrics gets the metrics of all services; nil keeps them nowhere.
	Metrics *prometheus.Registry
	// Fatal is called when the store cannot go on, such as when the disk is full. It must not return; nil means a panic.
	Fatal func(err error)

	edit func(*platform.Config) // is how tests change the platform
}

// Scheduler is an open one. It must be closed.
type Scheduler struct {
	platform *platform.Platform
	client   *sdk.Client
	worker   *worker.Worker
	logger   *slog.Logger
	stop     context.CancelFunc
	ended    chan struct{} // is closed when the services have ended
	err      error         // with which they ended

	direct   *direct
	mu       sync.Mutex
	handlers map[string]bool
	closing  context.Context // ends when Close is called, and with it every Run
	endRuns  context.CancelFunc
	runs     sync.WaitGroup
	once     sync.Once
	closeErr error
}

// Open opens the folder, makes it if it is not there, and begins to watch schedules. Only one process may have it open. Tasks run
// while Run does; what is due before that waits.
func Open(dir string, settings ...Settings) (*Scheduler, error) {
	var s Settings
	if len(settings) > 0 {
		s = settings[0]
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	if s.Metrics == nil {
		s.Metrics = prometheus.NewRegistry()
	}
	if s.Fatal == nil {
		s.Fatal = func(err error) { panic(fmt.Sprintf("the store in %s cannot go on: %v", dir, err)) }
	}
	cfg, err := configure(dir, &s)
	if err != nil {
		return nil, err
	}
	p, err := platform.Open(cfg, platform.Outside{Listener: s.Listener, Logger: s.Logger, Metrics: s.Metrics, Nap: clock.Nap, Fatal: s.Fatal})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	calls := &direct{handler: p.API.Handler()}
	client, err := sdk.New("http://embedded", sdk.Settings{HTTP: &http.Client{Transport: calls}})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	s.Worker.Pool, s.Worker.Concurrency = pool, s.Concurrency
	if s.Worker.Logger == nil {
		s.Worker.Logger = s.Logger
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Scheduler{
		platform: p, client: client, worker: worker.New(client, s.Worker), logger: s.Logger, stop: stop, ended: make(chan struct{}), direct: calls,
		handlers: map[string]bool{},
	}
	e.closing, e.endRuns = context.WithCancel(context.Background())
	go func() {
		defer close(e.ended)
		e.err = p.Run(ctx)
	}()
	return e, nil
}

func configure(dir string, s *Settings) (platform.Config, error) {
	cfg := platform.DefaultConfig(dir)
	cfg.Memory = max(platform.Memory(s.Memory), platform.LeastMemory)
	share, err := descriptors.Of(descriptors.Limit())
	if err != nil {
		return cfg, err
	}
	cfg.Within(share)
	cfg.Executor.AllowPrivateTargets, cfg.Loader.AllowPrivateTargets = s.AllowPrivateTargets, s.AllowPrivateTargets
	if s.edit != nil {
		s.edit(&cfg)
	}
	return cfg, nil
}

// Client is a client of the whole API, without a network in between.
func (s *Scheduler) Client() *sdk.Client { return s.client }

// Handle runs the tasks of a handler by a function, which many goroutines may call at a time. It must be called before Run. A task is done when the
// function returns nil; else it is tried again as the retry policy of its job says (see worker.Permanent and worker.RetryAfter). A task may
// come again, such as when the program was killed while it ran: see worker.Task for what it carries to recognise that, and for checkpoints.
func Handle[T any](s *Scheduler, handler string, run func(ctx context.Context, t *worker.Task, payload T) error) {
	s.mu.Lock()
	s.handlers[handler] = true
	s.mu.Unlock()
	s.worker.Handle(handler, worker.Typed(run))
}

// Run runs tasks until ctx ends, and then lets those that run end. It returns nil after that.
func (s *Scheduler) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.closing.Err() != nil {
		s.mu.Unlock()
		return errClosed
	}
	s.runs.Add(1)
	s.mu.Unlock()
	defer s.runs.Done()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	release := context.AfterFunc(s.closing, stop)
	defer release()
	go func() {
		select {
		case <-s.ended:
			stop()
		case <-ctx.Done():
		}
	}()
	err := s.worker.Run(ctx)
	select {
	case <-s.ended:
		return errors.Join(s.err, err)
	default:
		return err
	}
}

// Close ends everything and closes the folder; a Run that goes on is ended first. What was scheduled is there when it is opened again.
func (s *Scheduler) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.endRuns()
		s.mu.Unlock()
		s.runs.Wait()
		s.stop()
		<-s.ended
		s.direct.close()
		s.closeErr = errors.Join(s.err, s.platform.Close())
	})
	return s.closeErr
}
