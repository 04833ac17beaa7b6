// Command minutehand is Minutehand in one binary: the platform in one process, and a client for its API.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/minutehand/minutehand/libs/settings"
)

// cli is the command line. A command is a struct with Help, which ends in examples that a test runs, and Run.
type cli struct {
	Run         runCmd            `cmd:"" help:"Run Minutehand in this process, with nothing beside it."`
	Config      configCmd         `cmd:"" help:"Print the settings that run would go by, and where each came from."`
	Demo        demoCmd           `cmd:"" help:"Register jobs, fire them at a sink, and account for every one."`
	Migrate     migrateCmd        `cmd:"" help:"Make what a cluster's services need on their servers."`
	Sink        sinkCmd           `cmd:"" help:"Run a webhook target that answers 200 and counts."`
	Jobs        jobsCmd           `cmd:"" help:"Create, look at and change jobs."`
	Import      importCmd         `cmd:"" help:"Take jobs over from elsewhere."`
	Executions  executionsCmd     `cmd:"" help:"Show what became of a job's occurrences."`
	Occurrences occurrencesCmd    `cmd:"" help:"Account for each instant that a job's schedule names."`
	Operations  operationsCmd     `cmd:"" help:"Look at backfills, replays and redrives, pause and cancel them."`
	Incidents   incidentsCmd      `cmd:"" help:"Show where jobs missed their deadlines."`
	Forecast    forecastCmd       `cmd:"" help:"Show how many fires are planned, minute by minute, for the next 24 hours."`
	Audit       auditCmd          `cmd:"" help:"List the instants of which nothing is on record, over all jobs."`
	Schedule    scheduleCmd       `cmd:"" help:"Preview schedules."`
	TZData      tzdataCmd         `cmd:"" name:"tzdata" help:"Say which jobs other time zone data moves, and move them."`
	DeadLetters deadLettersCmd    `cmd:"" help:"Look at executions that were given up."`
	Connections connectionsCmd    `cmd:"" help:"Say how to reach clusters of Kafka and accounts of SQS."`
	Pools       poolsCmd          `cmd:"" help:"Look at pools of workers and their tasks, and limit them."`
	Runner      runnerCmd         `cmd:"" help:"Run scripts and WebAssembly modules, each in a sandbox, as a worker of a pool."`
	Module      moduleCmd         `cmd:"" hidden:"" name:"__module"`
	Tenants     tenantsCmd        `cmd:"" help:"Make and list tenants."`
	Keys        keysCmd           `cmd:"" help:"Make, list and revoke API keys."`
	Changes     changesCmd        `cmd:"" help:"Show what was done to a job, or to keys and tenants, and by whom."`
	Backup      backupCmd         `cmd:"" help:"Copy the data of one process, also while it runs."`
	Restore     restoreCmd        `cmd:"" help:"Make a data folder from a backup."`
	Capacity    capacityCmd       `cmd:"" help:"Say what a load needs of each service and server."`
	Doctor      doctorCmd         `cmd:"" help:"Examine an installation from outside, and say what to do."`
	Archive     archiveCmd        `cmd:"" help:"Ask the archive, verify it, export it."`
	Pause       pauseDispatchCmd  `cmd:"" name:"pause-dispatch" help:"Hold what is due: everything, or the jobs with a label."`
	Resume      resumeDispatchCmd `cmd:"" name:"resume-dispatch" help:"Let go what is held: everything, or the jobs with a label."`
	Completion  completionCmd     `cmd:"" help:"Print a script that completes commands and flags in a shell."`
	Complete    completeCmd       `cmd:"" hidden:"" name:"__complete" passthrough:""`
	Version     versionCmd        `cmd:"" help:"Print the version of the binary, of Go and of the time zone data."`
	Usage       helpCmd           `cmd:"" name:"help" help:"Show what a command does, as its --help does."`
}

// Help implements kong.HelpProvider.
func (cli) Help() string {
	return `Start it, give it a job, and look at what became of it:

  minutehand run --echo
  minutehand jobs create --name hello --delay 2s --url http://127.0.0.1:9000/hook
  minutehand executions JOB`
}

// usageError is a mistake in how the command was started: one sentence, exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func main() {
	if os.Getenv("GOMAXPROCS") == "" {
		// A thread that waits for an fsync keeps its place among the running ones for up to 10 ms. Two more places keep
		// the clock from waiting with it.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// newParser makes the parser of the command line; exit is called when it has printed a help.
func newParser(ctx context.Context, exit func(code int)) (*kong.Kong, error) {
	return kong.New(&cli{},
		kong.Name("minutehand"),
		kong.Description("A distributed job scheduler. `minutehand run` starts it in one process; the other commands talk to it."),
		kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}), settings.Defaults(), kong.ValueFormatter(settings.Describe),
		kong.Exit(exit), kong.BindTo(ctx, (*context.Context)(nil)),
	)
}

func execute(ctx context.Context, args []string) (code int) {
	parser, err := newParser(ctx, func(c int) { code = c; panic(exited{}) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "minutehand:", err)
		return 1
	}
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(exited); !ok {
				panic(v)
			}
		}
	}()
	command, err := parser.Parse(asked(args))
	if err == nil {
		err = command.Run()
	} else {
		err = usageError{err}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "minutehand:", err)
		code = 1
		if errors.As(err, new(usageError)) {
			code = 2
		}
	}
	return code
}

// asked is the command line as it is meant: help COMMAND is COMMAND --help, and --version is version.
func asked(args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case len(args) == 1 && args[0] == "--version":
		return []string{"version"}
	}
	return args
}

// helpCmd stands in the list of commands; see asked.
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command."`
}

// Help implements kong.HelpProvider.
func (helpCmd) Help() string {
	return `  minutehand help jobs create`
}

// exited unwinds a parser that has printed its help.
type exited struct{}
