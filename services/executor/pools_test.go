package executor

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// restarts is a hot tier that dies when an attempt is held, and is back without the tasks that were added last.
type restarts struct {
	attempts.Records
	queue pools.Queue
	died  bool
}

func (r *restarts) Acquire(ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time) (attempts.Record, bool, error) {
	if !r.died {
		r.died = true
		err := r.queue.Forget(ctx, pools.Pool{Name: "work"}, pools.IDOf(k))
		return attempts.Record{}, false, errors.Join(err, errors.New("connection reset"))
	}
	return r.Records.Acquire(ctx, k, h, now, lapsesAt)
}

// Otherwise its attempt would be held for a task that nobody can fetch.
func TestTaskThatTheHotTierForgotBeforeItsAttemptWasHeldIsAddedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		queue, records := embedded.NewPools(), newRecords(t)
		s := &Service{cfg: DefaultConfig(), deps: Deps{Records: &restarts{Records: records, queue: queue}, Pools: queue, Logger: slog.New(slog.DiscardHandler)}, name: "executor"}
		fire := &job.Fire{
			Entry:  job.Entry{Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1}},
			Target: job.Target{Kind: job.TargetPool, Pool: "work", Handler: "do"},
		}
		key := attempts.KeyOf(&fire.Entry)
		holder := attempts.Holder{Name: "task"}
		full, err := s.letWait(t.Context(), key, &pools.Task{Fire: fire, Holder: holder})
		if err != nil || full {
			t.Fatalf("full %v, %v", full, err)
		}
		shown, err := queue.Show(t.Context(), pools.Pool{Name: "work"}, time.Now())
		if err != nil || len(shown.Waiting) != 1 {
			t.Errorf("there waits %+v, %v", shown, err)
		}
		if found, err := records.Lookup(t.Context(), []attempts.Key{key}); err != nil || !found[0].Alive(time.Now()) {
			t.Errorf("the attempt is held as %+v, %v", found, err)
		}
	})
}

// What it says of a task decides whether the progress of an earlier worker is looked for.
func TestTaskMayHaveBegunUnlessItIsOnTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &Service{}
		now := time.Now()
		for name, c := range map[string]struct {
			attempt, counter int64
			scheduled, due   time.Time
			began            time.Duration // of the hot tier's incarnation, before the instant
			want             bool
		}{
			"on time":                           {1, 1, now, now, time.Hour, false},
			"a little late":                     {1, 1, now.Add(-onTime), now.Add(-onTime), time.Hour, false},
			"late":                              {1, 1, now.Add(-time.Minute), now.Add(-time.Minute), time.Hour, true},
			"deferred, and the tier forgot it":  {1, 1, now.Add(-time.Minute), now, time.Hour, true},
			"another attempt":                   {2, 1, now, now, time.Hour, true},
			"the same attempt by another token": {1, 2, now, now, time.Hour, true},
			"the tier was lost since":           {1, 1, now.Add(-5 * time.Second), now.Add(-5 * time.Second), -time.Second, true},
		} {
			f := &job.Fire{Entry: job.Entry{Locator: job.Locator{Attempt: int(c.attempt), DueAt: c.due}, ScheduledFor: c.scheduled}}
			incarnation := attempts.IncarnationName(c.scheduled.Add(-c.began).UnixMicro(), "a")
			if got := s.mayHaveBegun(f, &attempts.Record{Token: job.Token{Counter: c.counter}}, incarnation); got != c.want {
				t.Errorf("%s: %t", name, got)
			}
		}
	})
}
