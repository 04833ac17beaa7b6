package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/process"
)

// More payloads are due at one instant than the process has memory for, and it calls small jobs on time all the same.
func TestStampedeOfLargeJobsPassesInMemory(t *testing.T) {
	const (
		first = 100             // their registration shows how long registering all takes
		quiet = 5 * time.Second // before the stampede
		loud  = 15 * time.Second
		limit = 2 * time.Minute
	)
	large := sized(2400, 4000) // of 250 KiB each
	p, small, sink := newProcess(t), process.NewSink(t), process.NewSink(t)
	payload := strings.Repeat("x", 250<<10)
	body := func(at time.Time) map[string]any {
		return process.Once("", at, map[string]any{
			"target": map[string]any{"kind": "http_webhook", "url": sink.URL + "/large", "body": map[string]any{"text": payload}},
		})
	}
	p.Start()
	began := time.Now()
	p.RegisterSame(first, body(began.Add(time.Hour)))
	ahead := 12*time.Second + time.Since(began)*time.Duration(large/first)*4/3
	due := time.Now().Add(ahead)
	before := load{path: "/before", from: due.Add(-quiet), window: quiet}
	beside := load{path: "/beside", from: due, window: loud}
	registering := time.Now()
	before.register(p, small)
	beside.register(p, small)
	ids := p.RegisterSame(large, body(due))
	t.Logf("registered in %s, due after %s, at a peak of %d MiB", time.Since(registering).Round(time.Second), ahead.Round(time.Second), p.PeakMemory()>>20)
	if time.Now().After(before.from) {
		t.Fatalf("the registration took %s too long", time.Since(before.from))
	}
	process.WaitFor(t, ahead+limit, "every large job is called", func() bool { return sink.Called() == large })
	t.Logf("all were called %s after they were due", time.Since(due).Round(100*time.Millisecond))
	process.WaitFor(t, limit, "every small job is called", func() bool { return small.Called() == before.healthy()+beside.healthy() })
	deferred := p.Metrics().Of(t, "minutehand_executor_deferred_total")
	t.Logf("%.0f times a fire was deferred, %.0f entries were parked", deferred, p.Metrics().Of(t, "minutehand_scheduler_worker_parked_total"))
	if deferred > float64(large)/10 {
		t.Errorf("%.0f fires were deferred: they were published although there was no room for them", deferred)
	}
	alone, late := lateness(t, small, &before), lateness(t, small, &beside)
	// Twice what is promised: they share the disk with a gigabyte.
	if bound := sized(heldUp, 2*max(alone.typical, latenessPromise)); late.typical > bound {
		t.Errorf("p99 of small jobs is %s in a typical second, want at most %s", late.typical, bound)
	}
	if memory := p.PeakMemory(); memory > memoryBound {
		t.Errorf("the process held %d MiB, want at most %d", memory>>20, memoryBound>>20)
	} else {
		t.Logf("peak memory %d MiB", memory>>20)
	}
	for id, n := range sink.CallsOf(ids) {
		if n != 1 {
			t.Errorf("%s was called %d times", id, n)
		}
	}
	p.Stop()
}
