package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

var (
	seeds  = flag.Int("sim.seeds", 300, "how many seeds to run")
	first0 = flag.Uint64("sim.first", 1, "the first seed")
	folder = flag.String("sim.traces", "", "where the traces of runs that break an invariant are saved (a temporary folder)")
	replay = flag.String("sim.replay", "", "a trace to replay; its timeline is printed")
	// A child is one process of several that share the seeds, each on one processor, so that a seed runs alike every time.
	child   = flag.String("sim.child", "", "used by the test itself: where a child writes its report")
	variant = flag.String("sim.variant", "", "used by the test itself: the variant that a child runs, until it is caught")
)

// variantSeeds is within how many seeds a variant must be caught.
const variantSeeds = 200

// report is what a child tells.
type report struct {
	Seeds, Jobs, Calls, Events, Faults int
	Weathers                           map[string]int
	Hits                               []hits
	// Lateness of the first attempts, in milliseconds, by how many there were.
	Lateness map[int64]int
	Traces   []Trace
}

type hits struct {
	Hit
	N int `json:"n"`
}

// TestChild is a child's run.
func TestChild(t *testing.T) {
	if *child == "" {
		return
	}
	total := report{Weathers: map[string]int{}, Lateness: map[int64]int{}}
	struck := map[Hit]int{}
	v := VariantOf(*variant)
	for i := range *seeds {
		r := Run(t, *first0+uint64(i), v, nil)
		total.Seeds++
		total.Weathers[r.Weather]++
		total.Jobs, total.Calls, total.Events = total.Jobs+r.Jobs, total.Calls+r.Calls, total.Events+r.Events
		total.Faults += len(r.Struck)
		for h, n := range r.Hits {
			struck[h] += n
		}
		for _, late := range r.Lateness {
			total.Lateness[late.Milliseconds()]++
		}
		if len(r.Violations) > 0 {
			total.Traces = append(total.Traces, r.Trace(v))
			saveTimeline(t, r)
			if len(total.Traces) >= maxTraces || v != nil {
				break
			}
		}
	}
	for h, n := range struck {
		total.Hits = append(total.Hits, hits{h, n})
	}
	text, err := json.Marshal(total)
	if err == nil {
		err = os.WriteFile(*child, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func saveTimeline(t *testing.T, r *Result) {
	t.Helper()
	if *folder == "" {
		return
	}
	f, err := os.Create(filepath.Join(*folder, fmt.Sprintf("seed-%d.txt", r.Seed)))
	if err != nil {
		t.Fatal(err)
	}
	r.Timeline(f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// maxTraces bounds what a child saves.
const maxTraces = 10

// runChild runs seeds in a child process.
func runChild(t *testing.T, first uint64, count int, v string) report {
	t.Helper()
	out := filepath.Join(t.TempDir(), fmt.Sprintf("report-%d.json", first))
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.timeout=90m", "-sim.child="+out,
		fmt.Sprintf("-sim.first=%d", first), fmt.Sprintf("-sim.seeds=%d", count), "-sim.variant="+v)
	if v == "" {
		c.Args = append(c.Args, "-sim.traces="+*folder)
	}
	c.Env = append(os.Environ(), "GOMAXPROCS=1")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("seeds %d to %d: %v\n%s", first, first+uint64(count)-1, err, text)
	}
	var r report
	text, err := os.ReadFile(out)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// runAll shares seeds among as many children as there are processors.
func runAll(t *testing.T, first uint64, count int, v string) report {
	t.Helper()
	const chunk = 50
	total := report{Weathers: map[string]int{}, Lateness: map[int64]int{}}
	struck := map[Hit]int{}
	began, told := time.Now(), time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := 0
	for range runtime.NumCPU() {
		wg.Go(func() {
			for {
				mu.Lock()
				from := next
				next += chunk
				mu.Unlock()
				if from >= count || t.Failed() {
					return
				}
				r := runChild(t, first+uint64(from), min(chunk, count-from), v)
				mu.Lock()
				total.Seeds, total.Jobs = total.Seeds+r.Seeds, total.Jobs+r.Jobs
				total.Calls, total.Events, total.Faults = total.Calls+r.Calls, total.Events+r.Events, total.Faults+r.Faults
				for w, n := range r.Weathers {
					total.Weathers[w] += n
				}
				for _, h := range r.Hits {
					struck[h.Hit] += h.N
				}
				for ms, n := range r.Lateness {
					total.Lateness[ms] += n
				}
				total.Traces = append(total.Traces, r.Traces...)
				if time.Since(told) > 30*time.Second {
					told = time.Now()
					fmt.Fprintf(os.Stderr, "sim: %d of %d seeds after %s\n", total.Seeds, count, time.Since(began).Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for h, n := range struck {
		total.Hits = append(total.Hits, hits{h, n})
	}
	return total
}

func (r *report) lateness(q float64) time.Duration {
	n := 0
	for _, k := range r.Lateness {
		n += k
	}
	rank := int(q * float64(n-1))
	for _, ms := range slices.Sorted(maps.Keys(r.Lateness)) {
		if rank -= r.Lateness[ms]; rank < 0 {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return 0
}

func save(t *testing.T, traces []Trace) {
	t.Helper()
	dir := *folder
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "minutehand-sim-"); err != nil {
			t.Fatal(err)
		}
	}
	for _, trace := range traces {
		text, err := trace.encode()
		name := filepath.Join(dir, fmt.Sprintf("seed-%d.json", trace.Seed))
		if err == nil {
			err = os.WriteFile(name, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("seed %d breaks an invariant: %s\nreplay it with: make sim-replay TRACE=%s", trace.Seed,
			strings.Join(trace.Violations[:min(3, len(trace.Violations))], "; "), name)
	}
}

func TestNoSeedBreaksAnInvariant(t *testing.T) {
	if testing.Short() || *child != "" || *replay != "" {
		t.Skip("takes minutes, or is a child")
	}
	r := runAll(t, *first0, *seeds, "")
	t.Logf("%d seeds: %d jobs, %d invocations, %d events, %d faults; weather %v", r.Seeds, r.Jobs, r.Calls, r.Events, r.Faults,
		r.Weathers)
	t.Logf("first attempts were late by %s in the median, %s at p99", r.lateness(0.5), r.lateness(0.99))
	save(t, r.Traces)
	coverage(t, r)
}

// coverage prints how often which fault struck where, and fails if one never did.
func coverage(t *testing.T, r report) {
	t.Helper()
	n := map[Hit]int{}
	for _, h := range r.Hits {
		n[h.Hit] = h.N
	}
	var never []string
	var text strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&text, "%-24s", op.Port+"."+op.Name)
		for _, k := range op.Class.kinds() {
			h := Hit{op.Port, op.Name, k}
			fmt.Fprintf(&text, "  %s %d", k, n[h])
			if n[h] == 0 {
				never = append(never, fmt.Sprintf("%s at %s.%s", k, op.Port, op.Name))
			}
			delete(n, h)
		}
		text.WriteByte('\n')
	}
	for _, h := range slices.SortedFunc(maps.Keys(n), func(a, b Hit) int { return strings.Compare(string(a.Kind)+a.Op, string(b.Kind)+b.Op) }) {
		fmt.Fprintf(&text, "%-24s  %d\n", string(h.Kind)+" "+h.Op, n[h])
	}
	t.Logf("fault points:\n%s", text.String())
	if len(never) > 0 && r.Seeds >= 300 {
		t.Errorf("%d fault points were never hit: %s", len(never), strings.Join(never, ", "))
	}
}

func TestEveryBrokenVariantIsCaught(t *testing.T) {
	if testing.Short() || *child != "" || *replay != "" {
		t.Skip("takes minutes, or is a child")
	}
	work := make(chan *Variant)
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for v := range work {
				r := runChild(t, 1, variantSeeds, v.Name)
				if len(r.Traces) == 0 {
					t.Errorf("not caught within %d seeds: %s", variantSeeds, v.Name)
					continue
				}
				t.Logf("caught by seed %3d: %-55s %s", r.Traces[0].Seed, v.Name, r.Traces[0].Violations[0])
			}
		})
	}
	for _, v := range Variants() {
		work <- v
	}
	close(work)
	wg.Wait()
}

// TestReplayedTraceBreaksTheSameInvariant replays what caught some variants.
func TestReplayedTraceBreaksTheSameInvariant(t *testing.T) {
	if testing.Short() || *child != "" || *replay != "" {
		t.Skip("takes minutes, or is a child")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const runs, wanted = 20, 19
	for _, v := range Variants() {
		trace := runChild(t, 1, variantSeeds, v.Name).Traces
		if len(trace) == 0 {
			t.Errorf("not caught: %s", v.Name)
			continue
		}
		same := 0
		for range runs {
			if broken(Run(t, trace[0].Seed, v, trace[0].Faults).Violations) == brokenIn(trace[0].Violations) {
				same++
			}
		}
		t.Logf("%d of %d replays of seed %d break it again: %s", same, runs, trace[0].Seed, v.Name)
		if same < wanted {
			t.Errorf("%d of %d replays of seed %d break an invariant again: %s", same, runs, trace[0].Seed, v.Name)
		}
	}
}

// broken is the first invariant that was broken.
func broken(list []ledger.Violation) string {
	if len(list) == 0 {
		return ""
	}
	return list[0].Invariant
}

func brokenIn(list []string) string {
	invariant, _, _ := strings.Cut(list[0], " ")
	return invariant
}

// TestReplay replays the trace of -sim.replay and prints its timeline.
func TestReplay(t *testing.T) {
	if *replay == "" {
		return
	}
	runtime.GOMAXPROCS(1)
	var trace Trace
	text, err := os.ReadFile(*replay)
	if err == nil {
		err = json.Unmarshal(text, &trace)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := Run(t, trace.Seed, VariantOf(trace.Variant), trace.Faults)
	r.Timeline(os.Stdout)
	if len(r.Violations) == 0 {
		t.Error("no invariant was broken this time")
	}
}

// TestWhatOnlyCostsLateness measures by how much.
func TestWhatOnlyCostsLateness(t *testing.T) {
	if testing.Short() || *child != "" || *replay != "" {
		t.Skip("takes minutes, or is a child")
	}
	const count = 50
	for _, name := range []string{"", "removed from due before it is published", "the horizon is published after the read"} {
		r := runChild(t, 1, count, name)
		t.Logf("%-42q late by %s in the median, %s at p90, %s at p99, %s at most", name, r.lateness(0.5), r.lateness(0.9), r.lateness(0.99),
			r.lateness(1))
		save(t, r.Traces)
	}
}
