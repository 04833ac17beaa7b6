//go:build servers

package cluster_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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

func TestWatchdogTellsOfEachFaultOnceWithinTwoMinutes(t *testing.T) {
	f := newInstallation(t).fleet()
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
	id := f.register([]map[string]any{{
		"name": "watched", "type": "interval", "every": "2s", "labels": map[string]string{"watched": "yes"},
		"target": map[string]any{"kind": "http_webhook", "url": target.URL, "timeout": "1m"},
		"sla":    map[string]any{"start_within": "3s", "finish_within": "6s"}, "owner": "the test",
	}})[0]
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
		before, began := count("closed"), time.Now()
		fault.begin()
		eventually(t, fault.name+", which is told", toldWithin, func() bool { return count("open") == 1 })
		told := time.Since(began)
		open := f.incidents(id)[slices.IndexFunc(f.incidents(id), func(i ledger.Incident) bool { return i.Deadline == fault.deadline })]
		fault.end()
		eventually(t, fault.name+", which is over", toldWithin, func() bool { // of both deadlines, or the next fault would be told already
			return !slices.ContainsFunc(f.incidents(id), func(i ledger.Incident) bool { return i.Status == "open" })
		})
		t.Logf("%s: told after %.1f s because of %s, over after %.1f s", fault.name, told.Seconds(), open.Cause, time.Since(began).Seconds())
		if !slices.Contains(fault.causes, open.Cause) {
			t.Errorf("%s: told because of %s, want %s", fault.name, open.Cause, strings.Join(fault.causes, " or "))
		}
		if closed := count("closed"); closed != before+1 {
			t.Errorf("fault %d, %s, was told %d times: %+v", n, fault.name, closed-before, f.incidents(id))
		}
	}
}
