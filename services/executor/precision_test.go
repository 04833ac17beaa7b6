package executor

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// farAway is a hot tier whose answers take a while. began is when it last accepted a check.
type farAway struct {
	attempts.Records
	takes time.Duration
	began *time.Time
}

func (r farAway) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, until time.Time, c attempts.Check, since time.Time,
) (job.Fence, bool, error) {
	time.Sleep(r.takes)
	*r.began = time.Now()
	return r.Records.Begin(ctx, k, h, until, c, since)
}

func TestFireIsCheckedBeforeItsInstantAndCalledAtIt(t *testing.T) {
	const takes = 4 * time.Millisecond
	for precision := range job.Precisions {
		for offset := range checkTick / time.Millisecond {
			offset *= time.Millisecond
			t.Run(precision.String()+" "+offset.String(), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					b := newBench(t, time.Millisecond)
					var checked time.Time
					b.shown, b.precision = farAway{b.records, takes, &checked}, precision
					stop, ended := b.start()
					due := time.Now().Truncate(time.Second).Add(2*time.Second + offset)
					time.Sleep(time.Until(due) - 400*time.Millisecond)
					b.publish(due, false)
					time.Sleep(time.Second)
					if late := time.Unix(0, b.target.lastAt.Load()).Sub(due); late != 0 || b.target.calls.Load() != 1 {
						t.Errorf("called %d times, %s late, want once and in time", b.target.calls.Load(), late)
					}
					if before := due.Sub(checked); before > 20*time.Millisecond || before < 0 {
						t.Errorf("checked %s before its instant, want at most 20 ms", before)
					}
					stop()
					<-ended
				})
			})
		}
	}
}

// One wakes for all of a tick, so they share requests.
func TestFiresOfATickAreCheckedTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ofTick = int(checkTick / time.Millisecond)
		h, _ := newQueue(DefaultConfig())
		first := time.Now().Truncate(time.Second).Add(time.Second)
		for i := range 2 * ofTick {
			w := fireOf(i, 7)
			w.fire.DueAt = first.Add(time.Duration(i) * time.Millisecond)
			if !h.waitFor(w) {
				t.Fatal("a fire ahead of its instant does not wait")
			}
		}
		for tick := first.Add(-checkedAhead); tick.Before(first.Add(-checkedAhead + 2*checkTick)); tick = tick.Add(checkTick) {
			if _, next := h.takeDelayed(tick.Add(-time.Nanosecond)); !next.Equal(tick) {
				t.Errorf("the next fires begin at %s, want %s", next, tick)
			}
			if due, _ := h.takeDelayed(tick); len(due) != ofTick {
				t.Errorf("%d fires begin together, want %d", len(due), ofTick)
			}
		}
	})
}

// What waits for its instant in a place must not keep out what is due.
func TestQuarterOfThePlacesIsKeptFromFiresThatAreEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name              string
			ofHost, all, busy int
			precision         job.Precision
			begin             int
		}{
			{"of their host", 8, 100, 0, job.PrecisionStandard, 6},
			{"of all", 100, 8, 0, job.PrecisionFast, 6},
			{"beside calls", 8, 100, 4, job.PrecisionStandard, 2},
			{"beside as many calls as may be", 8, 100, 8, job.PrecisionStandard, 0},
			{"the only one", 1, 1, 0, job.PrecisionStandard, 1},
			{"precise, which take what they get", 8, 100, 2, job.PrecisionPrecise, 20},
		} {
			cfg := DefaultConfig()
			cfg.HostConcurrency, cfg.MaxRunning = c.ofHost, c.all
			h, _ := newQueue(cfg)
			for i := range c.busy {
				h.enqueue(fireOf(i, 7))
			}
			var running []*task
			for w := h.next(); w != nil; w = h.next() {
				running = append(running, w)
			}
			due := time.Now().Truncate(time.Second).Add(2 * time.Second)
			for i := range 20 {
				w := fireOf(c.busy+i, 7)
				w.fire.DueAt, w.fire.Precision = due, c.precision
				if !h.waitFor(w) {
					t.Fatalf("%s: a fire ahead of its instant does not wait", c.name)
				}
			}
			time.Sleep(time.Until(due.Add(-checkedAhead)))
			ahead, next := h.takeDelayed(time.Now())
			if len(ahead) != c.begin || c.begin < 20 && !next.Equal(due) || h.early != 20-c.begin || h.waiting != h.early {
				t.Errorf("%s: %d begin ahead, want %d; the others at %s with %d early of %d", c.name, len(ahead), c.begin, next, h.early, h.waiting)
			}
			if w := fireOf(100, 7); c.precision != job.PrecisionPrecise && c.begin > 0 {
				w.fire.DueAt, w.fire.Precision = due, c.precision
				for _, of := range ahead {
					h.enqueue(of)
					running = append(running, h.next())
				}
				if !h.waitFor(w) || !w.notBefore.Equal(due) { // it comes when it might begin, and no place is left
					t.Errorf("%s: one that comes late waits until %s", c.name, w.notBefore)
				}
			}
			time.Sleep(time.Until(due))
			if rest, _ := h.takeDelayed(time.Now()); len(rest) < 20-c.begin || h.early != 0 {
				t.Errorf("%s: %d begin at their instant, %d are early", c.name, len(rest), h.early)
			}
			for _, w := range running {
				h.release(w)
			}
		}
	})
}

// Otherwise the next executor would wait until the lease ends, and count a takeover of an attempt that nobody called.
func TestStopGivesBackWhatWaitsForItsInstant(t *testing.T) {
	for precision := range job.Precisions {
		bubble.Test(t, func(t *testing.T) {
			b := newBench(t, time.Millisecond)
			b.precision, b.cfg.DrainLimit = precision, 0
			stop, ended := b.start()
			due := time.Now().Truncate(time.Second).Add(2 * time.Second)
			time.Sleep(time.Until(due) - 400*time.Millisecond)
			fire := b.publish(due, false)
			time.Sleep(time.Until(due) - 5*time.Millisecond)
			stop()
			<-ended
			other := attempts.Holder{Name: "other", Start: 7, DefinitionID: fire.DefinitionID}
			rec, held, err := b.records.Acquire(t.Context(), attempts.KeyOf(&fire.Entry), other, time.Now(), time.Now().Add(time.Minute))
			if err != nil || !held || rec.Takeovers != 0 || rec.Token.Counter != 2 || b.target.calls.Load() != 0 {
				t.Errorf("%s: after %d calls the next executor has it: %t, with %d takeovers, as number %d, %v", precision, b.target.calls.Load(),
					held, rec.Takeovers, rec.Token.Counter, err)
			}
		})
	}
}

// A stop that was acknowledged meanwhile would be missed.
func TestCheckIsMadeAgainWhenTheWaitForTheInstantTookTooLong(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			b := newBench(t, time.Millisecond)
			b.precision = job.PrecisionPrecise
			naps := 0
			b.nap = func(d time.Duration) {
				if naps++; naps == 1 {
					d = 5 * time.Second
				}
				time.Sleep(d)
			}
			stop, ended := b.start()
			due := time.Now().Truncate(time.Second).Add(2 * time.Second)
			time.Sleep(time.Until(due) - 400*time.Millisecond)
			fire := b.publish(due, false)
			time.Sleep(time.Until(due) + 2*time.Second)
			if stopped {
				_, err := b.records.SetStop(t.Context(), fire.JobID, job.State{Version: 2, Status: job.StatusCancelled})
				must(t, err)
			}
			time.Sleep(10 * time.Second)
			if calls := b.target.calls.Load(); calls != 1 && !stopped || calls != 0 && stopped {
				t.Errorf("stopped %t: called %d times", stopped, calls)
			}
			stop()
			<-ended
			b.wantCommitted()
		})
	}
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
	bubble.Test(t, func(t *testing.T) {
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
