//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newBubblewrap(t *testing.T, c BubblewrapConfig) *Bubblewrap {
	t.Helper()
	b, err := NewBubblewrap(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestScriptHasItsArgumentsItsEnvironmentAndItsInput(t *testing.T) {
	b := newBubblewrap(t, BubblewrapConfig{})
	for name, c := range map[string]struct {
		program        Program
		code           int
		stdout, stderr string
	}{
		"arguments":        {Program{Code: []byte(`echo "$0|$1|$2|$#"`), Args: []string{"one two", "--help"}}, 0, "/script|one two|--help|2\n", ""},
		"environment":      {Program{Code: []byte(`env | sort`), Env: map[string]string{"B": "x y"}}, 0, "B=x y\nHOME=/tmp\nLANG=C.UTF-8\nPATH=" + path + "\nPWD=/tmp\nTMPDIR=/tmp\n", ""},
		"input":            {Program{Code: []byte(`cat; echo end`), Stdin: []byte("line\n")}, 0, "line\nend\n", ""},
		"unread input":     {Program{Code: []byte(`echo end`), Stdin: make([]byte, 1<<20)}, 0, "end\n", ""},
		"exit code":        {Program{Code: []byte(`echo out; echo err >&2; exit 42`)}, 42, "out\n", "err\n"},
		"signal":           {Program{Code: []byte(`kill -TERM $$`)}, 143, "", ""},
		"interpreter":      {Program{Code: []byte("#!/usr/bin/perl\nprint \"perl @ARGV\\n\""), Args: []string{"a"}}, 0, "perl a\n", ""},
		"name":             {Program{Code: []byte(`hostname; id -u; id -un; pwd`)}, 0, "sandbox\n1000\nscript\n/tmp\n", ""},
		"names of streams": {Program{Code: []byte(`echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin`), Stdin: []byte("in\n")}, 0, "out\nin\n", "err\n"},
		"zeros":            {Program{Code: []byte(`head -c 2 /dev/zero | od -An -tx1`)}, 0, " 00 00\n", ""},
		"files of its own": {Program{Code: []byte(`mkdir a && echo x > a/b && cat a/b && ls /tmp`)}, 0, "x\na\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.program.Limits = Default()
			r, err := b.Run(t.Context(), &c.program)
			if err != nil {
				t.Fatal(err)
			}
			if r.ExitCode != c.code || string(r.Stdout) != c.stdout || string(r.Stderr) != c.stderr || r.Stopped != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q, stopped %q", r.ExitCode, r.Stdout, r.Stderr, r.Stopped)
			}
		})
	}
}

func TestModuleHasItsArgumentsItsEnvironmentAndItsInput(t *testing.T) {
	code, err := os.ReadFile(build(t, "module", "GOOS=wasip1", "GOARCH=wasm"))
	if err != nil {
		t.Fatal(err)
	}
	w := &Wasm{path: build(t, "serve"), args: []string{"serve"}, users: &Users{}}
	r, err := w.Run(t.Context(), &Program{Code: code, Args: []string{"hello", "you"}, Env: map[string]string{"NAME": "is"}, Stdin: []byte("it"), Limits: Default()})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 3 || string(r.Stderr) != "it is you\n" || string(r.Stdout) != "a word on the other stream" || r.CPU == 0 || r.MaxMemory == 0 {
		t.Errorf("%+v, stdout %q, stderr %q", r, r.Stdout, r.Stderr)
	}
	random := map[string]bool{}
	for range 2 {
		r, err := w.Run(t.Context(), &Program{Code: code, Args: []string{"random"}, Limits: Default()})
		if err != nil || r.ExitCode != 0 {
			t.Fatal(err, r)
		}
		random[string(r.Stdout)] = true
	}
	if len(random) != 2 {
		t.Errorf("two modules had the same random word: %v", random)
	}
	if _, err := w.Run(t.Context(), &Program{Code: []byte("no module"), Limits: Default()}); !errors.Is(err, ErrProgram) {
		t.Errorf("%v for what is no module", err)
	}
}

func TestWhatIsNoProgramIsRefusedForGood(t *testing.T) {
	b := newBubblewrap(t, BubblewrapConfig{})
	for name, p := range map[string]*Program{
		"empty":    {},
		"network":  {Code: []byte("true"), Network: true},
		"env":      {Code: []byte("true"), Env: map[string]string{"A=B": "c"}},
		"argument": {Code: []byte("true"), Args: []string{"a\x00b"}},
		"long":     {Code: []byte("true"), Args: []string{strings.Repeat("a", 200<<10)}},
	} {
		p.Limits = Default()
		if _, err := b.Run(t.Context(), p); !errors.Is(err, ErrProgram) {
			t.Errorf("%s: %v", name, err)
		}
	}
	binary, err := os.ReadFile("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[string]string{
		strings.ReplaceAll(string(binary), "/ld-linux", "/ld-minix"): "this machine cannot execute it: No such file or directory",
		"#!/bin/sh\r\necho hello\r\n":                                "carriage return",
		"#!/no/such/thing -e\necho hello":                            `its interpreter "/no/such/thing" cannot be executed here: No such file or directory`,
		"#! /usr\necho hello":                                        `its interpreter "/usr" cannot be executed here: Permission denied`,
	} {
		if _, err := b.Run(t.Context(), &Program{Code: []byte(code), Limits: Default()}); !errors.Is(err, ErrProgram) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", code, err)
		}
	}
	limits := Default()
	limits.Processes = 0
	if _, err := b.Run(t.Context(), &Program{Code: []byte("true"), Limits: limits}); err == nil {
		t.Error("a program without processes was run")
	}
}

func TestScriptMayBeLargerThanItsFolder(t *testing.T) {
	b := newBubblewrap(t, BubblewrapConfig{})
	p := &Program{Code: []byte("exit 7\n" + strings.Repeat("#\n", 1<<20)), Limits: Default()}
	p.Limits.Disk = minDisk
	if r, err := b.Run(t.Context(), p); err != nil || r.ExitCode != 7 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestScriptHasNoFileOfTheRunner(t *testing.T) {
	b := newBubblewrap(t, BubblewrapConfig{})
	at := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(at, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	// As what started the runner may have left it open: for those that it starts too.
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	r, err := b.Run(t.Context(), &Program{Code: []byte("#!/bin/bash\ncat <&" + strconv.Itoa(fd)), Limits: Default()})
	if err != nil || strings.Contains(string(r.Stdout), "secret") {
		t.Errorf("%v, %s%s", err, r.Stdout, r.Stderr)
	}
}

func TestProgramsOfTwoBackendsAreTwoUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	shared := &Users{}
	b := newBubblewrap(t, BubblewrapConfig{Users: shared})
	word := rand.Text()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Run(ctx, &Program{Code: []byte("sleep 1000"), Env: map[string]string{"SCRIPT_" + word: "1"}, Limits: Default()})
		done <- err
	}()
	await(t, func() bool { return len(having("SCRIPT_"+word)) > 0 })
	of := having("SCRIPT_" + word)[0]
	var script unix.Stat_t
	if err := unix.Stat(of, &script); err != nil {
		t.Fatal(err)
	}
	// It waits at the gate, as the process of a module does.
	w := &Wasm{path: "/bin/sh", args: []string{"sh", "-c", "head -c 1 <&" + strconv.Itoa(gateFD) + " >/dev/null; id -u"}, users: shared}
	r, err := w.Run(t.Context(), &Program{Code: []byte("x"), Limits: Default()})
	if err != nil || strings.TrimSpace(string(r.Stdout)) == strconv.Itoa(int(script.Uid)) {
		t.Errorf("%v: the module has the user of the script, %d", err, script.Uid)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestScriptHasTheNetworkOnlyWhereItIsGranted(t *testing.T) {
	p := newPlace(t)
	b := newBubblewrap(t, BubblewrapConfig{Network: true})
	code, err := os.ReadFile(build(t, "escape", "CGO_ENABLED=0"))
	if err != nil {
		t.Fatal(err)
	}
	for granted, want := range map[bool]string{true: "escaped", false: "contained"} {
		r, err := b.Run(t.Context(), &Program{Code: code, Args: []string{"connect", "tcp", p.tcp}, Network: granted, Limits: Default()})
		if err != nil || !strings.HasPrefix(string(r.Stdout), want) {
			t.Errorf("granted %t: %v, %s%s", granted, err, r.Stdout, r.Stderr)
		}
	}
}

func TestScriptSeesTheRootThatItIsGiven(t *testing.T) {
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // a script is another user
		t.Fatal(err)
	}
	// A root without programs runs nothing, and says so.
	_, err := NewBubblewrap(t.Context(), BubblewrapConfig{Root: root})
	if err == nil || !strings.Contains(err.Error(), "bubblewrap cannot run scripts here") {
		t.Errorf("%v", err)
	}
}

func TestScriptEndsWithTheContext(t *testing.T) {
	b := newBubblewrap(t, BubblewrapConfig{})
	for why, make := range map[string]func() (context.Context, context.CancelFunc){
		StoppedTime: func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 300*time.Millisecond)
		},
		StoppedCancelled: func() (context.Context, context.CancelFunc) {
			c, f := context.WithCancel(t.Context())
			time.AfterFunc(300*time.Millisecond, f)
			return c, f
		},
	} {
		ctx, cancel := make()
		r, err := b.Run(ctx, &Program{Code: []byte("echo begun; sleep 1000"), Limits: Default()})
		cancel()
		if err != nil || r.Stopped != why || string(r.Stdout) != "begun\n" || r.ExitCode == 0 {
			t.Errorf("%s: %v, %+v", why, err, r)
		}
	}
}

// mark names the environment variable by which a process is found.
const mark = "MINUTEHAND_TEST_MARK"

// TestRunsUntilItIsKilled is the process of the next test.
func TestRunsUntilItIsKilled(t *testing.T) {
	word := os.Getenv(mark)
	if word == "" {
		return
	}
	b := newBubblewrap(t, BubblewrapConfig{})
	_, err := b.Run(context.Background(), &Program{Code: []byte("sleep 1000 & setsid sleep 1000 & wait"), Env: map[string]string{"SCRIPT_" + word: "1"}, Limits: Default()})
	t.Fatal("it ended", err)
}

func TestScriptEndsWithTheProcessThatRunsIt(t *testing.T) {
	word := rand.Text()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRunsUntilItIsKilled$")
	cmd.Env = append(os.Environ(), mark+"="+word)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return len(having("SCRIPT_"+word)) >= 3 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, func() bool { return len(having("SCRIPT_"+word)) == 0 })
}

// having returns the processes in whose environment a word is.
func having(word string) (all []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), word) {
			all = append(all, filepath.Dir(name))
		}
	}
	return all
}

// await waits until something holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it does not come to hold")
		}
	}
}
