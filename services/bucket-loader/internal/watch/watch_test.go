package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func TestOccurrencesThatMeetTheirDeadlinesAreNotTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create()
		for n := 1; n <= 30; n++ {
			f.succeed(j, n)
		}
		f.until(nth(j, 30))
		if list := f.all(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// TestOccurrenceThatMissesADeadlineIsToldWithItsCause has a case for each cause: what is on record of the first occurrence of a job.
func TestOccurrenceThatMissesADeadlineIsToldWithItsCause(t *testing.T) {
	put := func(f *fixture, j *job.Job) job.Entry {
		e := f.entry(j, 1)
		f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
		return e
	}
	for name, c := range map[string]struct {
		deadline incidents.Deadline
		cause    incidents.Cause
		do       func(f *fixture, j *job.Job)
		within   time.Duration
	}{
		"nobody dispatches": {incidents.StartWithin, incidents.CauseNotDispatched, func(f *fixture, j *job.Job) {
			e := put(f, j)
			f.must(f.Hot.Add(f.t.Context(), []job.Entry{e}))
		}, 0},
		"its entry is lost": {incidents.StartWithin, incidents.CauseNotDispatched, func(*fixture, *job.Job) {}, 0},
		"nobody executes":   {incidents.StartWithin, incidents.CauseNotExecuted, func(f *fixture, j *job.Job) { put(f, j) }, 0},
		"dispatch is held": {incidents.StartWithin, incidents.CauseHeld, func(f *fixture, j *job.Job) {
			put(f, j)
			hold, err := json.Marshal(job.DispatchHold{Tenants: map[job.Tenant]job.Hold{7: {All: true}}})
			f.must(err)
			f.must(f.Settings.SwapSetting(f.t.Context(), jobstore.SettingDispatchHold, nil, hold))
		}, 0},
		"the hot tier is away": {incidents.StartWithin, incidents.CauseHotTierAway, func(f *fixture, j *job.Job) {
			put(f, j)
			f.hands.away = true
		}, 45 * time.Second},
		"it is deferred": {incidents.StartWithin, incidents.CauseWaits, func(f *fixture, j *job.Job) {
			f.must(f.Pending.Defer(f.t.Context(), put(f, j).Locator, nth(j, 9)))
		}, 0},
		"it is called late": {incidents.StartWithin, incidents.CauseLate, func(f *fixture, j *job.Job) {
			f.record(j, 1, 1, outcome(j, 1, job.OutcomeFailed, 3*time.Second))
		}, 0},
		"its executor dies, and the next calls late": {incidents.StartWithin, incidents.CauseLate, func(f *fixture, j *job.Job) {
			lost := outcome(j, 1, job.OutcomeWorkerLost, 0)
			lost.Retryable, lost.Timeline = true, job.Timeline{}
			f.record(j, 1, 1, lost)
			f.record(j, 1, 2, outcome(j, 1, job.OutcomeFailed, 3*time.Second))
		}, 0},
		"the missed-run policy lets it go": {incidents.StartWithin, incidents.CauseMissed, func(f *fixture, j *job.Job) {
			f.must(f.Pending.Decide(f.t.Context(), put(f, j).Locator, job.Decision{}))
		}, 0},
		"its target hangs": {incidents.FinishWithin, incidents.CauseCalling, func(f *fixture, j *job.Job) {
			put(f, j)
			f.run(j)
		}, 0},
		"it is called again": {incidents.FinishWithin, incidents.CauseRetrying, func(f *fixture, j *job.Job) {
			f.record(j, 1, 1, outcome(j, 1, job.OutcomeFailed, time.Second))
		}, 0},
		"it is given up": {incidents.FinishWithin, incidents.CauseFailed, func(f *fixture, j *job.Job) {
			o := outcome(j, 1, job.OutcomeFailed, time.Second)
			o.Retryable = false
			f.record(j, 1, 1, o)
		}, 0},
		"it succeeds late": {incidents.FinishWithin, incidents.CauseLate, func(f *fixture, j *job.Job) {
			f.record(j, 1, 1, outcome(j, 1, job.OutcomeFailed, time.Second))
			f.record(j, 1, 2, outcome(j, 1, job.OutcomeSucceeded, 4*time.Second))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(func(j *job.Job) {
					if c.deadline == incidents.StartWithin {
						j.Definition.Deadlines.FinishWithin = 0
					} else {
						j.Definition.Deadlines.StartWithin = 0
					}
					j.Definition.Schedule.Every = 10 * time.Minute
				})
				c.do(f, j)
				f.until(nth(j, 1).Add(c.deadline.Of(&j.Definition) + max(c.within, 7*time.Second)))
				i := f.one()
				if i.Deadline != c.deadline || i.Cause != c.cause || i.Reason == "" || i.ID != incidents.ID(j.ID, c.deadline, nth(j, 1)) || i.Owner != "team" {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

// run lets an executor begin to call the target of a job's first occurrence.
func (f *fixture) run(j *job.Job) {
	f.t.Helper()
	ctx, e := f.t.Context(), f.entry(j, 1)
	records := f.hands.Records
	memory, err := records.Memory(ctx, j.ID)
	f.must(err)
	h := attempts.Holder{Name: "x", DefinitionID: e.DefinitionID, Start: 1}
	rec, ok, err := records.Acquire(ctx, attempts.KeyOf(&e), h, time.Now(), nth(j, 1).Add(time.Minute))
	if !ok || err != nil {
		f.t.Fatal(ok, err)
	}
	_, stop, err := records.Start(ctx, attempts.KeyOf(&e), rec.Token, attempts.Check{Entry: &e, Incarnation: memory.Incarnation})
	if stop != nil || err != nil {
		f.t.Fatal(stop, err)
	}
}

// TestOccurrenceThatWasNotToBeCalledIsNotTold has a case for each reason.
func TestOccurrenceThatWasNotToBeCalledIsNotTold(t *testing.T) {
	skip := func(d job.Disposition) func(f *fixture, j *job.Job) {
		return func(f *fixture, j *job.Job) {
			event := job.SkippedEvent(f.entry(j, 1), job.TargetRef{}, job.SkippedRange{From: nth(j, 1), To: nth(j, 3), Count: 3}, d, time.Now())
			f.must(f.History.Record(f.t.Context(), jobstore.Unencoded(&event)))
		}
	}
	for name, do := range map[string]func(f *fixture, j *job.Job){
		"a run that was skipped in a pause": skip(job.DispositionSkippedPaused),
		"a run that gave way":               skip(job.DispositionSkippedOverlap),
		"cancelled one by one": func(f *fixture, j *job.Job) {
			for n := 1; n <= 3; n++ {
				j.StoppedExecutions = append(j.StoppedExecutions, job.ScheduleExecutionID(j.ID, nth(j, n)))
			}
			j.Version++
			f.must(f.Jobs.Replace(f.t.Context(), *j))
		},
		"gave way, which is not on record yet": func(f *fixture, j *job.Job) {
			for n := 1; n <= 3; n++ {
				e := f.entry(j, n)
				f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
				f.must(f.Pending.Decide(f.t.Context(), e.Locator, job.Decision{GaveWayTo: nth(j, 1).Add(-time.Second)}))
			}
		},
		"refused by a pause that is over, which is not on record yet": func(f *fixture, j *job.Job) {
			for n := 1; n <= 3; n++ {
				e := f.entry(j, n)
				f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
				rest := job.SkippedRange{From: nth(j, n+1), To: nth(j, n+1), Count: 1}
				f.must(f.Pending.Decide(f.t.Context(), e.Locator, job.Decision{Skipped: &rest, Disposition: job.DispositionSkippedPaused}))
			}
		},
		"refused, as its outcome says": func(f *fixture, j *job.Job) {
			for n := 1; n <= 3; n++ {
				f.record(j, n, 1, job.Outcome{Kind: job.OutcomeCancelled, Disposition: job.DispositionCancelled})
			}
		},
		"its definition was made after it was due": func(f *fixture, j *job.Job) {
			j.Version++
			j.Definition.EffectiveAt = j.Definition.EffectiveAt.Add(time.Millisecond)
			j.Definition.ID = job.DefinitionPrefix + ulid.MustNew(ulid.Timestamp(nth(j, 3).Add(time.Second)), ulid.DefaultEntropy()).String()
			f.must(f.Jobs.Replace(f.t.Context(), *j))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 4 })
				do(f, j)
				f.succeed(j, 4)
				f.until(nth(j, 4).Add(time.Minute))
				if list := f.all(); len(list) != 0 {
					t.Errorf("%+v", list)
				}
			})
		})
	}
}

func TestAnIncidentLastsUntilAnOccurrenceMeetsTheDeadlineAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly)
		f.succeed(j, 1)
		f.until(nth(j, 12))
		open := f.one()
		if open.Missed < 8 || !open.First.Equal(nth(j, 2)) || !open.ClosedAt.IsZero() {
			t.Errorf("%+v", open)
		}
		f.succeed(j, 13)
		f.until(nth(j, 14))
		closed := f.one()
		if closed.Missed != 11 || !closed.Last.Equal(nth(j, 12)) || closed.ClosedAt.IsZero() || closed.ID != open.ID {
			t.Errorf("%+v", closed)
		}
		f.until(nth(j, 16))
		if list := f.all(); len(list) != 2 || !list[0].First.Equal(nth(j, 14)) {
			t.Errorf("what is missed after it is not another incident: %+v", list)
		}
	})
}

func TestAnIncidentIsOverAsSoonAsItsOccurrenceHasHappened(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) {
			j.Definition.Schedule = job.Schedule{Type: job.ScheduleOneShot, RunAt: nth(j, 1), StartAt: nth(j, 1)}
		})
		f.until(nth(j, 1).Add(time.Minute))
		if i := f.one(); !i.ClosedAt.IsZero() {
			t.Errorf("%+v", i)
		}
		f.record(j, 1, 1, outcome(j, 1, job.OutcomeSucceeded, time.Minute))
		f.until(nth(j, 1).Add(3 * time.Minute))
		if i := f.one(); i.ClosedAt.IsZero() || i.Missed != 1 {
			t.Errorf("%+v", i)
		}
		f.until(nth(j, 1).Add(10 * time.Minute))
		f.forgotten(j)
	})
}

// forgotten fails if a job is watched still, or anything is noted of it.
func (f *fixture) forgotten(j *job.Job) {
	f.t.Helper()
	slice := incidents.SliceOf(j.ID)
	watched, err := f.incidents().Watched(f.t.Context(), slice, incidents.Watched{}, 10)
	f.must(err)
	noted, _, err := f.incidents().Noted(f.t.Context(), slice, "", 10)
	f.must(err)
	if len(watched)+len(noted)+len(f.jobs)+len(f.queue) != 0 {
		f.t.Errorf("left: %v, %v, %d jobs, %d in the queue", watched, noted, len(f.jobs), len(f.queue))
	}
}

// TestAnIncidentIsTheSameWhoeverFindsIt lets the watchdog die at each write, and another one carry on.
func TestAnIncidentIsTheSameWhoeverFindsIt(t *testing.T) {
	for dies := 1; dies <= 5; dies++ {
		t.Run(fmt.Sprint("at write ", dies), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(startOnly)
				f.succeed(j, 1)
				writes := 0
				f.hands.put = func(string) error {
					if writes++; writes >= dies {
						return errors.New("dead")
					}
					return nil
				}
				f.until(nth(j, 5))
				f.hands.put = nil
				f.Watchdog = f.another()
				f.succeed(j, 6)
				f.until(nth(j, 7))
				if i := f.one(); !i.First.Equal(nth(j, 2)) || !i.Last.Equal(nth(j, 5)) || i.Missed != 4 || i.ClosedAt.IsZero() {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

func TestOnlyOneWatchesWhileItsLeaseLasts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.turn()
		second := f.another()
		for range 20 {
			time.Sleep(5 * time.Second)
			f.turn()
			if mine, err := second.hold(t.Context()); mine || err != nil {
				t.Fatal(mine, err)
			}
		}
		time.Sleep(f.LeaseFor + 3*time.Second)
		if mine, err := second.hold(t.Context()); !mine || err != nil {
			t.Error(mine, err)
		}
		if mine, err := f.hold(t.Context()); mine || err != nil {
			t.Error("the one that stood still watches on:", mine, err)
		}
	})
}

// together lets two processes watch up to an instant, and returns how often the lease passed from one to the other.
func (f *fixture) together(other *fixture, until time.Time) (passed int) {
	f.t.Helper()
	held := f.lease.Held()
	for time.Now().Before(until) {
		time.Sleep(f.Tick)
		for _, one := range []*fixture{f, other} {
			if one.turn(); one.lease.Held() && held != (one == f) {
				passed, held = passed+1, one == f
			}
		}
		if f.lease.Held() && other.lease.Held() {
			f.t.Fatal("both hold the lease")
		}
	}
	return passed
}

// process returns a watchdog of another process, which reaches Redis.
func (f *fixture) process() *fixture {
	h := *f.hands
	h.away, h.lost = false, false
	other := &fixture{t: f.t, hands: &h, Watchdog: f.another()}
	other.Settings, other.Records, other.Hot = &h, &h, &h
	return other
}

// An executor has called an occurrence, the one that watches does not reach Redis, and the history is behind.
func TestOneThatReachesRedisWatchesInPlaceOfOneThatDoesNot(t *testing.T) {
	for name, cut := range map[string]func(h *hands){
		"all of Redis":     func(h *hands) { h.away = true },
		"a shard of Redis": func(h *hands) { h.lost = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(startOnly, func(j *job.Job) {
					for bucket.Partition(j.ID, partitions) != partitions-1 {
						j.ID = job.JobPrefix + ulid.Make().String()
					}
					j.Definition.Schedule.StartAt, j.Definition.Schedule.MaxOccurrences = time.Now().Add(time.Minute).UTC(), 1
				})
				f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, 1)}))
				f.until(nth(j, 1).Add(-6 * time.Second))
				other := f.process()
				f.HotPatience = time.Second // the lease may pass more slowly than is waited for Redis
				cut(f.hands)
				f.until(nth(j, 1))
				f.run(j)
				if passed := f.together(other, nth(j, 1).Add(5*time.Minute)); passed != 1 || len(f.all()) != 0 {
					t.Errorf("the lease has passed %d times, and it is told: %+v", passed, f.all())
				}
			})
		})
	}
}

// Redis answers again before anybody has asked for the lease.
func TestOneThatReachesRedisAgainKeepsItsLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.create(startOnly)
		f.until(time.Now().Add(5 * time.Second))
		f.hands.away = true
		for !f.lease.Missing() {
			f.until(time.Now().Add(f.Tick))
		}
		f.hands.away = false
		f.until(time.Now().Add(awayFor + 2*f.Tick))
		if f.lease.Missing() || !f.lease.Held() {
			t.Errorf("held: %v, missing something: %v", f.lease.Held(), f.lease.Missing())
		}
	})
}

func TestOneThatReachesRedisWatchesAfterOneThatHasDied(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.create(startOnly)
		f.turn()
		cut, other := f.process(), f.process() // f dies
		cut.hands.away = true
		began := time.Now()
		for cut.turn(); ; cut.turn() {
			if other.turn(); other.lease.Held() {
				break
			}
			if time.Sleep(f.Tick); cut.lease.Held() || time.Since(began) > 2*f.LeaseFor {
				t.Fatal("who reaches Redis does not watch")
			}
		}
	})
}

func TestOneThatDoesNotReachRedisWatchesWhereNobodyDoes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.StartAt = time.Now().Add(2 * time.Minute).UTC() })
		f.until(time.Now().Add(5 * time.Second))
		f.hands.away = true
		other := f.process()
		other.hands.away = true
		if passed := f.together(other, nth(j, 1).Add(f.HotPatience+10*time.Second)); passed != 0 {
			t.Errorf("the lease has passed %d times", passed)
		}
		if i := f.one(); i.Cause != incidents.CauseHotTierAway {
			t.Errorf("%+v", i)
		}
		began := time.Now()
		for time.Sleep(2 * f.LeaseFor); !other.lease.Held(); time.Sleep(f.Tick) { // the one that watches dies
			if other.turn(); time.Since(began) > 4*f.LeaseFor {
				t.Fatal("nobody watches")
			}
		}
	})
}

func TestNothingIsConcludedWhileTheHistoryIsBehind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 4 })
		for n := 1; n <= 3; n++ {
			e := f.entry(j, n)
			f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
			f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
		}
		f.until(nth(j, 3).Add(5 * time.Minute))
		if i := f.one(); !i.First.Equal(nth(j, 4)) {
			t.Errorf("what is told meanwhile: %+v", i)
		}
		f.succeed(j, 1)
		f.record(j, 2, 1, outcome(j, 2, job.OutcomeSucceeded, 3*time.Second))
		f.until(nth(j, 3).Add(20 * time.Minute))
		if i := f.one(); i.Missed != 2 || !i.Last.Equal(nth(j, 4)) {
			t.Errorf("%+v", i)
		}
	})
}

// A job is due every second, and when somebody begins to watch it, Redis is away.
func TestNoneOfManyOccurrencesIsGivenUpBeforeItIsOnRecord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const before = 500
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.Every = time.Second })
		time.Sleep(time.Until(nth(j, before)))
		f.hands.away = true
		f.until(nth(j, before+20))
		if list := f.all(); len(list) != 0 {
			t.Errorf("what is told while Redis is away: %+v", list)
		}
		f.hands.away = false
		for n := 1; n <= before; n++ {
			f.record(j, n, 1, outcome(j, n, job.OutcomeSucceeded, 3*time.Second))
		}
		f.until(nth(j, before+120))
		if i := f.one(); !i.First.Equal(nth(j, 1)) || !i.Last.Equal(nth(j, i.Missed)) || i.Missed < before+100 {
			t.Errorf("%d are told, from %s to %s", i.Missed, i.First, i.Last)
		}
	})
}

// Nobody has watched a job for long that is due every second, and of which nothing is on record.
func TestWhatNobodyHasWatchedIsToldHoweverMuchItIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const all = 3000
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.Every, j.Definition.Schedule.MaxOccurrences = time.Second, all })
		f.must(f.Pending.Close(t.Context(), bucket.Partition(j.ID, partitions), job.Minute(nth(j, all))+10))
		time.Sleep(time.Until(nth(j, all)))
		f.until(nth(j, all).Add(30 * time.Minute))
		if i := f.one(); i.Missed != all || !i.First.Equal(nth(j, 1)) || !i.Last.Equal(nth(j, all)) {
			t.Errorf("of %d, %d are told, from %s to %s", all, i.Missed, i.First, i.Last)
		}
	})
}

func TestAnOccurrenceThatIsBeingCalledIsJudgedByWhenItBegan(t *testing.T) {
	for after, missed := range map[time.Duration]int{time.Second: 0, 3 * time.Second: 1} {
		t.Run(after.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 1 })
				f.run(j)
				f.until(nth(j, 1).Add(time.Minute))
				if list := f.all(); len(list) != 0 {
					t.Errorf("%+v", list)
				}
				f.Watchdog = f.another()
				time.Sleep(f.LeaseFor + 3*time.Second)
				f.record(j, 1, 1, outcome(j, 1, job.OutcomeSucceeded, after))
				f.until(nth(j, 1).Add(3 * time.Minute))
				if list := f.all(); len(list) != missed {
					t.Errorf("%+v", list)
				}
			})
		})
	}
}

func TestAHotTierThatHasForgottenIsNotTakenAtItsWord(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 1 })
		f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, 1)}))
		f.hands.forgets = true
		f.until(nth(j, 1).Add(20 * time.Second))
		if list := f.all(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
		f.until(nth(j, 1).Add(time.Minute))
		if i := f.one(); i.Cause != incidents.CauseNotExecuted {
			t.Errorf("%+v", i)
		}
	})
}

func TestAnIncidentThatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 1 })
		f.until(nth(j, 1))
		f.hands.put = func(string) error { return errors.New("away") }
		f.until(nth(j, 1).Add(2 * time.Minute))
		f.hands.put = nil
		f.until(nth(j, 1).Add(3 * time.Minute))
		if i := f.one(); !i.ClosedAt.IsZero() {
			t.Errorf("%+v", i)
		}
		f.succeed(j, 1)
		f.until(nth(j, 1).Add(5 * time.Minute))
		f.forgotten(j)
	})
}

func TestAnIncidentIsClosedHoweverLateItTakesEffectThatItIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.Every = 5 * time.Minute })
		f.until(nth(j, 2))
		f.succeed(j, 2)
		stopped, away := false, errors.New("away")
		f.hands.put = func(list string) error {
			if stopped = stopped || strings.HasPrefix(list, "judged/") && !f.one().ClosedAt.IsZero(); stopped {
				return away
			}
			return nil
		}
		f.until(nth(j, 2).Add(20 * time.Second))
		if !stopped {
			t.Fatal("it was not noted that the incident is over")
		}
		f.Watchdog, stopped = f.another(), false
		noted := false
		f.hands.put = func(list string) error {
			if stopped {
				return away
			}
			if !noted { // the other has read what was noted before, and what the one before it noted takes effect
				noted = true
				f.must(incidents.Store{Lists: f.hands.Settings}.Note(t.Context(), j.ID, map[incidents.Deadline]incidents.Judged{
					incidents.StartWithin: {Until: map[string]time.Time{j.Definition.ID: nth(j, 2).Add(time.Millisecond)}, Met: nth(j, 2)},
				}))
			}
			stopped = strings.HasPrefix(list, "incidents/") // right after this
			return nil
		}
		time.Sleep(time.Minute)
		f.until(nth(j, 2).Add(2 * time.Minute))
		if i := f.one(); !stopped || !i.ClosedAt.IsZero() {
			t.Fatalf("the other has not written the incident: %+v", i)
		}
		f.Watchdog, f.hands.put = f.another(), nil
		time.Sleep(time.Minute)
		f.until(nth(j, 2).Add(4 * time.Minute))
		if i := f.one(); i.ClosedAt.IsZero() || i.Missed != 1 {
			t.Errorf("%+v", i)
		}
	})
}

func TestWhatWasCalledBeforeRedisWasAwayIsNotToldWhileItIs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 1 })
		f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, 1)}))
		// It was away a day ago, too, and nobody has asked for the partition since.
		f.away.Store(bucket.Partition(j.ID, partitions), away{since: time.Now().Add(-24 * time.Hour), until: time.Now().Add(-23 * time.Hour)})
		f.until(nth(j, 1).Add(time.Second))
		f.hands.away = true
		f.until(nth(j, 1).Add(5 * time.Minute))
		if list := f.all(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
		f.hands.away = false
		f.succeed(j, 1)
		f.until(nth(j, 1).Add(20 * time.Minute))
		if list := f.all(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// An executor could not say that a call has succeeded while Redis was away, and its lease is over when Redis answers again.
func TestWhatAnExecutorCouldNotTellIsAwaitedWhenRedisAnswersAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(func(j *job.Job) { j.Definition.Schedule.MaxOccurrences, j.Definition.Deadlines.StartWithin = 1, 0 })
		f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, 1)}))
		f.run(j)
		f.until(nth(j, 1).Add(time.Second))
		f.hands.away = true
		f.until(nth(j, 1).Add(2 * time.Minute))
		f.hands.away = false
		for len(f.all()) == 0 && !f.backAgain(j) {
			f.until(time.Now().Add(time.Second))
		}
		f.succeed(j, 1)
		f.until(nth(j, 1).Add(20 * time.Minute))
		if list := f.all(); len(list) != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// backAgain reports whether the watchdog has seen Redis answer again for a job's partition.
func (f *fixture) backAgain(j *job.Job) bool {
	known, _ := f.away.Load(bucket.Partition(j.ID, partitions))
	a, ok := known.(away)
	return ok && !a.back.IsZero()
}

func TestAnOccurrenceWithoutATraceIsToldHoweverLongItsDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) {
			j.Definition.Schedule.MaxOccurrences, j.Definition.Deadlines.StartWithin = 1, time.Hour
		})
		p := bucket.Partition(j.ID, partitions)
		f.must(f.Pending.Close(t.Context(), p, job.Minute(nth(j, 1))+10))
		f.until(nth(j, 1).Add(80 * time.Minute))
		if i := f.one(); i.Cause != incidents.CauseNotDispatched {
			t.Errorf("%+v", i)
		}
	})
}

// Of two occurrences in an incident it is known only later that they were late, when another process watches, and a later one met the deadline.
func TestOneIncidentIsToldWhenAnotherWatchesAtItsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly)
		for n := 2; n <= 3; n++ {
			e := f.entry(j, n)
			f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
			f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
		}
		f.until(nth(j, 4))
		if l := f.jobs[j.ID].lines[incidents.StartWithin]; l.Open == nil || len(l.Aside) != 2 {
			t.Fatalf("open: %+v, aside: %v", l.Open, l.Aside)
		}
		f.must(f.note(t.Context(), f.jobs[j.ID]))
		f.Watchdog = f.another()
		for n := 2; n <= 3; n++ {
			f.record(j, n, 1, outcome(j, n, job.OutcomeSucceeded, 3*time.Second))
		}
		for n := 4; n <= 12; n++ {
			f.succeed(j, n)
		}
		f.until(nth(j, 12))
		if i := f.one(); i.Missed != 3 || i.ClosedAt.IsZero() {
			t.Errorf("%+v", i)
		}
	})
}

func TestALateMissDoesNotReopenWhatIsOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 3 })
		e := f.entry(j, 1)
		f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
		f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
		f.succeed(j, 2)
		f.until(nth(j, 3))
		f.record(j, 1, 1, outcome(j, 1, job.OutcomeSucceeded, 5*time.Second))
		f.succeed(j, 3)
		f.until(nth(j, 3).Add(time.Minute))
		if i := f.one(); !i.First.Equal(nth(j, 1)) || i.ClosedAt.IsZero() {
			t.Errorf("%+v", i)
		}
	})
}

func TestALongDeadlineOfAnEarlierDefinitionHoldsUpNoLaterOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Deadlines.StartWithin = 10 * time.Hour })
		f.until(nth(j, 3))
		f.redefine(j, func() { j.Definition.Deadlines.StartWithin = time.Second })
		f.until(nth(j, 6))
		if i := f.one(); !i.First.Equal(nth(j, 3)) {
			t.Errorf("%+v", i)
		}
		f.until(nth(j, 3).Add(10*time.Hour + time.Minute))
		if i := f.one(); !i.First.Equal(nth(j, 1)) || i.Missed < 3600 {
			t.Errorf("%+v", i)
		}
	})
}

func TestDefinitionsAreWatchedFromTheirUpdateOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly)
		f.succeed(j, 1)
		f.until(nth(j, 2).Add(time.Second)) // the second is missed before the update
		now := f.redefine(j, func() {
			j.Definition.Schedule.StartAt, j.Definition.Schedule.Every = time.Now().Add(time.Hour), time.Hour
		})
		f.until(now.Add(10 * time.Minute))
		if i := f.one(); !i.First.Equal(now.Add(-time.Second)) {
			t.Errorf("of the definition before: %+v", i)
		}
		f.until(nth(j, 1).Add(time.Minute))
		if list := f.all(); len(list) != 1 || list[0].Missed != 2 || !list[0].Last.Equal(nth(j, 1)) {
			t.Errorf("of the new definition: %+v", list)
		}
		watched, err := f.incidents().Watched(t.Context(), incidents.SliceOf(j.ID), incidents.Watched{}, 10)
		f.must(err)
		if len(watched) != 1 || watched[0].DefinitionID != j.Definition.ID {
			t.Errorf("%+v", watched)
		}
	})
}

// The update is made, with the instant from which it counts, and comes into the row when the first definition was held against its deadlines.
func TestASlowUpdateDoesNotTellTheSameTwice(t *testing.T) {
	for _, within := range []time.Duration{2 * time.Second, time.Second} {
		bubble.Test(t, func(t *testing.T) { testSlowUpdate(t, within) })
	}
}

func testSlowUpdate(t *testing.T, within time.Duration) {
	f := newFixture(t)
	j := f.create(startOnly)
	f.until(nth(j, 3).Add(5 * time.Second))
	made := job.Instant(time.Now())
	f.until(nth(j, 80).Add(5 * time.Second))
	before := f.one()
	for n := 81; n <= 95; n++ {
		f.succeed(j, n)
	}
	f.until(nth(j, 81).Add(20 * time.Second))
	f.redefine(j, func() {
		j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(made), ulid.DefaultEntropy()).String(), made
		j.Definition.Deadlines.StartWithin = within
	})
	f.until(nth(j, 95))
	if after := f.one(); after.ID != before.ID || after.Last != nth(j, 80) || after.Missed != 80 || after.ClosedAt.IsZero() {
		t.Errorf("an incident of 80 occurrences is now %+v", after)
	}
}

// Two updates come into the row between two readings of the lists, so the first is no longer there when the job is looked at. It was made, with the
// instant from which it counts, before the last occurrences were held against their deadlines.
func TestASlowUpdateThatAnotherFollowsDoesNotTellTheSameTwice(t *testing.T) {
	for name, next := range map[string]job.Deadlines{"with a deadline": {StartWithin: 2 * time.Second}, "without": {}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const all = 20
				f := newFixture(t)
				f.Relist = time.Minute
				j := f.create(startOnly)
				f.until(nth(j, all-5).Add(5 * time.Second))
				made := job.Instant(time.Now())
				f.until(nth(j, all).Add(8 * time.Second))
				before := f.one()
				f.redefine(j, func() {
					j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(made), ulid.DefaultEntropy()).String(), made
				})
				f.redefine(j, func() { j.Definition.Deadlines = next })
				for n := all + 1; n <= 2*all; n++ {
					f.succeed(j, n)
				}
				if w := time.Until(f.relist); w < 15*time.Second {
					t.Fatalf("the lists are read in %s", w)
				}
				f.until(nth(j, 2*all))
				if after := f.one(); after.ID != before.ID || after.Last != nth(j, all) || after.Missed != all || after.ClosedAt.IsZero() {
					t.Errorf("an incident of %d occurrences is now %+v", all, after)
				}
			})
		})
	}
}

// Of two occurrences nothing can be told while Redis is away. When they are looked at again, the row has an update that was made before they were due.
func TestWhatIsLookedAtAgainIsHeldAgainstTheDefinitionThatNamesIt(t *testing.T) {
	const all = 6
	for name, c := range map[string]struct {
		change func(j *job.Job)
		// another: one more update followed, since the lists were read too.
		another bool
		missed  int
	}{
		"with another update":      {func(*job.Job) {}, true, 3},
		"without such a deadline":  {func(j *job.Job) { j.Definition.Deadlines = job.Deadlines{FinishWithin: time.Hour} }, false, 1},
		"without such occurrences": {func(j *job.Job) { j.Definition.Schedule.Every = time.Hour }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.Relist = time.Minute
				j := f.create(startOnly)
				instants := *j
				for n := 1; n < all; n++ {
					f.succeed(j, n)
				}
				f.until(nth(j, all).Add(8 * time.Second)) // an incident has begun with the last
				made := job.Instant(time.Now())
				f.hands.away = true
				f.until(nth(j, all+2).Add(8 * time.Second))
				if aside := f.jobs[j.ID].lines[incidents.StartWithin].Aside; len(aside) != 2 {
					t.Fatalf("%v are to be looked at again", aside)
				}
				f.redefine(j, func() {
					j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(made), ulid.DefaultEntropy()).String(), made
					c.change(j)
				})
				if c.another {
					f.redefine(j, func() {})
				}
				f.hands.away = false
				for n := all + 3; n <= 3*all; n++ {
					f.succeed(&instants, n)
				}
				if w := time.Until(f.relist); w < 15*time.Second {
					t.Fatalf("the lists are read in %s", w)
				}
				f.until(nth(&instants, 3*all))
				if i := f.one(); i.Missed != c.missed || !i.First.Equal(nth(&instants, all)) || !i.Last.Equal(nth(&instants, all+c.missed-1)) {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}

// A job was forgotten after its last occurrence, and an update is listed and takes its time to come into the row.
func TestWhatIsOverIsNotJudgedAgainWhileAnUpdateIsOnItsWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly, func(j *job.Job) { j.Definition.Schedule.MaxOccurrences = 3 })
		f.record(j, 3, 1, outcome(j, 3, job.OutcomeSucceeded, 3*time.Second))
		f.until(nth(j, 3).Add(15 * time.Minute))
		before := f.one()
		if before.ClosedAt.IsZero() || len(f.jobs) != 0 {
			t.Fatalf("%d jobs are watched, %+v", len(f.jobs), before)
		}
		next := *j
		next.Definition.ID = job.DefinitionPrefix + ulid.Make().String()
		f.must(f.incidents().Watch(t.Context(), &next))
		f.until(time.Now().Add(time.Minute))
		if after := f.one(); after != before {
			t.Errorf("what was\n%+v\nis now\n%+v", before, after)
		}
	})
}

func TestAJobThatEndsIsForgotten(t *testing.T) {
	for name, end := range map[string]func(f *fixture, j *job.Job){
		"cancelled": func(f *fixture, j *job.Job) {
			j.Status, j.EndsAt = job.StatusCancelled, job.Instant(time.Now())
			j.Version++
			f.must(f.Jobs.Replace(f.t.Context(), *j))
		},
		"removed": func(f *fixture, j *job.Job) { f.must(f.Jobs.Remove(f.t.Context(), j.Tenant, j.ID)) },
		"without deadlines": func(f *fixture, j *job.Job) {
			f.redefine(j, func() { j.Definition.Deadlines = job.Deadlines{} })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create()
				f.until(nth(j, 5))
				end(f, j)
				f.until(nth(j, 5).Add(20 * time.Minute))
				f.forgotten(j)
				for _, i := range f.all() {
					if i.ClosedAt.IsZero() {
						t.Errorf("%+v", i)
					}
				}
			})
		})
	}
}

func TestAJobWhoseRowNeverCameIsForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := &job.Job{ID: job.JobPrefix + ulid.Make().String(), Definition: job.Definition{ID: "def_x", Deadlines: job.Deadlines{StartWithin: time.Second}}}
		f.must(f.incidents().Watch(t.Context(), j))
		f.until(time.Now().Add(20 * time.Minute))
		f.forgotten(j)
	})
}

func TestAPausedJobHasNoDeadlinesUntilItIsResumed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(startOnly)
		for n := 1; n <= 3; n++ {
			f.succeed(j, n)
		}
		f.until(nth(j, 3).Add(time.Second))
		j.Status, j.PausedAt = job.StatusPaused, job.Instant(time.Now())
		j.Version++
		f.must(f.Jobs.Replace(t.Context(), *j))
		f.until(nth(j, 60))
		f.redefine(j, func() { j.Definition.EffectiveAt = nth(j, 60) })
		f.until(nth(j, 70))
		now := f.redefine(j, func() { j.Definition.EffectiveAt, j.Status = j.PausedAt.Add(time.Millisecond), job.StatusActive })
		f.until(nth(j, 70).Add(30 * time.Second))
		if i := f.one(); i.First.Before(now) {
			t.Errorf("%+v, resumed at %s", i, now)
		}
	})
}

// A process looks at an occurrence by a row from before a pause, and finds nothing on record of it. When it looks again, the job is paused, and the
// resume is on its way that was made before the occurrence was due.
func TestAnOccurrenceAfterAPauseIsLeftToTheResume(t *testing.T) {
	const before, after = -4 * time.Second, 18 * time.Second
	for name, c := range map[string]struct {
		made  time.Duration // when the resume was, before or after the instant; 0 if the job is cancelled in the pause
		begun time.Duration
		told  bool
	}{
		"called late":    {before, 19 * time.Second, true},
		"called in time": {before, time.Second, false},
		"never called":   {before, 0, true},
		"called late, and was due when that was made":   {after, 19 * time.Second, false},
		"never called, and was due when that was made":  {after, 0, false},
		"never called, and the job was cancelled in it": {0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create()
				f.until(nth(j, 1).Add(-5 * time.Second))
				paused := job.Instant(time.Now())
				f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, 1)}))
				f.hands.away = true
				f.until(nth(j, 1).Add(9500 * time.Millisecond))
				for d, l := range f.jobs[j.ID].lines {
					if len(l.Aside) != 1 {
						t.Fatalf("%v are to be looked at again, %s", l.Aside, d)
					}
				}
				f.hands.away = false
				j.Status, j.PausedAt = job.StatusPaused, paused
				j.Version++
				f.must(f.Jobs.Replace(t.Context(), *j))
				f.until(nth(j, 1).Add(20 * time.Second))
				if list := f.all(); len(list) != 0 {
					t.Fatalf("told in the pause: %+v", list)
				}
				if c.begun > 0 {
					f.record(j, 1, 1, outcome(j, 1, job.OutcomeSucceeded, c.begun))
				}
				for n := 2; n <= 8; n++ {
					f.succeed(j, n)
				}
				if c.made == 0 {
					j.Status, j.EndsAt = job.StatusCancelled, paused.Add(time.Millisecond)
					j.Version++
					f.must(f.Jobs.Replace(t.Context(), *j))
				} else {
					f.redefine(j, func() {
						made := nth(j, 1).Add(c.made)
						j.Definition.ID = job.DefinitionPrefix + ulid.MustNew(ulid.Timestamp(made), ulid.DefaultEntropy()).String()
						j.Definition.EffectiveAt, j.Status = paused.Add(time.Millisecond), job.StatusActive
					})
				}
				f.until(nth(j, 8))
				list := f.all()
				if told := len(list) == len(incidents.Deadlines()); told != c.told || !told && len(list) > 0 {
					t.Fatalf("%+v", list)
				}
				for _, i := range list {
					if !i.First.Equal(nth(j, 1)) || i.Missed != 1 || i.ClosedAt.IsZero() {
						t.Errorf("%+v", i)
					}
				}
			})
		})
	}
}

func TestAsManyJobsAreWatchedAsThereMayBe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.MaxJobs = 5
		for range 8 {
			f.create()
		}
		f.until(time.Now().Add(time.Minute))
		if len(f.jobs) != 5 {
			t.Errorf("%d jobs are watched", len(f.jobs))
		}
	})
}
