//go:build servers

package cluster_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/fleet"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// A deployment: 200 fires a second, and 100 calls of twenty seconds always in flight.
const (
	steadyJobs = 200
	slowASec   = 5
	deployment = 110 * time.Second
	// onTime is less than a slow call takes: no fire waits for another's call to end.
	onTime = 15 * time.Second
)

func TestRollingRestartUnderLoadLosesAndDoublesNothing(t *testing.T) {
	f := newInstallation(t).fleet("MINUTEHAND_DRAIN_LIMIT=30s")
	begin := time.Now().Add(5 * time.Second).Truncate(time.Second)
	jobs := make([]map[string]any, 0, steadyJobs+slowASec*int(deployment/time.Second))
	for range steadyJobs {
		jobs = append(jobs, map[string]any{
			"name": "every second", "type": "interval", "every": "1s", "start_at": begin,
			"target": map[string]any{"kind": "http_webhook", "url": f.sink.url + "/ok"},
		})
	}
	for i := range cap(jobs) - steadyJobs {
		jobs = append(jobs, f.oneShot(begin.Add(time.Duration(i)*time.Second/slowASec), "/slow"))
	}
	ids := f.register(jobs)
	eventually(t, "a hundred calls are in flight", time.Minute, func() bool { running, _ := f.sink.slow(); return running >= 95 })
	restarted := time.Now()
	least := f.leastRunning()
	for n := range 2 {
		for _, s := range fleet.Services() {
			f.must(f.Member(s, n).Stop())
			f.restart(s, n)
		}
	}
	took := time.Since(restarted)
	// An executor that is finishing its calls leaves its share of the fires to the other at once.
	fewest := least()
	if fewest < 50 {
		t.Errorf("at a time only %d calls were in flight", fewest)
	}
	if left := time.Until(begin.Add(deployment)); left < 0 {
		t.Errorf("the restart took %s: no calls were in flight at its end", took)
	}
	for i, id := range ids[:steadyJobs] {
		a, err := f.ask(t.Context(), i%2, http.MethodPost, "/jobs/"+id+"/cancel", nil)
		f.must(err)
		if a.status != http.StatusOK {
			t.Fatalf("a cancel was answered %d: %s", a.status, a.body)
		}
	}
	running, cut := f.sink.slow()
	late := time.Duration(0)
	for _, c := range f.sink.all() {
		late = max(late, c.At.Sub(c.ScheduledFor))
	}
	t.Logf("twelve processes were restarted in %.0f s; %d calls in flight at the end, %d at the fewest, %d cut; %.1f s late at most",
		took.Seconds(), running, fewest, cut, late.Seconds())
	if late > onTime {
		t.Errorf("a fire was called %s after its instant", late)
	}
	overdue := steadyJobs + int(time.Since(begin.Add(5*time.Second))/time.Second)*slowASec
	eventually(t, "what was due five seconds ago is called", time.Minute, func() bool {
		missing, _ := f.sink.missing(ids[:min(overdue, len(ids))])
		return missing == 0
	})
	for _, id := range ids[steadyJobs:] { // jobs that are still ahead need not be waited for
		if f.sink.of(id) == 0 {
			_, err := f.ask(t.Context(), 0, http.MethodPost, "/jobs/"+id+"/cancel", nil)
			f.must(err)
		}
	}
	eventually(t, "the calls in flight end", time.Minute, func() bool { running, _ := f.sink.slow(); return running == 0 })
	f.check(func(a *ledger.Account) { a.Crashed = false })
}

// leastRunning watches how many slow calls are in flight; the function it returns reports the least number since then.
func (f *platform) leastRunning() (end func() int) {
	stop, ended := make(chan struct{}), make(chan struct{})
	least, _ := f.sink.slow()
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				running, _ := f.sink.slow()
				least = min(least, running)
			}
		}
	}()
	return func() int {
		close(stop)
		<-ended
		return least
	}
}

// Calls that still run at the drain limit are reported, and other executors make them again, under the same execution id
// and a greater token.
func TestCallsThatOutlastTheDrainLimitAreHandedOver(t *testing.T) {
	f := newInstallation(t).fleet("MINUTEHAND_DRAIN_LIMIT=3s")
	const calls = 100
	ids, _ := f.stampede(calls, "/slow")
	eventually(t, "all calls are in flight", time.Minute, func() bool { running, _ := f.sink.slow(); return running == calls })
	leaving := f.Member("executor", 0)
	handed := 0
	f.must(leaving.Stop())
	text, err := os.ReadFile(leaving.Log)
	f.must(err)
	if m := regexp.MustCompile(`others will take them over.* running=(\d+)`).FindSubmatch(text); m != nil {
		_, err = fmt.Sscan(string(m[1]), &handed)
		f.must(err)
	}
	if handed == 0 {
		t.Fatal("the executor told of no calls that it handed over")
	}
	cut := 0
	eventually(t, fmt.Sprintf("the target sees cut what the executor told of: %d calls", handed), 10*time.Second, func() bool {
		_, cut = f.sink.slow() // its server notices the end of each connection by itself
		return cut == handed
	})
	eventually(t, "what was handed over is called again", time.Minute, func() bool { return len(f.sink.all()) == calls+cut })
	eventually(t, "the calls end", time.Minute, func() bool { running, _ := f.sink.slow(); return running == 0 })
	f.wantGrowingTokens()
	if missing, repeated := f.sink.missing(ids); missing > 0 || repeated != cut {
		t.Errorf("%d jobs were called twice, %d never; %d were handed over", repeated, missing, cut)
	}
	f.check(nil)
}
