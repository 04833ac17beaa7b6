// Package process is what every service's main shares: settings, signals, the admin listener, traces, and how a service reports
// that it is ready. Each main decides which servers its service uses.
package process

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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/reason"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/libs/settings"
	"github.com/minutehand/minutehand/libs/trace"
)

// version is set by the linker.
var version = "dev"

// Settings are common to every service, which embeds them in its own.
type Settings struct {
	settings.File
	AdminListen    string `default:"127.0.0.1:0" env:"MINUTEHAND_ADMIN_LISTEN" placeholder:"HOST:PORT" help:"Where /metrics, /healthz and /readyz answer; port 0 takes a free one."`
	LogLevel       string `default:"info" enum:"debug,info,warn,error" env:"MINUTEHAND_LOG_LEVEL" placeholder:"LEVEL" help:"Least level that is logged."`
	TZData         string `name:"tzdata" env:"MINUTEHAND_TZDATA" placeholder:"PATH" help:"Time zone data to plan by in place of that in this program: a folder such as /usr/share/zoneinfo, or a zoneinfo.zip."`
	PrintConfig    bool   `help:"Print each setting, its value and where that came from, and exit. Files with secrets are named, never read."`
	PrintReference bool   `hidden:"" help:"Print a table of the settings, and exit."`
	Version        bool   `help:"Print the version, and exit."`
}

func (s *Settings) process() *Settings { return s }

// Configured is a pointer to a service's settings, which embed [Settings].
type Configured interface{ process() *Settings }

// Process is the context in which a service's main creates the service.
type Process struct {
	Logger  *slog.Logger
	Metrics *prometheus.Registry

	needs   []need
	close   []func()
	waiting atomic.Pointer[string]
}

// Host returns the name of this machine or pod, "" if it has none.
func Host() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// WaitsFor names what the service waits for while it is created.
func (p *Process) WaitsFor(name string) { p.waiting.Store(&name) }

// need is a server that must answer.
type need struct {
	name   string
	answer func(ctx context.Context) error
	// why keeps why it did not.
	why *reason.Keeper
}

// Needs names a server that the service cannot work without: the service is not ready while that server does not answer.
func (p *Process) Needs(name string, answer func(ctx context.Context) error) {
	p.needs = append(p.needs, need{name, answer, &reason.Keeper{Server: name, Logger: p.Logger}})
}

// AtEnd registers a function to call when the service has ended; the last one registered is called first.
func (p *Process) AtEnd(do func()) { p.close = append(p.close, do) }

// Service is what a main runs.
type Service = run.Runner

// lacking is a service that names what it lacks, besides servers, before it is ready.
type lacking interface{ Missing() []string }

// Main runs a service until it is told to stop (SIGTERM or an interrupt), and exits: with 0 after a clean stop, with 1 when it
// could not go on, and with 2 after a mistake in the settings, which is how it treats open's errors. open creates the service; it
// waits for the servers that must answer for that.
func Main(name, what string, cfg Configured, open func(ctx context.Context, p *Process) (Service, error)) {
	parser, err := kong.New(cfg, kong.Name(name), settings.Defaults(), kong.ValueFormatter(settings.Describe), kong.Description(what+
		"\n\nA setting is taken from its flag, else from its variable, else from the file, else its default holds. With OTEL_EXPORTER_OTLP_ENDPOINT "+
		"the service sends traces there; the other OTEL_* variables of the OTLP exporter apply."))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	parsed, err := parser.Parse(os.Args[1:])
	s := cfg.process()
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(2)
	case s.Version:
		fmt.Printf("%s %s %s\n", name, version, runtime.Version())
		return
	case s.PrintConfig:
		values, order := s.Values(parsed)
		settings.Print(os.Stdout, values, order)
		return
	case s.PrintReference:
		settings.Reference(os.Stdout, parsed)
		return
	}
	Collect(OwnMemory())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	values, _ := s.Values(parsed)
	err = s.run(ctx, name, certificatesIn(values), open)
	stop()
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	if errors.As(err, new(mistake)) {
		os.Exit(2)
	}
	os.Exit(1)
}

// mistake is an error in the settings.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

// UseTZData makes the process plan by the time zone data at a path; "" stands for that in the program.
func UseTZData(path string) error {
	if path == "" {
		return nil
	}
	zones, err := schedule.OpenZones(path)
	if err != nil {
		return fmt.Errorf("--tzdata: %w", err)
	}
	schedule.Use(zones)
	return nil
}

// certificatesIn returns the files with certificates that settings name, by setting.
func certificatesIn(values map[string]settings.Value) map[string]string {
	files := map[string]string{}
	for name, v := range values {
		if file, ok := v.Value.(string); ok && (strings.HasSuffix(name, "tls-certificate") || strings.HasSuffix(name, "-ca")) {
			files[name] = file
		}
	}
	return files
}

func (s *Settings) run(ctx context.Context, name string, certificates map[string]string, open func(ctx context.Context, p *Process) (Service, error)) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return mistake{err}
	}
	if err := UseTZData(s.TZData); err != nil {
		return mistake{err}
	}
	p := &Process{
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("service", name),
		Metrics: prometheus.NewRegistry(),
	}
	p.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		admin.Build(version, schedule.TZDataVersion()), admin.Expiry(certificates))
	p.WaitsFor("it is starting")
	var ready atomic.Pointer[func() []string]
	starting := func() []string { return []string{*p.waiting.Load()} }
	ready.Store(&starting)
	stopAdmin, err := serveAdmin(s.AdminListen, admin.Handler(p.Metrics, schedule.TZDataVersion(), func() []string { return (*ready.Load())() }), p.Logger)
	if err != nil {
		return mistake{err}
	}
	defer stopAdmin()
	stopTraces, err := trace.Setup(ctx, name, version, p.Logger)
	if err != nil {
		return mistake{err}
	}
	defer stopTraces()
	defer func() {
		for _, do := range slices.Backward(p.close) {
			do()
		}
	}()
	service, err := open(ctx, p)
	if err != nil {
		return mistake{err}
	}
	missing := func() []string { return p.missing(ctx, service) }
	ready.Store(&missing)
	return run.InOrder(ctx, p.Logger, run.Stage{Name: name, Service: service})
}

// missing returns the names of what the service lacks now.
func (p *Process) missing(ctx context.Context, service Service) []string {
	if ctx.Err() != nil {
		return []string{"it is stopping"}
	}
	names := p.silent(ctx)
	if s, ok := service.(lacking); ok {
		names = append(names, s.Missing()...)
	}
	return names
}

// answerLimit bounds the check whether a server answers.
const answerLimit = 2 * time.Second

// silent returns the names of the servers that do not answer, and logs why. It asks all at once, so that one which hangs hides no other.
func (p *Process) silent(ctx context.Context) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answers := make([]error, len(p.needs))
	var asked sync.WaitGroup
	for i, n := range p.needs {
		asked.Go(func() { answers[i] = n.answer(ctx) })
	}
	asked.Wait()
	for i, n := range p.needs {
		if answers[i] != nil {
			n.why.Failed("", answers[i])
			names = append(names, n.name)
		}
	}
	return names
}

func serveAdmin(address string, handler http.Handler, logger *slog.Logger) (stop func(), err error) {
	listener, err := net.Listen("tcp", address) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return nil, fmt.Errorf("%sADMIN_LISTEN: cannot listen on %s: %w", settings.Prefix, address, err)
	}
	logger.Info("admin", "address", listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }, nil
}
