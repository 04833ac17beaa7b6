package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/trace"
)

// Process is what a service's main builds the service from.
type Process struct {
	*Cluster
	Config  Config
	Env     *Env
	Logger  *slog.Logger
	Metrics *prometheus.Registry
}

// Service is a service's main.
type Service struct {
	// Name of the binary, and in a sentence what it does.
	Name, What string
	// Variables that it goes by, besides those of the servers.
	Variables []Variable
	// Groups are those as which it consumes the log.
	Groups []string
	// Needs are the servers without which it does not do its work: it is not ready while one of them is away. Who owns what
	// stays as it is without ZooKeeper, so nobody needs that one all the time.
	Needs []Server
	// Build makes the service. Missing, if it is not nil, names what the service lacks before it is ready, besides servers.
	Build func(p *Process) (service run.Runner, missing func() []string, err error)
}

// processVariables are those of every service.
func processVariables() []Variable {
	return []Variable{
		{"ADMIN_LISTEN", "127.0.0.1:0", "Where /metrics, /healthz and /readyz answer; port 0 takes a free one."},
		{"LOG_LEVEL", "info", "Least level that is logged: debug, info, warn or error."},
	}
}

// Main runs a service until it is told to stop (SIGTERM or an interrupt), and gives the exit code: 0 after a clean stop, 1
// when it could not go on, 2 for a mistake in the settings.
func (s *Service) Main(ctx context.Context, args []string) int {
	if len(args) > 0 {
		return s.help(args)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := s.run(ctx)
	var wrong mistake
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return 0
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		return 2
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
	return 1
}

// mistake is an error in the settings.
type mistake struct{ error }

// version is set by the linker.
var version = "dev"

func (s *Service) help(args []string) int {
	if args[0] == "--version" || args[0] == "version" {
		fmt.Fprintf(os.Stdout, "%s %s %s\n", s.Name, version, runtime.Version())
		return 0
	}
	fmt.Fprintf(os.Stdout, "%s: %s\nIt takes no arguments and goes by the environment:\n\n", s.Name, s.What)
	err := Help(os.Stdout, append(processVariables(), s.Variables...)...)
	fmt.Fprint(os.Stdout, "\nWith OTEL_EXPORTER_OTLP_ENDPOINT it sends traces there; the other OTEL_* variables of the OTLP exporter apply.\n")
	if err != nil || args[0] != "--help" && args[0] != "-h" && args[0] != "help" {
		return 2
	}
	return 0
}

func (s *Service) run(ctx context.Context) error {
	env := &Env{Lookup: os.LookupEnv}
	var level slog.Level
	if level.UnmarshalText([]byte(env.Text("LOG_LEVEL", "info"))) != nil {
		env.wrong("LOG_LEVEL", "debug, info, warn or error")
	}
	cfg, err := FromEnv(env)
	if err != nil {
		return mistake{err}
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("service", s.Name)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var ready atomic.Pointer[func() []string]
	starting := func() []string { return []string{"cassandra"} }
	ready.Store(&starting)
	stopAdmin, err := serveAdmin(env.Text("ADMIN_LISTEN", "127.0.0.1:0"), admin.Handler(metrics, func() []string { return (*ready.Load())() }), logger)
	if err != nil {
		return mistake{err}
	}
	defer stopAdmin()

	stopTraces, err := trace.Setup(ctx, s.Name, version, logger)
	if err != nil {
		return mistake{err}
	}
	defer stopTraces()
	p := &Process{Config: cfg, Env: env, Logger: logger, Metrics: metrics}
	var wrong error
	err = run.Patiently(ctx, logger, "connect to Cassandra", func(ctx context.Context) (err error) {
		p.Cluster, err = Open(ctx, cfg, logger, metrics)
		if errors.Is(err, jobstore.ErrPartitions) || errors.Is(err, cassandra.ErrDatacenter) {
			wrong, err = mistake{err}, nil
		}
		return err
	})
	if wrong != nil {
		return wrong
	}
	if err != nil {
		return err
	}
	defer p.Close()
	metrics.MustRegister(admin.Lag(p.Log, s.Groups...))
	service, lacks, err := s.Build(p)
	if err := errors.Join(append(env.Errors, err)...); err != nil {
		return mistake{err}
	}
	missing := func() []string {
		if ctx.Err() != nil {
			return []string{"it is stopping"}
		}
		names := p.Missing(ctx, s.Needs...)
		if lacks != nil {
			names = append(names, lacks()...)
		}
		return names
	}
	ready.Store(&missing)
	return run.InOrder(ctx, logger, run.Stage{Name: s.Name, Service: service})
}

func serveAdmin(address string, handler http.Handler, logger *slog.Logger) (stop func(), err error) {
	listener, err := net.Listen("tcp", address) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return nil, fmt.Errorf("%sADMIN_LISTEN: cannot listen on %s: %w", Prefix, address, err)
	}
	logger.Info("admin", "address", listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }, nil
}
