package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rogpeppe/go-internal/testscript"
)

// patience is how long a script waits for what must happen.
const patience = time.Minute

// withoutLinger keeps a process of the race detector from taking a second to end.
const withoutLinger = "atexit_sleep_ms=0"

// TestMain lets a script run this binary as the command minutehand.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"minutehand": main})
}

// TestScripts runs every file of testdata as somebody at a shell would. A script finds a free address in ADDR and a
// target that answers 200 in TARGET.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "until": until, "ready": ready, "examples": examples, "reformat": reformat, "transcript": transcript, "certificates": certify, "kafka": startKafka, "record": record,
			"zones": zones, "pends": pends, "operation": operation,
		},
		Setup: func(env *testscript.Env) error {
			addr, err := freeAddress()
			target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			env.Defer(target.Close)
			env.Setenv("GORACE", withoutLinger)
			env.Setenv("ADDR", addr)
			env.Setenv("TARGET", target.URL)
			return err
		},
	})
}

// freeAddress is one that nobody listens on, from below the ports that the system gives to outgoing connections: those
// come and go.
func freeAddress() (string, error) {
	var errs []error
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		listener, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, listener.Close()
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
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

// until runs a command again and again until it succeeds and prints what the pattern matches.
func until(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[0])
	poll(ts, strings.Join(args, " "), func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout"))
	})
}

// operation puts the id of the operation that the last command printed into OPERATION.
func operation(ts *testscript.TestScript, _ bool, _ []string) {
	id := regexp.MustCompile("op_[0-9A-Z]{26}").FindString(ts.ReadFile("stdout"))
	if id == "" {
		ts.Fatalf("no operation was printed")
	}
	ts.Setenv("OPERATION", id)
}

// ready waits until the server at ADDR is.
func ready(ts *testscript.TestScript, _ bool, _ []string) {
	poll(ts, "ready", func() bool {
		resp, err := http.Get("http://" + ts.Getenv("ADDR") + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func poll(ts *testscript.TestScript, what string, done func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			ts.Fatalf("gave up waiting: %s", what)
		}
	}
}

// reformat makes the store of a data folder look as if another version had written it.
func reformat(ts *testscript.TestScript, _ bool, args []string) {
	db, err := pebble.Open(ts.MkAbs(args[0])+"/store", &pebble.Options{FormatMajorVersion: pebble.FormatNewest})
	ts.Check(err)
	_, closer, err := db.Get([]byte("mformat"))
	ts.Check(err)
	ts.Check(closer.Close())
	ts.Check(db.Set([]byte("mformat"), binary.BigEndian.AppendUint64(nil, 99), pebble.Sync))
	ts.Check(db.Close())
}
