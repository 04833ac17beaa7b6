//go:build servers

package cluster_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// toldWithin is how long a fault may be there before the watchdog tells of it.
const toldWithin = 2 * time.Minute

// signal sends a signal to both processes of a service.
func (f *platform) signal(service string, s syscall.Signal) {
	for n := range 2 {
		f.Member(service, n).Signal(s)
	}
}

// incidents returns those of a job that a client is shown, the latest first.
func (f *platform) incidents(jobID string) (list []ledger.Incident) {
	f.t.Helper()
	a, err := f.ask(f.t.Context(), 0, http.MethodGet, "/incidents?job_id="+jobID, nil)
	f.must(err)
	var page struct {
		Items []ledger.Incident `json:"items"`
	}
	f.must(json.Unmarshal(a.body, &page))
	return page.Items
}

// owner is whom jobs tell what becomes of them. It answers the first try of each notification with an error.
type owner struct {
	mu   sync.Mutex
	seen map[string]bool
	// told are the causes that it accepted, by job.
	told map[string][]string
}

func (o *owner) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var n struct {
		ID    string `json:"notification_id"`
		Cause string `json:"cause"`
		JobID string `json:"job_id"`
	}
	err := json.NewDecoder(r.Body).Decode(&n)
	o.mu.Lock()
	defer o.mu.Unlock()
	if first := !o.seen[n.ID]; err != nil || first {
		o.seen[n.ID] = true
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	o.told[n.JobID] = append(o.told[n.JobID], n.Cause)
}

// of returns the causes of a job, in this order.
func (o *owner) of(jobID string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.told[jobID], ", ")
}

func TestWatchdogTellsOfEachFaultOnceWithinTwoMinutes(t *testing.T) {
	f := newInstallation(t).fleet()
	owner := &owner{seen: map[string]bool{}, told: map[string][]string{}}
	pager := httptest.NewServer(owner)
	t.Cleanup(pager.Close)
	var hangs atomic.Bool
	answers := make(chan struct{}) // closed when the target answers again
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			select {
			case <-answers:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(target.Close)
	watched := func() string { // one whose owner is told once in a day
		return f.register([]map[string]any{{
			"name": "watched", "type": "interval", "every": "2s", "labels": map[string]string{"watched": "yes"},
			"target": map[string]any{"kind": "http_webhook", "url": target.URL, "timeout": "1m"},
			"sla":    map[string]any{"start_within": "3s", "finish_within": "6s"}, "owner": "the test",
			"notify": []map[string]any{{
				"on": []string{"sla_missed", "recovered"}, "target": map[string]any{"kind": "http_webhook", "url": pager.URL}, "quiet_period": "24h",
			}},
		}})[0]
	}
	id := watched()
	dispatch := func(do string) {
		_, err := f.ask(t.Context(), 0, http.MethodPost, "/dispatch/"+do, map[string]any{"label": "watched=yes"})
		f.must(err)
	}
	faults := []struct {
		name, deadline string
		causes         []string
		begin, end     func()
	}{
		{
			"the scheduler-workers stand still", "start_within",
			[]string{"not_dispatched"},
			func() { f.signal("scheduler-worker", syscall.SIGSTOP) }, func() { f.signal("scheduler-worker", syscall.SIGCONT) },
		},
		{
			"the executors stand still", "start_within",
			[]string{"not_executed"},
			func() { f.signal("executor", syscall.SIGSTOP) }, func() { f.signal("executor", syscall.SIGCONT) },
		},
		{"dispatch is held", "start_within", []string{"held"}, func() { dispatch("pause") }, func() { dispatch("resume") }},
		{"the target hangs", "finish_within", []string{"calling"}, func() { hangs.Store(true) }, func() { hangs.Store(false); close(answers) }},
		{
			"Redis is away", "start_within",
			[]string{"hot_tier_away"},
			func() { local(t, "down", "redis") }, func() { local(t, "up", "redis") },
		},
	}
	time.Sleep(10 * time.Second)
	if list := f.incidents(id); len(list) != 0 {
		t.Fatalf("while all is well: %+v", list)
	}
	for n, fault := range faults {
		count := func(status string) (of int) {
			for _, i := range f.incidents(id) {
				if i.Deadline == fault.deadline && i.Status == status {
					of++
				}
			}
			return of
		}
		told := id // the first fault is told of the job itself, the others of one that begins before them
		if n > 0 {
			told = watched()
		}
		before, began := count("closed"), time.Now()
		fault.begin()
		eventually(t, fault.name+", which is told", toldWithin, func() bool { return count("open") == 1 })
		shown := time.Since(began)
		eventually(t, fault.name+", of which the owner is told", toldWithin, func() bool { return owner.of(told) == "sla_missed" })
		called := time.Since(began)
		open := f.incidents(id)[slices.IndexFunc(f.incidents(id), func(i ledger.Incident) bool { return i.Deadline == fault.deadline })]
		fault.end()
		eventually(t, fault.name+", which is over", toldWithin, func() bool { // of both deadlines, or the next fault would be told already
			return !slices.ContainsFunc(f.incidents(id), func(i ledger.Incident) bool { return i.Status == "open" })
		})
		eventually(t, fault.name+", of whose end the owner is told", toldWithin, func() bool { return owner.of(told) == "sla_missed, recovered" })
		t.Logf("%s: shown after %.1f s because of %s, told after %.1f s, over after %.1f s", fault.name, shown.Seconds(), open.Cause, called.Seconds(), time.Since(began).Seconds())
		if !slices.Contains(fault.causes, open.Cause) {
			t.Errorf("%s: told because of %s, want %s", fault.name, open.Cause, strings.Join(fault.causes, " or "))
		}
		if closed := count("closed"); closed != before+1 {
			t.Errorf("fault %d, %s, was told %d times: %+v", n, fault.name, closed-before, f.incidents(id))
		}
	}
}
