package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// one is a measured stampede.
type one struct {
	n       int
	hanging bool
	bare    float64 // requests/s of a bare client, right before
	rate    float64 // fires/s
	cpu     float64 // µs per fire; in one process, including the follow-up work
	doubled int
	took    time.Duration
	memory  int64 // peak resident bytes of one process
	// deferred counts the fires that went back to the cold store.
	deferred float64
}

// stampedeBare is how many requests a bare client makes before each stampede, to show how fast the machine is at that
// moment.
const stampedeBare = 50_000

// followsWithin is how long after the last call its outcome is recorded, its entry done, and its history in the archive. A
// process with nothing more to do uses next to no CPU.
const followsWithin = 15 * time.Second

// stampedes measures stampedes of several sizes on one target, each alone and alongside as many jobs that are due at the
// same instant on a target that never answers. In one process each has a fresh folder; on the servers all share an
// installation. It fails if a stampede's fires per second are less than the fraction least of a bare client's requests.
func stampedes(ctx context.Context, binary, sizes string, servers, recurring bool, least float64) error {
	target, hanging, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var all []one
	measure := func(try func(n int, hangs string) (one, error)) error {
		for _, hangs := range []string{"", hanging} {
			for text := range strings.SplitSeq(sizes, ",") {
				n, err := strconv.Atoi(text)
				if err != nil {
					return err
				}
				bare, err := bareRate(ctx, target, stampedeBare)
				if err != nil {
					return err
				}
				o, err := try(n, hangs)
				if err != nil {
					return err
				}
				o.bare = bare
				fmt.Fprintf(os.Stderr, "%+v\n", o)
				all = append(all, o)
			}
		}
		return nil
	}
	if servers {
		err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
			if err := b.fleet.StartAll(ctx, 1); err != nil {
				return err
			}
			for range 2 { // the servers' compilers warm up
				if _, err := b.oneStampede(ctx, stampedeFires, "", recurring); err != nil {
					return err
				}
			}
			err := measure(func(n int, hangs string) (one, error) { return b.oneStampede(ctx, n, hangs, recurring) })
			return errors.Join(err, b.fleet.StopAll())
		})
	} else {
		err = measure(func(n int, hangs string) (one, error) { return inOneProcess(ctx, binary, target, hangs, n, recurring) })
	}
	if len(all) > 0 {
		printStampedes(all)
	}
	for _, o := range all {
		if o.rate < least*o.bare {
			err = errors.Join(err, fmt.Errorf("%d due at one instant: %.0f fires/s are less than %g of %.0f requests/s", o.n, o.rate, least, o.bare))
		}
	}
	return err
}

func printStampedes(all []one) {
	fmt.Printf("%d cores, %s\n\n", runtime.NumCPU(), memory())
	fmt.Printf("| due at one instant | beside as many on a target that hangs | fires/s | bare client before, requests/s | last one late, s | CPU per fire, µs | missing | doubled | deferred | memory, MiB |\n")
	fmt.Printf("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, o := range all {
		fmt.Printf("| %d | %t | %.0f | %.0f | %.1f | %.0f | 0 | %d | %.0f | %d |\n", o.n, o.hanging, o.rate, o.bare, o.took.Seconds(), o.cpu, o.doubled, o.deferred, o.memory>>20)
	}
}

// jobsDue returns the bodies of a batch of jobs that are due at an instant.
func jobsDue(n int, at time.Time, url string, recurring bool) *bytes.Reader {
	job := map[string]any{
		"name": "stampede", "type": "one_shot", "run_at": at.UTC().Format("2006-01-02T15:04:05.000Z"),
		"target": map[string]any{"kind": "http_webhook", "url": url, "body": map[string]any{"hello": "world"}},
	}
	if recurring {
		delete(job, "run_at")
		job["type"], job["every"], job["start_at"] = "interval", "1h", at.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	list := make([]map[string]any, n)
	for i := range list {
		list[i] = job
	}
	body, err := json.Marshal(map[string]any{"jobs": list})
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return bytes.NewReader(body)
}

// registerDue registers jobs in batches, half a batch for each target if there are two.
func (p *process) registerDue(ctx context.Context, n int, at time.Time, target, hangs string, recurring bool) error {
	const size = 500
	return inParallel(4, (n+size-1)/size, func(c int) error {
		for _, url := range []string{target, hangs} {
			if url == "" {
				continue
			}
			k := min(size, n-c*size)
			answer, err := p.post(ctx, "/api/v1/jobs:batch", jobsDue(k, at, url+"/hook", recurring))
			if err != nil {
				return err
			}
			if bytes.Count(answer, []byte(`"status":201`)) != k {
				return errors.New("not every job of a batch was accepted")
			}
		}
		return nil
	})
}

// run registers n jobs due at an instant far enough ahead, calls began shortly before that instant, and waits for all
// calls.
func (p *process) run(ctx context.Context, n int, target, hangs string, perSecond float64, recurring bool, began func() error) (one, error) {
	o := one{n: n, hanging: hangs != ""}
	if err := p.reset(ctx, target); err != nil {
		return o, err
	}
	all := float64(n)
	if o.hanging {
		all *= 2
	}
	at := time.Now().Add(15*time.Second + time.Duration(all/perSecond*float64(time.Second))).Truncate(time.Millisecond)
	if err := p.registerDue(ctx, n, at, target, hangs, recurring); err != nil {
		return o, err
	}
	if time.Now().After(at.Add(-5 * time.Second)) {
		return o, errors.New("registration took longer than planned for")
	}
	time.Sleep(time.Until(at.Add(-100 * time.Millisecond)))
	if err := began(); err != nil {
		return o, err
	}
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() { p.progress(telling, target, n, at) })
	t, err := p.await(ctx, target, n)
	stop()
	told.Wait()
	o.rate, o.took, o.doubled = float64(n)/t.Last.Sub(at).Seconds(), t.Last.Sub(at), t.Doubled
	return o, err
}

// progress reports every few seconds how many calls have arrived.
func (p *process) progress(ctx context.Context, target string, n int, at time.Time) {
	const every = 10 * time.Second
	for tick := time.Tick(every); ; {
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
		if t, err := p.tally(ctx, target, false); err == nil {
			fmt.Fprintf(os.Stderr, "  %d of %d calls after %.0f s\n", t.Count, n, time.Since(at).Seconds())
		}
	}
}

func inOneProcess(ctx context.Context, binary, target, hangs string, n int, recurring bool) (one, error) {
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return one{}, err
	}
	defer os.RemoveAll(dir)
	p, err := start(ctx, binary, dir)
	if err != nil {
		return one{}, err
	}
	var before float64
	o, err := p.run(ctx, n, target, hangs, 15_000, recurring, func() (err error) { before, err = p.cpu(); return err })
	time.Sleep(followsWithin) // includes the work that follows the calls, which a small stampede would leave out
	after, cpuErr := p.cpu()
	o.cpu = (after - before) / float64(n) * 1e6
	m, metricsErr := p.metrics(ctx)
	o.deferred = m["minutehand_executor_deferred_total"]
	var peakErr error
	o.memory, peakErr = p.peak()
	if hangs != "" { // its calls are not waited for
		return o, errors.Join(err, cpuErr, metricsErr, peakErr, p.cmd.Process.Kill(), ignore(p.cmd.Wait()))
	}
	return o, errors.Join(err, cpuErr, metricsErr, peakErr, p.stop())
}

// ignore drops the error of a process that was killed.
func ignore(error) error { return nil }

func (b *onServers) oneStampede(ctx context.Context, n int, hangs string, recurring bool) (one, error) {
	var before, after map[string]float64
	p := b.api()
	deferred, err := b.deferred(ctx)
	if err != nil {
		return one{}, err
	}
	o, err := p.run(ctx, n, b.target, hangs, 2000, recurring, func() (err error) { before, err = b.usage(); return err })
	if err != nil {
		return o, err
	}
	if after, err = b.usage(); err != nil {
		return o, err
	}
	o.cpu = (after[wholeMachine] - before[wholeMachine]) / float64(n) * 1e6
	for _, name := range slices.Sorted(maps.Keys(after)) {
		fmt.Fprintf(os.Stderr, "  %s: %.0f µs per fire\n", name, (after[name]-before[name])/float64(n)*1e6)
	}
	for _, m := range b.fleet.Members {
		peak, err := peakOf(m.Pid())
		if err != nil {
			return o, err
		}
		o.memory = max(o.memory, peak)
	}
	if o.deferred, err = b.deferred(ctx); err != nil {
		return o, err
	}
	o.deferred -= deferred
	if hangs != "" {
		return o, nil // hanging fires are still there, and are left to the next
	}
	return o, b.quiet(ctx)
}

// deferred returns how many fires executors have sent back to the cold store so far.
func (b *onServers) deferred(ctx context.Context) (n float64, err error) {
	for _, m := range b.fleet.Members {
		if m.Service != "executor" {
			continue
		}
		values, err := (&process{api: "http://" + m.Admin, client: b.client}).metrics(ctx)
		if err != nil {
			return 0, err
		}
		n += values["minutehand_executor_deferred_total"]
	}
	return n, nil
}
