package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/cluster"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/process"
	"github.com/minutehand/minutehand/libs/run"
	platform "github.com/minutehand/minutehand/services/all-in-one"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

type demoCmd struct {
	Jobs int           `default:"2000" help:"How many jobs to register, at least 200." placeholder:"N"`
	Over time.Duration `default:"10s" help:"How long they take to fire, at least 3s." placeholder:"10s"`

	Kafka string `help:"Send messages to a broker of Kafka, too." placeholder:"HOST:PORT"`
	SQS   string `name:"sqs" help:"Send messages to a server that speaks the protocol of SQS and asks for no keys, such as ElasticMQ, too." placeholder:"URL"`

	Cluster bool   `help:"Play on the services of a cluster, which run already, instead of starting any."`
	Server  string `default:"http://127.0.0.1:8080" env:"MINUTEHAND_SERVER" help:"Where a cluster's API is." placeholder:"URL"`

	Servers cluster.Settings `embed:"" group:"A cluster's servers:"`
}

// Help implements kong.HelpProvider.
func (demoCmd) Help() string {
	return `Starts Minutehand in this process on a temporary folder and a sink beside it, registers jobs that fire over
the next seconds (one-shots, crons of every second, a target that fails, tasks of a pool with a worker of its own, some of them scripts, one
job that is cancelled in time, with --kafka or --sqs messages to a topic or a queue of its own), and accounts for each of them. Exits with 1 if anything is missing, early, or there twice.

With --cluster the services run already, and allow private targets; make cluster starts all of it.

  minutehand demo --jobs 500 --over 3s`
}

// The parts of the demo: the rest of the jobs are one-shots.
const (
	demoCrons    = 10  // every second, until shortly before the window ends
	demoFailing  = 100 // each demoAttempts attempts, then a dead letter
	demoAttempts = 3
	demoClients  = 16
	demoPatience = 60 * time.Second
)

// demo is a running demo.
type demo struct {
	client
	jobs    int
	each    time.Duration // planned for the registration of a job
	begin   time.Time     // of the window in which the one-shots fire
	window  time.Duration // how long it is
	sink    *demoSink
	sinkURL string
	name    string // of its pool, whose tasks it runs itself, and of its topic and queue
	brokers []*demoBroker

	mu  sync.Mutex
	ids map[string]bool // of the jobs that were registered

	cancelled string // is the id of the job that is cancelled
}

// Run implements the command.
func (c *demoCmd) Run(ctx context.Context) error {
	if c.Jobs < 200 {
		return usageError{errors.New("--jobs must be at least 200")}
	}
	if c.Over < 3*time.Second {
		return usageError{errors.New("--over must be at least 3s")}
	}
	if c.Cluster {
		return c.onCluster(ctx)
	}
	dir, err := os.MkdirTemp("", "minutehand-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	api, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener lives as long as the process
	if err != nil {
		return err
	}
	sink := &demoSink{seen: map[demoKey]int{}}
	stopSink, sinkURL, err := sink.start()
	if err != nil {
		return err
	}
	defer stopSink()
	cfg := platform.DefaultConfig(dir)
	process.Collect(int64(cfg.Memory))
	cfg.Executor.AllowPrivateTargets, cfg.Loader.AllowPrivateTargets = true, true
	p, err := platform.Open(cfg, platform.Outside{
		Listener: api, Metrics: prometheus.NewRegistry(),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(running) }()
	d := &demo{
		client: client{Server: "http://" + api.Addr().String()}, jobs: c.Jobs, each: time.Millisecond, window: c.Over,
		sink: sink, sinkURL: sinkURL, name: newDemoName(), brokers: c.demoBrokers(),
	}
	playErr := d.play(ctx)
	if playErr == nil {
		playErr = d.settle(ctx)
	}
	stop()
	if err := errors.Join(playErr, <-done); err != nil {
		return errors.Join(err, p.Close())
	}
	archived, err := auditwriter.ReadArchive(ctx, p.Adapters.Archive)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	letters, _, err := p.Adapters.History.DeadLetters(ctx, job.DefaultTenant, "", c.Jobs)
	if err := errors.Join(err, p.Close()); err != nil {
		return err
	}
	return d.report(os.Stdout, archived, len(letters))
}

// play registers the jobs, runs the tasks among them, and waits for their calls.
func (d *demo) play(ctx context.Context) (err error) {
	stop, err := d.work(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	noMore, err := d.receive(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, noMore()) }()
	// Registration takes the less, the faster the machine; the window begins when it is surely over.
	d.begin = time.Now().Add(time.Second + time.Duration(d.jobs)*d.each).Truncate(time.Second)
	fmt.Printf("registering %d jobs at %s, to fire from %s on\n", d.jobs, d.Server, d.begin.Format("15:04:05"))
	if err := d.register(ctx); err != nil {
		return err
	}
	if time.Now().After(d.begin) {
		fmt.Println("registration took longer than planned: the first fires are late by as much")
	}
	want := d.expected()
	deadline := d.begin.Add(d.window + demoPatience)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		n := d.sink.count()
		fmt.Printf("\rfired %d of %d", n, want)
		if n >= want || time.Now().After(deadline) {
			fmt.Println()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			fmt.Println()
			return ctx.Err()
		}
	}
}

// settle waits until the events of all changes are published, and until the messages that arrive nowhere are given up: the last ones may
// be a moment behind the calls, and a process that stops leaves them to the next one that starts on its folder.
func (d *demo) settle(ctx context.Context) error {
	deadline := time.Now().Add(demoPatience)
	for {
		var page struct {
			Items []struct{} `json:"items"`
		}
		if _, err := d.do(ctx, http.MethodGet, "/dead-letters?limit=500", nil, &page); err != nil {
			return err
		}
		if len(page.Items) >= d.letters() || time.Now().After(deadline) {
			break
		}
		if err := run.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	for id := range d.ids {
		for {
			var page struct {
				Items []struct{} `json:"items"`
			}
			if _, err := d.do(ctx, http.MethodGet, "/jobs/"+id+"/changes", nil, &page); err != nil {
				return err
			}
			if len(page.Items) > 0 && (id != d.cancelled || len(page.Items) > 1) || time.Now().After(deadline) {
				break
			}
			if err := run.Sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// ticks is how often each cron fires.
func (d *demo) ticks() int { return int(d.window/time.Second) - 2 }

func (d *demo) oneShots() int {
	return d.jobs - demoCrons - demoFailing - demoTasks - len(d.brokers)*demoMessages - 1
}

// expected is how many calls there must be: the cancelled job makes none.
func (d *demo) expected() int {
	return d.oneShots() + demoCrons*d.ticks() + demoFailing*demoAttempts + demoTasks + demoRetried + len(d.brokers)*(demoMessages-demoMisled)
}

// letters is how many dead letters there must be.
func (d *demo) letters() int { return demoFailing + demoPermanent + len(d.brokers)*demoMisled }

func (d *demo) register(ctx context.Context) error {
	if err := d.cancelOne(ctx); err != nil {
		return err
	}
	bodies := make(chan map[string]any)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	var registered atomic.Int64
	registered.Store(1) // the cancelled one
	for range demoClients {
		wg.Go(func() {
			for body := range bodies {
				if _, err := d.create(ctx, body); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
				if n := registered.Add(1); n%500 == 0 {
					fmt.Printf("registered %d\n", n)
				}
			}
		})
	}
	for i := 1; i < d.jobs; i++ {
		bodies <- d.job(i)
	}
	close(bodies)
	wg.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%d jobs could not be registered, the first: %w", len(errs), errs[0])
	}
	return nil
}

// cancelOne registers the job that is cancelled, and cancels it at once: however slow the machine is, it is in time.
func (d *demo) cancelOne(ctx context.Context) error {
	id, err := d.create(ctx, d.job(0))
	if err != nil {
		return err
	}
	d.cancelled = id
	_, err = d.do(ctx, http.MethodPost, "/jobs/"+id+"/cancel", nil, nil)
	return err
}

// create registers a job and keeps its id.
func (d *demo) create(ctx context.Context, body map[string]any) (id string, err error) {
	var j struct {
		ID string `json:"job_id"`
	}
	if _, err := d.do(ctx, http.MethodPost, "/jobs", body, &j); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids == nil {
		d.ids = map[string]bool{}
	}
	d.ids[j.ID] = true
	return j.ID, nil
}

func (d *demo) job(i int) map[string]any {
	body := map[string]any{"type": "one_shot", "name": "one-shot"}
	target := map[string]any{"kind": "http_webhook", "url": d.sinkURL + "/ok"}
	body["target"] = target
	at := d.begin.Add(time.Duration(i) * d.window / time.Duration(d.jobs))
	switch {
	case i == 0:
		body["name"], at = "cancelled", d.begin.Add(d.window/2)
	case i <= demoCrons:
		body["type"], body["name"], body["cron_expr"] = "cron", "cron", "* * * * * *"
		body["start_at"], body["max_occurrences"] = d.begin, d.ticks()
		return body
	case i <= demoCrons+demoFailing:
		body["name"], target["url"] = "failing", d.sinkURL+"/fail"
		body["retry_policy"] = map[string]any{
			"max_attempts": demoAttempts, "backoff": "fixed", "base_delay": "500ms", "jitter": 0,
		}
	case i <= demoCrons+demoFailing+demoTasks:
		body["name"] = "task"
		body["target"] = map[string]any{"kind": "pool", "pool": d.name, "handler": demoHandler(i - demoCrons - demoFailing - 1), "body": map[string]any{"script": "echo well"}}
		body["retry_policy"] = map[string]any{"max_attempts": 2, "backoff": "fixed", "base_delay": "500ms", "jitter": 0}
	case i <= demoCrons+demoFailing+demoTasks+len(d.brokers)*demoMessages:
		n := i - demoCrons - demoFailing - demoTasks - 1
		body["name"], body["target"] = "message", d.brokers[n/demoMessages].target(d.name, n%demoMessages)
		body["retry_policy"] = map[string]any{"max_attempts": demoAttempts, "backoff": "fixed", "base_delay": "500ms", "jitter": 0}
	}
	body["run_at"] = at
	return body
}

// report prints the account and fails if it does not add up.
func (d *demo) report(w io.Writer, archived []auditwriter.Archived, deadLetters int) error {
	a, archived := d.sink.account(), d.own(archived)
	events := map[string]bool{}
	cancelled, changes := 0, 0
	for _, x := range archived {
		events[strings.Join(strings.SplitN(x.EventID, "/", 3)[:2], "/")] = true
		if strings.HasSuffix(x.EventID, "/cancelled") {
			cancelled++
		}
		if strings.HasSuffix(x.EventID, "/change") {
			changes++
		}
	}
	unarchived := 0
	for k := range d.sink.seen {
		if !events[k.execution+"/"+k.attempt] {
			unarchived++
		}
	}
	missing := d.expected() - len(d.sink.seen)
	called := "calls and tasks"
	if len(d.brokers) > 0 {
		called = "calls, tasks and messages"
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(name string, value any) { fmt.Fprintf(t, "%s\t%v\n", name, value) }
	row("jobs", d.jobs)
	row(called, a.calls)
	row("lateness p50", a.quantile(.50))
	row("lateness p99", a.quantile(.99))
	row("lateness max", a.quantile(1))
	row("retries", a.retries)
	row("dead letters", deadLetters)
	row("cancelled in time", cancelled)
	row("missing", missing)
	row("duplicates", a.duplicates)
	row("early", a.early)
	rows := fmt.Sprintf("%d (%d %s + %d cancelled + %d changes", len(archived), a.calls, called, cancelled, changes)
	if refused := d.refused(); refused > 0 {
		rows += fmt.Sprintf(" + %d to a topic or queue that is not there", refused)
	}
	row("rows in Parquet", rows+")")
	if err := t.Flush(); err != nil {
		return err
	}
	if missing != 0 || a.duplicates != 0 || a.early != 0 || unarchived != 0 || cancelled != 1 ||
		deadLetters != d.letters() || changes != d.jobs+1 || len(archived) != a.calls+cancelled+changes+d.refused() {
		return errors.New("the account does not add up; this is a bug, please report it")
	}
	fmt.Fprintln(w, "every job is accounted for")
	return nil
}

// executionOf is the execution that an event tells of: its id begins with it.
func executionOf(eventID string) string {
	id, _, _ := strings.Cut(eventID, "/")
	return id
}
