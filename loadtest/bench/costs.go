package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

const (
	// The loads to which costs are fitted: two rates, and the middle one again with something else each time.
	lowRate, middleRate, highRate = 200, 400, 600
	// checkRate is that of the load to which nothing is fitted.
	checkRate = 300
	// fewPartitions and manyPartitions are those of the fitted installations, checkPartitions those of the check.
	fewPartitions, manyPartitions, checkPartitions = 32, 512, 1024
	fittedKB, fittedRetries                        = 8, 0.2
	// loadFor is how long each load lasts.
	loadFor = 25 * time.Second
	// burstFires are due at one instant, idleFor is how long it is watched what is used when nothing fires.
	burstFires = 12_000
	idleFor    = 10 * time.Second
	// restingJobs are registered to see what a job takes that waits, and restingKB is the payload of as many more.
	restingJobs, restingKB = 10_000, 4
	// mostOff is how far the model may be off for the load that it was not fitted to.
	mostOff = 0.25
	// packedOutcome and claim are what an outcome and a claim take in Redis for an hour; TestOutcomeTakesAtMost120Bytes and
	// TestClaimTakesAtMost120Bytes bound them.
	packedOutcome, claim = 120, 120
)

// observed is what a load used: CPU seconds by tier for each second of the load, and bytes for each fire.
type observed struct {
	cpu                        map[string]float64
	kafka, history, net, redis float64
}

// costsTo measures what fires cost, or only what things take, and writes it to a file.
func costsTo(ctx context.Context, file string, bytesOnly bool) error {
	if bytesOnly {
		return onlyBytes(ctx, file)
	}
	return measureCosts(ctx, file)
}

// measureCosts measures what fires cost on the servers, writes it to a file, and compares what the model says about another load with
// what that uses.
func measureCosts(ctx context.Context, file string) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	c := sizing.Costs{
		Machine: fmt.Sprintf("%d cores, %s, shared by one process of each service, one of each server, the sink and the load generator", runtime.NumCPU(), memory()),
		At:      time.Now().UTC().Format(time.DateOnly), Command: "make bench-costs",
	}
	if c.Bytes, err = measureBytes(ctx, target); err != nil {
		return err
	}
	few, err := measureFew(ctx, target, &c)
	if err != nil {
		return err
	}
	var many observed
	err = withInstallation(ctx, target, manyPartitions, func(b *onServers) error {
		many, err = b.warmThen(ctx, sizing.Load{FiresPerSecond: middleRate})
		return err
	})
	if err != nil {
		return err
	}
	fit(&c, few, many)
	c.Check.Load = sizing.Load{FiresPerSecond: checkRate, PayloadKB: 4, Recurring: 0.5, Retries: 0.05, Partitions: checkPartitions}
	err = withInstallation(ctx, target, checkPartitions, func(b *onServers) error {
		o, err := b.warmThen(ctx, c.Check.Load)
		c.Check.Measured = map[string]float64{}
		for name := range c.Tiers {
			c.Check.Measured[name] = o.cpu[name]
		}
		return err
	})
	if err != nil {
		return err
	}
	c.Check.Says = c.Cores(c.Check.Load)
	for name := range c.Tiers {
		c.Check.Says[name], c.Check.Measured[name] = tidy(c.Check.Says[name]*1000)/1000, tidy(c.Check.Measured[name]*1000)/1000
	}
	if err := write(file, &c); err != nil {
		return err
	}
	fmt.Printf("\n%-18s %8s %8s  cores, for a load that nothing was fitted to\n", "tier", "says", "used")
	for _, name := range slices.Sorted(maps.Keys(c.Tiers)) {
		fmt.Printf("%-18s %8.3f %8.3f\n", name, c.Check.Says[name], c.Check.Measured[name])
	}
	fmt.Printf("The model is off by %+.0f %% in all.\n", 100*c.Check.Off())
	if off := c.Check.Off(); math.Abs(off) > mostOff {
		return fmt.Errorf("the model is off by %.0f %%, more than %.0f %%", 100*off, 100*mostOff)
	}
	return nil
}

// measureFew measures the loads of the installation with few partitions, and what things take where they are kept.
func measureFew(ctx context.Context, target string, c *sizing.Costs) (loads map[string]observed, err error) {
	loads = map[string]observed{}
	err = withInstallation(ctx, target, fewPartitions, func(b *onServers) error {
		if loads["low"], err = b.warmThen(ctx, sizing.Load{FiresPerSecond: lowRate}); err != nil {
			return err
		}
		// Up and down again, because servers still become faster meanwhile.
		for _, one := range []struct {
			name string
			load sizing.Load
		}{
			{"middle", sizing.Load{FiresPerSecond: middleRate}},
			{"high", sizing.Load{FiresPerSecond: highRate}},
			{"payload", sizing.Load{FiresPerSecond: middleRate, PayloadKB: fittedKB}},
			{"recurring", sizing.Load{FiresPerSecond: middleRate, Recurring: 1}},
			{"retries", sizing.Load{FiresPerSecond: middleRate, Retries: fittedRetries}},
			{"high", sizing.Load{FiresPerSecond: highRate}},
			{"middle", sizing.Load{FiresPerSecond: middleRate}},
			{"low", sizing.Load{FiresPerSecond: lowRate}},
		} {
			o, err := b.load(ctx, one.load)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			if before, again := loads[one.name]; again {
				o = mean(before, o)
			}
			loads[one.name] = o
		}
		if err := b.memories(c); err != nil {
			return err
		}
		full, err := b.burst(ctx)
		if err != nil {
			return err
		}
		for name, seconds := range full {
			t := c.Tiers[name]
			t.PerFullFire = seconds * 1e6
			c.Tiers[name] = t
		}
		return nil
	})
	return loads, err
}

func write(file string, c *sizing.Costs) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", text)
	return os.WriteFile(file, append(text, '\n'), 0o644) //nolint:gosec // it is committed
}

// fit derives the costs.
func fit(c *sizing.Costs, few map[string]observed, many observed) {
	tiers := c.Tiers
	c.Tiers = map[string]sizing.Tier{}
	for name := range few["middle"].cpu {
		if slices.Contains([]string{"sink", "load generator", wholeMachine}, name) {
			continue
		}
		// The line through three rates, by least squares: they have equal distances, so its slope follows from the outer two.
		low, middle, high := few["low"].cpu[name], few["middle"].cpu[name], few["high"].cpu[name]
		slope := max((high-low)/(highRate-lowRate), 0)
		base := max((low+middle+high)/3-slope*middleRate, 0)
		line := base + slope*middleRate
		more := func(o observed, per float64) float64 { return tidy(max(o.cpu[name]-line, 0) / per * 1e6) }
		t := sizing.Tier{
			PerPartition: more(many, manyPartitions-fewPartitions), PerFire: tidy(slope * 1e6),
			PerKB: more(few["payload"], middleRate*fittedKB), PerRecurring: more(few["recurring"], middleRate), PerRetry: more(few["retries"], middleRate*fittedRetries),
			MiB: tiers[name].MiB, PerFullFire: tidy(tiers[name].PerFullFire),
		}
		t.Base = math.Round(max(base*1e6-t.PerPartition*fewPartitions, 0))
		c.Tiers[name] = t
	}
}

// tidy keeps two digits behind the point.
func tidy(x float64) float64 { return math.Round(x*100) / 100 }

// warmThen starts the services, warms everything up, and measures a load.
func (b *onServers) warmThen(ctx context.Context, l sizing.Load) (o observed, err error) {
	b.fleet.Variables = append(b.fleet.Variables, "MINUTEHAND_ARCHIVE_CLOSE_AFTER=10s")
	if err := b.fleet.StartAll(ctx, 1); err != nil {
		return o, err
	}
	for range warmUps {
		if _, err := b.load(ctx, sizing.Load{FiresPerSecond: highRate}); err != nil {
			return o, err
		}
	}
	return b.load(ctx, l)
}

// mean returns the mean of two measurements.
func mean(a, b observed) observed {
	m := observed{cpu: map[string]float64{}, kafka: (a.kafka + b.kafka) / 2, history: (a.history + b.history) / 2, net: (a.net + b.net) / 2, redis: (a.redis + b.redis) / 2}
	for name, used := range a.cpu {
		m.cpu[name] = (used + b.cpu[name]) / 2
	}
	return m
}

// burst measures a stampede: what each tier uses for a fire when batches are full, less what it uses when nothing fires.
func (b *onServers) burst(ctx context.Context) (perFire map[string]float64, err error) {
	before, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	time.Sleep(idleFor)
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	idle := map[string]float64{}
	for name, used := range after {
		idle[name] = (used - before[name]) / time.Since(began).Seconds()
	}
	if err := b.api().reset(ctx, b.target); err != nil {
		return nil, err
	}
	due := time.Now().Add(25 * time.Second)
	if err := b.registerAt(ctx, burstFires, func(int) time.Time { return due }); err != nil {
		return nil, err
	}
	time.Sleep(time.Until(due.Add(-100 * time.Millisecond)))
	if before, err = b.usage(); err != nil {
		return nil, err
	}
	if _, err := b.api().await(ctx, b.target, burstFires); err != nil {
		return nil, err
	}
	if err := b.quiet(ctx); err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second) // for history
	if after, err = b.usage(); err != nil {
		return nil, err
	}
	perFire = map[string]float64{}
	for name, used := range after {
		perFire[name] = max(used-before[name]-idle[name]*time.Since(due).Seconds(), 0) / burstFires
	}
	return perFire, nil
}

// load measures a load, until everything that was called is settled.
func (b *onServers) load(ctx context.Context, l sizing.Load) (o observed, err error) {
	fmt.Fprintf(os.Stderr, "%d partitions: %+v\n", b.partitions, l)
	if err := b.api().reset(ctx, b.target); err != nil {
		return o, err
	}
	fires := int(l.FiresPerSecond * loadFor.Seconds())
	from := time.Now().Add(10*time.Second + time.Duration(fires)*time.Millisecond)
	if err := b.register(ctx, l, from); err != nil {
		return o, err
	}
	if time.Now().After(from) {
		return o, errors.New("registration took longer than planned for")
	}
	cold, err := b.coldBytes(ctx, "history_")
	if err != nil {
		return o, err
	}
	time.Sleep(time.Until(from.Add(-time.Second))) // for what is read ahead
	before, err := b.now(ctx)
	if err != nil {
		return o, err
	}
	if _, err := b.api().await(ctx, b.target, fires); err != nil {
		return o, err
	}
	if err := b.quiet(ctx); err != nil {
		return o, err
	}
	time.Sleep(time.Until(from.Add(loadFor + 2*time.Second)))
	after, err := b.now(ctx)
	if err != nil {
		return o, err
	}
	grown, err := b.coldBytes(ctx, "history_")
	if err != nil {
		return o, err
	}
	o.cpu = map[string]float64{}
	for name, used := range after.cpu {
		o.cpu[name] = (used - before.cpu[name]) / loadFor.Seconds()
	}
	n := float64(fires)
	o.kafka, o.history, o.net, o.redis = (after.kafka-before.kafka)/n, (grown-cold)/n, (after.net-before.net)/n, (after.redis-before.redis)/n
	return o, nil
}

// register registers the jobs of a load.
func (b *onServers) register(ctx context.Context, l sizing.Load, from time.Time) error {
	return b.registerFor(ctx, l, from, loadFor)
}

func (b *onServers) registerFor(ctx context.Context, l sizing.Load, from time.Time, last time.Duration) error {
	rate, seconds := l.FiresPerSecond, int(last.Seconds())
	beats := int(rate * l.Recurring) // jobs of every second
	once := int(rate*last.Seconds()) - beats*seconds
	step := last / time.Duration(max(once, 1))
	shaky := 0.0
	path := func() string { // the share of calls that fail at first, evenly
		if shaky += l.Retries; shaky >= 1 {
			shaky--
			return "/shaky"
		}
		return "/hook"
	}
	jobs := make([]map[string]any, 0, once+beats)
	job := func(fields map[string]any) {
		fields["name"] = "bench"
		fields["retry_policy"] = map[string]any{"max_attempts": 3, "base_delay": "1s"}
		fields["target"] = map[string]any{"kind": "http_webhook", "url": b.target + path(), "body": map[string]any{"text": text(max(l.PayloadKB, 0.25))}}
		jobs = append(jobs, fields)
	}
	for i := range once {
		job(map[string]any{"type": "one_shot", "run_at": from.Add(time.Duration(i) * step).UTC().Format("2006-01-02T15:04:05.000Z")})
	}
	for i := range beats {
		start := from.Add(time.Duration(i) * time.Second / time.Duration(beats))
		job(map[string]any{"type": "interval", "every": "1s", "start_at": start.UTC().Format("2006-01-02T15:04:05.000Z"), "max_occurrences": seconds})
	}
	return b.api().registerJobs(ctx, jobs)
}

// registerJobs registers jobs in batches.
func (p *process) registerJobs(ctx context.Context, jobs []map[string]any) error {
	chunks := slices.Collect(slices.Chunk(jobs, 250))
	return inParallel(4, len(chunks), func(i int) error {
		body, err := json.Marshal(map[string]any{"jobs": chunks[i]})
		if err != nil {
			return err
		}
		answer, err := p.post(ctx, "/api/v1/jobs:batch", bytes.NewReader(body))
		if err == nil && bytes.Count(answer, []byte(`"status":201`)) != len(chunks[i]) {
			err = fmt.Errorf("not every job of a batch was accepted: %s", answer[:min(len(answer), 500)])
		}
		return err
	})
}

// text returns so many KB that no compression makes smaller than three quarters.
func text(kb float64) string {
	raw := make([]byte, int(kb*1024)*3/4)
	_, _ = rand.Read(raw) // it never fails
	return base64.StdEncoding.EncodeToString(raw)
}

// memories notes the memory of each process.
func (b *onServers) memories(c *sizing.Costs) error {
	c.Tiers = map[string]sizing.Tier{}
	pids := map[string]int{}
	for _, m := range b.fleet.Members {
		pids[m.Service] = m.Pid()
	}
	for name, file := range map[string]string{"ZooKeeper": "zookeeper"} {
		text, err := os.ReadFile(filepath.Join(b.state, "run", file+".pid"))
		if err != nil {
			return err
		}
		pids[name], _ = strconv.Atoi(strings.Fields(string(text))[0])
	}
	for name, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return err
		}
		if m := regexp.MustCompile(`VmHWM:\s*(\d+)`).FindSubmatch(status); m != nil {
			kib, _ := strconv.ParseFloat(string(m[1]), 64)
			c.Tiers[name] = sizing.Tier{MiB: math.Round(kib / 1024)}
		}
	}
	return nil
}
