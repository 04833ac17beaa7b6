package poolstest

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

func limited(t *testing.T, q pools.Queue, at time.Time, most int, l pools.Limits, handlers ...string) []*pools.Task {
	t.Helper()
	taken, err := q.Take(t.Context(), basics, pools.Take{Poll: poll(), Handlers: handlers, Most: most, Limits: l, Now: at})
	if err != nil {
		t.Fatal(err)
	}
	return taken.Tasks
}

func bounds(all int, of map[string]int) pools.Limits {
	return pools.Limits{Running: &all, Handlers: of}
}

func limits(t *testing.T, q pools.Queue) {
	for n := range 12 {
		add(t, q, task(n, []string{"a", "b", "c"}[n%3], []job.Priority{job.PriorityHigh, "", job.PriorityLow}[n/3%3]))
	}
	running := func(want map[string]int) {
		t.Helper()
		state, err := q.Show(t.Context(), basics, start)
		same(t, err, nil)
		same(t, state.Running, want)
	}
	same(t, len(limited(t, q, start, 9, bounds(0, nil), "a", "b", "c")), 0)
	same(t, len(limited(t, q, start, 9, bounds(9, map[string]int{"a": 0}), "a")), 0)
	// A handler without room keeps no other back, in whatever order they come.
	got := limited(t, q, start, 9, pools.Limits{Handlers: map[string]int{"a": 1, "b": 2}}, "a", "b")
	same(t, len(got), 3)
	running(map[string]int{"a": 1, "b": 2})
	same(t, len(limited(t, q, start, 9, bounds(4, map[string]int{"a": 1}), "a", "c")), 1)
	running(map[string]int{"a": 1, "b": 2, "c": 1})
	same(t, len(limited(t, q, start, 9, bounds(4, nil), "a", "b", "c")), 0)
	same(t, len(limited(t, q, start, 9, bounds(2, nil), "c")), 0) // it was lowered
	// What is removed, given back or over makes room. A lease that is bound does not.
	bind(t, q, got[1], lease(got[1], 1, start.Add(time.Hour)), start, true)
	remove(t, q, got[0].ID(), job.Fence{}, true)
	same(t, len(limited(t, q, start, 9, bounds(4, nil), "c")), 1)
	leases, err := q.Lapsed(t.Context(), basics, start.Add(pools.TakenFor))
	same(t, err, nil)
	same(t, len(leases), 0)
	handler := got[1].Fire.Target.Handler
	running(map[string]int{handler: 1})
	remove(t, q, got[1].ID(), job.Fence{Epoch: 1_760_000_000_000_000, Counter: 1, Start: got[1].Holder.Start}, true)
	running(map[string]int{})
	same(t, len(limited(t, q, start, 9, bounds(4, map[string]int{"c": 3}), "c", "b")), 4)
	// A task whose time is over may be added again, and waits then.
	taken := limited(t, q, start, 1, pools.Limits{}, "a")
	if err := q.Add(t.Context(), taken[0], start.Add(pools.TakenFor)); err != nil {
		t.Fatal(err)
	}
	state, err := q.Show(t.Context(), basics, start)
	same(t, err, nil)
	same(t, state.Running["a"], 0)
	// Without limits everything is taken, and counted.
	same(t, len(limited(t, q, start, 20, pools.Limits{}, "a", "b", "c")), 10-4)
}

// roomy: while a limit keeps tasks back, each that ends rings for who could take one; it rings for nobody where nothing is kept back.
func roomy(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""), task(3, "a", ""))
	rung := func(handler string, most int, within time.Duration) bool {
		t.Helper()
		one := limited(t, q, start, 1, bounds(1, nil), "a")
		same(t, len(one), 1)
		same(t, len(limited(t, q, start, most, bounds(1, nil), handler, "z")), 0)
		w := q.Bell().Wait(basics, []string{handler})
		defer q.Bell().End(w)
		remove(t, q, one[0].ID(), job.Fence{}, true)
		select {
		case <-w.Rung:
			return true
		case <-time.After(within):
			return false
		}
	}
	for n := 0; !rung("a", 1, time.Second); n++ { // until it rings for the first time it may not be listening yet
		if n == 20 {
			t.Fatal("it does not ring")
		}
		add(t, q, task(1, "a", ""))
	}
	limited(t, q, start, 20, pools.Limits{}, "a")
	if _, err := q.Lapsed(t.Context(), basics, start.Add(pools.TakenFor)); err != nil {
		t.Fatal(err)
	}
	for quiet := false; !quiet; { // what was rung until now may come late
		w := q.Bell().Wait(basics, []string{"a", "b"})
		select {
		case <-w.Rung:
		case <-time.After(100 * time.Millisecond):
			quiet = true
		}
		q.Bell().End(w)
	}
	if rung("b", 1, 100*time.Millisecond) {
		t.Error("it rings for a handler for which nothing waits")
	}
}
