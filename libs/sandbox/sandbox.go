// Package sandbox runs programs that nobody vouches for.
//
// It promises: a program sees no file of this machine but those that its backend shows it, all read-only; it reaches no network unless that was
// granted; it learns nothing of the environment of the process that runs it. It has its limits of time, CPU, memory, processes, disk and output, and
// when it has ended, nothing of it runs on. What it writes is kept up to a limit.
//
// There are two backends. [Bubblewrap] runs scripts in namespaces of their own. [Wasm] runs WebAssembly modules in a process of their own, also where
// namespaces cannot be had.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits bound what one run of a program may use.
type Limits struct {
	// Time is how long it may take.
	Time time.Duration
	// CPU is how much of the processors' time all its processes may use together, looked at every 25 ms. The kernel ends a process that uses a
	// quarter more, and up to a second. Children that end between two looks while their parent ignores that are not counted: Time bounds them.
	CPU time.Duration
	// Memory is how many bytes all its processes may have together. The kernel refuses more to one process; the sum is looked at every 25 ms.
	Memory int64
	// Processes is how many processes and threads it may have at a time.
	Processes int
	// Disk is how many bytes its folder may have. It lies in memory, and counts beside Memory. A module has none.
	Disk int64
	// Output is how many bytes it may write to its two streams together.
	Output int64
}

// The bounds of limits.
const (
	minMemory = 8 << 20
	maxMemory = 1 << 40
	// MaxOutput bounds the limit of the output, which is kept in memory.
	MaxOutput    = 64 << 20
	maxProcesses = 4096
	maxTime      = 7 * 24 * time.Hour
	minDisk      = 64 << 10
)

// Default returns limits that suit a small script.
func Default() Limits {
	return Limits{Time: 5 * time.Minute, CPU: time.Minute, Memory: 256 << 20, Processes: 32, Disk: 64 << 20, Output: 1 << 20}
}

// Validate says everything that is wrong with limits.
func (l Limits) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(l.Time >= time.Millisecond && l.Time <= maxTime, "the limit of time must be between 1ms and %s", maxTime)
	check(l.CPU >= time.Second && l.CPU <= maxTime, "the limit of CPU must be between 1s and %s", maxTime)
	check(l.Memory >= minMemory && l.Memory <= maxMemory, "the limit of memory must be between %d and %d bytes", int64(minMemory), int64(maxMemory))
	check(l.Processes >= 1 && l.Processes <= maxProcesses, "the limit of processes must be between 1 and %d", maxProcesses)
	check(l.Disk >= minDisk && l.Disk <= maxMemory, "the limit of disk must be between %d and %d bytes", int64(minDisk), int64(maxMemory))
	check(l.Output >= 0 && l.Output <= MaxOutput, "the limit of output must be between 0 and %d bytes", int64(MaxOutput))
	return errors.Join(errs...)
}

// Program is what to run.
type Program struct {
	// Code is a script, which begins with #! and its interpreter, or is one of /bin/sh; or a WebAssembly module.
	Code []byte
	// Args are its arguments, without its own name.
	Args []string
	// Env is its environment, beside PATH, HOME, TMPDIR and LANG.
	Env map[string]string
	// Stdin is what it reads.
	Stdin []byte
	// Network grants it the network of this machine.
	Network bool
	Limits  Limits
}

// MaxCode bounds the size of a program in bytes.
const MaxCode = 64 << 20

// Why a program was stopped before it ended by itself.
const (
	StoppedTime      = "time"      // it took longer than Limits.Time, or than the context allowed
	StoppedCPU       = "cpu"       // it used more than Limits.CPU
	StoppedMemory    = "memory"    // it had more than Limits.Memory
	StoppedOutput    = "output"    // it wrote more than Limits.Output
	StoppedFiles     = "files"     // it made more files than its folder may have
	StoppedCancelled = "cancelled" // the context ended for another reason
)

// Result is how a run ended.
type Result struct {
	// ExitCode is the program's, or 128 and the number of the signal that ended it.
	ExitCode int
	// Stopped says why it was stopped, if it was.
	Stopped string
	// Stdout and Stderr are what it wrote.
	Stdout, Stderr []byte
	// Wall is how long it took, CPU what it used of the processors, and MaxMemory the most bytes that it was seen to have, 0 if it was
	// not seen.
	Wall, CPU time.Duration
	MaxMemory int64
	files     int64
}

// Backend runs programs.
type Backend interface {
	// Run runs a program, and returns when nothing of it is left. It fails if the program could not be run for a reason that is not its own
	// fault; [ErrProgram] says that no further try can help.
	Run(ctx context.Context, p *Program) (*Result, error)
}

// ErrProgram is returned, wrapped, for what is no program of the backend.
var ErrProgram = errors.New("this is no program that can be run")

// check says what is wrong with a program before anything is started.
func (p *Program) check() error {
	if len(p.Code) == 0 || len(p.Code) > MaxCode {
		return fmt.Errorf("%w: it must have between 1 and %d bytes", ErrProgram, MaxCode)
	}
	return p.Limits.Validate()
}
