package poolstest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

func apart(t *testing.T, q pools.Queue) {
	for _, other := range []pools.Pool{{Tenant: 8, Name: basics.Name}, {Tenant: basics.Tenant, Name: "other"}} {
		one := task(1, "a", "")
		one.Fire.Tenant, one.Fire.Target.Pool = other.Tenant, other.Name
		add(t, q, one)
		same(t, len(take(t, q, start, 9, "a")), 0)
		state, err := q.Show(t.Context(), basics, start)
		same(t, err, nil)
		same(t, len(state.Waiting), 0)
		taken, err := q.Take(t.Context(), other, pools.Take{Poll: poll(), Handlers: []string{"a"}, Most: 1, Now: start})
		same(t, err, nil)
		same(t, len(taken.Tasks), 1)
		leases, err := q.Lapsed(t.Context(), basics, start.Add(time.Hour))
		same(t, err, nil)
		same(t, len(leases), 0)
	}
}

func full(t *testing.T, q pools.Queue) {
	body := json.RawMessage(`"` + strings.Repeat("x", pools.MaxBytes/20) + `"`)
	for n := range 30 {
		one := task(n, "a", "")
		one.Fire.Target.Body = body
		err := q.Add(t.Context(), one, start)
		switch {
		case errors.Is(err, pools.ErrFull) && n >= 18:
			if err := q.Add(t.Context(), task(n, "a", ""), start); err != nil {
				t.Errorf("a small task found no room: %v", err)
			}
			first := take(t, q, start, 1, "a")[0]
			remove(t, q, first.ID(), job.Fence{}, true)
			if err := q.Add(t.Context(), one, start); err != nil {
				t.Errorf("after one was removed there was no room: %v", err)
			}
			return
		case err != nil:
			t.Fatalf("task %d: %v", n, err)
		}
	}
	t.Error("there is no bound")
}

func workers(t *testing.T, q pools.Queue) {
	see := func(name string, at time.Time) *pools.Worker {
		w := &pools.Worker{Name: name, Version: "1.2", Handlers: []string{"a", "b"}, Running: 3, SeenAt: at}
		if err := q.See(t.Context(), basics, w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	see("b", start)
	a, b := see("a", start), see("b", start.Add(time.Minute))
	state, err := q.Show(t.Context(), basics, start.Add(time.Minute))
	same(t, err, nil)
	same(t, state.Workers, []pools.Worker{*a, *b})
	state, err = q.Show(t.Context(), basics, start.Add(time.Minute+pools.WorkerKept))
	same(t, err, nil)
	same(t, state.Workers, []pools.Worker{*b})
	for n := range pools.MaxWorkers + 10 {
		see(fmt.Sprint("many", n), start.Add(2*time.Minute))
	}
	state, err = q.Show(t.Context(), basics, start.Add(time.Minute))
	same(t, err, nil)
	same(t, len(state.Workers), pools.MaxWorkers)
	see("late", start.Add(time.Hour))
}

// beats notes what heartbeats show of workers.
func beats(t *testing.T, q pools.Queue) {
	see := func(w pools.Worker) {
		t.Helper()
		if err := q.See(t.Context(), basics, &w); err != nil {
			t.Fatal(err)
		}
	}
	beat := func(name string, at time.Duration) {
		see(pools.Worker{Name: name, Handlers: []string{"c"}, Running: 1, SeenAt: start.Add(at), Beats: true})
	}
	polled := func(name string, running int) pools.Worker {
		return pools.Worker{Name: name, Version: `"running":0,`, Handlers: []string{"a", "b"}, Running: running, SeenAt: start}
	}
	see(polled("idle", 0))
	see(polled("busy", 3))
	see(polled("early", 2))
	for _, name := range []string{"idle", "busy", "new"} {
		beat(name, pools.WorkerKept)
	}
	beat("early", -time.Second)
	idle, busy, early := polled("idle", 1), polled("busy", 3), polled("early", 2)
	idle.SeenAt, busy.SeenAt = start.Add(pools.WorkerKept), start.Add(pools.WorkerKept)
	fresh := pools.Worker{Name: "new", Handlers: []string{"c"}, Running: 1, SeenAt: start.Add(pools.WorkerKept)}
	state, err := q.Show(t.Context(), basics, start.Add(pools.WorkerKept))
	same(t, err, nil)
	same(t, state.Workers, []pools.Worker{busy, early, idle, fresh})
	state, err = q.Show(t.Context(), basics, start.Add(2*pools.WorkerKept))
	same(t, err, nil)
	same(t, state.Workers, []pools.Worker{busy, idle, fresh})
	again := polled("idle", 0)
	again.Handlers, again.SeenAt = []string{"d"}, start.Add(pools.WorkerKept+time.Minute)
	see(again)
	state, err = q.Show(t.Context(), basics, start.Add(2*pools.WorkerKept))
	same(t, err, nil)
	same(t, state.Workers, []pools.Worker{busy, again, fresh})
}

func shows(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", job.PriorityLow), task(3, "b", job.PriorityHigh), task(4, "a", job.PriorityNormal))
	take(t, q, start, 1, "b")
	state, err := q.Show(t.Context(), basics, start)
	same(t, err, nil)
	same(t, state, &pools.State{Waiting: map[string]map[job.Priority]int{"a": {job.PriorityNormal: 2, job.PriorityLow: 1}}, Taken: 1, Running: map[string]int{"b": 1}})
}

func known(t *testing.T, q pools.Queue) {
	list, err := q.Pools(t.Context(), start)
	same(t, err, nil)
	same(t, len(list), 0)
	one := task(1, "a", "")
	one.Fire.Target.Pool = "other"
	add(t, q, one, task(2, "a", ""), task(3, "a", ""))
	list, err = q.Pools(t.Context(), start.Add(pools.UnusedFor-time.Minute))
	same(t, err, nil)
	same(t, list, []pools.Pool{basics, {Tenant: basics.Tenant, Name: "other"}})
}

func rings(t *testing.T, q pools.Queue) {
	// Until it rings for the first time it may not be listening yet.
	for n := 0; ; n++ {
		w := q.Bell().Wait(basics, []string{"z", "a"})
		other := q.Bell().Wait(basics, []string{"b"})
		add(t, q, task(n, "a", ""))
		select {
		case <-w.Rung:
			q.Bell().End(w)
			q.Bell().End(other)
			return
		case <-time.After(time.Second):
			q.Bell().End(w)
			q.Bell().End(other)
		}
		if n == 20 {
			t.Fatal("it does not ring")
		}
	}
}

func shared(t *testing.T, q pools.Queue) {
	const n = 200
	for i := range n {
		add(t, q, task(i, "a", job.Priority([]string{"high", "", "low"}[i%3])))
	}
	var mu sync.Mutex
	var all []string
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				taken, err := q.Take(t.Context(), basics, pools.Take{Poll: poll(), Handlers: []string{"a"}, Most: 7, Now: start})
				if err != nil || len(taken.Tasks) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				all = append(all, ids(taken.Tasks)...)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(all)
	same(t, len(slices.Compact(all)), n)
	same(t, len(all), n)
}
