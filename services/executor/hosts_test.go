package executor

import (
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

func fireOf(i int, lane uint32) *task {
	return &task{
		fire: &job.Fire{Entry: job.Entry{Locator: job.Locator{ExecutionID: fmt.Sprint("exe", i), Attempt: 1}, Lane: lane}},
		host: fmt.Sprint("host", lane), bytes: 1000,
	}
}

// newQueue returns hosts, and a function that works off the queue until an instant, at a given time per call.
func newQueue(cfg Config) (h *hosts, work func(until time.Time, took time.Duration)) {
	h = newHosts(cfg, clock.Clock{}, newMetrics(nil))
	type call struct {
		w    *task
		ends time.Time
	}
	var running []call
	return h, func(until time.Time, took time.Duration) {
		for now := time.Now(); now.Before(until); now = time.Now() {
			for w := h.next(); w != nil; w = h.next() {
				running = append(running, call{w, now.Add(took)})
			}
			time.Sleep(time.Millisecond)
			keep := running[:0]
			for _, c := range running {
				if c.ends.After(time.Now()) {
					keep = append(keep, c)
					continue
				}
				h.release(c.w)
			}
			running = keep
		}
	}
}

func TestReportAsksForAsMuchAsIsCalledInTwoSeconds(t *testing.T) {
	cfg := DefaultConfig()
	for _, c := range []struct {
		name        string
		took        time.Duration
		fires       int
		least, most int
	}{
		// 256 places at 10 ms a call make 25,600 calls a second.
		{"a fast target", 10 * time.Millisecond, 50_000, 40_000, 52_000},
		// 256 places at 1 s a call make 256 calls a second.
		{"a slow target", time.Second, 5000, 400, 600},
		// Nothing ends: what waits there waits long enough.
		{"a target that hangs", time.Hour, 5000, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h, work := newQueue(cfg)
				for i := range c.fires {
					h.enqueue(fireOf(i, 7))
				}
				var lanes []capacity.Lane
				for range 15 {
					work(time.Now().Add(reportEvery), c.took)
					lanes = h.report()
				}
				if len(lanes) != 1 || lanes[0].ID != 7 || lanes[0].Window < c.least || lanes[0].Window > c.most {
					t.Errorf("the report is %+v, want one of %d to %d", lanes, c.least, c.most)
				}
			})
		})
	}
}

func TestReportOfAnIdleLaneIsWithdrawn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, work := newQueue(DefaultConfig())
		h.enqueue(fireOf(1, 7))
		work(time.Now().Add(reportEvery), time.Millisecond)
		if lanes := h.report(); len(lanes) != 1 || lanes[0].Waiting != 0 || lanes[0].Window < DefaultConfig().HostConcurrency {
			t.Errorf("after one call the report is %+v", lanes)
		}
		for range 2 * rateSlots {
			h.report()
		}
		if lanes := h.report(); len(lanes) > 0 || len(h.paces) > 0 {
			t.Errorf("an idle lane is still reported: %+v", lanes)
		}
	})
}

func TestFireThatIsEarlyIsCalledAtItsInstant(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, _ := newQueue(DefaultConfig())
		for i, early := range []time.Duration{40 * time.Millisecond, 7 * time.Millisecond, 90 * time.Millisecond} {
			h.delay(fireOf(i, 7), time.Now().Add(early))
		}
		select {
		case <-h.sooner:
		default:
			t.Error("nobody was told that there is one to wake for")
		}
		if due, next := h.takeDelayed(time.Now()); len(due) > 0 || time.Until(next) != 7*time.Millisecond {
			t.Errorf("%d are due, the next one in %s", len(due), time.Until(next))
		}
		time.Sleep(40 * time.Millisecond)
		if due, next := h.takeDelayed(time.Now()); len(due) != 2 || time.Until(next) != 50*time.Millisecond {
			t.Errorf("%d are due, the next one in %s", len(due), time.Until(next))
		}
	})
}

func TestLargeFiresLeaveMemoryToOtherHosts(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxBytes = 64 << 20
	h, _ := newQueue(cfg)
	largeOf := func(lane uint32) (n int) {
		for n < 1000 {
			w := fireOf(n, lane)
			w.fire.Target.Body = make([]byte, 250<<10)
			w.bytes = int64(len(w.fire.Target.Body)) + taskOverhead
			if n++; !h.enqueue(w) {
				h.reject(w)
				if w.fire.Target.Body != nil || !w.shed {
					t.Error("a fire without room keeps its payload")
				}
				return n - 1
			}
		}
		return n
	}
	for lane, want := range map[uint32]int{1: 65, 2: 65, 3: 65} { // a quarter each
		if n := largeOf(lane); n != want {
			t.Errorf("%d large fires of host %d found room, want %d", n, lane, want)
		}
	}
	if n := largeOf(4); n > 1 {
		t.Errorf("%d large fires of a fourth host found room: none is left to small ones", n)
	}
	for range 256 { // running tasks take as much as waiting ones
		h.next()
	}
	for i := range 1000 {
		if !h.enqueue(fireOf(i, 5)) {
			t.Fatalf("the small fire %d found no room", i)
		}
	}
	for _, l := range h.report() {
		if l.ID < 4 && l.Window > 65 {
			t.Errorf("host %d is to have %d large fires", l.ID, l.Window)
		}
	}
}

// Nobody else knows how its call ended.
func TestTaskThatOnlyEndsItsAttemptIsNotDeferred(t *testing.T) {
	cfg := DefaultConfig()
	bubble.Test(t, func(t *testing.T) {
		h, work := newQueue(cfg)
		for i := range 5000 {
			w := fireOf(i, 7)
			if i == cfg.HostConcurrency+1 {
				w.untold = &job.Outcome{}
			}
			h.enqueue(w)
		}
		work(time.Now().Add(cfg.MaxQueueWait+500*time.Millisecond), time.Hour)
		overdue := h.takeOverdue()
		if n := len(overdue); n != 5000-cfg.HostConcurrency-1 {
			t.Errorf("%d are deferred", n)
		}
		for _, w := range overdue {
			if w.untold != nil {
				t.Error("an outcome is dropped")
			}
		}
	})
}

// A deferral costs an event, a row and another dispatch. Where calls go on, a waiting fire is called sooner than a deferred
// one would come back. A fire that waits for a host that hangs makes room for others.
func TestFiresAreDeferredEarlyOnlyWhereCallsStandStill(t *testing.T) {
	cfg := DefaultConfig()
	for _, c := range []struct {
		name     string
		took     time.Duration
		deferred int
		after    time.Duration
	}{
		{"a target that hangs", time.Hour, 5000 - cfg.HostConcurrency, cfg.MaxQueueWait},
		{"a target whose calls go on", 4 * time.Second, 0, cfg.MaxQueueWait},
		{"a target whose calls go on, too slowly", 4 * time.Second, 5000 - 8*cfg.HostConcurrency, patience * cfg.MaxQueueWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h, work := newQueue(cfg)
				if len(h.takeOverdue()) > 0 {
					t.Error("something is deferred where nothing waits")
				}
				for i := range 5000 {
					h.enqueue(fireOf(i, 7))
				}
				work(time.Now().Add(c.after+500*time.Millisecond), c.took)
				if n := len(h.takeOverdue()); n != c.deferred {
					t.Errorf("%d are deferred, want %d", n, c.deferred)
				}
			})
		})
	}
}
