package attemptstest

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

func startNeedsLease(t *testing.T, f fixture) {
	_, _, err := f.Start(t.Context(), f.key, job.Token{Counter: 1, Start: alice.Start}, f.check())
	mustBeFenced(t, "starting without a record", err)
	rec := f.acquire(t, alice, f.now)
	_, _, err = f.Start(t.Context(), f.key, job.Token{Counter: rec.Token.Counter + 1, Start: rec.Token.Start}, f.check())
	mustBeFenced(t, "starting with a token that was never given", err)
	f.start(t, rec.Token)
	f.finish(t, rec.Token, outcome(job.OutcomeSucceeded, rec.Token, f.now), f.now)
	_, _, err = f.Start(t.Context(), f.key, rec.Token, f.check())
	mustBeFenced(t, "starting what has ended", err)
}

func startNeedsIncarnation(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	c := f.check()
	c.Incarnation += "-before"
	if _, _, err := f.Start(t.Context(), f.key, rec.Token, c); !errors.Is(err, attempts.ErrIncarnation) {
		t.Errorf("started in another incarnation: %v", err)
	}
	if rec := f.record(t); rec.Running {
		t.Errorf("the record is %+v", rec)
	}
	f.start(t, rec.Token)
}

func definitionIsTold(t *testing.T, f fixture) {
	hold := func(h attempts.Holder, definition string) attempts.Holder {
		h.DefinitionID = definition
		return h
	}
	want := func(rec attempts.Record, definition string) {
		t.Helper()
		if rec.DefinitionID != definition || f.record(t).DefinitionID != definition || !rec.Of(definition) || rec.Of("def_9") {
			t.Errorf("it is told for %q, want %q", rec.DefinitionID, definition)
		}
	}
	rec := f.acquire(t, hold(alice, "def_1"), f.now)
	want(rec, "def_1")
	rec = f.acquire(t, hold(bob, "def_2"), f.now.Add(lease))
	want(rec, "def_2")
	f.start(t, rec.Token) // for the fixture's entry, of def_2
	rec = f.acquire(t, hold(alice, "def_1"), f.now.Add(2*lease))
	want(rec, "def_2")
}

func startNeedsStop(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	full := job.State{
		Version: 3, Status: job.StatusPaused, PausedAt: f.now, DefinitionID: "def_3", EffectiveAt: f.now.Add(time.Hour),
		StoppedExecutions: []string{"exe_1", "exe_2"},
	}
	for _, c := range []struct {
		set    *job.State
		by     int64
		stands job.State
	}{
		{nil, 3, job.State{}},
		{&full, 0, full},
		{nil, 2, full},
		{nil, 1 << 40, full},
	} {
		if c.set != nil {
			must(t, f.setStop(t, f.entry.JobID, *c.set))
		}
		check := f.check()
		check.StopVersion = c.by
		fence, stop, err := f.Start(t.Context(), f.key, rec.Token, check)
		if err != nil || stop == nil || !reflect.DeepEqual(*stop, c.stands) || fence != (job.Fence{}) {
			t.Errorf("by version %d: fence %+v, told %+v, %v; there stands %+v", c.by, fence, stop, err, c.stands)
		}
		if rec := f.record(t); rec.Running || !rec.Alive(f.now) {
			t.Errorf("by version %d, which does not stand, the record became %+v", c.by, rec)
		}
	}
	check := f.check()
	check.StopVersion = full.Version
	fence, stop, err := f.Start(t.Context(), f.key, rec.Token, check)
	if err != nil || stop != nil {
		t.Fatalf("by the version that stands: told %+v, %v", stop, err)
	}
	f.wantFence(t, fence, rec.Token, check)
	if rec := f.record(t); !rec.Running {
		t.Errorf("by the version that stands the record became %+v", rec)
	}
}

func active(version int64) job.State {
	return job.State{Version: version, Status: job.StatusActive, DefinitionID: "def_2"}
}

func cancelled(version int64) job.State {
	return job.State{Version: version, Status: job.StatusCancelled, DefinitionID: "def_2"}
}

func greaterStopStands(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	for _, c := range []struct{ set, want job.State }{
		{cancelled(3), cancelled(3)},
		{active(2), cancelled(3)},
		{active(3), cancelled(3)},
		{active(4), active(4)},
		{cancelled(4), active(4)},
		{cancelled(1 << 40), cancelled(1 << 40)},
		{active(5), cancelled(1 << 40)},
	} {
		must(t, f.setStop(t, f.entry.JobID, c.set))
		if stands := f.stands(t, rec.Token); !reflect.DeepEqual(stands, c.want) {
			t.Errorf("behind %+v there stands %+v, want %+v", c.set, stands, c.want)
		}
	}
}

func stopsRace(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	atOnce(func(i int) {
		if err := f.setStop(t, f.entry.JobID, active(int64(i+1))); err != nil {
			t.Error(err)
		}
	})
	if stands := f.stands(t, rec.Token); stands.Version != racers {
		t.Errorf("there stands %+v", stands)
	}
}

func stopIsFinal(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	var stopped atomic.Bool
	atOnce(func(i int) {
		if i == 0 {
			if err := f.setStop(t, f.entry.JobID, cancelled(9)); err != nil {
				t.Error(err)
			}
			stopped.Store(true)
			return
		}
		for range 20 {
			after := stopped.Load()
			_, stop, err := f.Start(t.Context(), f.key, rec.Token, f.check())
			if err != nil || after && (stop == nil || stop.Version != 9) {
				t.Errorf("told %+v after the stop was acknowledged, %v", stop, err)
			}
		}
	})
	if stands := f.stands(t, rec.Token); stands.Version != 9 {
		t.Errorf("there stands %+v", stands)
	}
}

func stopsAreSeparate(t *testing.T, f fixture) {
	other := newFixture(f.Records)
	must(t, f.setStop(t, other.entry.JobID, cancelled(1)))
	f.start(t, f.acquire(t, alice, f.now).Token)
	if stands := other.stands(t, other.acquire(t, alice, f.now).Token); stands.Version != 1 {
		t.Errorf("there stands %+v", stands)
	}
}

func ownOutcome(t *testing.T, f fixture) {
	for name, c := range map[string]struct {
		at      time.Duration
		release bool
	}{"alive": {}, "lapsed": {at: 2 * lease}, "released": {release: true}} {
		for _, started := range []bool{false, true} {
			f := newFixture(f.Records)
			rec := f.acquire(t, alice, f.now)
			if started {
				f.start(t, rec.Token)
			}
			if c.release {
				must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
			}
			if at := f.now.Add(c.at); !f.finish(t, rec.Token, outcome(job.OutcomeSucceeded, rec.Token, at), at) {
				t.Errorf("%s, started %v: not stored", name, started)
			}
		}
	}
}

func outcomeOfNothing(t *testing.T, f fixture) {
	token := job.Token{Counter: 3, Start: alice.Start}
	if !f.finish(t, token, outcome(job.OutcomeSucceeded, token, f.now), f.now) {
		t.Error("not stored")
	}
	if rec := f.wantHeld(t, bob, f.now.Add(time.Minute)); !rec.Exists || rec.Outcome == nil {
		t.Errorf("record is %+v", rec)
	}
}

func foreignOutcome(t *testing.T, f fixture) {
	old := job.Token{Counter: 0, Start: 1}
	f.acquire(t, alice, f.now)
	for _, at := range []time.Time{f.now, f.now.Add(lease - time.Millisecond)} {
		if f.finish(t, old, outcome(job.OutcomeSucceeded, old, at), at) {
			t.Error("stored over a live lease")
		}
	}
	if at := f.now.Add(lease); !f.finish(t, old, outcome(job.OutcomeSucceeded, old, at), at) {
		t.Error("not stored over a lapsed lease")
	}
	f = newFixture(f.Records)
	must(t, f.Release(t.Context(), f.key, f.acquire(t, alice, f.now).Token, true, f.entry.DefinitionID))
	if !f.finish(t, old, outcome(job.OutcomeSucceeded, old, f.now), f.now) {
		t.Error("not stored over a released lease")
	}
}

func firstOutcomeStands(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	f.start(t, rec.Token)
	first := outcome(job.OutcomeFailed, rec.Token, f.now)
	if !f.finish(t, rec.Token, first, f.now) {
		t.Fatal("not stored")
	}
	for _, at := range []time.Time{f.now, f.now.Add(2 * lease)} {
		if f.finish(t, rec.Token, outcome(job.OutcomeSucceeded, rec.Token, at), at) || f.refuse(t, outcome(job.OutcomeSkipped, job.Token{}, at), at) {
			t.Error("another outcome was stored")
		}
		stands := f.wantHeld(t, bob, at)
		if stands.Outcome == nil || !reflect.DeepEqual(*stands.Outcome, first) || stands.Alive(at) {
			t.Errorf("there stands %+v", stands)
		}
	}
	f.wantNotRenewed(t, attempts.Lease{Key: f.key, Holder: bob, Token: job.Token{Counter: 99, Start: bob.Start}})
	must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
	if stands := f.record(t); stands.Outcome == nil || !reflect.DeepEqual(*stands.Outcome, first) {
		t.Errorf("after a release there stands %+v", stands)
	}
}

func outcomesRace(t *testing.T, f fixture) {
	for range 10 {
		f := newFixture(f.Records)
		var stored atomic.Int64
		told := make(chan attempts.Record, racers)
		atOnce(func(i int) {
			token := job.Token{Counter: 1, Start: int64(i + 1)}
			o := outcome(job.OutcomeSucceeded, token, f.now)
			var rec attempts.Record
			var ok bool
			var err error
			if i%2 == 0 {
				var ended []attempts.Completed
				if ended, err = f.Finish(t.Context(), []attempts.Completion{{Key: f.key, Token: token, Outcome: &o}}, f.now); err == nil {
					if rec, ok = ended[0].Record, ended[0].Stored; ok {
						rec = attempts.Record{Outcome: &o}
					}
				}
			} else {
				rec, ok, err = f.Refuse(t.Context(), f.key, o, f.now)
			}
			if err != nil || rec.Outcome == nil || ok != (rec.Outcome.Fence == o.Fence) {
				t.Errorf("racer %d: stored %v, told %+v, %v", i, ok, rec, err)
			}
			if ok {
				stored.Add(1)
			}
			told <- rec
		})
		close(told)
		stands := f.record(t)
		for rec := range told {
			if !reflect.DeepEqual(rec.Outcome, stands.Outcome) {
				t.Errorf("told was %+v, there stands %+v", rec.Outcome, stands.Outcome)
			}
		}
		if stored.Load() != 1 {
			t.Errorf("%d outcomes were stored", stored.Load())
		}
	}
}

func refusalOfNothing(t *testing.T, f fixture) {
	for _, released := range []bool{false, true} {
		f := newFixture(f.Records)
		if released {
			must(t, f.Release(t.Context(), f.key, f.acquire(t, alice, f.now).Token, true, f.entry.DefinitionID))
		}
		if !f.refuse(t, outcome(job.OutcomeSkipped, job.Token{}, f.now), f.now) {
			t.Errorf("released %v: not stored", released)
		}
		if f.refuse(t, outcome(job.OutcomeCancelled, job.Token{}, f.now), f.now) {
			t.Errorf("released %v: a second refusal was stored", released)
		}
		if rec := f.wantHeld(t, bob, f.now.Add(2*lease)); rec.Outcome == nil || rec.Outcome.Kind != job.OutcomeSkipped {
			t.Errorf("released %v: there stands %+v", released, rec)
		}
	}
}

func refusalYields(t *testing.T, f fixture) {
	skipped := outcome(job.OutcomeSkipped, job.Token{}, f.now)
	if f.acquire(t, alice, f.now); f.refuse(t, skipped, f.now) {
		t.Error("stored over a lease")
	}
	f = newFixture(f.Records)
	rec := f.acquire(t, alice, f.now)
	f.finish(t, rec.Token, outcome(job.OutcomeSucceeded, rec.Token, f.now), f.now)
	if f.refuse(t, skipped, f.now) {
		t.Error("stored over an outcome")
	}
	for _, release := range []bool{false, true} {
		f := newFixture(f.Records)
		rec := f.acquire(t, alice, f.now)
		f.start(t, rec.Token)
		if release {
			must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
		}
		if f.refuse(t, skipped, f.now.Add(2*lease)) {
			t.Errorf("released %v: stored over what ran", release)
		}
	}
}

func keptSinceHolds(t *testing.T, f fixture) {
	memory, err := f.Memory(t.Context(), f.entry.JobID)
	must(t, err)
	if day := 24 * time.Hour; memory.Covers(time.Now().Add(-day)) || !memory.Covers(time.Now().Add(time.Minute)) {
		t.Errorf("%+v is said to cover what ended before it began, or not to cover what will end in a minute", memory)
	}
	stored := f.end(t, 20, time.Millisecond)
	f.wantKept(t, stored)
	if rec := f.record(t); rec.Exists {
		t.Errorf("what never ended has record %+v", rec)
	}
}

// end stores n outcomes, a step apart, and returns the instants at which it did.
func (f fixture) end(t *testing.T, n int, step time.Duration) map[attempts.Key]time.Time {
	t.Helper()
	stored := map[attempts.Key]time.Time{}
	for i := range n {
		at := f.now.Add(time.Duration(i) * step)
		f := newFixture(f.Records)
		rec := f.acquire(t, alice, at)
		f.start(t, rec.Token)
		if !f.finish(t, rec.Token, outcome(job.OutcomeSucceeded, rec.Token, at), at) {
			t.Fatal("not stored")
		}
		stored[f.key] = at
	}
	return stored
}

// wantKept checks that what the store claims to have kept is there, and returns the number of outcomes that are.
func (f fixture) wantKept(t *testing.T, stored map[attempts.Key]time.Time) (there int) {
	t.Helper()
	memory, err := f.Memory(t.Context(), f.entry.JobID)
	must(t, err)
	since := memory.KeptSince
	for k, at := range stored {
		records, err := f.Lookup(t.Context(), []attempts.Key{k})
		must(t, err)
		if records[0].Outcome != nil {
			there++
		} else if !at.Before(since) {
			t.Errorf("an outcome stored %s after the instant of KeptSince is gone", at.Sub(since))
		} else if memory.Covers(at) {
			t.Errorf("an outcome is gone that was stored at an instant which is said to be covered, %s", at)
		}
	}
	return there
}

// RunBound runs the clauses about eviction; the store that open returns keeps at most bound outcomes.
func RunBound(t *testing.T, bound int, open func(t *testing.T) attempts.Records) {
	for name, step := range map[string]time.Duration{"apart": time.Millisecond, "at one instant": 0} {
		t.Run("of outcomes "+name+" the oldest go beyond the bound, and those kept are told", func(t *testing.T) {
			f := newFixture(open(t))
			if there := f.wantKept(t, f.end(t, 3*bound, step)); there != bound {
				t.Errorf("%d outcomes are kept, the bound is %d", there, bound)
			}
		})
	}
	t.Run("evicting never takes a lease that is held", func(t *testing.T) {
		f := newFixture(open(t))
		rec := f.acquire(t, alice, f.now)
		must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
		rec = f.acquire(t, bob, f.now)
		f.end(t, 3*bound, time.Millisecond)
		for range 3 * bound {
			other := newFixture(f.Records)
			must(t, f.Release(t.Context(), other.key, other.acquire(t, alice, f.now).Token, true, other.entry.DefinitionID))
		}
		if stands := f.record(t); stands != rec {
			t.Errorf("there stands %+v, held is %+v", stands, rec)
		}
	})
}
