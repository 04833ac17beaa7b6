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
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

var (
	seeds        = flag.Int("sim.seeds", 150, "how many seeds to run")
	first0       = flag.Uint64("sim.first", 1, "the first seed")
	folder       = flag.String("sim.traces", "", "where the traces of runs that break an invariant are saved (a temporary folder)")
	withVariants = flag.String("sim.variants", "", "show that every broken variant is caught: from its recorded seed on (quick), or from the first, with replays (all)")
	replays      = flag.Int("sim.replays", 0, "used by the test itself: how often a child replays the first trace")
	replay       = flag.String("sim.replay", "", "a trace to replay; its timeline is printed")
	// A child is one of several processes that share the seeds. Each runs on one processor, so that a seed always runs
	// alike.
	child   = flag.String("sim.child", "", "used by the test itself: where a child writes its report")
	variant = flag.String("sim.variant", "", "used by the test itself: the variant that a child runs, until it is caught")
)

// variantSeeds is the number of seeds within which a variant must be caught.
const variantSeeds = 500

// variantReplays is how often its trace is then replayed.
const variantReplays = 20

// report is a child's report.
type report struct {
	Seeds, Jobs, Calls, Events, Faults int
	Occurrences, Excused               int
	Weathers                           map[string]int
	Hits                               []hits
	// Lateness counts first attempts by lateness in milliseconds; Calm does so for Result.Calm.
	Lateness, Calm lateness
	Seen           map[string]int
	Traces         []Trace
	// Again is in how many replays the trace of a variant broke the same invariant.
	Again int
}

type hits struct {
	Hit
	N int `json:"n"`
}

// TestChild runs a child's share.
func TestChild(t *testing.T) {
	if *child == "" {
		return
	}
	total := report{Weathers: map[string]int{}, Lateness: lateness{}, Calm: lateness{}, Seen: map[string]int{}}
	struck := map[Hit]int{}
	v := VariantOf(*variant)
	prepare(t)
	for i := range *seeds {
		r := alike(t, *first0+uint64(i), v, nil)
		total.Seeds++
		total.Weathers[r.Weather]++
		total.Jobs, total.Calls, total.Events = total.Jobs+r.Jobs, total.Calls+r.Calls, total.Events+r.Events
		total.Occurrences, total.Excused = total.Occurrences+r.Occurrences, total.Excused+r.Excused
		total.Faults += len(r.Struck)
		for h, n := range r.Hits {
			struck[h] += n
		}
		for what, n := range r.Seen {
			total.Seen[what] += n
		}
		total.Lateness.add(r.Lateness)
		total.Calm.add(r.Calm)
		if len(r.Violations) > 0 {
			saveTimeline(t, r)
			if total.Traces = append(total.Traces, r.Trace(v)); len(total.Traces) >= maxTraces || *replays > 0 {
				break
			}
		}
	}
	for h, n := range struck {
		total.Hits = append(total.Hits, hits{h, n})
	}
	if len(total.Traces) > 0 {
		for range *replays {
			if breaksAgain(alike(t, total.Traces[0].Seed, v, total.Traces[0].Faults), total.Traces[0]) {
				total.Again++
			}
		}
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
	if err := os.MkdirAll(*folder, 0o750); err != nil {
		t.Fatal(err)
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

// alike runs a seed as it always runs when the test is built with the overlay of ./steady: no garbage collection
// interferes, and what is pooled or made once exists before the run.
func alike(t *testing.T, seed uint64, v *Variant, replay []Fault) *Result {
	t.Helper()
	runtime.GC()
	runtime.GC() // the first collection leaves pooled objects to the second
	return Run(t, seed, v, replay)
}

// prepare puts a process into a state in which runs are alike.
func prepare(t *testing.T) {
	t.Helper()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	for _, seed := range []uint64{6, 13} { // of the weather that has every fault
		alike(t, seed, nil, nil)
	}
}

// maxTraces bounds the traces that a child saves.
const maxTraces = 10

// runChild runs seeds in a child process. If again is set, it stops at the first seed that breaks an invariant, and replays
// that seed's trace again times.
func runChild(t *testing.T, first uint64, count int, v string, again int) report {
	t.Helper()
	out := filepath.Join(t.TempDir(), fmt.Sprintf("report-%d.json", first))
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.timeout=90m", "-sim.child="+out,
		fmt.Sprintf("-sim.first=%d", first), fmt.Sprintf("-sim.seeds=%d", count), "-sim.variant="+v,
		fmt.Sprintf("-sim.replays=%d", again))
	if v == "" {
		c.Args = append(c.Args, "-sim.traces="+*folder)
	}
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

// runAll distributes seeds over as many children as there are processors.
func runAll(t *testing.T, first uint64, count int, v string) report {
	t.Helper()
	chunk := min(50, (count+runtime.NumCPU()-1)/runtime.NumCPU()) // the seeds of one child
	total := report{Weathers: map[string]int{}, Lateness: lateness{}, Calm: lateness{}, Seen: map[string]int{}}
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
				r := runChild(t, first+uint64(from), min(chunk, count-from), v, 0)
				mu.Lock()
				total.Seeds, total.Jobs = total.Seeds+r.Seeds, total.Jobs+r.Jobs
				total.Calls, total.Events, total.Faults = total.Calls+r.Calls, total.Events+r.Events, total.Faults+r.Faults
				total.Occurrences, total.Excused = total.Occurrences+r.Occurrences, total.Excused+r.Excused
				for w, n := range r.Weathers {
					total.Weathers[w] += n
				}
				for _, h := range r.Hits {
					struck[h.Hit] += h.N
				}
				total.Lateness.merge(r.Lateness)
				total.Calm.merge(r.Calm)
				for what, n := range r.Seen {
					total.Seen[what] += n
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

// lateness counts calls by how many milliseconds late they were.
type lateness map[int64]int

func (l lateness) add(late []time.Duration) {
	for _, d := range late {
		l[d.Milliseconds()]++
	}
}

func (l lateness) merge(other lateness) {
	for ms, n := range other {
		l[ms] += n
	}
}

func (l lateness) quantile(q float64) time.Duration {
	n := 0
	for _, k := range l {
		n += k
	}
	rank := int(q * float64(n-1))
	for _, ms := range slices.Sorted(maps.Keys(l)) {
		if rank -= l[ms]; rank < 0 {
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
	t.Logf("first attempts were late by %s in the median, %s at p99", r.Lateness.quantile(0.5), r.Lateness.quantile(0.99))
	t.Logf("%d of %d occurrences were excused from having exactly one disposition", r.Excused, r.Occurrences)
	save(t, r.Traces)
	coverage(t, r)
	if r.Seeds < sometimesSeeds {
		return
	}
	most := mostExcused
	if r.Seeds < steadySeeds {
		most = mostExcusedOfFew
	}
	if float64(r.Excused) > most*float64(r.Occurrences) {
		t.Errorf("more than %.0f %% of the occurrences are excused", 100*most)
	}
	t.Logf("in calm weather healthy targets were called %s late at p99", r.Calm.quantile(0.99))
	if late := r.Calm.quantile(0.99); len(r.Calm) == 0 || late > mostCalm {
		t.Errorf("in calm weather healthy targets were called %s late at p99, at most %s is allowed", late, mostCalm)
	}
	for _, what := range sometimes {
		t.Logf("%-60s %d", what, r.Seen[what])
		if r.Seen[what] == 0 {
			t.Errorf("in no run: %s", what)
		}
	}
}

// mostExcused is the share of occurrences that may be excused over steadySeeds or more. With fewer seeds the share varies
// with their weather (from 8 to 11 % for 500 seeds), so a little more is allowed; make release asks for 2,500 at a time.
const (
	mostExcused, mostExcusedOfFew = 0.11, 0.14
	steadySeeds                   = 1000
)

// sometimesSeeds is the number of seeds from which everything in sometimes must have happened.
const sometimesSeeds = 150

// mostCalm bounds the p99 of the lateness in calm weather.
const mostCalm = 100 * time.Millisecond

// coverageSeeds is the number of seeds from which every fault point must be hit. One seed in three hundred aims at rare
// calls, and with fewer seeds chance leaves some of them out.
const coverageSeeds = 3000

// coverage prints which faults struck where, and how often. It fails if one never did.
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
	switch {
	case len(never) > 0 && r.Seeds >= coverageSeeds:
		t.Errorf("%d fault points were never hit: %s", len(never), strings.Join(never, ", "))
	case len(never) > 0:
		t.Logf("%d fault points were not hit by so few seeds: %s", len(never), strings.Join(never, ", "))
	}
}

// TestBrokenVariantsAreCaughtAndTheirTracesBreakThemAgain shows that the simulation notices broken code, and that what it
// saves is enough to see the violation again.
func TestBrokenVariantsAreCaughtAndTheirTracesBreakThemAgain(t *testing.T) {
	if *withVariants == "" {
		t.Skip("it is run by make sim-variants, without the race detector, which sees what there is to see in the seeds")
	}
	replays := 1
	if *withVariants == "all" {
		replays = variantReplays
	}
	work := make(chan *Variant)
	var caught atomic.Int32
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for v := range work {
				first := uint64(1)
				if *withVariants == "quick" {
					first = max(v.Seed, 1)
				}
				r := runChild(t, first, variantSeeds, v.Name, replays)
				if len(r.Traces) == 0 {
					t.Errorf("%-52s NOT CAUGHT within %d seeds", v.Name, variantSeeds)
					continue
				}
				caught.Add(1)
				t.Logf("%-52s caught by seed %d, again in %d of %d replays: %s", v.Name, r.Traces[0].Seed, r.Again, replays,
					r.Traces[0].Violations[0])
				if r.Again*20 < replays*19 {
					t.Errorf("%s: the trace does not break it again", v.Name)
				}
			}
		})
	}
	for _, v := range Variants() {
		work <- v
	}
	close(work)
	wg.Wait()
	t.Logf("%d of %d variants were caught", caught.Load(), len(Variants()))
}

// breaksAgain reports whether a run broke the first invariant of the trace.
func breaksAgain(r *Result, t Trace) bool {
	invariant, _, _ := strings.Cut(t.Violations[0], " ")
	return slices.ContainsFunc(r.Violations, func(v ledger.Violation) bool { return v.Invariant == invariant })
}

// TestReplay replays the trace of -sim.replay and prints its timeline.
func TestReplay(t *testing.T) {
	if *replay == "" {
		return
	}
	var trace Trace
	text, err := os.ReadFile(*replay)
	if err == nil {
		err = json.Unmarshal(text, &trace)
	}
	if err != nil {
		t.Fatal(err)
	}
	prepare(t)
	r := alike(t, trace.Seed, VariantOf(trace.Variant), trace.Faults)
	r.Timeline(os.Stdout)
	if len(r.Violations) == 0 {
		t.Error("no invariant was broken this time")
	}
}

// TestWhatOnlyCostsLateness measures how much lateness it costs.
func TestWhatOnlyCostsLateness(t *testing.T) {
	if *withVariants != "all" {
		t.Skip("it is run by make sim-variants-all")
	}
	const count = 50
	for _, name := range []string{"", "removed from due before it is published", "the horizon is published after the read"} {
		r := runChild(t, 1, count, name, 0)
		t.Logf("%-42q late by %s in the median, %s at p90, %s at p99, %s at most; %d of %d runs broke an invariant", name, r.Lateness.quantile(0.5),
			r.Lateness.quantile(0.9), r.Lateness.quantile(0.99), r.Lateness.quantile(1), len(r.Traces), count)
	}
}
