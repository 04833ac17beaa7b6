//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// attempt is a program that tries to escape.
type attempt struct {
	name string
	// script is a script of /bin/sh; otherwise the program escape, or the module, runs with args.
	script string
	args   []string
	change func(*Limits)
	// want judges the result; nil means that the program was refused what it tried.
	want func(*Result) error
	// harmless says that the program gets through without a sandbox and does no harm there, which shows that it can.
	harmless bool
}

// stopped wants a program to be stopped for a reason.
func stopped(why string) func(*Result) error {
	return func(r *Result) error {
		if r.Stopped != why {
			return fmt.Errorf("stopped %q, want %q", r.Stopped, why)
		}
		return nil
	}
}

// refusedIt wants that the program did not get through, and ended by itself.
func refusedIt(r *Result) error {
	if r.Stopped != "" || strings.Contains(string(r.Stdout), "escaped") || !strings.Contains(string(r.Stdout), "contained") {
		return errors.New("it was not refused what it tried")
	}
	return nil
}

// failedIt wants that the program died of what it tried.
func failedIt(r *Result) error {
	if r.Stopped != "" || r.ExitCode == 0 {
		return errors.New("it did not die of what it tried")
	}
	return nil
}

func short(l *Limits) { l.Time = time.Second }

// place is what there is to reach outside of the sandbox.
type place struct {
	word, file, tcp, socket string
}

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{word: rand.Text(), file: filepath.Join(t.TempDir(), "secret")}
	if err := os.WriteFile(p.file, []byte(p.word), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MINUTEHAND_SECRET", p.word)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tcp.Close() })
	socket, err := net.Listen("unix", "@minutehand-"+p.word)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	p.tcp, p.socket = tcp.Addr().String(), socket.Addr().String()
	return p
}

// corpus are the ways out that were thought of.
func corpus(p place) []attempt {
	small := func(l *Limits) { l.Memory, l.Processes = 128<<20, 256 }
	return []attempt{
		{name: "reads a file of the machine", args: []string{"read", p.file}, harmless: true},
		{name: "reads the passwords", args: []string{"read", "/etc/shadow"}},
		{name: "reads the memory of the first process", args: []string{"read", "/proc/1/mem"}},
		{name: "writes to the memory of the first process", args: []string{"open", "/proc/1/mem"}},
		{name: "writes to the memory of the first thread", args: []string{"open", "/proc/1/task/1/mem"}},
		{name: "reads the kernel's memory", args: []string{"read", "/proc/kcore"}},
		{name: "reads the hardware", args: []string{"read", "/sys/kernel/notes"}},
		{name: "follows a symlink out", args: []string{"symlink", p.file}},
		{name: "leaves by the root of another process", args: []string{"read", "/proc/1/root" + p.file}},
		{name: "climbs out of the folder", args: []string{"read", "../../../../../../.." + p.file}, harmless: true},
		{name: "writes where programs are", args: []string{"write", "/usr/bin/minutehand-escape", "x"}},
		{name: "writes to the root", args: []string{"write", "/escape", "x"}},
		{name: "writes to its own script", args: []string{"write", "/script", "x"}},
		{name: "writes to the devices", args: []string{"write", "/dev/escape", "x"}},
		{name: "opens a disk", args: []string{"open", "/dev/vda"}},
		{name: "sets what takes core files", args: []string{"open", "/proc/sys/kernel/core_pattern"}},
		{name: "commands the kernel", args: []string{"open", "/proc/sysrq-trigger"}},
		{name: "changes its map of users", args: []string{"write", "/proc/self/uid_map", "0 0 1"}},
		{name: "finds a secret in an environment", args: []string{"environment", p.word}, harmless: true},
		{name: "sees other processes", args: []string{"processes"}, harmless: true},
		{name: "signals other processes", args: []string{"kill"}, harmless: true},
		{name: "signals all processes", script: "kill -KILL -1; kill -KILL 1; kill -KILL $PPID; echo contained"},
		{name: "calls a server of the machine", args: []string{"connect", "tcp", p.tcp}, harmless: true},
		{name: "calls a socket that has no file", args: []string{"connect", "unix", p.socket}, harmless: true},
		{name: "calls the outside", args: []string{"connect", "udp", "192.0.2.1:53"}},
		{name: "calls the hypervisor", args: []string{"family", strconv.Itoa(unix.AF_VSOCK)}},
		{name: "uses the kernel's ciphers", args: []string{"family", strconv.Itoa(unix.AF_ALG)}},
		{name: "reads packets", args: []string{"family", strconv.Itoa(unix.AF_PACKET)}},
		{name: "makes a namespace", args: []string{"unshare"}, harmless: true},
		{name: "clones into a namespace", args: []string{"clone"}, harmless: true},
		{name: "mounts", args: []string{"mount"}},
		{name: "changes its root", args: []string{"chroot"}},
		{name: "becomes root", args: []string{"setuid"}},
		{name: "becomes root by a program", script: "su -c id || true; sudo id 2>&1; echo contained"},
		{name: "traces another process", args: []string{"ptrace"}},
		{name: "keeps a key in the kernel", args: []string{"keyring"}, harmless: true},
		{name: "uses io_uring", args: []string{"io_uring"}, harmless: true},
		{name: "loads a program into the kernel", args: []string{"bpf"}},
		{name: "makes memory that is a file", args: []string{"memfd"}, harmless: true},
		{name: "makes memory that outlives it", args: []string{"shmget"}},
		{name: "raises its limits", args: []string{"limits"}},
		{name: "raises its priority", args: []string{"priority"}, harmless: true},
		{name: "opens many files", args: []string{"open-many"}, harmless: true},
		{name: "fills its folder", args: []string{"disk", "/tmp"}},
		{name: "fills the shared memory", args: []string{"disk", "/dev/shm"}},
		{name: "makes files without end", args: []string{"files", "/tmp"}, want: stopped(StoppedFiles)},
		{name: "makes files without end in the shared memory", args: []string{"files", "/dev/shm"}, want: stopped(StoppedFiles)},
		{name: "takes memory", args: []string{"memory", strconv.Itoa(1 << 30)}, change: small, want: failedIt},
		{name: "takes memory by many processes", args: []string{"siblings"}, change: small, want: stopped(StoppedMemory)},
		{name: "takes memory that is shared", args: []string{"shared"}, change: small},
		{name: "takes shared memory that it has not mapped", args: []string{"hidden"}, change: small, harmless: true},
		{name: "takes memory of the device that is zero", args: []string{"hidden", "/dev/zero"}, change: small, harmless: true},
		{name: "keeps memory in a pipe", args: []string{"vmsplice"}, harmless: true},
		{name: "takes tables instead of memory", args: []string{"tables"}, change: small, want: stopped(StoppedMemory)},
		{name: "burns the processor by processes whose ends it ignores", args: []string{"ignored"}, change: func(l *Limits) { l.CPU = time.Second }, want: stopped(StoppedCPU)},
		{name: "is a fork bomb", script: "f() { f | f & }; f; sleep 100; wait", change: short, want: func(r *Result) error { return nil }},
		{name: "starts many processes", script: "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; echo escaped", want: func(r *Result) error {
			if r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "fork") {
				return errors.New("it could start 40 processes")
			}
			return nil
		}},
		{name: "burns the processor", args: []string{"burn"}, change: func(l *Limits) { l.CPU = time.Second }, want: stopped(StoppedCPU)},
		{name: "burns the processor by many processes", args: []string{"burners"}, change: func(l *Limits) { l.CPU, l.Processes = 2*time.Second, 256 }, want: stopped(StoppedCPU)},
		{name: "writes without end", args: []string{"flood"}, want: stopped(StoppedOutput)},
		{name: "writes errors without end", script: "while :; do echo flood flood flood flood >&2; done", want: stopped(StoppedOutput)},
		{name: "writes to the streams of the first process", script: "echo x > /proc/1/fd/3 && echo escaped; echo contained"},
		{name: "takes longer than it may", script: "sleep 1000", change: short, want: stopped(StoppedTime)},
		{name: "obeys no signal", args: []string{"stubborn"}, change: short, want: stopped(StoppedTime)},
		{name: "stops itself", script: "kill -STOP $$", change: short, want: stopped(StoppedTime)},
		{name: "leaves a daemon", args: []string{"daemon"}},
		{name: "leaves a process in the background", script: "setsid nohup sleep 1000 & echo contained"},
		{name: "waits for a terminal", script: "read line </dev/tty; echo contained"},
	}
}

// asUser says that this process is the corpus of a normal user.
const asUser = "MINUTEHAND_TEST_AS_USER"

func TestScriptsDoNotEscape(t *testing.T) {
	escape := build(t, "escape", "CGO_ENABLED=0")
	b, err := NewBubblewrap(t.Context(), BubblewrapConfig{})
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(escape)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	for _, a := range corpus(p) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			program := &Program{Code: code, Args: a.args}
			if a.script != "" {
				program = &Program{Code: []byte(a.script)}
			}
			try(t, b, program, a)
		})
	}
	t.Run("without a sandbox", func(t *testing.T) {
		for _, a := range corpus(p) {
			if !a.harmless || os.Geteuid() != 0 {
				continue // as a user the machine itself refuses some
			}
			cmd := exec.Command(escape, a.args...)
			out, err := cmd.CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != "escaped" {
				t.Errorf("%s: it does not get through without a sandbox either, so it shows nothing: %s %v", a.name, out, err)
			}
		}
	})
}

// TestScriptsDoNotEscapeAUser runs the corpus in a process that is not root.
func TestScriptsDoNotEscapeAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this process is one
	}
	escape := build(t, "escape", "CGO_ENABLED=0")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestScriptsDoNotEscape$", "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), asUser+"="+escape, "TMPDIR=/tmp", "HOME=/tmp", "GORACE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1_999_999_999, Gid: 1_999_999_999}}
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("--- PASS")) < len(corpus(place{})) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestModulesDoNotEscape does with modules what they could try at all.
func TestModulesDoNotEscape(t *testing.T) {
	code, err := os.ReadFile(build(t, "module", "GOOS=wasip1", "GOARCH=wasm"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	b := &Wasm{path: build(t, "serve"), args: []string{"serve"}, users: &Users{}}
	for _, a := range []attempt{
		{name: "reads a file of the machine", args: []string{"read", p.file}},
		{name: "reads a file of its process", args: []string{"read", "/proc/self/environ"}},
		{name: "lists the root", args: []string{"list"}},
		{name: "climbs out", args: []string{"read", "../../.." + p.file}},
		{name: "writes a file", args: []string{"write", "/tmp/minutehand-escape"}},
		{name: "finds a secret in the environment", args: []string{"environment", p.word}},
		{name: "takes memory", args: []string{"memory"}, change: func(l *Limits) { l.Memory = 64 << 20 }, want: failedIt},
		{name: "takes more memory", args: []string{"memory"}, change: func(l *Limits) { l.Memory = 256 << 20 }, want: failedIt},
		{name: "burns the processor", args: []string{"burn"}, change: func(l *Limits) { l.CPU = 3 * time.Second }, want: stopped(StoppedCPU)},
		{name: "takes longer than it may", args: []string{"sleep"}, change: func(l *Limits) { l.Time = 3 * time.Second }, want: stopped(StoppedTime)},
		{name: "writes without end", args: []string{"flood"}, want: stopped(StoppedOutput)},
	} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			try(t, b, &Program{Code: code, Args: a.args}, a)
		})
	}
}

// patience is how long a program may take unless that is what is tried: programs yield the processor, and CI has much else to do.
const patience = 4 * time.Minute

// try runs a program in a sandbox, and judges it: by its result, by what it used, and by what is left of it.
func try(t *testing.T, b Backend, p *Program, a attempt) {
	t.Helper()
	mark := "MARK_" + rand.Text()
	p.Env = map[string]string{mark: "1"}
	p.Limits = Default()
	p.Limits.Time = patience
	if a.change != nil {
		a.change(&p.Limits)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience+time.Minute)
	defer cancel()
	r, err := b.Run(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if a.want == nil {
		a.want = refusedIt
	}
	if err := a.want(r); err != nil {
		t.Errorf("%v: exit code %d, stopped %q, stdout %.300q, stderr %.300q", err, r.ExitCode, r.Stopped, r.Stdout, r.Stderr)
	}
	if n := len(r.Stdout) + len(r.Stderr); int64(n) > p.Limits.Output {
		t.Errorf("%d bytes of output were kept", n)
	}
	if most := p.Limits.Memory + 512<<20; r.MaxMemory > most {
		t.Errorf("it had %d MiB of memory", r.MaxMemory>>20)
	}
	if r.Wall > p.Limits.Time+20*time.Second {
		t.Errorf("it took %s", r.Wall)
	}
	for _, dir := range having(mark) {
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		t.Errorf("a process is left of it: %.100s", status)
	}
}

// build builds a program of testdata; a process that is another user is told where it is.
func build(t *testing.T, name string, env ...string) string {
	t.Helper()
	if at := os.Getenv(asUser); at != "" {
		return at
	}
	// A folder that any user may look into.
	dir, err := os.MkdirTemp("/tmp", "minutehand-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	at := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", at, "./testdata/"+name)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return at
}
