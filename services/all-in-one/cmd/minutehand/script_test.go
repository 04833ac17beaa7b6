package main

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets a script run this binary as the command minutehand.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"minutehand": main})
}

// TestScripts runs every file of testdata as somebody at a shell would.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else a process of the race detector takes a second to end
			return nil
		},
	})
}

// exits runs a command that must end with the given code after one line on standard error.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || strconv.Itoa(exit.ExitCode()) != args[0] {
		ts.Fatalf("%v gave %v, want exit code %s", args[1:], err, args[0])
	}
	if n := strings.Count(ts.ReadFile("stderr"), "\n"); n != 1 {
		ts.Fatalf("%v complained in %d lines, want one", args[1:], n)
	}
}
