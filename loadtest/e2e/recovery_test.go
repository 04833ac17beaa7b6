package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// resumeLimit is how soon each job of a killed process must fire again once the process is back (services/README.md,
// "Figures that are promised").
const resumeLimit = 10 * time.Second

func TestEveryAcceptedJobFiresWhenTheProcessIsKilledInTheMiddleOfAStampede(t *testing.T) {
	t.Parallel()
	const window = 5 * time.Second
	jobs := sized(8000, 20_000)
	ahead := sized(10*time.Second, 16*time.Second) // longer than the registration takes
	p, sink := newProcess(t), process.NewSink(t)
	p.Start()
	began := time.Now()
	due := began.Add(ahead)
	ids := p.Register(jobs, func(i int) map[string]any {
		return process.Once(sink.URL+"/hook", due.Add(window*time.Duration(i)/time.Duration(jobs)), nil)
	})
	t.Logf("registered %d jobs in %s, %s before the first is due", jobs, time.Since(began).Round(time.Millisecond),
		time.Until(due).Round(time.Millisecond))

	process.WaitFor(t, ahead+window+time.Minute, "a third has fired", func() bool { return sink.Called() >= jobs/3 })
	p.Kill()
	before := len(sink.Calls())
	if before >= jobs {
		t.Fatalf("all had fired before the kill")
	}
	p.Start()
	process.WaitFor(t, 2*time.Minute, "every accepted job has fired", func() bool { return sink.Called() >= jobs })
	whole := time.Since(p.StartedAt)
	atRest(t, p, 30*time.Second)

	calls := sink.Calls()
	resumed := resumedAt(t, calls, p)
	t.Logf("killed after %d calls; ready %s after the restart, fired again after %s, all had fired after %s", before,
		p.ReadyAt.Sub(p.StartedAt).Round(time.Millisecond), resumed.Sub(p.StartedAt).Round(time.Millisecond),
		whole.Round(time.Millisecond))
	if d := resumed.Sub(p.StartedAt); d > resumeLimit {
		t.Errorf("firing resumed %s after the restart", d)
	}
	overdue := 0
	for _, c := range calls {
		if since := c.At.Sub(later(c.ScheduledFor, p.StartedAt)); c.At.After(p.StartedAt) && since > resumeLimit {
			overdue++
			t.Logf("%s, due %s after the restart, fired %s after it", c.JobID, c.ScheduledFor.Sub(p.StartedAt).Round(time.Millisecond),
				c.At.Sub(p.StartedAt).Round(time.Millisecond))
		}
	}
	if overdue > 0 {
		t.Errorf("%d jobs fired more than %s after they were due and the process was back", overdue, resumeLimit)
	}
	missing := 0
	for id, n := range sink.CallsOf(ids) {
		if n == 0 {
			missing++
			t.Logf("%s never fired", id)
		}
	}
	late := ledger.Lateness(calls)
	t.Logf("%d missing, %d duplicates in %d calls; lateness p50 %s, p99 %s, most %s", missing, oneExecutionEach(t, calls),
		len(calls), quantile(late, .5), quantile(late, .99), quantile(late, 1))
	if missing > 0 {
		t.Errorf("%d of %d accepted jobs never fired", missing, jobs)
	}
	a := audit(t, p, began, ids, ledger.Account{Crashed: true, Calls: calls})
	t.Logf("%d events in the history, %d records in the archive", len(a.Events), len(a.Archived))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// resumedAt returns when the current process made its first call: what the dead one had sent may arrive after it.
func resumedAt(t *testing.T, calls []ledger.Call, p *process.Process) time.Time {
	t.Helper()
	start := func(c ledger.Call) string { return c.Token[strings.LastIndexByte(c.Token, '-')+1:][:6] } // of the process
	dead := start(calls[0])
	for _, c := range calls {
		if start(c) != dead && c.At.After(p.StartedAt) {
			return c.At
		}
	}
	t.Fatal("the restarted process called nothing")
	return time.Time{}
}

func TestEveryAnswerIsKeptWhenTheProcessIsKilledDuringRegistration(t *testing.T) {
	t.Parallel()
	const (
		jobs   = 6000
		ahead  = 14 * time.Second
		window = 2 * time.Second
	)
	p, sink := newProcess(t), process.NewSink(t)
	p.Start()
	began := time.Now()
	var mu sync.Mutex
	ids := make([]string, jobs)
	accepted, failures := 0, 0
	back := make(chan struct{}) // closed when the process is back
	create := func(i int) (string, error) {
		at := began.Add(ahead + window*time.Duration(i)/jobs)
		return p.Create(t.Context(), process.Once(sink.URL+"/hook", at, nil), fmt.Sprintf("key-%d", i))
	}
	done := make(chan error, 1)
	go func() {
		done <- process.Each(jobs, func(i int) error {
			id, err := create(i)
			if err != nil && process.Transient(err) {
				mu.Lock()
				failures++
				mu.Unlock()
				<-back
				id, err = create(i)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[i] = id
			accepted++
			return err
		})
	}()
	count := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return accepted, failures
	}
	process.WaitFor(t, time.Minute, "a third is registered", func() bool { n, _ := count(); return n >= jobs/3 })
	p.Kill()
	kept, _ := count()
	p.Start()
	close(back)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, failed := count()
	if failed == 0 || kept >= jobs {
		t.Fatalf("%d requests failed and %d were answered before the kill: it was not during the registration", failed, kept)
	}
	t.Logf("killed after %d answers; %d requests were tried again under their keys", kept, failed)

	// Repeat every request: the key's answer is the job that was answered before, whenever that was.
	err := process.Each(jobs, func(i int) error {
		id, err := create(i)
		if err == nil && id != ids[i] {
			err = fmt.Errorf("key %d was answered with %s, and now with %s", i, ids[i], id)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	process.WaitFor(t, time.Minute, "every accepted job has fired", func() bool { return sink.Called() >= jobs })
	atRest(t, p, 30*time.Second)
	for id, n := range sink.CallsOf(ids) {
		if n != 1 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	// No fire was in flight when the process was killed, so no duplicate is excused: for I2 this was no crash.
	audit(t, p, began, ids, ledger.Account{Calls: sink.Calls()})
}

func TestNoJobFiresThatWasCancelledBeforeTheCrashWhileItsFireStoodInTheLog(t *testing.T) {
	const (
		blocking  = 256 // the executor's concurrency for one host
		cancelled = 500
		surviving = 100 // of the same kind, which nobody cancels: they show that fires in the log do fire
		ahead     = 3 * time.Second
	)
	p, sink := newProcess(t), process.NewSink(t)
	sink.Set("/slow", process.Hang)
	p.Start()
	began := time.Now()
	due := began.Add(ahead)
	slow := map[string]any{"target": map[string]any{"kind": "http_webhook", "url": sink.URL + "/slow", "timeout": "60s"}}
	blockers := p.Register(blocking, func(int) map[string]any { return process.Once("", due, slow) })
	// So soon after that a worker has taken them before it hears that the host hangs; later ones would not be published.
	ids := p.Register(cancelled+surviving, func(int) map[string]any {
		return process.Once(sink.URL+"/hook", due.Add(100*time.Millisecond), nil)
	})
	stopped, survivors := ids[:cancelled], ids[cancelled:]
	standing := func() bool {
		m := p.Metrics()
		return m.Of(t, "minutehand_executor_waiting_fires") == cancelled+surviving &&
			m.Lag(t, dispatch.TopicFires, dispatch.GroupExecutor) >= cancelled+surviving
	}
	process.WaitFor(t, ahead+5*time.Second, "the fires stand in the log and wait for their host", standing)
	asked := time.Now()
	stops := p.Cancel(stopped)
	took := time.Since(asked)
	if !standing() {
		t.Error("the fires do not stand in the log any more: this run shows nothing")
	}
	p.Kill()
	if n := sink.Count("/hook"); n != 0 || sink.Count("/slow") != blocking {
		t.Errorf("before the kill %d waiting fires were invoked, and %d of those that block", n, sink.Count("/slow"))
	}
	sink.Set("/slow", nil)
	p.Start()
	process.WaitFor(t, 30*time.Second, "what was not cancelled has fired", func() bool {
		return sink.Called() >= blocking+surviving && sink.Count("/slow") >= 2*blocking
	})
	atRest(t, p, 30*time.Second)
	t.Logf("%d cancels were acknowledged within %s; at rest %s after the restart", cancelled, took.Round(time.Millisecond),
		time.Since(p.StartedAt).Round(time.Millisecond))

	for id, n := range sink.CallsOf(stopped) {
		if n != 0 {
			t.Errorf("%s was called %d times after its cancel had been acknowledged", id, n)
		}
	}
	for id, n := range sink.CallsOf(survivors) {
		if n != 1 {
			t.Errorf("%s, which nobody cancelled, was called %d times", id, n)
		}
	}
	oneExecutionEach(t, sink.Calls())
	a := audit(t, p, began, append(blockers, ids...), ledger.Account{Crashed: true, Stops: stops, Calls: sink.Calls()})
	dispositions := 0
	for i := range a.Events {
		if a.Events[i].Disposition == job.DispositionCancelled {
			dispositions++
		}
	}
	if dispositions != cancelled {
		t.Errorf("%d occurrences are on record as cancelled, want %d", dispositions, cancelled)
	}
}
