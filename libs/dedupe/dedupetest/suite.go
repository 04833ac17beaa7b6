// Package dedupetest is the conformance suite of leases, outcomes and stop records.
package dedupetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// attempt is a fresh attempt.
func attempt() (dedupe.Key, *job.Entry) {
	at := job.Instant(time.Now())
	id := job.JobPrefix + ulid.Make().String()
	e := &job.Entry{
		Locator: job.Locator{DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1, DefinitionID: "def_1"},
		JobID:   id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
	}
	return dedupe.KeyOf(e), e
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) dedupe.Records) {
	a, b := dedupe.Holder{Name: "a", Start: 1}, dedupe.Holder{Name: "b", Start: 2}
	now := job.Instant(time.Now())
	lapse := now.Add(time.Minute)
	acquire := func(t *testing.T, s dedupe.Records, k dedupe.Key, h dedupe.Holder, at time.Time) (dedupe.Record, bool) {
		t.Helper()
		rec, ok, err := s.Acquire(t.Context(), k, h, at, at.Add(time.Minute))
		must(t, err)
		return rec, ok
	}
	t.Run("of concurrent holders one gets the lease", func(t *testing.T) {
		s := open(t)
		k, _ := attempt()
		var held atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, ok, err := s.Acquire(t.Context(), k, a, now, lapse); err != nil {
					t.Error(err)
				} else if ok {
					held.Add(1)
				}
			})
		}
		wg.Wait()
		if held.Load() != 1 {
			t.Errorf("%d holders", held.Load())
		}
	})
	t.Run("a lapsed lease is taken over with a greater token, and counted; the old holder is fenced", func(t *testing.T) {
		s := open(t)
		k, e := attempt()
		first, _ := acquire(t, s, k, a, now)
		if _, ok := acquire(t, s, k, b, now.Add(time.Second)); ok {
			t.Error("a live lease was taken over")
		}
		second, ok := acquire(t, s, k, b, now.Add(2*time.Minute))
		if !ok || second.Takeovers != 1 || !first.Token.Less(second.Token) {
			t.Errorf("takeover gave %+v, %v", second, ok)
		}
		if _, err := s.Start(t.Context(), k, first.Token, e); !errors.Is(err, dedupe.ErrFenced) {
			t.Errorf("the old holder started: %v", err)
		}
		if err := s.Renew(t.Context(), k, a, first.Token, lapse); !errors.Is(err, dedupe.ErrFenced) {
			t.Errorf("the old holder renewed: %v", err)
		}
		if _, ok, err := s.Finish(t.Context(), k, first.Token, job.Outcome{Kind: job.Succeeded}, now.Add(2*time.Minute)); ok || err != nil {
			t.Errorf("the old holder's outcome was stored over a live lease: %v", err)
		}
	})
	t.Run("renewing moves the end of a lease, and makes a lost record anew", func(t *testing.T) {
		s := open(t)
		k, _ := attempt()
		rec, _ := acquire(t, s, k, a, now)
		must(t, s.Renew(t.Context(), k, a, rec.Token, now.Add(time.Hour)))
		if _, ok := acquire(t, s, k, b, now.Add(2*time.Minute)); ok {
			t.Error("a renewed lease was taken over")
		}
		lost, _ := attempt()
		must(t, s.Renew(t.Context(), lost, a, job.Token{Counter: 7, Start: 1}, now.Add(time.Hour)))
		if _, ok := acquire(t, s, lost, b, now); ok {
			t.Error("a lease that was made anew was taken over")
		}
	})
	t.Run("the first outcome stands and ends the attempt", func(t *testing.T) {
		s := open(t)
		k, _ := attempt()
		rec, _ := acquire(t, s, k, a, now)
		_, ok, err := s.Finish(t.Context(), k, rec.Token, job.Outcome{Kind: job.Succeeded, Token: rec.Token}, now)
		must(t, err)
		again, twice, err := s.Finish(t.Context(), k, rec.Token, job.Outcome{Kind: job.Failed}, now)
		must(t, err)
		if !ok || twice || again.Outcome == nil || again.Outcome.Kind != job.Succeeded {
			t.Errorf("stored %v, then %v over %+v", ok, twice, again.Outcome)
		}
		if rec, ok := acquire(t, s, k, b, now.Add(time.Hour)); ok || rec.Outcome == nil {
			t.Error("an ended attempt was leased again")
		}
	})
	t.Run("an outcome is stored where the record is lapsed or gone", func(t *testing.T) {
		s := open(t)
		k, _ := attempt()
		_, ok, err := s.Finish(t.Context(), k, job.Token{Counter: 3, Start: 1}, job.Outcome{Kind: job.Succeeded}, now)
		must(t, err)
		if !ok {
			t.Error("not stored where nothing was")
		}
	})
	t.Run("a refusal is stored only where nothing began", func(t *testing.T) {
		s := open(t)
		fresh, _ := attempt()
		if _, ok, err := s.Refuse(t.Context(), fresh, job.Outcome{Kind: job.Skipped}, now); !ok || err != nil {
			t.Errorf("not stored on nothing: %v", err)
		}
		leased, _ := attempt()
		acquire(t, s, leased, a, now)
		if rec, ok, err := s.Refuse(t.Context(), leased, job.Outcome{Kind: job.Skipped}, now); ok || err != nil || !rec.Exists {
			t.Errorf("stored over a lease: %+v %v", rec, err)
		}
	})
	t.Run("a released lease may be taken again at once, and is no takeover", func(t *testing.T) {
		s := open(t)
		k, _ := attempt()
		rec, _ := acquire(t, s, k, a, now)
		must(t, s.Release(t.Context(), k, rec.Token))
		if rec, ok := acquire(t, s, k, b, now); !ok || rec.Takeovers != 0 {
			t.Errorf("got %+v, %v", rec, ok)
		}
	})
	t.Run("the last check obeys the stop record, of which only a greater version stands", func(t *testing.T) {
		s := open(t)
		k, e := attempt()
		rec, _ := acquire(t, s, k, a, now)
		state := job.State{Version: 3, Status: job.Cancelled, DefinitionID: "def_1"}
		must(t, s.SetStop(t.Context(), e.JobID, state))
		must(t, s.SetStop(t.Context(), e.JobID, job.State{Version: 2, Status: job.Active, DefinitionID: "def_1"}))
		if v, err := s.Start(t.Context(), k, rec.Token, e); err != nil || v != job.StoppedByCancel {
			t.Errorf("verdict %v, %v", v, err)
		}
		must(t, s.SetStop(t.Context(), e.JobID, job.State{Version: 4, Status: job.Active, DefinitionID: "def_1"}))
		if v, err := s.Start(t.Context(), k, rec.Token, e); err != nil || v != job.Proceed {
			t.Errorf("verdict %v, %v", v, err)
		}
		records, err := s.Lookup(t.Context(), []dedupe.Key{k})
		must(t, err)
		if !records[0].Running || !records[0].Alive(now) {
			t.Errorf("record is %+v", records[0])
		}
	})
}
