package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

// The ladder: what all processes use together from idle to the maximum, in b, which is the CPU that a bare net/http client and the
// sink use together for one request with a webhook's headers and body.
const (
	ladderKB = 0.25
	// ladderBare is how many requests are made to measure b, before each installation and after it.
	ladderBare = 50_000
	// atOnce is the name of the last step.
	atOnce = "maximum"
)

// step is one load of the ladder: what each process used per second while it lasted and was followed up, and how late it was.
type step struct {
	name  string
	fires int
	// took is how long the load and what follows it were watched.
	took time.Duration
	cpu  map[string]float64 // seconds
	late lateness
	rate float64
}

// rung is what a ladder is asked for.
type rung struct {
	rates              string
	partitions, copies int
	// burst are due at one instant, which is the ladder's last step.
	burst        int
	last, settle time.Duration
	recurring    bool
}

// rungFlags defines the flags of -ladder, and returns what makes a rung of them.
func rungFlags(last *time.Duration) func(rates string, recurring bool) rung {
	partitions := flag.Int("partitions", bucket.DefaultPartitions, "with -ladder: the installation's partition count")
	burst := flag.Int("burst", 100_000, "with -ladder: how many are due at one instant in its last step")
	copies := flag.Int("copies", 1, "with -ladder: how many scheduler-workers and executors there are")
	settle := flag.Duration("settle", 7*time.Minute, "with -ladder: how long what follows is counted, until buckets are closed")
	return func(rates string, recurring bool) rung {
		return rung{rates, *partitions, *copies, *burst, *last, *settle, recurring}
	}
}

// startFleet starts one process of each service, and as many workers and executors as were asked for.
func (r *rung) startFleet(ctx context.Context, b *onServers) error {
	if err := b.fleet.StartAll(ctx, 1); err != nil {
		return err
	}
	for n := 1; n < r.copies; n++ {
		for _, service := range []string{"scheduler-worker", "executor"} {
			m, err := b.fleet.Start(service, n)
			if err == nil {
				err = m.AwaitReady(ctx)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ladder measures the loads of some rates, each for a while and until its history is written, and prints one table.
func ladder(ctx context.Context, r rung) error {
	target, _, stopSink, err := startSink(ctx)
	if err != nil {
		return err
	}
	defer stopSink()
	var steps []step
	before, err := bareCost(ctx, target, ladderBare)
	if err != nil {
		return err
	}
	err = withInstallation(ctx, target, r.partitions, func(b *onServers) error {
		b.fleet.Variables = append(b.fleet.Variables, "MINUTEHAND_ARCHIVE_CLOSE_AFTER=10s")
		if err := r.startFleet(ctx, b); err != nil {
			return err
		}
		l := sizing.Load{FiresPerSecond: highRate, PayloadKB: ladderKB}
		for range warmUps {
			if _, err := b.load(ctx, l); err != nil {
				return err
			}
		}
		for text := range strings.SplitSeq(r.rates, ",") {
			rate, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			s, err := b.step(ctx, rate, r.last, r.settle, r.recurring)
			if err != nil {
				return fmt.Errorf("%d/s: %w", rate, err)
			}
			steps = append(steps, s)
		}
		s, err := b.stepAtOnce(ctx, r)
		steps = append(steps, s)
		return err
	})
	if err != nil {
		return err
	}
	after, err := bareCost(ctx, target, ladderBare)
	if err != nil {
		return err
	}
	printLadder(steps, r, samples{before.cpu * 1e6, after.cpu * 1e6}, samples{before.rate, after.rate})
	return nil
}

// watched runs a load and returns what each process used from its begin until settle after its end.
func (b *onServers) watched(ctx context.Context, s *step, settle time.Duration, from time.Time) error {
	time.Sleep(time.Until(from.Add(-time.Second))) // for what is read ahead
	before, err := b.usage()
	if err != nil {
		return err
	}
	began := time.Now()
	t := tally{}
	if s.fires > 0 {
		if t, err = b.api().await(ctx, b.target, s.fires); err != nil {
			return err
		}
		if err := b.quiet(ctx); err != nil {
			return err
		}
		s.rate = float64(s.fires) / t.Last.Sub(from).Seconds()
	}
	time.Sleep(settle)
	after, err := b.usage()
	if err != nil {
		return err
	}
	s.took, s.cpu = time.Since(began), map[string]float64{}
	for name, used := range after {
		s.cpu[name] = used - before[name]
	}
	if s.fires == 0 {
		return nil
	}
	if t, err = b.api().tally(ctx, b.target, true); err != nil {
		return err
	}
	if t.Early > 0 || t.Doubled > 0 || t.Count != s.fires {
		err = fmt.Errorf("%d of %d were called, %d early, %d twice", t.Count, s.fires, t.Early, t.Doubled)
	}
	if err := b.tellLatest(ctx, s, t.Latest); err != nil {
		return err
	}
	slices.Sort(t.Late)
	if err := b.tellPutBack(ctx, s, t.Late); err != nil {
		return err
	}
	s.late = lateness{float64(t.Late[len(t.Late)/2]) / 1000, float64(t.Late[len(t.Late)*99/100]) / 1000}
	return err
}

// tellPutBack prints how many calls were over five seconds late, with the counters that may explain it.
func (b *onServers) tellPutBack(ctx context.Context, s *step, late []int64) error {
	from, _ := slices.BinarySearch(late, (5 * time.Second).Microseconds())
	if s.name == atOnce || from == len(late) {
		return nil
	}
	fmt.Fprintf(os.Stderr, "%d calls were more than 5 s late\n", len(late)-from)
	for _, m := range b.fleet.Members {
		values, err := (&process{api: "http://" + m.Admin, client: b.client}).metrics(ctx)
		if err != nil {
			return err
		}
		for _, name := range []string{
			"minutehand_job_api_missed_write_throughs_total", "minutehand_bucket_loader_put_back_entries_total", "minutehand_scheduler_worker_abandoned_total",
			"minutehand_executor_deferred_total",
		} {
			if n, there := values[name]; there {
				fmt.Fprintf(os.Stderr, "%s: %s %v\n", m, name, n)
			}
		}
	}
	return nil
}

// tellLatest tells of the execution that was called latest when it passed each service, if the load was not a stampede.
func (b *onServers) tellLatest(ctx context.Context, s *step, latest string) error {
	if s.name == atOnce || latest == "" {
		return nil
	}
	events, err := b.ports.History.Execution(ctx, latest)
	for _, e := range events {
		at, tl := e.Entry.ScheduledFor, e.Outcome.Timeline
		fmt.Fprintf(os.Stderr, "the latest, %s: taken %s, published %s, consumed %s, invoked %s after its instant\n", latest, tl.Taken.Sub(at),
			tl.Published.Sub(at), tl.Consumed.Sub(at), tl.Invoked.Sub(at))
	}
	for _, m := range b.fleet.Members {
		text, err := os.ReadFile(m.Log)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s", text[:min(len(text), 2000)]) // warnings, if there were any
	}
	return err
}

func (b *onServers) step(ctx context.Context, rate int, last, settle time.Duration, recurring bool) (s step, err error) {
	fmt.Fprintf(os.Stderr, "%d/s for %s\n", rate, last)
	if err := b.api().reset(ctx, b.target); err != nil {
		return s, err
	}
	s = step{name: fmt.Sprintf("%d/s", rate), fires: rate * int(last.Seconds())}
	l := sizing.Load{FiresPerSecond: float64(rate), PayloadKB: ladderKB}
	from := time.Now().Add(2 * time.Second)
	if rate > 0 {
		from = time.Now().Add(10*time.Second + time.Duration(s.fires)*time.Millisecond)
		if recurring {
			l.Recurring = 1
			from = time.Now().Add(10*time.Second + time.Duration(rate)*time.Millisecond)
		}
		if err := b.registerFor(ctx, l, from, last); err != nil {
			return s, err
		}
		if time.Now().After(from.Add(-2 * time.Second)) {
			return s, errors.New("registration took longer than planned for")
		}
	} else {
		settle += last
	}
	return s, b.watched(ctx, &s, settle, from)
}

// stepAtOnce is the ladder's last step, a stampede.
func (b *onServers) stepAtOnce(ctx context.Context, r rung) (s step, err error) {
	if err := b.api().reset(ctx, b.target); err != nil {
		return s, err
	}
	s = step{name: atOnce, fires: r.burst}
	from := time.Now().Add(20*time.Second + time.Duration(r.burst)*time.Millisecond).Truncate(time.Second)
	jobs := make([]map[string]any, r.burst)
	body := text(ladderKB)
	for i := range jobs {
		jobs[i] = map[string]any{
			"name": "bench", "type": "one_shot", "run_at": from.UTC().Format("2006-01-02T15:04:05.000Z"),
			"target": map[string]any{"kind": "http_webhook", "url": b.target + "/hook", "body": map[string]any{"text": body}},
		}
		if r.recurring {
			delete(jobs[i], "run_at")
			jobs[i]["type"], jobs[i]["every"] = "interval", "1h"
			jobs[i]["start_at"] = from.UTC().Format("2006-01-02T15:04:05.000Z")
		}
	}
	if err := b.api().registerJobs(ctx, jobs); err != nil {
		return s, err
	}
	if time.Now().After(from.Add(-2 * time.Second)) {
		return s, errors.New("registration took longer than planned for")
	}
	return s, b.watched(ctx, &s, r.settle, from)
}

// bare is what a request of a bare client costs: CPU seconds of the client and the sink.
type bare struct{ rate, cpu float64 }

func bareCost(ctx context.Context, target string, n int) (c bare, err error) {
	spent := func() (s float64, err error) {
		text, err := (&process{client: http.DefaultClient}).get(ctx, target+"/cpu")
		if err != nil {
			return 0, err
		}
		return s, json.Unmarshal(text, &s)
	}
	before, err := spent()
	if err != nil {
		return c, err
	}
	cmd, err := self(ctx, "-bare", target+"/hook", "-fires", strconv.Itoa(n))
	if err != nil {
		return c, err
	}
	out, err := cmd.Output()
	if err != nil {
		return c, errors.Join(errors.New("bare client"), err)
	}
	if _, err := fmt.Sscan(string(out), &c.rate); err != nil {
		return c, err
	}
	after, err := spent()
	c.cpu = (after - before + (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()) / float64(n)
	return c, err
}

// table is what is printed of the ladder.
type table struct {
	steps []step
	// idle is what each process uses in a second when nothing fires.
	idle map[string]float64
}

// shape describes the machine, and what shares it.
func shape() string {
	return fmt.Sprintf("%d cores, %s, shared by the servers, the sink, the load generator and one process of each service", runtime.NumCPU(), memory())
}

// counts reports whether a process belongs to the whole: all but what only measures.
func counts(name string) bool { return name != wholeMachine && name != "load generator" }

// printLadder prints a row for each process, in µs for a fire (or in ms for a second when nothing fires), and the sums in b.
func printLadder(steps []step, r rung, b, rate samples) {
	fmt.Printf("%s (%d of scheduler-worker and executor); %d partitions\n", shape(), r.copies, r.partitions)
	fmt.Printf("b, the CPU of a bare request and its answer: %s µs, before and after; %s requests/s\n\n", b, rate)
	t := table{steps, map[string]float64{}}
	head, line := "| µs of CPU per fire |", "|---|"
	for _, s := range steps {
		line += "---|"
		if s.fires > 0 {
			head += " " + s.name + " | … less idle |"
			line += "---|"
			continue
		}
		head += " idle, ms per second |"
		for name, used := range s.cpu {
			t.idle[name] = used / s.took.Seconds()
		}
	}
	fmt.Println(head + "\n" + line)
	for _, name := range slices.Sorted(maps.Keys(steps[0].cpu)) {
		if counts(name) {
			t.row(name, "%.0f", 1e6, func(cpu map[string]float64) float64 { return cpu[name] })
		}
	}
	t.row("**in all**", "%.0f", 1e6, sum)
	t.row("**in b**", "**%.1f**", 1e6/b.median(), sum)
	for _, s := range steps {
		if s.fires > 0 {
			fmt.Printf("\n%s: %d fires at %.0f/s, watched for %.0f s; lateness p50 %.1f ms, p99 %.1f ms; the whole machine used %.0f µs per fire.",
				s.name, s.fires, s.rate, s.took.Seconds(), s.late.p50, s.late.p99, s.cpu[wholeMachine]/float64(s.fires)*1e6)
		}
	}
	fmt.Println()
}

// sum returns what all processes that count used.
func sum(cpu map[string]float64) (all float64) {
	for name, used := range cpu {
		if counts(name) {
			all += used
		}
	}
	return all
}

// row prints what some of the processes used for a fire, in a unit of which a second has so many.
func (t *table) row(label, format string, units float64, of func(cpu map[string]float64) float64) {
	text := "| " + label + " |"
	for _, s := range t.steps {
		used := of(s.cpu)
		if s.fires == 0 {
			text += fmt.Sprintf(" %.1f |", used/s.took.Seconds()*1000)
			continue
		}
		less := used - of(t.idle)*s.took.Seconds()
		text += fmt.Sprintf(" "+format+" | "+format+" |", used/float64(s.fires)*units, less/float64(s.fires)*units)
	}
	fmt.Println(text)
}
