package executor

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// farAway is a hot tier whose answers take a while.
type farAway struct {
	attempts.Records
	takes time.Duration
}

func (r farAway) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, until time.Time, c attempts.Check, since time.Time,
) (job.Fence, bool, error) {
	time.Sleep(r.takes)
	return r.Records.Begin(ctx, k, h, until, c, since)
}

func TestPreciseIsCheckedBeforeItsInstantAndCalledAtIt(t *testing.T) {
	const takes = 4 * time.Millisecond
	for precision, want := range map[job.Precision]time.Duration{
		job.PrecisionStandard: standardTick - time.Millisecond + takes, job.PrecisionFast: takes, job.PrecisionPrecise: 0,
	} {
		t.Run(precision.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, time.Millisecond)
				b.shown, b.precision = farAway{b.records, takes}, precision
				stop, ended := b.start()
				due := time.Now().Truncate(time.Second).Add(2*time.Second + time.Millisecond) // just after a tick
				time.Sleep(time.Until(due) - 400*time.Millisecond)
				b.publish(due, false)
				time.Sleep(time.Second)
				if late := time.Unix(0, b.target.lastAt.Load()).Sub(due); late != want || b.target.calls.Load() != 1 {
					t.Errorf("called %d times, %s late, want once and %s", b.target.calls.Load(), late, want)
				}
				stop()
				<-ended
			})
		})
	}
}

// One wakes for all of a tick, so they share requests.
func TestStandardFiresOfATickBeginTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newQueue(DefaultConfig())
		tick := time.Now().Truncate(time.Second).Add(time.Second)
		for i := range 2 * int(standardTick/time.Millisecond) {
			w := fireOf(i, 7)
			w.fire.DueAt = tick.Add(time.Duration(i+1) * time.Millisecond)
			if !h.waitFor(w) {
				t.Fatal("a fire ahead of its instant does not wait")
			}
		}
		for range 2 {
			tick = tick.Add(standardTick)
			if _, next := h.takeDelayed(tick.Add(-time.Nanosecond)); !next.Equal(tick) {
				t.Errorf("the next fires begin at %s, want %s", next, tick)
			}
			due, _ := h.takeDelayed(tick)
			if len(due) != int(standardTick/time.Millisecond) {
				t.Errorf("%d fires begin together, want %d", len(due), standardTick/time.Millisecond)
			}
		}
	})
}

func TestMorePreciseGoesFirstAndTheLeastPreciseIsNotForgotten(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxRunning, cfg.HostConcurrency = 1, 1
	h, _ := newQueue(cfg)
	for i := range 100 {
		for precision := range job.Precisions {
			w := fireOf(i, 7)
			w.fire.Precision, w.fire.Lane = precision, 7+uint32(precision)
			h.enqueue(w)
		}
	}
	var order []job.Precision
	for w := h.next(); w != nil; w = h.next() {
		order = append(order, w.fire.Precision)
		h.release(w)
	}
	if len(order) != 300 || len(h.byName) > 0 {
		t.Fatalf("%d of 300 were called, %d hosts are left", len(order), len(h.byName))
	}
	if n := len(slices.DeleteFunc(slices.Clone(order[:120]), func(p job.Precision) bool { return p != job.PrecisionPrecise })); n != 100 {
		t.Errorf("%d of the first 120 calls are precise, want all 100", n)
	}
	if first := slices.Index(order, job.PrecisionStandard); first > leastEvery {
		t.Errorf("the first standard fire is call %d, want at most %d", first, leastEvery)
	}
}

// The lanes of a host share its places; each is asked for as if it had them for itself, and reports what waits in it.
func TestEachPrecisionIsReportedAsALaneOfItsOwn(t *testing.T) {
	h, _ := newQueue(DefaultConfig())
	for i := range 10 {
		h.enqueue(fireOf(i, 7))
	}
	w := fireOf(10, 7)
	w.fire.Precision, w.fire.Lane = job.PrecisionFast, 8
	h.enqueue(w)
	waiting := map[uint32]int{}
	for _, l := range h.report() {
		waiting[l.ID] = l.Waiting
	}
	if len(waiting) != 2 || waiting[7] != 10 || waiting[8] != 1 {
		t.Errorf("the report says that %v wait", waiting)
	}
}

func TestAlarmRingsAtItsInstantForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		naps := 0
		a := newAlarm(clock.Clock{}, func(d time.Duration) {
			naps++
			time.Sleep(d/2 + 1) // a signal
		})
		until := time.Now().Truncate(time.Second).Add(2 * time.Second)
		done := make(chan time.Time, 100)
		for range cap(done) {
			go func() {
				if err := a.wait(t.Context(), until); err == nil {
					done <- time.Now()
				}
			}()
		}
		for range cap(done) {
			if at := <-done; at.Before(until) || at.After(until) {
				t.Errorf("it rang %s late", at.Sub(until))
			}
		}
		if naps > 100 || len(a.at) > 0 {
			t.Errorf("%d naps, %d are left", naps, len(a.at))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if a.wait(ctx, time.Now().Add(time.Hour)) == nil {
			t.Error("it waits for an instant that nobody waits for any more")
		}
	})
}
