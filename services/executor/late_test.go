package executor

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
)

// A parent that is dispatched again after a crash heats successors that were settled long ago. The hot tier may have
// forgotten their outcomes, so they would be called again one after the other.
func TestLateFireOfARowThatIsDoneIsNotCalled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		for i := range 20 {
			b.publish(time.Now().Add(-time.Duration(i+1)*time.Second), true)
		}
		b.publish(time.Now().Add(-time.Minute), false) // and one that is late for another reason
		stop, ended := b.start()
		time.Sleep(10 * time.Second)
		stop()
		<-ended
		if b.target.calls.Load() != 1 || b.events() != 1 {
			t.Errorf("%d calls and %d events, want one each", b.target.calls.Load(), b.events())
		}
		b.wantCommitted()
	})
}

// In a stampede every fire but the first ones is late, and would pay for a read of its row, and for a lease and a last check one by one.
func TestLateFireAsksNothingWhereTheHotTierHasForgottenNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		records := &countedLeases{Records: b.records}
		b.shown = records
		time.Sleep(10 * time.Minute)
		for i := range 20 {
			b.publish(time.Now().Add(-9*time.Minute+time.Duration(i)*time.Second), false)
		}
		stop, ended := b.start()
		time.Sleep(10 * time.Second)
		stop()
		<-ended
		if b.target.calls.Load() != 20 || b.rows.Load() != 0 || records.acquired.Load() != 0 {
			t.Errorf("%d calls, %d reads of rows and %d leases, want 20 and none", b.target.calls.Load(), b.rows.Load(), records.acquired.Load())
		}
	})
}

// countedLeases is a hot tier that counts the leases that are taken without a last check.
type countedLeases struct {
	attempts.Records
	acquired atomic.Int64
}

func (r *countedLeases) Acquire(ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time) (attempts.Record, bool, error) {
	r.acquired.Add(1)
	return r.Records.Acquire(ctx, k, h, now, lapsesAt)
}

// evictsMeanwhile is a hot tier that has evicted an outcome since the fire was due, when an executor asks.
type evictsMeanwhile struct {
	attempts.Records
	refused atomic.Int64
}

func (r *evictsMeanwhile) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time,
) (job.Fence, bool, error) {
	if keptSince.After(c.Entry.DueAt) {
		return r.Records.Begin(ctx, k, h, lapsesAt, c, keptSince)
	}
	r.refused.Add(1)
	return job.Fence{}, false, nil
}

func (r *evictsMeanwhile) Memory(ctx context.Context, jobID string) (attempts.Memory, error) {
	m, err := r.Records.Memory(ctx, jobID)
	m.KeptSince = job.Later(m.KeptSince, time.Now().Add(-time.Minute))
	return m, err
}

// What was evicted may be the outcome of a fire that was due before.
func TestLateFireIsNotBegunAtOnceWhereTheHotTierHasEvictedSince(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		records := &evictsMeanwhile{Records: b.records}
		b.shown = records
		time.Sleep(10 * time.Minute)
		b.publish(time.Now().Add(-2*time.Minute), true) // its row is done, and its outcome forgotten
		stop, ended := b.start()
		time.Sleep(10 * time.Second)
		stop()
		<-ended
		if b.target.calls.Load() != 0 || records.refused.Load() == 0 {
			t.Errorf("%d calls, and the hot tier refused %d times, want none and at least once", b.target.calls.Load(), records.refused.Load())
		}
		b.wantCommitted()
	})
}
