package executor

import (
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// A worker whose clock is ahead publishes early. The executor waits until the instant, not until its next look.
func TestClocksThatDifferMoveACallByNoMoreThanTheyDiffer(t *testing.T) {
	const differ = 20 * time.Millisecond
	for _, worker := range []time.Duration{-differ, 0, differ} {
		for _, executor := range []time.Duration{-differ, 0, differ} {
			for precision := range job.Precisions {
				t.Run(fmt.Sprintf("worker %s executor %s %s", worker, executor, precision), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						most := max(-worker, -executor, 0) + time.Millisecond
						callsWithClocks(t, worker, executor, precision, most)
					})
				})
			}
		}
	}
}

func callsWithClocks(t *testing.T, worker, executor time.Duration, precision job.Precision, most time.Duration) {
	t.Helper()
	b := newBench(t, time.Millisecond)
	b.precision = precision
	stop, ended := b.startWith(clock.AheadBy(executor))
	for i := range 50 {
		due := time.Now().Add(time.Second + time.Duration(i*17)*time.Millisecond).Truncate(time.Millisecond)
		time.Sleep(time.Until(due.Add(-worker))) // when it is due by the worker's clock
		b.publish(due, false)
		time.Sleep(500 * time.Millisecond)
		if n := b.target.calls.Load(); n != int64(i+1) {
			t.Fatalf("%d calls of %d", n, i+1)
		}
		late := time.Unix(0, b.target.lastAt.Load()).Sub(due)
		if late < -executor {
			t.Errorf("called %s before it was due by the executor's clock", -executor-late)
		}
		if late > most {
			t.Errorf("called %s late, want at most %s", late, most)
		}
	}
	stop()
	<-ended
}
