package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
	"github.com/minutehand/minutehand/libs/sdk/worker"
)

const (
	// taskWorkers work at once, each on as many tasks as a worker does by default.
	taskWorkers = 200
	// calmTasks are handed to these workers while they are idle, calmTaskRate in a second.
	calmTasks, calmTaskRate = 1500, 50
	// taskSettle is for how long what follows the end of the last task is counted.
	taskSettle = 15 * time.Second
)

// tasksDone is what the workers tell of the tasks that they completed.
type tasksDone struct {
	Count, Doubled int
	// Last is when the last one was handed out, Waits how long after its instant each was, in ms, sorted.
	Last  time.Time
	Waits []float64
	// cpu is what they used, in seconds.
	cpu float64
}

// taskRound is what is measured in a round.
type taskRound struct {
	bare    bare
	rate    float64
	waits   lateness
	cpu     map[string]float64 // µs for a task
	workers float64            // µs for a task
	doubled int
}

// pooled measures tasks of a pool, rounds times: n that are due at one instant, for what one costs, and then some beside idle workers, for how long
// one waits.
func pooled(ctx context.Context, binary string, servers bool, n, rounds int) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var all []taskRound
	measure := func(p *process, usage func() (map[string]float64, error)) error {
		for i := range rounds + 1 {
			fmt.Fprintf(os.Stderr, "round %d of %d\n", i, rounds)
			b, err := bareCost(ctx, target, ladderBare)
			if err != nil {
				return err
			}
			r, err := p.tasks(ctx, n, usage)
			if err != nil {
				return err
			}
			if r.bare = b; i > 0 { // the first warms up
				all = append(all, r)
			}
		}
		return nil
	}
	if servers {
		err = withInstallation(ctx, target, serverPartitions, func(b *onServers) error {
			if err := b.fleet.StartAll(ctx, 1); err != nil {
				return err
			}
			return measure(b.api(), b.usage)
		})
	} else {
		err = inFreshProcess(ctx, binary, func(p *process) error {
			return measure(p, func() (map[string]float64, error) {
				s, err := p.cpu()
				return map[string]float64{"minutehand": s}, err
			})
		})
	}
	if len(all) > 0 {
		printTasks(all, n)
	}
	return err
}

// tasks measures one round.
func (p *process) tasks(ctx context.Context, n int, usage func() (map[string]float64, error)) (r taskRound, err error) {
	at := time.Now().Add(15*time.Second + time.Duration(n)*time.Millisecond/2).Truncate(time.Millisecond)
	if err := p.registerTasks(ctx, n, func(int) time.Time { return at }); err != nil {
		return r, err
	}
	var before, after map[string]float64
	done, err := p.worked(ctx, n, at, func() (err error) { before, err = usage(); return err })
	if err != nil {
		return r, err
	}
	time.Sleep(taskSettle)
	if after, err = usage(); err != nil {
		return r, err
	}
	r = taskRound{rate: float64(n) / done.Last.Sub(at).Seconds(), cpu: map[string]float64{}, doubled: done.Doubled}
	for name, used := range after {
		r.cpu[name] = (used - before[name]) / float64(n) * 1e6
	}
	delete(r.cpu, "sink") // of which the workers were a part before they ended
	r.workers = done.cpu / float64(n) * 1e6
	from := time.Now().Add(10 * time.Second)
	if err := p.registerTasks(ctx, calmTasks, func(i int) time.Time { return from.Add(time.Duration(i) * time.Second / calmTaskRate) }); err != nil {
		return r, err
	}
	done, err = p.worked(ctx, calmTasks, from, func() error { return nil })
	if err == nil {
		r.waits = lateness{done.Waits[len(done.Waits)/2], done.Waits[len(done.Waits)*99/100]}
	}
	return r, err
}

// registerTasks registers n jobs whose targets are a pool.
func (p *process) registerTasks(ctx context.Context, n int, at func(i int) time.Time) error {
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": at(i).UTC().Format("2006-01-02T15:04:05.000Z"),
			"target": map[string]any{"kind": "pool", "pool": "bench", "handler": "do", "body": map[string]any{"text": text(ladderKB)}},
		}
	}
	return p.registerJobs(ctx, jobs)
}

// worked lets workers in a process of their own complete n tasks, the first of which is due at an instant; began is called shortly before that.
func (p *process) worked(ctx context.Context, n int, at time.Time, began func() error) (done tasksDone, err error) {
	if time.Now().After(at.Add(-5 * time.Second)) {
		return done, errors.New("registration took longer than planned for")
	}
	cmd, err := self(ctx, "-workers", p.api, "-fires", strconv.Itoa(n))
	if err != nil {
		return done, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return done, err
	}
	time.Sleep(time.Until(at.Add(-100 * time.Millisecond)))
	if err := errors.Join(began(), json.NewDecoder(out).Decode(&done), cmd.Wait()); err != nil {
		return done, err
	}
	done.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return done, nil
}

// runWorkers completes n tasks of the pool and prints what it saw.
func runWorkers(ctx context.Context, server string, n int) error {
	client, err := sdk.New(server, sdk.Settings{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var done tasksDone
	seen := make(map[string]bool, n)
	do := func(_ context.Context, t *worker.Task) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if done.Count++; seen[t.ExecutionID] {
			done.Doubled++
		}
		seen[t.ExecutionID], done.Last = true, now
		if done.Waits = append(done.Waits, now.Sub(t.ScheduledFor).Seconds()*1000); len(seen) == n {
			stop()
		}
		return nil
	}
	var all sync.WaitGroup
	errs := make([]error, taskWorkers)
	for i := range errs {
		w := worker.New(client, worker.Settings{Pool: "bench", Name: fmt.Sprint("bench-", i)})
		w.Handle("do", do)
		all.Go(func() { errs[i] = w.Run(ctx) })
	}
	all.Wait()
	slices.Sort(done.Waits)
	return errors.Join(errors.Join(errs...), json.NewEncoder(os.Stdout).Encode(done))
}

func printTasks(all []taskRound, n int) {
	fmt.Printf("%d cores, %s, shared by everything; median of %d rounds (least … greatest)\n\n| measured | value |\n|---|---|\n", runtime.NumCPU(), memory(), len(all))
	row := func(name, unit string, of func(r *taskRound) float64) {
		var s samples
		for i := range all {
			s = append(s, of(&all[i]))
		}
		fmt.Printf("| %s | %s %s |\n", name, s, unit)
	}
	system := func(r *taskRound) (all float64) {
		for name, used := range r.cpu {
			if counts(name) {
				all += used
			}
		}
		return all
	}
	row("bare `net/http` client, 256 in flight", "requests/s", func(r *taskRound) float64 { return r.bare.rate })
	row("b, the CPU of a bare request and its answer", "µs", func(r *taskRound) float64 { return r.bare.cpu * 1e6 })
	row(fmt.Sprintf("%d tasks due at one instant, %d workers", n, taskWorkers), "tasks/s", func(r *taskRound) float64 { return r.rate })
	row("… CPU of the system for a task", "µs", system)
	row("… in b", "", func(r *taskRound) float64 { return system(r) / r.bare.cpu / 1e6 })
	for _, name := range slices.Sorted(maps.Keys(all[0].cpu)) {
		if len(all[0].cpu) > 1 && counts(name) {
			row("… … "+name, "µs", func(r *taskRound) float64 { return r.cpu[name] })
		}
	}
	row("… CPU of the workers for a task", "µs", func(r *taskRound) float64 { return r.workers })
	row("… handed out twice", "", func(r *taskRound) float64 { return float64(r.doubled) })
	row(fmt.Sprintf("%d/s beside these workers, idle: wait p50", calmTaskRate), "ms", func(r *taskRound) float64 { return r.waits.p50 })
	row("… p99", "ms", func(r *taskRound) float64 { return r.waits.p99 })
}
