package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/descriptors"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/libs/trace"
	platform "github.com/minutehand/minutehand/services/all-in-one"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

type runCmd struct{ runSettings }

// Help implements kong.HelpProvider.
func (runCmd) Help() string {
	return `Everything is kept in the data folder; kill the process at any time and start it again. Settings are taken from flags,
before the environment, before the file; minutehand config shows which of them won. The file looks like this:

    data: /var/lib/minutehand
    listen: 127.0.0.1:8080

Examples:

  minutehand run --data ./data --listen 127.0.0.1:8080
  minutehand run --config minutehand.yaml
  minutehand run --echo        also start a target to try it on, and print a curl line`
}

// Run implements the command.
func (c *runCmd) Run(ctx context.Context) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usageError{err}
	}
	if err := process.UseTZData(c.TZData); err != nil {
		return usageError{err}
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := private(c.Data); err != nil {
		return usageError{err}
	}
	listener, err := net.Listen("tcp", c.Listen) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return usageError{fmt.Errorf("cannot listen on %s: %w; choose another address with --listen", c.Listen, cause(err))}
	}
	share, err := descriptors.Of(descriptors.Limit())
	if err != nil {
		return usageError{errors.Join(err, listener.Close())}
	}
	cfg := platform.DefaultConfig(c.Data)
	cfg.Executor.Name = process.Host()
	cfg.Partitions = c.Partitions
	if c.Memory != 0 {
		if c.Memory < platform.LeastMemory>>20 {
			return usageError{errors.Join(fmt.Errorf("--memory is %d, and must be at least %d", c.Memory, platform.LeastMemory>>20), listener.Close())}
		}
		cfg.Memory = platform.Memory(c.Memory) << 20
	}
	cfg.Within(share)
	process.Collect(int64(cfg.Memory))
	if err := c.secure(&cfg, listener.Addr(), logger); err != nil {
		return usageError{errors.Join(err, listener.Close())}
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsGC)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		admin.Build(version, schedule.TZDataVersion()), admin.Expiry(map[string]string{"tls-certificate": c.Certificate, "tls-client-ca": c.ClientCA}))
	stopTraces, err := trace.Setup(ctx, "all-in-one", version, logger)
	if err != nil {
		return usageError{errors.Join(err, listener.Close())}
	}
	defer stopTraces()
	p, err := platform.Open(cfg, platform.Outside{
		Listener: listener, Logger: logger, Metrics: metrics, Nap: clock.Nap, Fatal: func(err error) { die(c.Data, err) },
	})
	if err != nil {
		return explain(c.Data, errors.Join(err, listener.Close()))
	}
	scheme := "http"
	if cfg.API.TLS != nil {
		scheme = "https"
	}
	fmt.Printf("Minutehand listens on %s://%s and keeps its data in %s\n", scheme, listener.Addr(), c.Data)
	if c.Echo {
		stop, err := startEcho(listener.Addr().String())
		if err != nil {
			return errors.Join(err, p.Close())
		}
		defer stop()
	}
	return serve(ctx, c.Data, p, logger)
}

// serve runs a platform that takes orders by its data folder, until ctx ends.
func serve(ctx context.Context, dir string, p *platform.Platform, logger *slog.Logger) error {
	stop, err := control(ctx, dir, p, logger)
	if err != nil { // not every file system has sockets
		logger.Warn("there is no control socket in the data folder: minutehand backup works only while this process does not run", "error", err)
		stop = func() {}
	}
	err = p.Run(ctx)
	stop()
	return errors.Join(err, p.Close())
}

// secure demands credentials, or an explicit word, for a listener that others can reach, and keeps targets inside the
// network out of reach there.
func (c *runCmd) secure(cfg *platform.Config, addr net.Addr, logger *slog.Logger) error {
	err := c.Protect(&cfg.API, addr, logger)
	if errors.Is(err, jobapi.ErrOpen) {
		return fmt.Errorf("%s is not a loopback address: give --auth-token-file or --jwt-keys, or --insecure to let everyone in", c.Listen)
	}
	cfg.Executor.AllowPrivateTargets = c.privateTargets(addr)
	cfg.Loader.AllowPrivateTargets = cfg.Executor.AllowPrivateTargets
	return err
}

// private keeps what is stored to this user: payloads and headers are in it. A folder in which others may put files is refused.
func private(folder string) error {
	syscall.Umask(0o077)
	info, err := os.Stat(folder)
	if err == nil && info.IsDir() && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("everybody may write to the folder %s: run chmod o-w %s, or choose another with --data", folder, folder)
	}
	return nil // whether it can be opened, opening it tells
}

// privateTargets reports whether calls to loopback and private addresses are allowed while the API listens on addr. A credential tells
// of clients that are not all this machine's own: a proxy may stand before it.
func (s *runSettings) privateTargets(addr net.Addr) bool {
	if s.Private != nil {
		return *s.Private
	}
	return isLoopback(addr) && !s.Protected()
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// cause is the innermost error: what a person needs to know.
func cause(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// die ends the process where the store cannot go on.
func die(dir string, err error) {
	fmt.Fprintf(os.Stderr, "minutehand: the store in %s cannot go on: %v; everything that was acknowledged is on disk, so mend "+
		"the cause and start again\n", dir, cause(err))
	os.Exit(1)
}

// explain turns what can be wrong with a data folder into one sentence.
func explain(dir string, err error) error {
	switch {
	case errors.Is(err, embedded.ErrInUse):
		return usageError{fmt.Errorf("another process uses %s; stop it, or give this one its own folder with --data", dir)}
	case errors.Is(err, embedded.ErrFormat):
		return usageError{fmt.Errorf("%s was written by another version of Minutehand with a data format that this one does not know", dir)}
	case errors.Is(err, jobstore.ErrPartitions):
		return usageError{fmt.Errorf("%s was set up with another partition count, which never changes; leave --partitions out", dir)}
	}
	return err
}

// echoAddress is where the echo target listens, unless something else does: the target of every example.
const echoAddress = "127.0.0.1:9000"

// startEcho runs the echo target and prints a command to try it with.
func startEcho(api string) (stop func(), err error) {
	listener, err := net.Listen("tcp", echoAddress) //nolint:noctx // the listener lives as long as the process
	if err != nil {
		listener, err = net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // as above
	}
	if err != nil {
		return nil, err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1024))
		late := ""
		if due, err := time.Parse(time.RFC3339Nano, r.Header.Get("Minutehand-Scheduled-For")); err == nil {
			late = fmt.Sprintf(", %s after its time", time.Since(due).Round(time.Millisecond/10))
		}
		fmt.Printf("echo: received %s%s: %s\n", r.Header.Get("Webhook-Id"), late, bytes.TrimSpace(body))
		_, _ = w.Write(body)
	})}
	go func() { _ = server.Serve(listener) }()
	fmt.Printf(`
Try it: this job fires in two seconds at a target in this process, which prints what it receives.

  curl -sS http://%s/api/v1/jobs -H 'Content-Type: application/json' -d '{"name":"hello","type":"one_shot","delay":"2s","target":{"kind":"http_webhook","url":"http://%s/hook","body":{"hello":"world"}}}'

Then look at it with: %s executions JOB

`, api, listener.Addr(), ownName())
	return func() { _ = server.Close() }, nil
}

// ownName is how this binary is called from a shell here.
func ownName() string {
	if _, err := exec.LookPath("minutehand"); err == nil {
		return "minutehand"
	}
	return os.Args[0]
}
