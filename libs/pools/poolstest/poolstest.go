// Package poolstest is the conformance suite of pools.Queue: each clause of the port's contract is a test here, named after the promise.
package poolstest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// Run runs the suite. open returns a queue without tasks.
func Run(t *testing.T, open func(t *testing.T) pools.Queue) {
	clauses := map[string]func(t *testing.T, q pools.Queue){
		"a task is taken as it was added":                                whole,
		"a task is taken once":                                           once,
		"only what the worker can do is taken":                           handlers,
		"the earliest instant is taken first":                            earliest,
		"a priority goes first, and starves no other":                    priorities,
		"a task that waits is replaced and waits once":                   replaced,
		"a task that somebody has stays as it is":                        stays,
		"a poll that is repeated gets the same tasks":                    repeated,
		"a task that was taken without a lease waits again":              unbound,
		"a lease is bound to what is taken, and changed by who knows it": bound,
		"a task that waits can be forgotten":                             forgotten,
		"a handler that is named twice gets a task once":                 twice,
		"what lapsed is returned until it is removed":                    lapsed,
		"a task is removed by who has it":                                removed,
		"a pool sees nothing of another one":                             apart,
		"a pool that is full takes no more":                              full,
		"workers are shown while they are seen":                          workers,
		"a heartbeat shows a worker":                                     beats,
		"a pool shows what is there":                                     shows,
		"pools with tasks are known":                                     known,
		"the bell rings for who can do the task":                         rings,
		"many that take at once share the tasks":                         shared,
		"limits bound what is taken":                                     limits,
		"the bell rings when there is room again":                        roomy,
	}
	for name, clause := range clauses {
		t.Run(name, func(t *testing.T) { clause(t, open(t)) })
	}
}

var (
	start  = time.UnixMilli(1_760_000_000_000).UTC()
	basics = pools.Pool{Tenant: 7, Name: "invoices"}
)

// Task returns a task that is due a number of milliseconds after the start.
func task(n int, handler string, p job.Priority) *pools.Task {
	id := fmt.Sprintf("exe_01K%023d-%d-s", n, start.UnixMilli())
	f := &job.Fire{
		Entry: job.Entry{
			Locator: job.Locator{Partition: 3, Minute: 29_333_333, DueAt: start.Add(time.Duration(n) * time.Millisecond), ExecutionID: id, Attempt: 2, DefinitionID: "def_1"},
			JobID:   "job_1", Tenant: basics.Tenant, Trigger: job.TriggerSchedule, NominalAt: start, ScheduledFor: start,
		},
		Target: job.Target{
			Kind: job.TargetPool, Pool: basics.Name, Handler: handler, Priority: p, Heartbeat: 30 * time.Second, Timeout: time.Hour,
			Body: json.RawMessage(`{"n":"\u0000 ü"}`), Headers: map[string]string{"a": "b"},
		},
		Retry: job.RetryPolicy{Backoff: job.BackoffList, MaxAttempts: 3, Delays: []time.Duration{time.Second}}, Incarnation: "inc", TakenAt: start, PublishedAt: start,
	}
	return &pools.Task{
		Fire: f, Holder: attempts.Holder{Name: "executor-1", DefinitionID: "def_1", Start: 1<<40 | int64(n)}, StopVersion: 4, Incarnation: "inc-2", KnownSince: start, Again: n%2 == 0,
	}
}

func add(t *testing.T, q pools.Queue, tasks ...*pools.Task) {
	t.Helper()
	for _, one := range tasks {
		if err := q.Add(t.Context(), one, start); err != nil {
			t.Fatal(err)
		}
	}
}

var polls struct {
	sync.Mutex
	n int
}

func poll() string {
	polls.Lock()
	defer polls.Unlock()
	polls.n++
	return fmt.Sprintf("poll-%d", polls.n)
}

func take(t *testing.T, q pools.Queue, at time.Time, most int, handlers ...string) []*pools.Task {
	t.Helper()
	taken, err := q.Take(t.Context(), basics, pools.Take{Poll: poll(), Handlers: handlers, Most: most, Now: at})
	if err != nil || taken.Again {
		t.Fatal(taken, err)
	}
	return taken.Tasks
}

func ids(tasks []*pools.Task) (list []string) {
	for _, one := range tasks {
		list = append(list, one.ID())
	}
	return list
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func lease(one *pools.Task, counter int64, until time.Time) *pools.Lease {
	light := *one.Fire
	light.Target.Body, light.Target.Headers = nil, nil
	return &pools.Lease{
		Fire: &light, Token: job.Token{Counter: 3, Start: one.Holder.Start}, Fence: job.Fence{Epoch: 1_760_000_000_000_000, Counter: counter, Start: one.Holder.Start},
		Worker: "worker-ü", Begun: start.Add(time.Second), Until: until, StoppedAt: start.Add(2 * time.Second), Why: "cancelled", Progress: true, Again: true,
	}
}

func bind(t *testing.T, q pools.Queue, one *pools.Task, l *pools.Lease, at time.Time, want bool) {
	t.Helper()
	if ok, err := q.Bind(t.Context(), basics, one.ID(), l, at); err != nil || ok != want {
		t.Errorf("a lease was bound: %v (%v), want %v", ok, err, want)
	}
}

func whole(t *testing.T, q pools.Queue) {
	same(t, take(t, q, start, 10, "a"), []*pools.Task(nil))
	one := task(1, "a", "")
	add(t, q, one)
	got := take(t, q, start, 10, "a")
	if len(got) != 1 {
		t.Fatalf("%d tasks were taken", len(got))
	}
	same(t, got[0], one)
}

func once(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""), task(3, "a", ""))
	same(t, len(take(t, q, start, 2, "a")), 2)
	same(t, ids(take(t, q, start, 2, "a")), []string{task(3, "a", "").ID()})
	same(t, len(take(t, q, start, 2, "a")), 0)
}

func handlers(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "b", ""), task(3, "c", ""))
	same(t, ids(take(t, q, start, 9, "b", "x", "c")), ids([]*pools.Task{task(2, "b", ""), task(3, "c", "")}))
	same(t, ids(take(t, q, start, 9, "a")), ids([]*pools.Task{task(1, "a", "")}))
}

func earliest(t *testing.T, q pools.Queue) {
	add(t, q, task(30, "a", ""), task(5, "b", ""), task(10, "a", ""), task(20, "b", ""))
	same(t, ids(take(t, q, start, 9, "a", "b")), ids([]*pools.Task{task(5, "", ""), task(10, "", ""), task(20, "", ""), task(30, "", "")}))
}

func priorities(t *testing.T, q pools.Queue) {
	for n := range 21 {
		add(t, q, task(n, "a", job.PriorityLow), task(100+n, "a", job.PriorityHigh), task(200+n, "a", ""))
	}
	counts := map[job.Priority]int{}
	for range 7 {
		for _, one := range take(t, q, start, 3, "a") {
			counts[pools.PriorityOf(one)]++
		}
	}
	same(t, counts, map[job.Priority]int{job.PriorityHigh: 12, job.PriorityNormal: 6, job.PriorityLow: 3})
	for range 2 {
		for _, one := range take(t, q, start, 32, "a") {
			counts[pools.PriorityOf(one)]++
		}
	}
	same(t, counts, map[job.Priority]int{job.PriorityHigh: 21, job.PriorityNormal: 21, job.PriorityLow: 21})
}

func replaced(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	again := task(1, "a", "")
	again.Holder.Start, again.Incarnation = 99, "inc-3"
	add(t, q, again)
	got := take(t, q, start, 9, "a")
	same(t, ids(got), ids([]*pools.Task{task(1, "a", ""), task(2, "a", "")}))
	same(t, got[0], again)
	same(t, len(take(t, q, start, 9, "a")), 0)
}

func stays(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""))
	one := take(t, q, start, 1, "a")[0]
	l := lease(one, 1, start.Add(30*time.Second))
	bind(t, q, one, l, start, true)
	add(t, q, task(1, "a", ""))
	same(t, len(take(t, q, start, 1, "a")), 0)
	// Its time is over: then it waits again, and nobody has it.
	if err := q.Add(t.Context(), task(1, "a", ""), start.Add(30*time.Second)); err != nil {
		t.Fatal(err)
	}
	leases, err := q.Leases(t.Context(), basics, []string{one.ID()})
	same(t, leases, []*pools.Lease{nil})
	same(t, err, nil)
	same(t, ids(take(t, q, start.Add(30*time.Second), 1, "a")), []string{one.ID()})
}

func repeated(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""), task(3, "a", ""))
	ask := pools.Take{Poll: poll(), Handlers: []string{"a"}, Most: 2, Now: start}
	first, err := q.Take(t.Context(), basics, ask)
	if err != nil || len(first.Tasks) != 2 || first.Again {
		t.Fatal(first, err)
	}
	l := lease(first.Tasks[0], 1, start.Add(time.Minute))
	bind(t, q, first.Tasks[0], l, start, true)
	ask.Now = start.Add(time.Second)
	second, err := q.Take(t.Context(), basics, ask)
	if err != nil {
		t.Fatal(err)
	}
	first.Tasks[0].Lease, first.Again = l, true
	same(t, second, first)
	remove(t, q, first.Tasks[0].ID(), l.Fence, true)
	third, err := q.Take(t.Context(), basics, ask)
	same(t, err, nil)
	same(t, ids(third.Tasks), ids(first.Tasks[1:]))
	// It is known of what nothing is left, and nothing else is taken.
	remove(t, q, first.Tasks[1].ID(), job.Fence{}, true)
	fourth, err := q.Take(t.Context(), basics, ask)
	same(t, err, nil)
	same(t, fourth, pools.Taken{Again: true})
	// A call that may take nothing only asks.
	ask.Poll, ask.Most = poll(), 0
	for range 2 {
		none, err := q.Take(t.Context(), basics, ask)
		same(t, err, nil)
		same(t, none, pools.Taken{})
	}
}

func unbound(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""))
	one := take(t, q, start, 1, "a")[0]
	late := start.Add(pools.TakenFor)
	leases, err := q.Lapsed(t.Context(), basics, late.Add(-time.Millisecond))
	same(t, err, nil)
	same(t, len(leases), 0)
	same(t, len(take(t, q, late, 1, "a")), 0)
	leases, err = q.Lapsed(t.Context(), basics, late)
	same(t, err, nil)
	same(t, len(leases), 0)
	got := take(t, q, late, 1, "a")
	same(t, got, []*pools.Task{one})
	remove(t, q, one.ID(), job.Fence{}, true)
	leases, err = q.Lapsed(t.Context(), basics, late.Add(time.Hour))
	same(t, err, nil)
	same(t, len(leases), 0)
	same(t, len(take(t, q, late, 1, "a")), 0)
}

func bound(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	one := take(t, q, start, 1, "a")[0]
	until := start.Add(30 * time.Second)
	numbered := func(fence, number int64, until time.Time) *pools.Lease {
		l := lease(one, fence, until)
		l.Number = number
		return l
	}
	bind(t, q, one, numbered(2, 1, until), start, false)
	bind(t, q, one, numbered(2, 0, until), start, true)
	for _, other := range []*pools.Lease{numbered(1, 0, until), numbered(2, 0, until), numbered(3, 0, until), numbered(3, 1, until), numbered(2, 2, until)} {
		bind(t, q, one, other, start, false)
	}
	l := numbered(2, 1, until.Add(time.Second))
	bind(t, q, one, l, until.Add(-time.Millisecond), true)
	bind(t, q, one, numbered(2, 2, until.Add(time.Minute)), l.Until, false) // its time is over
	bind(t, q, task(2, "a", ""), lease(task(2, "a", ""), 1, until), start, false)
	leases, err := q.Leases(t.Context(), basics, []string{task(2, "a", "").ID(), one.ID(), "exe_none.1"})
	same(t, err, nil)
	same(t, leases, []*pools.Lease{nil, l, nil})
}

func lapsed(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	tasks := take(t, q, start, 2, "a")
	l := lease(tasks[0], 1, start.Add(10*time.Second))
	bind(t, q, tasks[0], l, start, true)
	bind(t, q, tasks[1], lease(tasks[1], 2, start.Add(20*time.Second)), start, true)
	for range 2 {
		leases, err := q.Lapsed(t.Context(), basics, start.Add(10*time.Second))
		same(t, err, nil)
		same(t, leases, []*pools.Lease{l})
	}
	remove(t, q, tasks[0].ID(), l.Fence, true)
	leases, err := q.Lapsed(t.Context(), basics, start.Add(10*time.Second))
	same(t, err, nil)
	same(t, len(leases), 0)
}

// remove removes a task that is there to be removed, or is not.
func remove(t *testing.T, q pools.Queue, id string, fence job.Fence, there bool) {
	t.Helper()
	removed, err := q.Remove(t.Context(), basics, id, fence, pools.AnyNumber)
	same(t, err, nil)
	same(t, removed, there)
}

func removed(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	tasks := take(t, q, start, 1, "a")
	l := lease(tasks[0], 1, start.Add(10*time.Second))
	bind(t, q, tasks[0], l, start, true)
	for _, fence := range []job.Fence{{}, {Epoch: l.Fence.Epoch, Counter: 2, Start: l.Fence.Start}} {
		remove(t, q, tasks[0].ID(), fence, false)
	}
	remove(t, q, task(2, "a", "").ID(), job.Fence{}, false) // it waits
	leases, err := q.Leases(t.Context(), basics, ids(tasks))
	same(t, err, nil)
	same(t, leases, []*pools.Lease{l})
	changed := *l
	changed.Number++
	bind(t, q, tasks[0], &changed, start, true)
	for _, number := range []int64{0, 2, 1} {
		removed, err := q.Remove(t.Context(), basics, tasks[0].ID(), l.Fence, number)
		same(t, err, nil)
		same(t, removed, number == changed.Number)
	}
	remove(t, q, tasks[0].ID(), l.Fence, false)
	same(t, ids(take(t, q, start, 9, "a")), []string{task(2, "a", "").ID()})
}

func forgotten(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	one := take(t, q, start, 1, "a")[0]
	for _, n := range []int{1, 2, 3} {
		if err := q.Forget(t.Context(), basics, task(n, "a", "").ID()); err != nil {
			t.Fatal(err)
		}
	}
	same(t, len(take(t, q, start, 9, "a")), 0)
	bind(t, q, one, lease(one, 1, start.Add(time.Second)), start, true)
}

func twice(t *testing.T, q pools.Queue) {
	add(t, q, task(1, "a", ""), task(2, "a", ""))
	same(t, ids(take(t, q, start, 9, "a", "a")), ids([]*pools.Task{task(1, "a", ""), task(2, "a", "")}))
}
