// Package runner runs the programs that tasks of a pool carry, each in a sandbox.
//
// It promises: no program runs outside of a sandbox, or with more than the limits of the runner. How a program ended, the ends of its two streams and
// what it used are kept with the attempt, whether it succeeded or not; all that it wrote, up to the limit of its output, is kept as objects where
// a place was given for them. A program may run more than once for an execution, as any task may.
package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/sandbox"
	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
)

// The handlers of a runner.
const (
	// Script is the handler of scripts.
	Script = "script"
	// Wasm is the handler of WebAssembly modules.
	Wasm = "wasm"
)

// Config says how programs run.
type Config struct {
	// Limits bound each program. One that states no limits of its own has these.
	Limits sandbox.Limits
	// Modules is a folder of WebAssembly modules, NAME.wasm, that tasks may name; empty for none.
	Modules string
}

// Keeper keeps all that a program wrote, and returns a link to it.
type Keeper interface {
	Keep(ctx context.Context, name string, text []byte) (link string, err error)
}

// Runner runs programs.
type Runner struct {
	Config
	// Keeper is nil where nothing but the ends of streams is kept.
	Keeper Keeper
	Logger *slog.Logger
}

// payload is the body of a job whose task runs a program.
type payload struct {
	Script  string            `json:"script"`
	Wasm    string            `json:"wasm"`   // in base64
	Module  string            `json:"module"` // is the name of a module in the runner's folder
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Stdin   string            `json:"stdin"`
	Network bool              `json:"network"`
	Limits  limits            `json:"limits"`
	NoRetry []int             `json:"no_retry"` // are the exit codes after which no further attempt can succeed

	// Command is a line of a crontab in the place of a script, as minutehand import crontab has it: the SHELL of its environment runs it, or /bin/sh.
	Command     string            `json:"command"`
	Environment map[string]string `json:"environment"`
	User        string            `json:"user"` // changes nothing: in its sandbox a program has a user of its own
}

// script returns the script of a payload.
func (p *payload) script() string {
	if p.Command == "" {
		return p.Script
	}
	shell := "/bin/sh"
	if own := p.Environment["SHELL"]; own != "" {
		shell = own
	}
	return "#!" + shell + "\n" + p.Command + "\n"
}

// limits are those of one program. What is missing is the runner's.
type limits struct {
	Time      sdk.Duration `json:"time"`
	CPU       sdk.Duration `json:"cpu"`
	Memory    int64        `json:"memory_bytes"`
	Processes int          `json:"processes"`
	Disk      int64        `json:"disk_bytes"`
	Output    int64        `json:"output_bytes"`
}

// result is what is kept with the attempt.
type result struct {
	ExitCode    int     `json:"exit_code"`
	Stopped     string  `json:"stopped,omitempty"`
	Seconds     float64 `json:"seconds"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	Stdout      string  `json:"stdout"`
	StdoutBytes int     `json:"stdout_bytes"`
	StdoutLink  string  `json:"stdout_link,omitempty"`
	Stderr      string  `json:"stderr"`
	StderrBytes int     `json:"stderr_bytes"`
	StderrLink  string  `json:"stderr_link,omitempty"`
}

const (
	// tailBytes is how much of the end of each stream is kept with the attempt.
	tailBytes = 4 << 10
	// maxResult is how much the API keeps of a result.
	maxResult = 12 << 10
	// keepFor bounds how long a runner tries to keep what a program wrote to both streams.
	keepFor = 30 * time.Second
)

// Handler runs the program of a task with a backend.
func (r *Runner) Handler(backend sandbox.Backend) func(context.Context, *worker.Task) error {
	return func(ctx context.Context, t *worker.Task) error {
		program, noRetry, err := r.program(t)
		if errors.As(err, new(unread)) {
			return fmt.Errorf("this runner cannot read a module: %w", err)
		}
		if err != nil {
			return worker.Permanent(err)
		}
		ended, err := backend.Run(ctx, program)
		switch {
		case errors.Is(err, sandbox.ErrProgram):
			return worker.Permanent(err)
		case err != nil:
			return err
		}
		t.SetResult(r.describe(ctx, t, ended))
		switch {
		case ended.Stopped == sandbox.StoppedCancelled:
			return context.Cause(ctx) // the task was cancelled, has taken too long, is lost, or goes back
		case ended.Stopped != "":
			return fmt.Errorf("the program was stopped: %s", why(ended.Stopped, program.Limits))
		case slices.Contains(noRetry, ended.ExitCode) && ended.ExitCode != 0:
			return worker.Permanent(fmt.Errorf("the program ended with exit code %d", ended.ExitCode))
		case ended.ExitCode != 0:
			return fmt.Errorf("the program ended with exit code %d", ended.ExitCode)
		}
		return nil
	}
}

// why says in words why a program was stopped.
func why(stopped string, l sandbox.Limits) string {
	switch stopped {
	case sandbox.StoppedTime:
		return fmt.Sprintf("it took longer than %s", l.Time)
	case sandbox.StoppedCPU:
		return fmt.Sprintf("it used more of the processors than %s", l.CPU)
	case sandbox.StoppedMemory:
		return fmt.Sprintf("it had more memory than %d bytes", l.Memory)
	case sandbox.StoppedOutput:
		return fmt.Sprintf("it wrote more output than %d bytes", l.Output)
	case sandbox.StoppedFiles:
		return "it made too many files"
	}
	return stopped
}

// program reads the program of a task, and says what is wrong with it.
func (r *Runner) program(t *worker.Task) (*sandbox.Program, []int, error) {
	var p payload
	if t.PayloadRef != nil {
		return nil, nil, errors.New("a program lies in the body of its job: the runner takes no body_ref")
	}
	decoder := json.NewDecoder(bytes.NewReader(t.RawPayload))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return nil, nil, fmt.Errorf("the body of the job must be an object such as {\"script\": \"echo hello\"}: %w", err)
	}
	code, err := r.code(t.Handler, &p)
	if err != nil {
		return nil, nil, err
	}
	limits, err := r.limits(&p.Limits, t.EndsAt)
	if err != nil {
		return nil, nil, err
	}
	env := map[string]string{
		"MINUTEHAND_EXECUTION_ID": t.ExecutionID, "MINUTEHAND_JOB_ID": t.JobID, "MINUTEHAND_ATTEMPT": fmt.Sprint(t.Attempt),
		"MINUTEHAND_SCHEDULED_FOR": t.ScheduledFor.Format(time.RFC3339Nano), "MINUTEHAND_FENCING_TOKEN": t.FencingToken,
		"MINUTEHAND_IDEMPOTENCY_KEY": t.IdempotencyKey,
	}
	maps.Copy(env, p.Environment)
	maps.Copy(env, p.Env)
	return &sandbox.Program{
		Code: code, Args: p.Args, Env: env, Stdin: []byte(p.Stdin), Network: p.Network, Limits: limits,
	}, p.NoRetry, nil
}

// unread is why a module that is there cannot be read now.
type unread struct{ error }

func (u unread) Unwrap() error { return u.error }

var moduleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// code returns what to run for a handler.
func (r *Runner) code(handler string, p *payload) ([]byte, error) {
	switch {
	case handler == Script && (p.Script == "") != (p.Command == "") && p.Wasm == "" && p.Module == "":
		return []byte(p.script()), nil
	case handler == Script:
		return nil, errors.New("the handler script needs either \"script\" or \"command\", a line of a crontab, and neither \"wasm\" nor \"module\"")
	case p.Script != "" || p.Command != "" || (p.Wasm == "") == (p.Module == ""):
		return nil, errors.New("the handler wasm needs either \"wasm\", a module in base64, or \"module\", the name of one in the runner's folder")
	case p.Wasm != "":
		code, err := base64.StdEncoding.DecodeString(p.Wasm)
		if err != nil {
			return nil, fmt.Errorf("\"wasm\" is not base64: %w", err)
		}
		return code, nil
	case r.Modules == "" || !moduleName.MatchString(p.Module):
		return nil, fmt.Errorf("this runner has no module %q", p.Module)
	}
	file, err := os.Open(filepath.Join(r.Modules, p.Module+".wasm"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this runner has no module %q", p.Module)
	}
	if err != nil {
		return nil, unread{err}
	}
	code, err := io.ReadAll(io.LimitReader(file, sandbox.MaxCode+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, unread{err}
	}
	return code, nil
}

// limits returns the limits of one program: its own, which may not be above the runner's. It has no more time than the task.
func (r *Runner) limits(own *limits, endsAt time.Time) (sandbox.Limits, error) {
	l := r.Limits
	var errs []error
	duration := func(name string, asked sdk.Duration, into *time.Duration) {
		if d := time.Duration(asked); d > *into {
			errs = append(errs, fmt.Errorf("the limit %q is above %s, the most that this runner allows", name, *into))
		} else if d != 0 {
			*into = d
		}
	}
	number := func(name string, asked int64, into *int64) {
		if asked > *into {
			errs = append(errs, fmt.Errorf("the limit %q is above %d, the most that this runner allows", name, *into))
		} else if asked != 0 {
			*into = asked
		}
	}
	duration("time", own.Time, &l.Time)
	duration("cpu", own.CPU, &l.CPU)
	number("memory_bytes", own.Memory, &l.Memory)
	number("disk_bytes", own.Disk, &l.Disk)
	number("output_bytes", own.Output, &l.Output)
	processes := int64(l.Processes)
	number("processes", int64(own.Processes), &processes)
	l.Processes = int(processes)
	if err := errors.Join(append(errs, l.Validate())...); err != nil {
		return l, err
	}
	if left := time.Until(endsAt); !endsAt.IsZero() && left < l.Time {
		l.Time = max(left, time.Millisecond)
	}
	return l, nil
}

// describe returns what is kept with the attempt.
func (r *Runner) describe(ctx context.Context, t *worker.Task, ended *sandbox.Result) *result {
	kept := &result{
		ExitCode: ended.ExitCode, Stopped: ended.Stopped, Seconds: round(ended.Wall), CPUSeconds: round(ended.CPU), MemoryBytes: ended.MaxMemory,
		StdoutBytes: len(ended.Stdout), StderrBytes: len(ended.Stderr),
	}
	// Also for a task that was cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepFor)
	defer cancel()
	kept.StdoutLink = r.keep(ctx, t, "stdout", ended.Stdout)
	kept.StderrLink = r.keep(ctx, t, "stderr", ended.Stderr)
	// What is not text takes more room as JSON: then less of it is kept.
	for most := tailBytes; ; most /= 2 {
		kept.Stdout, kept.Stderr = tail(ended.Stdout, most), tail(ended.Stderr, most)
		if text, err := json.Marshal(kept); err != nil || len(text) <= maxResult || most == 0 {
			return kept
		}
	}
}

func round(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// tail returns the end of a stream as text.
func tail(b []byte, most int) string {
	b = b[max(len(b)-most, 0):]
	return string(bytes.ToValidUTF8(b, []byte("\uFFFD")))
}

// keep keeps a stream whose end alone is kept with the attempt. What cannot be kept costs no success.
func (r *Runner) keep(ctx context.Context, t *worker.Task, stream string, text []byte) (link string) {
	if r.Keeper == nil || len(text) <= tailBytes {
		return ""
	}
	link, err := r.Keeper.Keep(ctx, t.ExecutionID+"/"+t.FencingToken+"-"+stream, text)
	if err != nil {
		r.Logger.Warn("the output of a program cannot be kept", "execution_id", t.ExecutionID, "error", err)
	}
	return link
}
