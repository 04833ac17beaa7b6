package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/sandbox"
	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
	"github.com/minutehand/minutehand/services/all-in-one/runner"
)

// runnerCmd is a worker whose tasks are programs.
type runnerCmd struct {
	client
	Pool         string        `required:"" env:"MINUTEHAND_RUNNER_POOL" help:"Pool whose tasks to run." placeholder:"NAME"`
	Name         string        `env:"MINUTEHAND_RUNNER_NAME" help:"Name of this worker, the only one of it; by default made of the machine's." placeholder:"NAME"`
	Concurrency  int           `default:"4" env:"MINUTEHAND_RUNNER_CONCURRENCY" help:"Programs that run at a time, at most 256." placeholder:"N"`
	Drain        time.Duration `default:"30s" env:"MINUTEHAND_RUNNER_DRAIN" help:"How long programs may go on when the runner is told to end." placeholder:"DURATION"`
	Root         string        `default:"/" env:"MINUTEHAND_RUNNER_ROOT" help:"Folder that scripts see as their root, read-only; of / they see the programs alone." placeholder:"DIR"`
	Modules      string        `env:"MINUTEHAND_RUNNER_MODULES" help:"Folder of WebAssembly modules, NAME.wasm, that tasks may name." placeholder:"DIR"`
	AllowNetwork bool          `env:"MINUTEHAND_RUNNER_ALLOW_NETWORK" help:"Let scripts that ask for it use the network of this machine, with all that it reaches."`
	Time         time.Duration `default:"5m" env:"MINUTEHAND_RUNNER_TIME" help:"How long a program may take." placeholder:"DURATION"`
	CPU          time.Duration `default:"1m" env:"MINUTEHAND_RUNNER_CPU" help:"How much of the processors' time a program may use." placeholder:"DURATION"`
	Memory       int64         `default:"256" env:"MINUTEHAND_RUNNER_MEMORY" help:"Memory that a program may have, in MiB." placeholder:"MIB"`
	Disk         int64         `default:"64" env:"MINUTEHAND_RUNNER_DISK" help:"Files that a script may have in its folder, in MiB. They lie in memory." placeholder:"MIB"`
	Processes    int           `default:"32" env:"MINUTEHAND_RUNNER_PROCESSES" help:"Processes and threads that a script may have at a time." placeholder:"N"`
	OutputKiB    int64         `name:"output-kib" default:"1024" env:"MINUTEHAND_RUNNER_OUTPUT_KIB" help:"What a program may write to its two streams, in KiB." placeholder:"KIB"`
	KeepIn       string        `env:"MINUTEHAND_RUNNER_KEEP_IN" help:"Where to keep all that programs wrote: a folder, or s3 for the bucket that the --s3-… flags name; without it the ends alone are kept." placeholder:"DIR"`
	Bucket       s3.Access     `embed:"" prefix:"s3-" envprefix:"MINUTEHAND_S3_"`
}

// Help implements kong.HelpProvider.
func (runnerCmd) Help() string {
	return `Jobs of a pool with the handler script or wasm carry a program in their body. The runner fetches them and runs each in a sandbox: without the
machine's files and network, with limits of time, processors, memory, processes, files and output, and with nothing left of it at the end. Scripts
need Linux and the package bubblewrap; modules need Linux alone. A runner serves the handlers that its machine can run.

A script begins with #! and its interpreter, which must lie under the root, or is one of /bin/sh. It works in /tmp, its home, which is
empty and goes with it. The body may also have args, env, stdin, no_retry (exit codes after which no retry helps), network, and limits (time, cpu,
memory_bytes, disk_bytes, processes, output_bytes), none above the runner's. In place of script it may have command, user and environment, as minutehand
import crontab --pool POOL/script makes them: the environment's SHELL, or /bin/sh, runs the command, as the sandbox's own user. A module is of WASI, preview 1, in base64 as wasm, or named by module. The exit
code, the last 4 KiB of each stream and what was used are kept with the attempt, as an answer.

  minutehand runner --pool scripts
  minutehand jobs create --name hello --delay 2s --pool scripts/script --body '{"script":"echo hello from $(hostname)"}'`
}

// Run implements the command.
func (c *runnerCmd) Run(ctx context.Context) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	r := &runner.Runner{Config: runner.Config{Modules: c.Modules, Limits: sandbox.Limits{
		Time: c.Time, CPU: c.CPU, Memory: c.Memory << 20, Disk: c.Disk << 20, Processes: c.Processes, Output: c.OutputKiB << 10,
	}}, Logger: logger}
	if err := r.Limits.Validate(); err != nil {
		return usageError{err}
	}
	if c.Modules != "" {
		if _, err := os.ReadDir(c.Modules); err != nil {
			return usageError{fmt.Errorf("--modules: cannot read the folder %s: %w", c.Modules, cause(err))}
		}
	}
	var err error
	if r.Keeper, err = c.keeper(ctx, logger); err != nil {
		return usageError{err}
	}
	caller, err := c.caller()
	if err != nil {
		return usageError{err}
	}
	connection, err := sdk.New(c.Server, sdk.Settings{TokenFile: c.TokenFile, Tenant: c.Tenant, HTTP: &http.Client{Transport: caller.Transport}})
	if err != nil {
		return usageError{fmt.Errorf("--server: %w", err)}
	}
	w := worker.New(connection, worker.Settings{
		Pool: c.Pool, Name: c.Name, Version: version, Concurrency: c.Concurrency, Drain: c.Drain, Logger: logger,
	})
	handlers, err := c.handlers(ctx, r, w)
	if err != nil {
		return err
	}
	fmt.Printf("the runner serves the pool %s: %s\n", c.Pool, strings.Join(handlers, ", "))
	return w.Run(ctx)
}

// handlers gives a worker the handlers that this machine can run, and returns their names.
func (c *runnerCmd) handlers(ctx context.Context, r *runner.Runner, w *worker.Worker) (names []string, err error) {
	users := &sandbox.Users{}
	scripts, err := sandbox.NewBubblewrap(ctx, sandbox.BubblewrapConfig{Root: c.Root, Network: c.AllowNetwork, Users: users})
	if err == nil {
		w.Handle(runner.Script, r.Handler(scripts))
		names = append(names, runner.Script)
	} else {
		fmt.Fprintf(os.Stderr, "minutehand: no scripts: %v\n", err)
	}
	if !sandbox.Supported {
		return names, err
	}
	w.Handle(runner.Wasm, r.Handler(sandbox.NewWasm(users, "__module")))
	return append(names, runner.Wasm), nil
}

// keeper returns what keeps the output of programs; nil if nothing does.
func (c *runnerCmd) keeper(ctx context.Context, logger *slog.Logger) (runner.Keeper, error) {
	switch c.KeepIn {
	case "":
		return nil, nil
	case "s3":
		bucket, err := c.Bucket.Connect(ctx, logger)
		if err != nil {
			return nil, err
		}
		return objects{bucket, "s3://" + c.Bucket.Bucket + "/"}, nil
	}
	dir, err := filepath.Abs(c.KeepIn)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, ".partial"), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("--keep-in: %w", cause(err))
	}
	folder, err := embedded.OpenArchive(dir)
	if err != nil {
		return nil, fmt.Errorf("--keep-in: %w", err)
	}
	return objects{folder, (&url.URL{Scheme: "file", Path: dir}).String() + "/"}, nil
}

// objects keep the output of programs beside the archive.
type objects struct {
	in   archive.Archive
	base string
}

// outputFolder begins the names of objects with output.
const outputFolder = "output/"

// Keep implements [runner.Keeper]. An attempt that ended twice wrote the same twice, or something else: the first stands.
func (o objects) Keep(ctx context.Context, name string, text []byte) (link string, err error) {
	name = outputFolder + name
	if err := o.in.PutIfAbsent(ctx, name, text); err != nil && !errors.Is(err, archive.ErrExists) {
		return "", err
	}
	return o.base + name, nil
}

// moduleCmd is the process of a module; see [sandbox.NewWasm].
type moduleCmd struct{}

// Run implements the command.
func (moduleCmd) Run() error { return sandbox.ServeWasm() }
