//go:build amd64 || arm64

package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Wasm runs WebAssembly modules of WASI, preview 1, each in a process of its own, which has the limits that the kernel and the module's own memory
// can keep. A module has no files, no sockets and no processes at all. It needs no namespaces.
type Wasm struct {
	path  string
	args  []string
	users *Users
}

var _ Backend = (*Wasm)(nil)

// NewWasm returns the backend, whose modules run as some of users. This program, run with args, must call [ServeWasm] and nothing else.
func NewWasm(users *Users, args ...string) *Wasm {
	// By this name the program is found also where its path cannot be reached any more.
	return &Wasm{path: "/proc/self/exe", args: append([]string{os.Args[0]}, args...), users: users}
}

// wasmRequest is what the process of a module is given.
type wasmRequest struct {
	Args   []string          `json:"args"`
	Env    map[string]string `json:"env"`
	Memory int64             `json:"memory"`
	CPU    time.Duration     `json:"cpu"`
}

// wasmReport is how a module ended.
type wasmReport struct {
	ExitCode int    `json:"exit_code"`
	Refused  string `json:"refused,omitempty"` // says why it is no module that can be run
}

// The numbers of the files that the process of a module is given.
const (
	requestFD = 3 + iota
	moduleFD
	reportFD
	gateFD
)

// overhead is what the process of a module needs beside the memory of the module itself.
const overhead = 96 << 20

// Run implements [Backend].
func (w *Wasm) Run(ctx context.Context, p *Program) (*Result, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if p.Network {
		return nil, fmt.Errorf("%w: a module has no network", ErrProgram)
	}
	request, err := json.Marshal(wasmRequest{Args: p.Args, Env: p.Env, Memory: p.Limits.Memory, CPU: p.Limits.CPU})
	if err != nil {
		return nil, err
	}
	f := &files{}
	defer f.close()
	if _, err := f.data(request); err != nil {
		return nil, err
	}
	if _, err := f.data(p.Code); err != nil {
		return nil, err
	}
	report, _, err := f.out()
	if err != nil {
		return nil, err
	}
	gate, _, err := f.in()
	if err != nil {
		return nil, err
	}
	user, free := w.users.take()
	defer free()
	cmd := &exec.Cmd{Path: w.path, Args: w.args}
	cmd.Env, cmd.Dir, cmd.ExtraFiles, cmd.SysProcAttr = []string{"GOMAXPROCS=1"}, "/", f.given, user
	limits := p.Limits
	limits.Memory += overhead + int64(len(p.Code))*16 // what it is compiled to, and the compiler
	limits.Processes = maxProcesses
	s := &supervised{
		cmd: cmd, limits: limits, stdin: p.Stdin, opened: f.closeGiven,
		first: func() (int, error) { return cmd.Process.Pid, nil },
		begin: func(pid int) error {
			if err := yieldTo(pid); err != nil {
				return err
			}
			_, err := gate.Write([]byte{1})
			return err
		},
	}
	r, err := s.run(ctx)
	if err != nil || r.Stopped != "" {
		return r, err
	}
	var said wasmReport
	if err := json.NewDecoder(report).Decode(&said); err != nil {
		return r, nil // the process died, and its exit code says of what
	}
	if said.Refused != "" {
		return nil, fmt.Errorf("%w: %s", ErrProgram, said.Refused)
	}
	r.ExitCode = said.ExitCode
	return r, nil
}

// confineSelf gives this process, in which a module is about to run, its limits. It may write to no file.
func confineSelf(cpu time.Duration) error {
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_CPU: seconds(cpu), unix.RLIMIT_FSIZE: 0, unix.RLIMIT_NOFILE: maxOpen, unix.RLIMIT_MEMLOCK: 64 << 10,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit a module: %w", err)
		}
	}
	return nil
}

// Supported says whether programs can run in a sandbox on this system at all.
const Supported = true

// ServeWasm runs the module that its process was given, when the gate opens. It is all that the process does.
func ServeWasm() error {
	request, module := os.NewFile(requestFD, "request"), os.NewFile(moduleFD, "module")
	report, gate := os.NewFile(reportFD, "report"), os.NewFile(gateFD, "gate")
	if request == nil || module == nil || report == nil || gate == nil {
		return fmt.Errorf("this command is for the runner alone")
	}
	if n, err := gate.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the runner has ended: %w", err)
	}
	var r wasmRequest
	if err := json.NewDecoder(request).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if err := confineSelf(r.CPU); err != nil {
		return err
	}
	return json.NewEncoder(report).Encode(runModule(&r, module))
}
