package attemptstest

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

func leaseLapses(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	if rec.Running || rec.Takeovers != 0 || rec.Outcome != nil || rec.Released {
		t.Errorf("a new record is %+v", rec)
	}
	f.wantHeld(t, bob, f.now.Add(lease-time.Millisecond))
	f.acquire(t, bob, f.now.Add(lease))
}

func heldIsHeld(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	once, other := alice, alice
	once.Start++
	other.Name = bob.Name
	for _, h := range []attempts.Holder{bob, once, other} {
		if stands := f.wantHeld(t, h, f.now.Add(time.Second)); stands != rec {
			t.Errorf("told was %+v, the lease is %+v", stands, rec)
		}
	}
	if stands := f.record(t); stands != rec {
		t.Errorf("record is %+v, want %+v", stands, rec)
	}
}

func askedAgainIsHad(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	for _, at := range []time.Time{f.now.Add(time.Second), f.now.Add(3 * lease)} { // even though it may have expired by now
		if again := f.acquire(t, alice, at); again.Token != rec.Token || again.Takeovers != 0 {
			t.Errorf("had again as %+v, was %+v", again, rec)
		}
		f.wantHeld(t, bob, at)
	}
	f.start(t, rec.Token)
	if again := f.acquire(t, alice, f.now.Add(3*lease)); again.Token != rec.Token || !again.Running {
		t.Errorf("after the start it is had again as %+v", again)
	}
	must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
	if again := f.acquire(t, alice, f.now.Add(3*lease)); !rec.Token.Less(again.Token) {
		t.Errorf("after a release it is had again as %+v, was %+v", again, rec)
	}
	taken := f.acquire(t, bob, f.now.Add(4*lease))
	f.wantHeld(t, alice, f.now.Add(4*lease))
	f.finish(t, taken.Token, outcome(job.OutcomeSucceeded, taken.Token, f.now), f.now)
	f.wantHeld(t, bob, f.now.Add(4*lease))
}

// of returns the holder of a hand-out.
func of(name string, since time.Time) attempts.Holder {
	h := alice
	h.For, h.ForSince = name, since
	return h
}

func handOutsExclude(t *testing.T, f fixture) {
	held := f.acquire(t, alice, f.now)
	first := f.acquire(t, of("one", f.now), f.now)
	if first.Token != held.Token || first.For != "one" || !first.ForSince.Equal(f.now) {
		t.Errorf("the first hand-out has %+v, it was held as %+v", first, held)
	}
	fence := f.start(t, first.Token)
	for _, since := range []time.Time{f.now.Add(-time.Hour), f.now, f.now.Add(attempts.AloneFor - time.Millisecond)} {
		if stands := f.wantHeld(t, of("two", since), f.now); stands.Token != first.Token || stands.Holder != alice.Name || stands.For != "one" {
			t.Errorf("another hand-out was told %+v", stands)
		}
	}
	later := f.now.Add(3 * attempts.AloneFor)
	if again := f.acquire(t, of("one", later), later); again.Token != first.Token || !again.ForSince.Equal(f.now) {
		t.Errorf("the same hand-out has %+v, it had %+v", again, first)
	}
	if again := f.acquire(t, alice, later); again.Token != first.Token || again.For != "one" {
		t.Errorf("without a hand-out the holder has %+v, the first had %+v", again, first)
	}
	if next := f.start(t, first.Token); next.String() <= fence.String() {
		t.Errorf("fence %s after %s", next, fence)
	}
}

func laterHandOutTakesOver(t *testing.T, f fixture) {
	first := f.acquire(t, of("one", f.now), f.now)
	f.start(t, first.Token)
	later := f.now.Add(attempts.AloneFor)
	second := f.acquire(t, of("two", later), later)
	if !first.Token.Less(second.Token) || !second.Running || second.Takeovers != 0 || second.For != "two" || !second.ForSince.Equal(later) {
		t.Errorf("taken over as %+v from %+v", second, first)
	}
	f.wantHeld(t, of("one", f.now), later)
	_, _, err := f.Start(t.Context(), f.key, first.Token, f.check())
	mustBeFenced(t, "starting", err)
	f.wantNotRenewed(t, attempts.Lease{Key: f.key, Holder: alice, Token: first.Token})
	must(t, f.Release(t.Context(), f.key, first.Token, true, f.entry.DefinitionID))
	if f.finish(t, first.Token, outcome(job.OutcomeSucceeded, first.Token, later), later) {
		t.Error("the outcome of the hand-out before was stored")
	}
	f.start(t, second.Token)
	if !f.finish(t, second.Token, outcome(job.OutcomeSucceeded, second.Token, later), later) {
		t.Error("the outcome was not stored")
	}
}

func freshLeaseForgetsHandOut(t *testing.T, f fixture) {
	first := f.acquire(t, of("one", f.now), f.now)
	must(t, f.Release(t.Context(), f.key, first.Token, true, f.entry.DefinitionID))
	if rec := f.acquire(t, bob, f.now); rec.For != "" || !rec.ForSince.IsZero() {
		t.Errorf("after a release another holder has %+v", rec)
	}
	at := f.now.Add(lease)
	if rec := f.acquire(t, of("two", f.now), at); rec.For != "two" || !rec.ForSince.Equal(f.now) {
		t.Errorf("after a takeover there is %+v", rec)
	}
	f.wantHeld(t, of("three", f.now), at)
}

// race has everyone acquire at an instant and returns the one record that all of them received.
func (f fixture) race(t *testing.T, at time.Time) attempts.Record {
	t.Helper()
	var held atomic.Int64
	told := make(chan attempts.Record, racers)
	atOnce(func(i int) {
		h := attempts.Holder{Name: alice.Name, Start: int64(i + 1)}
		rec, ok, err := f.Acquire(t.Context(), f.key, h, at, at.Add(lease))
		if err != nil || ok && rec.Token.Start != h.Start {
			t.Errorf("holder %d was told %+v, %v", i, rec, err)
		}
		if ok {
			held.Add(1)
		}
		told <- rec
	})
	close(told)
	rec := f.record(t)
	for r := range told {
		if r != rec {
			t.Errorf("told was %+v, there stands %+v", r, rec)
		}
	}
	if held.Load() != 1 {
		t.Errorf("%d holders", held.Load())
	}
	return rec
}

func acquiresRace(t *testing.T, f fixture) { f.race(t, f.now) }

func takeoversRace(t *testing.T, f fixture) {
	first := f.acquire(t, alice, f.now)
	second := f.race(t, f.now.Add(lease))
	if second.Takeovers != 1 || !first.Token.Less(second.Token) {
		t.Errorf("taken over as %+v from %+v", second, first)
	}
}

func takeoversCount(t *testing.T, f fixture) {
	var last job.Token
	for i := range 5 {
		rec := f.acquire(t, []attempts.Holder{alice, bob}[i%2], f.now.Add(time.Duration(i)*lease))
		if rec.Takeovers != i || !last.Less(rec.Token) {
			t.Errorf("takeover %d gave %+v after token %s", i, rec, last)
		}
		if i%2 == 1 {
			f.start(t, rec.Token)
		}
		last = rec.Token
	}
}

func takenOverIsFenced(t *testing.T, f fixture) {
	first := f.acquire(t, alice, f.now)
	later := f.now.Add(lease)
	second := f.acquire(t, bob, later)
	_, _, err := f.Start(t.Context(), f.key, first.Token, f.check())
	mustBeFenced(t, "starting", err)
	f.wantNotRenewed(t, attempts.Lease{Key: f.key, Holder: alice, Token: first.Token})
	must(t, f.Release(t.Context(), f.key, first.Token, true, f.entry.DefinitionID))
	if f.finish(t, first.Token, outcome(job.OutcomeSucceeded, first.Token, later), later) {
		t.Error("its outcome was stored over a live lease")
	}
	if rec := f.record(t); rec != second {
		t.Errorf("record is %+v, was %+v", rec, second)
	}
	f.start(t, second.Token)
}

func renewMoves(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	end := f.now.Add(3 * lease)
	f.renew(t, attempts.Lease{Key: f.key, Holder: alice, Token: rec.Token}, end)
	if got := f.wantHeld(t, bob, end.Add(-time.Millisecond)); !got.LapsesAt.Equal(end) || got.Token != rec.Token {
		t.Errorf("renewed to %+v", got)
	}
	f.renew(t, attempts.Lease{Key: f.key, Holder: alice, Token: rec.Token}, end.Add(lease)) // even though it may have expired by now
	f.wantHeld(t, bob, end)
	f.acquire(t, bob, end.Add(lease))
}

func renewRecreates(t *testing.T, f fixture) {
	token := job.Token{Counter: 7, Start: alice.Start}
	f.renew(t, attempts.Lease{Key: f.key, Holder: alice, Token: token}, f.now.Add(lease))
	rec := f.wantHeld(t, bob, f.now)
	if !rec.Alive(f.now) || rec.Holder != alice.Name || rec.Token != token || rec.Outcome != nil || rec.Running {
		t.Errorf("made anew as %+v", rec)
	}
	began := alice
	began.DefinitionID = "def_of_the_call"
	for i, l := range []attempts.Lease{{MayHaveBegun: true}, {Begun: true}} {
		l.Key = attempts.Key{ExecutionID: f.key.ExecutionID, Attempt: f.key.Attempt + 1 + i}
		l.Holder, l.Token = began, token
		f.renew(t, l, f.now.Add(lease))
		records, err := f.Lookup(t.Context(), []attempts.Key{l.Key})
		must(t, err)
		if rec := records[0]; !rec.Running || rec.DefinitionID != began.DefinitionID {
			t.Errorf("of a call that has begun it is made anew as %+v", rec)
		}
	}
	f.wantNotRenewed(t, attempts.Lease{Key: f.key, Holder: bob, Token: job.Token{Counter: 6, Start: bob.Start}})
	if taken := f.acquire(t, bob, f.now.Add(lease)); !token.Less(taken.Token) {
		t.Errorf("token %s does not exceed %s", taken.Token, token)
	}
}

func renewTellsBegun(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	l := attempts.Lease{Key: f.key, Holder: alice, Token: rec.Token, MayHaveBegun: true}
	l.Holder.DefinitionID = "def_of_the_call"
	f.renew(t, l, f.now.Add(lease))
	if rec := f.record(t); rec.Running {
		t.Errorf("what may have begun, of which more is known, is %+v", rec)
	}
	l.Begun = true
	f.renew(t, l, f.now.Add(lease))
	if rec := f.record(t); !rec.Running || rec.DefinitionID != l.Holder.DefinitionID {
		t.Errorf("what has begun is %+v", rec)
	}
}

func lateShortensNothing(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	end := f.now.Add(3 * lease)
	f.renew(t, attempts.Lease{Key: f.key, Holder: alice, Token: rec.Token}, end)
	f.renew(t, attempts.Lease{Key: f.key, Holder: alice, Token: rec.Token}, end.Add(-lease))
	again, ok, err := f.Acquire(t.Context(), f.key, alice, f.now, f.now.Add(lease))
	if err != nil || !ok || !again.LapsesAt.Equal(end) {
		t.Errorf("told was %+v, %v, %v", again, ok, err)
	}
	if rec := f.record(t); !rec.LapsesAt.Equal(end) {
		t.Errorf("the record is %+v, the lease ended at %s", rec, end)
	}
}

func renewedTogether(t *testing.T, f fixture) {
	end := f.now.Add(3 * lease)
	leases := make([]attempts.Lease, attempts.MaxRenew)
	keys := make([]attempts.Key, len(leases))
	for i := range leases {
		other := newFixture(f.Records)
		keys[i] = other.key
		leases[i] = attempts.Lease{Key: other.key, Holder: alice, Token: job.Token{Counter: 1, Start: alice.Start}}
		switch i % 16 { // most of them have no record
		case 0:
			leases[i].Token = other.acquire(t, alice, f.now).Token
		case 1:
			other.acquire(t, bob, f.now)
		}
	}
	must(t, f.Renew(t.Context(), leases, end))
	must(t, f.Renew(t.Context(), nil, end))
	records, err := f.Lookup(t.Context(), keys)
	must(t, err)
	for i, rec := range records {
		holder, lapses := alice, end
		if i%16 == 1 {
			holder, lapses = bob, f.now.Add(lease)
		}
		if rec.Holder != holder.Name || !rec.LapsesAt.Equal(lapses) {
			t.Fatalf("lease %d is %+v, want it to end at %s", i, rec, lapses)
		}
	}
}

func releaseFrees(t *testing.T, f fixture) {
	for _, started := range []bool{false, true} {
		f := newFixture(f.Records)
		var last job.Token
		for range 3 {
			rec := f.acquire(t, alice, f.now)
			if rec.Takeovers != 0 || !last.Less(rec.Token) {
				t.Errorf("started %v: had as %+v after token %s", started, rec, last)
			}
			if started {
				f.start(t, rec.Token)
			}
			must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
			must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
			last = rec.Token
		}
	}
}

func releaseKeepsRecord(t *testing.T, f fixture) {
	f.acquire(t, alice, f.now)
	at := f.now.Add(lease)
	taken := f.acquire(t, bob, at)
	must(t, f.Release(t.Context(), f.key, taken.Token, true, f.entry.DefinitionID))
	if rec := f.record(t); rec.Alive(at) || rec.Outcome != nil {
		t.Errorf("a released record is %+v", rec)
	}
	again := f.acquire(t, alice, at)
	if again.Takeovers != 1 || !taken.Token.Less(again.Token) {
		t.Errorf("had again as %+v", again)
	}
	if over := f.acquire(t, bob, at.Add(lease)); over.Takeovers != 2 {
		t.Errorf("taken over as %+v", over)
	}
}

func releasedIsFenced(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
	_, _, err := f.Start(t.Context(), f.key, rec.Token, f.check())
	mustBeFenced(t, "starting what was released", err)
	again := f.acquire(t, alice, f.now)
	_, _, err = f.Start(t.Context(), f.key, rec.Token, f.check())
	mustBeFenced(t, "starting with the token of before", err)
	must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID)) // with the earlier token: not this lease's
	f.start(t, again.Token)
}

func runningStays(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	f.start(t, rec.Token)
	f.start(t, rec.Token) // again, for an executor that lost the answer
	if rec := f.record(t); !rec.Running || !rec.Alive(f.now) {
		t.Errorf("a started record is %+v", rec)
	}
	must(t, f.Release(t.Context(), f.key, rec.Token, true, f.entry.DefinitionID))
	if rec := f.acquire(t, bob, f.now); !rec.Running {
		t.Error("after a release it is not running")
	}
	if rec := f.acquire(t, alice, f.now.Add(lease)); !rec.Running {
		t.Error("after a takeover it is not running")
	}
}

func releasedBeforeACallNeverRan(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	f.start(t, rec.Token)
	must(t, f.Release(t.Context(), f.key, rec.Token, false, f.entry.DefinitionID))
	if rec := f.record(t); rec.Exists || rec.Running {
		t.Errorf("a record that was released before a call is %+v", rec)
	}
	again := f.acquire(t, bob, f.now)
	if again.Running || !rec.Token.Less(again.Token) {
		t.Errorf("had again as %+v", again)
	}
	f.start(t, again.Token)
	if rec := f.record(t); !rec.Running || !rec.Alive(f.now) {
		t.Errorf("started again it is %+v", rec)
	}
}

func releaseNamesWhoWasCalledFor(t *testing.T, f fixture) {
	first, other := *f.entry, *f.entry
	first.DefinitionID, other.DefinitionID = "def_2", "def_1"
	start := func(e *job.Entry, token job.Token) {
		t.Helper()
		c := f.check()
		c.Entry = e
		if _, stop, err := f.Start(t.Context(), f.key, token, c); err != nil || stop != nil {
			t.Fatalf("it did not begin: %+v, %v", stop, err)
		}
		if rec := f.record(t); rec.DefinitionID != e.DefinitionID {
			t.Errorf("once started for %s it is %+v", e.DefinitionID, rec)
		}
	}
	start(&first, f.acquire(t, alice, f.now).Token)
	rec := f.acquire(t, bob, f.now.Add(lease))
	start(&other, rec.Token)
	must(t, f.Release(t.Context(), f.key, rec.Token, rec.Running, rec.DefinitionID))
	must(t, f.Release(t.Context(), f.key, rec.Token, true, other.DefinitionID)) // a call that comes late, when nothing is left to release
	if rec := f.record(t); !rec.Running || !rec.Of(first.DefinitionID) || rec.Of(other.DefinitionID) {
		t.Errorf("released by a holder that called nobody it is %+v, want it of %s", rec, first.DefinitionID)
	}
	if rec := f.acquire(t, alice, f.now.Add(lease)); !rec.Running || rec.DefinitionID != first.DefinitionID {
		t.Errorf("the next holder finds %+v, want it of %s", rec, first.DefinitionID)
	}
}

func attemptsAreSeparate(t *testing.T, f fixture) {
	rec := f.acquire(t, alice, f.now)
	f.finish(t, rec.Token, outcome(job.OutcomeFailed, rec.Token, f.now), f.now)
	f.key.Attempt = 2
	if rec := f.record(t); rec.Exists {
		t.Errorf("the next attempt is %+v", rec)
	}
	if rec := f.acquire(t, bob, f.now); rec.Takeovers != 0 || rec.Outcome != nil {
		t.Errorf("the next attempt is %+v", rec)
	}
}

func lookupInOrder(t *testing.T, f fixture) {
	one, two := newFixture(f.Records), newFixture(f.Records)
	want := []attempts.Record{two.acquire(t, bob, f.now), {}, one.acquire(t, alice, f.now)}
	records, err := f.Lookup(t.Context(), []attempts.Key{two.key, f.key, one.key})
	must(t, err)
	if len(records) != 3 || records[0] != want[0] || records[1] != want[1] || records[2] != want[2] {
		t.Errorf("looked up %+v, want %+v", records, want)
	}
	if records, err := f.Lookup(t.Context(), nil); err != nil || len(records) != 0 {
		t.Errorf("of no keys: %+v, %v", records, err)
	}
}

func fencesGrow(t *testing.T, f fixture) {
	var fences []string
	for i := range 3 { // also from one attempt to the next, and back
		g, e := f, *f.entry
		e.Attempt = 1 + i%2
		g.entry, g.key = &e, attempts.KeyOf(&e)
		rec := g.acquire(t, bob, f.now)
		fences = append(fences, g.start(t, rec.Token).String(), g.start(t, rec.Token).String())
		must(t, g.Release(t.Context(), g.key, rec.Token, true, g.entry.DefinitionID))
	}
	if !slices.IsSorted(fences) || len(slices.Compact(slices.Clone(fences))) != len(fences) {
		t.Errorf("later checks of one execution have the fencing tokens %q", fences)
	}
}
