// Command bench measures Minutehand in one process on this machine, alongside a bare net/http client that posts to the same
// sink in the same run. It measures a stampede, a steady load, registration over HTTP one by one and in batches, dispatch
// without the network, the cost of jobs at rest, and a start with many overdue jobs. Sink, bare client, load generator and
// Minutehand are separate processes; CPU is counted for the minutehand process alone. With -servers it measures the
// services on the real servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sort"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sink := flag.Bool("sink", false, "be the sink (used by bench itself)")
	bare := flag.String("bare", "", "be the bare client of this URL (used by bench itself)")
	binary := flag.String("minutehand", ".bin/minutehand", "the binary to measure")
	fires := flag.Int("fires", 50_000, "webhooks of the stampede")
	steady := flag.Duration("steady", 20*time.Second, "how long the steady load lasts")
	rounds := flag.Int("rounds", 5, "how often each measurement is made; the median is told")
	rest := flag.Int("rest", 1_000_000, "jobs at rest beside which stampede and steady load are measured again; 0 leaves that out")
	late := flag.Int("overdue", 1_000_000, "entries overdue when the process starts; 0 leaves that out")
	inner := flag.Bool("inner", false, "dispatch without the network and print the fires per second (used by bench itself)")
	servers := flag.Bool("servers", false, "measure the services on the real servers that infra/local started, instead of one process")
	sizes := flag.String("stampedes", "", "measure only stampedes of these sizes, such as 50000,200000, each alone and beside a target that hangs")
	recurring := flag.Bool("recurring", false, "with -stampedes and -ladder: recurring jobs instead of one-shots")
	least := flag.Float64("least", 0, "with -stampedes: fail if fires per second are less than so many of a bare client's requests")
	costs := flag.String("costs", "", "measure what fires cost on the real servers, and write it to this file, for minutehand capacity")
	onlyBytesOf := flag.Bool("only-bytes", false, "with -costs: measure only what things take, and leave the rest of the file as it is")
	rates := flag.String("ladder", "", "measure what all processes use together on the real servers at these rates, such as 0,500,2000, and at the maximum")
	asked := flag.Bool("requests", false, "measure what registrations and reads use on the real servers, and how long they take beside fires")
	last := flag.Duration("last", 3*time.Minute, "with -ladder and -precision: how long each rate lasts")
	rungs := rungFlags(last)
	tiers := flag.Bool("precision", false, "measure how late jobs of each precision are called, -last each, in one process or with -servers on the servers")
	filled := flag.Int("backfill", 0, "measure how late a steady load is called beside a backfill of so many occurrences, in one process or with -servers on the servers")
	tasks := flag.Int("tasks", 0, "measure what tasks of a pool cost, so many due at one instant, and how long one waits, in one process or with -servers on the servers")
	beWorkers := flag.String("workers", "", "complete tasks at this address (used by bench itself)")
	soaks := flag.Duration("soak", 0, "fire 300/s on the real servers for so long, and fail if memory or disk does not level off; built with the tag soak")
	long := flag.Int("calls", 0, "measure so many calls at once over TLS to 1,000 hosts, each of two seconds, in one process or with -servers on the servers")
	beHosts := flag.String("hosts", "", "be these hosts, and keep their CA in this folder (used by bench itself)")
	timers := flag.String("timers", "", "post to this URL at instants (used by bench itself)")
	flag.Parse()
	part, err := bePart(ctx, *sink, *inner, *bare, *beHosts, *timers, *beWorkers, *fires)
	switch {
	case part:
	case *tiers:
		err = precision(ctx, *binary, *servers, *last)
	case *filled > 0:
		err = backfills(ctx, *binary, *servers, *filled)
	case *tasks > 0:
		err = pooled(ctx, *binary, *servers, *tasks, *rounds)
	case *soaks > 0:
		err = soak(ctx, *soaks)
	case *long > 0:
		err = calls(ctx, *binary, *servers, *long)
	case *rates != "":
		err = ladder(ctx, rungs(*rates, *recurring))
	case *asked:
		err = requests(ctx, rungs("", false).partitions)
	case *costs != "":
		err = costsTo(ctx, *costs, *onlyBytesOf)
	case *sizes != "":
		err = stampedes(ctx, *binary, *sizes, *servers, *recurring, *least)
	case *servers:
		err = runOnServers(ctx, *rounds, *rest, *steady)
	default:
		err = run(ctx, *binary, *fires, *steady, *rounds, *rest, *late)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bePart is what bench starts beside itself, if that is asked for.
func bePart(ctx context.Context, sink, inner bool, bare, hosts, timers, workers string, fires int) (asked bool, err error) {
	switch {
	case sink:
		return true, runSink(ctx)
	case inner:
		return true, runInner(ctx, fires)
	case bare != "":
		return true, runBare(ctx, bare, fires)
	case hosts != "":
		return true, runHosts(ctx, hosts)
	case timers != "":
		return true, runTimers(ctx, timers, fires)
	case workers != "":
		return true, runWorkers(ctx, workers, fires)
	}
	return false, nil
}

// samples are the results of some rounds.
type samples []float64

// median returns the middle one of an odd number, or the mean of the middle two of an even one; there is at least one.
func (s samples) median() float64 {
	sort.Float64s(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// String returns the median and the spread.
func (s samples) String() string {
	if len(s) == 0 {
		return "-"
	}
	median := s.median()
	return fmt.Sprintf("%.4g (%.4g … %.4g)", median, s[0], s[len(s)-1])
}

// results is everything that is measured.
type results struct {
	bare, stampede, cpu          samples
	settle, history, archive     samples
	p50, p99, early              samples
	register, registerCPU, batch samples
	inner                        samples
	// ratio is what the bare client's requests per second are divided into, in the same round.
	ratio struct{ stampede, register, batch, inner samples }
}

func run(ctx context.Context, binary string, fires int, steady time.Duration, rounds, rest, late int) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var r results
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		rate, err := bareRate(ctx, target, fires)
		if err != nil {
			return err
		}
		r.bare = append(r.bare, rate)
		if err := measure(ctx, &r, binary, target, fires, steady); err != nil {
			return err
		}
		inner, err := innerRate(ctx, fires)
		if err != nil {
			return err
		}
		r.inner = append(r.inner, inner)
		for _, of := range []struct{ all, ratio *samples }{
			{&r.stampede, &r.ratio.stampede}, {&r.register, &r.ratio.register}, {&r.batch, &r.ratio.batch}, {&r.inner, &r.ratio.inner},
		} {
			*of.ratio = append(*of.ratio, (*of.all)[round]/rate)
		}
	}
	if rounds > 0 {
		r.print(fires, steady, rounds)
	}
	if rest > 0 {
		if err := atRest(ctx, binary, target, fires, steady, rest); err != nil {
			return err
		}
	}
	if late > 0 {
		return overdue(ctx, binary, target, late)
	}
	return nil
}

func (r *results) print(fires int, steady time.Duration, rounds int) {
	fmt.Printf("%d cores, %s; median of %d rounds (least … greatest)\n\n", runtime.NumCPU(), memory(), rounds)
	fmt.Printf("| measured | value |\n|---|---|\n")
	row := func(name string, s samples, unit string) { fmt.Printf("| %s | %s %s |\n", name, s, unit) }
	row("bare net/http client, 256 in flight", r.bare, "requests/s")
	row(fmt.Sprintf("stampede of %d webhooks due at one instant", fires), r.stampede, "fires/s")
	row("… as a share of the bare client", r.ratio.stampede, "")
	row("CPU of the minutehand process per 1,000 fires", r.cpu, "s")
	row("records still before the settlers when the last webhook arrived", r.settle, "")
	row("… before the history", r.history, "")
	row("… not yet in a Parquet object (one is put every 60 s)", r.archive, "")
	row(fmt.Sprintf("steady %d/s for %s: lateness p50", steadyRate, steady), r.p50, "ms")
	row("… p99", r.p99, "ms")
	row("… early", r.early, "")
	row("registration over HTTP, 32 clients, one job each request", r.register, "jobs/s")
	row("… as a share of the bare client", r.ratio.register, "")
	row("… CPU of the minutehand process per 1,000", r.registerCPU, "s")
	row("registration over HTTP, 8 clients, batches of 1,000", r.batch, "jobs/s")
	row("… as a share of the bare client", r.ratio.batch, "")
	row("dispatch through log, lease, history and archive, the call alone left out", r.inner, "fires/s")
	row("… as a share of the bare client", r.ratio.inner, "")
}

// memory returns the machine's memory, to describe the machine in the report.
func memory() string {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "unknown memory"
	}
	var kb int64
	if _, err := fmt.Sscanf(strings.SplitN(string(text), "\n", 2)[0], "MemTotal: %d kB", &kb); err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%d GiB", (kb+1<<19)>>20)
}

// self starts this program again in another role.
func self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// bareRate returns how many requests a second a bare client makes.
func bareRate(ctx context.Context, target string, fires int) (float64, error) {
	c, err := bareCost(ctx, target, fires)
	return c.rate, err
}
