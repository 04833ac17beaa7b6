package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// Bounds on the cost of a target that never answers.
const (
	// latenessFloor is a p99 that is good whatever it was alone: a tenth of what is promised (services/README.md, "Figures
	// that are promised"). Alone it is 1.4 ms on two quiet cores, mostly the granularity of timers. Twice that is within
	// what the machine's own scheduling adds when it is not quiet.
	latenessFloor = 5 * time.Millisecond
	// latenessPromise is the promised p99 (services/README.md, "Figures that are promised"): it holds over the whole window,
	// whatever any second of it was like.
	latenessPromise = 50 * time.Millisecond
	// heldUp is a lateness that no machine's noise causes in most seconds. A call queued behind calls that hang is late by
	// their timeout.
	heldUp = time.Second
	// memoryBound bounds the whole process at its peak, with everything that was registered.
	memoryBound = 512 << 20
	// committedWithin bounds how long a fire stays behind the committed position: at most 5 s in its host's queue, 5 s of
	// timeout, and then a tick, a commit and a sample.
	committedWithin = 12 * time.Second
)

// load is one part of the test: steady calls to the healthy target, and others alongside.
type load struct {
	path   string // of the healthy target
	from   time.Time
	window time.Duration
	others int
	other  func(at time.Time) map[string]any
}

// healthyRate is how many calls a second the healthy target gets.
const healthyRate = 200

func (l *load) healthy() int { return int(l.window.Seconds() * healthyRate) }

func (l *load) register(p *process.Process, healthy *process.Sink) {
	spread := func(i, n int) time.Time { return l.from.Add(l.window * time.Duration(i) / time.Duration(n)) }
	p.Register(l.healthy(), func(i int) map[string]any {
		return process.Once(healthy.URL+l.path, spread(i, l.healthy()), nil)
	})
	p.Register(l.others, func(i int) map[string]any { return l.other(spread(i, l.others)) })
}

func TestTargetThatNeverAnswersHoldsUpNothingElse(t *testing.T) {
	const (
		pause = 2 * time.Second
		short = 8 * time.Second
		rate  = 500 // a second, to the target that never answers
	)
	ahead := sized(10*time.Second, 25*time.Second) // longer than the registration takes
	long := sized(short, 20*time.Second)
	fires := rate * int(long/time.Second)
	p, healthy, lively, dead := newProcess(t), process.NewSink(t), process.NewSink(t), process.NewSink(t)
	dead.Set("/hook", process.Hang)
	hanging := map[string]any{
		"target":       map[string]any{"kind": "http_webhook", "url": dead.URL + "/hook", "timeout": "5s"},
		"retry_policy": map[string]any{"max_attempts": 1},
	}
	p.Start()
	first := time.Now().Add(ahead)
	alone := load{path: "/alone", from: first, window: short}
	// As many calls as with the hanging target, to one that answers: any difference between the two is the cost of hanging.
	busy := load{
		path: "/busy", from: first.Add(short + pause), window: short, others: rate * int(short/time.Second),
		other: func(at time.Time) map[string]any { return process.Once(lively.URL+"/hook", at, nil) },
	}
	beside := load{
		path: "/beside", from: sized(first, busy.from.Add(short+pause)), window: long, others: fires,
		other: func(at time.Time) map[string]any { return process.Once("", at, hanging) },
	}
	for _, l := range sized([]load{beside}, []load{alone, busy, beside}) {
		l.register(p, healthy)
	}
	if left := time.Until(first); left < 0 {
		t.Fatalf("the registration took %s too long", -left)
	}

	samples := sampleUntil(t, p, beside.from.Add(long+committedWithin+pause))
	deferred := p.Metrics().Of(t, "minutehand_executor_deferred_total")
	t.Logf("hanging target: %d calls, %.0f times a fire was deferred", dead.Count("/hook"), deferred)
	if dead.Count("/hook") < 256 || deferred == 0 {
		t.Error("the hanging target was not saturated: this run shows nothing")
	}
	hung, bound := lateness(t, healthy, &beside), heldUp
	if *full {
		quiet, loud := lateness(t, healthy, &alone), lateness(t, healthy, &busy)
		bound = max(2*quiet.typical, latenessFloor)
		if bound := max(quiet.whole, loud.whole, latenessPromise); hung.whole > bound {
			t.Errorf("p99 of all calls is %s beside a hanging target, want at most %s", hung.whole, bound)
		}
	}
	if hung.typical > bound {
		t.Errorf("p99 of a typical second is %s beside a hanging target, want at most %s", hung.typical, bound)
	}
	checkProgress(t, samples)
	memory := p.PeakMemory()
	t.Logf("peak memory %d MiB", memory>>20)
	if memory > memoryBound {
		t.Errorf("the process held %d MiB, want at most %d", memory>>20, memoryBound>>20)
	}
	if n := oneExecutionEach(t, append(healthy.Calls(), dead.Calls()...)); n != 0 {
		t.Errorf("%d calls were duplicates, without a crash", n)
	}
}

// p99 says how late the healthy target's calls were: whole is over all of them, typical the median of the seconds. A
// machine that loses 100 ms to others can decide the first alone; the cost of a hanging target shows in every second.
type p99 struct{ typical, whole time.Duration }

// lateness returns the lateness of the healthy target in one part of the test, every call of which must have arrived.
func lateness(t *testing.T, sink *process.Sink, l *load) p99 {
	t.Helper()
	var calls []ledger.Call
	seconds := make([][]ledger.Call, int(l.window.Seconds()))
	for _, c := range sink.Calls() {
		if "http://"+c.Host == sink.URL+l.path {
			calls = append(calls, c)
			i := min(max(int(c.ScheduledFor.Sub(l.from)/time.Second), 0), len(seconds)-1)
			seconds[i] = append(seconds[i], c)
		}
	}
	late := ledger.Lateness(calls)
	if len(late) != l.healthy() {
		t.Errorf("%s had %d calls, want %d", l.path, len(late), l.healthy())
	}
	var each []time.Duration
	for _, s := range seconds {
		each = append(each, quantile(ledger.Lateness(s), .99))
	}
	slices.Sort(each)
	p := p99{typical: quantile(each, .5), whole: quantile(late, .99)}
	t.Logf("lateness of the healthy target, %s: p50 %s, p99 %s, in seconds %s (%s to %s), most %s", l.path[1:],
		quantile(late, .5), p.whole, p.typical, each[0], each[len(each)-1], quantile(late, 1))
	return p
}

// sample says how far the fires log was at an instant.
type sample struct {
	at                   time.Time
	published, committed float64
}

// sampleUntil samples the position of the executors in the fires log once a second.
func sampleUntil(t *testing.T, p *process.Process, end time.Time) []sample {
	t.Helper()
	var samples []sample
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for at := range tick.C {
		m := p.Metrics()
		published := m.Of(t, "minutehand_scheduler_worker_fires_total")
		samples = append(samples, sample{at, published, published - m.Lag(t, dispatch.TopicFires, dispatch.GroupExecutor)})
		if at.After(end) {
			break
		}
	}
	return samples
}

// checkProgress checks that what was published is committed within committedWithin, whatever hangs.
func checkProgress(t *testing.T, samples []sample) {
	t.Helper()
	old, checked := 0, 0
	for _, s := range samples {
		for samples[old].at.Add(committedWithin).Before(s.at) {
			if o := samples[old]; s.committed < o.published {
				t.Errorf("at %s the committed position is %.0f, but %s before %.0f had been published",
					s.at.Format(time.TimeOnly), s.committed, s.at.Sub(o.at).Round(time.Second), o.published)
			}
			old++
			checked++
		}
	}
	last := samples[len(samples)-1]
	t.Logf("%.0f fires were published and %.0f committed; %d samples compared", last.published, last.committed, checked)
	if checked == 0 {
		t.Error("no samples were compared")
	}
}
