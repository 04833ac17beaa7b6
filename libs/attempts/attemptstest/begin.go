package attemptstest

import (
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// begin begins the attempt at once, with a memory that must reach back to the fixture's instant.
func (f fixture) begin(t *testing.T, h attempts.Holder, c attempts.Check) (job.Fence, bool) {
	t.Helper()
	fence, ok, err := f.Begin(t.Context(), f.key, h, f.now.Add(lease), c, f.now)
	must(t, err)
	if !ok && fence != (job.Fence{}) {
		t.Errorf("nothing began, with fence %+v", fence)
	}
	return fence, ok
}

// fresh returns the fixture with another attempt, which is due after the store was opened.
func (f fixture) fresh() fixture {
	f.now = job.Instant(time.Now()).Add(time.Second)
	f.key, f.entry = newAttempt(f.now)
	return f
}

func beginsAtOnce(t *testing.T, f fixture) {
	f = f.fresh()
	c := f.check()
	fence, ok := f.begin(t, alice, c)
	if !ok {
		t.Fatal("nothing began")
	}
	token := job.Token{Counter: 1, Start: alice.Start}
	f.wantFence(t, fence, token, c)
	want := attempts.Record{
		Exists: true, Holder: alice.Name, DefinitionID: f.entry.DefinitionID, Token: token, LapsesAt: f.now.Add(lease), Running: true,
	}
	if rec := f.record(t); !reflect.DeepEqual(rec, want) {
		t.Errorf("the record is\n%+v, want\n%+v", rec, want)
	}
	f.wantHeld(t, bob, f.now)
	if again := f.start(t, token); again.String() <= fence.String() {
		t.Errorf("a check after it has fence %s, it had %s", again, fence)
	}
	if !f.finish(t, token, outcome(job.OutcomeSucceeded, token, f.now), f.now) {
		t.Error("its outcome was not stored")
	}
}

func beginYields(t *testing.T, plain fixture) {
	for _, c := range []struct {
		what  string
		stand func(f fixture, c *attempts.Check)
	}{
		{"a lease", func(f fixture, _ *attempts.Check) { f.acquire(t, bob, f.now) }},
		{"a released lease", func(f fixture, _ *attempts.Check) {
			must(t, f.Release(t.Context(), f.key, f.acquire(t, bob, f.now).Token, false, f.entry.DefinitionID))
		}},
		{"a lease that lapsed", func(f fixture, _ *attempts.Check) { f.acquire(t, bob, f.now.Add(-2*lease)) }},
		{"an outcome", func(f fixture, _ *attempts.Check) {
			token := job.Token{Counter: 1, Start: bob.Start}
			f.finish(t, token, outcome(job.OutcomeFailed, token, f.now), f.now)
		}},
		{"a stop record", func(f fixture, _ *attempts.Check) {
			must(t, f.setStop(t, f.entry.JobID, job.State{Version: 1, DefinitionID: f.entry.DefinitionID}))
		}},
		{"another incarnation", func(_ fixture, c *attempts.Check) { c.Incarnation += "x" }},
	} {
		f := plain.fresh()
		check := f.check()
		c.stand(f, &check)
		before := f.record(t)
		if _, ok := f.begin(t, alice, check); ok {
			t.Errorf("it began beside %s", c.what)
		}
		if after := f.record(t); !reflect.DeepEqual(after, before) {
			t.Errorf("beside %s the record became\n%+v, was\n%+v", c.what, after, before)
		}
	}
}

func beginsRace(t *testing.T, f fixture) {
	f = f.fresh()
	c := f.check()
	var began atomic.Int64
	atOnce(func(i int) {
		h := attempts.Holder{Name: alice.Name, Start: int64(i + 1)}
		_, ok, err := f.Begin(t.Context(), f.key, h, f.now.Add(lease), c, f.now)
		if err != nil {
			t.Error(err)
		}
		if ok {
			began.Add(1)
		}
	})
	if n := began.Load(); n != 1 {
		t.Errorf("%d began", n)
	}
}

func beganTwice(t *testing.T, f fixture) {
	f = f.fresh()
	c := f.check()
	if _, ok := f.begin(t, alice, c); !ok {
		t.Fatal("nothing began")
	}
	if _, ok := f.begin(t, alice, c); ok {
		t.Error("it began twice")
	}
	if rec := f.acquire(t, alice, f.now); !rec.Running || rec.Token.Counter != 1 || rec.Takeovers != 0 {
		t.Errorf("its holder has it as %+v", rec)
	}
}
