package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/sandbox"
	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
	"github.com/minutehand/minutehand/services/all-in-one/runner"
)

// The tasks of the demo's pool, which its own worker runs.
const (
	demoTasks     = 60
	demoRetried   = 10 // fail at their first attempt
	demoPermanent = 5  // fail for good at their first attempt, and become dead letters

	demoScripts = 10 // run a script in a sandbox

	demoWell, demoAgain, demoNever = "succeed", "succeed-later", "never" // are the handlers, beside runner.Script
)

// demoHandler returns the handler of the n-th task.
func demoHandler(n int) string {
	switch {
	case n < demoRetried:
		return demoAgain
	case n < demoRetried+demoPermanent:
		return demoNever
	case n < demoRetried+demoPermanent+demoScripts:
		return runner.Script
	}
	return demoWell
}

// newDemoName returns a name that no other demo uses.
func newDemoName() string { return "demo-" + strings.ToLower(rand.Text()[:8]) }

// work runs the tasks of the demo's pool until what it returns is called, which waits until their ends are on the log. The sink remembers them like
// calls.
func (d *demo) work(ctx context.Context) (stop func() error, err error) {
	client, err := sdk.New(d.Server, sdk.Settings{})
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w := worker.New(client, worker.Settings{Pool: d.name, Version: version, Concurrency: 16, Logger: logger})
	note := func(t *worker.Task) {
		d.sink.note(demoKey{t.ExecutionID, strconv.Itoa(t.Attempt)}, t.ScheduledFor, time.Now())
	}
	w.Handle(demoWell, func(_ context.Context, t *worker.Task) error { note(t); return nil })
	w.Handle(demoAgain, func(_ context.Context, t *worker.Task) error {
		if note(t); t.Attempt == 1 {
			return errors.New("try again")
		}
		return nil
	})
	w.Handle(demoNever, func(_ context.Context, t *worker.Task) error {
		note(t)
		return worker.Permanent(errors.New("this cannot succeed"))
	})
	script := d.script(ctx, logger)
	w.Handle(runner.Script, func(ctx context.Context, t *worker.Task) error { note(t); return script(ctx, t) })
	running, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(running) }()
	return func() error { end(); return <-done }, nil
}

// script returns what runs scripts, or says why they are taken for run.
func (d *demo) script(ctx context.Context, logger *slog.Logger) func(context.Context, *worker.Task) error {
	backend, err := sandbox.NewBubblewrap(ctx, sandbox.BubblewrapConfig{})
	if err != nil {
		fmt.Printf("the scripts among the tasks are not run: %v\n", err)
		return func(context.Context, *worker.Task) error { return nil }
	}
	r := &runner.Runner{Config: runner.Config{Limits: sandbox.Default()}, Logger: logger}
	return r.Handler(backend)
}
