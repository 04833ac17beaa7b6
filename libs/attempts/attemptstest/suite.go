// Package attemptstest is the conformance suite of leases, outcomes and stop records: each clause of the port's contract is a test
// here, named after the promise. [RunBound] is for adapters that can be opened with a bound on their records.
//
// Attempts and jobs are new in every test. Instants lie within minutes of the clock, because a store may forget by its own clock;
// what the tests find depends only on the instants that they pass in.
package attemptstest

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

// racers is how many goroutines race in a test of concurrency.
const racers = 8

// lease is how long a lease of the suite lasts.
const lease = 10 * time.Second

var (
	alice = attempts.Holder{Name: "alice-" + ulid.Make().String(), Start: 11}
	bob   = attempts.Holder{Name: "bob-" + ulid.Make().String(), Start: 7}
)

// fixture is a store, an attempt that has no record, and an instant.
type fixture struct {
	attempts.Records
	key   attempts.Key
	entry *job.Entry
	now   time.Time
}

// setStop writes a stop record. When it takes effect depends on what happened to servers before, which adapters test.
func (f fixture) setStop(t *testing.T, jobID string, s job.State) error {
	t.Helper()
	_, err := f.SetStop(t.Context(), jobID, s)
	return err
}

func newFixture(s attempts.Records) fixture {
	f := fixture{Records: s, now: job.Instant(time.Now())}
	f.key, f.entry = newAttempt(f.now)
	return f
}

// check returns the last check of the attempt, for a definition that is not known to have ended.
func (f fixture) check() attempts.Check {
	memory, err := f.Memory(context.Background(), f.entry.JobID)
	if err != nil {
		panic(err)
	}
	return attempts.Check{Entry: f.entry, Incarnation: memory.Incarnation}
}

func newAttempt(at time.Time) (attempts.Key, *job.Entry) {
	id := job.JobPrefix + ulid.Make().String()
	e := &job.Entry{
		Locator: job.Locator{DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1, DefinitionID: "def_2"},
		JobID:   id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
	}
	return attempts.KeyOf(e), e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBeFenced(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, attempts.ErrFenced) {
		t.Errorf("%s gave %v", what, err)
	}
}

// renew renews one lease.
func (f fixture) renew(t *testing.T, l attempts.Lease, until time.Time) {
	t.Helper()
	must(t, f.Renew(t.Context(), []attempts.Lease{l}, until))
}

// wantNotRenewed checks that a lease that belongs to another, or has ended, stays as it is.
func (f fixture) wantNotRenewed(t *testing.T, l attempts.Lease) {
	t.Helper()
	before := f.record(t)
	l.MayHaveBegun, l.Begun = true, true
	f.renew(t, l, f.now.Add(time.Hour))
	if after := f.record(t); !reflect.DeepEqual(after, before) {
		t.Errorf("renewed with token %s it is %+v, was %+v", l.Token, after, before)
	}
}

// atOnce runs try from racers goroutines that begin together.
func atOnce(try func(i int)) {
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			<-begin
			try(i)
		})
	}
	close(begin)
	wg.Wait()
}

// acquire acquires the lease at an instant, and fails the test if it cannot.
func (f fixture) acquire(t *testing.T, h attempts.Holder, at time.Time) attempts.Record {
	t.Helper()
	rec, ok, err := f.Acquire(t.Context(), f.key, h, at, at.Add(lease))
	must(t, err)
	if !ok || rec.Holder != h.Name || rec.Token.Start != h.Start || !rec.LapsesAt.Equal(at.Add(lease)) || !rec.Alive(at) {
		t.Fatalf("acquired %v, record %+v", ok, rec)
	}
	return rec
}

// wantHeld checks that a lease cannot be acquired, and returns the record that stands.
func (f fixture) wantHeld(t *testing.T, h attempts.Holder, at time.Time) attempts.Record {
	t.Helper()
	rec, ok, err := f.Acquire(t.Context(), f.key, h, at, at.Add(lease))
	must(t, err)
	if ok {
		t.Errorf("the lease was had at %s: %+v", at.Sub(f.now), rec)
	}
	return rec
}

// start begins an attempt whose job has no stop record.
func (f fixture) start(t *testing.T, token job.Token) job.Fence {
	t.Helper()
	c := f.check()
	fence, stop, err := f.Start(t.Context(), f.key, token, c)
	must(t, err)
	if stop != nil {
		t.Fatalf("it did not begin: there stands %+v", stop)
	}
	f.wantFence(t, fence, token, c)
	return fence
}

func (f fixture) wantFence(t *testing.T, fence job.Fence, token job.Token, c attempts.Check) {
	t.Helper()
	if fence.Start != token.Start || fence.Epoch != attempts.EpochOf(c.Incarnation) || fence.Epoch == 0 {
		t.Fatalf("the fence of token %s in incarnation %s is %+v", token, c.Incarnation, fence)
	}
}

// stands returns the stop record that Start reports to a check with a version that never existed.
func (f fixture) stands(t *testing.T, token job.Token) job.State {
	t.Helper()
	c := f.check()
	c.StopVersion = -1
	fence, stop, err := f.Start(t.Context(), f.key, token, c)
	must(t, err)
	if stop == nil || fence != (job.Fence{}) {
		t.Fatalf("a check of a version that never was began with fence %+v", fence)
	}
	return *stop
}

func (f fixture) record(t *testing.T) attempts.Record {
	t.Helper()
	records, err := f.Lookup(t.Context(), []attempts.Key{f.key})
	must(t, err)
	if len(records) != 1 {
		t.Fatalf("%d records for one key", len(records))
	}
	return records[0]
}

// finish tries to store an outcome and reports whether it was stored; otherwise the record returned is the one that stands.
func (f fixture) finish(t *testing.T, token job.Token, o job.Outcome, at time.Time) bool {
	t.Helper()
	ended, err := f.Finish(t.Context(), []attempts.Completion{{Key: f.key, Token: token, Outcome: &o}}, at)
	must(t, err)
	if len(ended) != 1 {
		t.Fatalf("%d records for one end", len(ended))
	}
	if ended[0].Stored {
		ended[0].Record = f.record(t)
	}
	f.wantTold(t, ended[0].Record, ended[0].Stored, o)
	return ended[0].Stored
}

func (f fixture) refuse(t *testing.T, o job.Outcome, at time.Time) bool {
	t.Helper()
	rec, ok, err := f.Refuse(t.Context(), f.key, o, at)
	must(t, err)
	f.wantTold(t, rec, ok, o)
	return ok
}

func (f fixture) wantTold(t *testing.T, told attempts.Record, stored bool, o job.Outcome) {
	t.Helper()
	if stored && (told.Outcome == nil || !reflect.DeepEqual(*told.Outcome, o)) {
		t.Errorf("the record told has outcome %+v, stored was %+v", told.Outcome, o)
	}
	if stands := f.record(t); !reflect.DeepEqual(told, stands) {
		t.Errorf("told was\n%+v, there stands\n%+v", told, stands)
	}
}

func outcome(kind job.OutcomeKind, token job.Token, at time.Time) job.Outcome {
	return job.Outcome{
		Kind: kind, Retryable: true, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 7, Counter: 9, Start: token.Start}, StatusCode: 503, ResponseBody: []byte("{\xff}"),
		ResponseTruncated: true, Error: "no", RetryAfter: 1500 * time.Millisecond, PauseJob: true,
		Timeline: job.Timeline{Taken: at, Published: at, Consumed: at, Invoked: at, Completed: at.Add(time.Millisecond)},
	}
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) attempts.Records) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, f fixture)
	}{
		{"a lease is held until it lapses, and no longer", leaseLapses},
		{"a lease that is held is nobody else's, and not its holder's twice", heldIsHeld},
		{"a holder that asks again for its lease has it", askedAgainIsHad},
		{"one of two hand-outs of a task has the lease", handOutsExclude},
		{"a later hand-out takes the lease over", laterHandOutTakesOver},
		{"a lease that is acquired afresh is another hand-out's", freshLeaseForgetsHandOut},
		{"of concurrent holders exactly one gets the lease, and all see it", acquiresRace},
		{"of concurrent takeovers of a lapsed lease exactly one succeeds, and is counted once", takeoversRace},
		{"every takeover is counted and raises the token", takeoversCount},
		{"a holder whose lease was taken over is fenced, and changes nothing", takenOverIsFenced},
		{"renewing moves the end of a lease", renewMoves},
		{"renewing makes a lost record anew, whose token later ones exceed", renewRecreates},
		{"of leases that are renewed together those of others stay as they are", renewedTogether},
		{"a call that comes late ends no lease earlier", lateShortensNothing},
		{"renewing what has begun says so, whatever was forgotten of it", renewTellsBegun},
		{"a released lease may be had at once, which is no takeover, under a greater token", releaseFrees},
		{"the record outlives a release: takeovers stay counted", releaseKeepsRecord},
		{"a holder that released its lease may not start until it holds it again", releasedIsFenced},
		{"a record that was started stays so under every holder", runningStays},
		{"a record that is released before a call never ran", releasedBeforeACallNeverRan},
		{"a record that is released by a holder that called nobody is told for the definition that ran before", releaseNamesWhoWasCalledFor},
		{"attempts of one execution are records of their own", attemptsAreSeparate},
		{"records are looked up in order, those that do not exist are empty", lookupInOrder},
		{"starting needs a lease and no outcome", startNeedsLease},
		{"an attempt that nobody met begins at once, held and running", beginsAtOnce},
		{"beginning at once yields to a record, an outcome, a stop record, another incarnation and what was forgotten, and changes nothing", beginYields},
		{"of concurrent beginnings exactly one succeeds", beginsRace},
		{"beginning once more finds the first, which the same holder has as running", beganTwice},
		{"fencing tokens of an execution grow with every check that is accepted", fencesGrow},
		{"starting needs the incarnation that is, and changes nothing in another", startNeedsIncarnation},
		{"a record tells the definition for which it was started, else that of the last lease", definitionIsTold},
		{"starting needs the stop record that stands, which is told otherwise, and nothing begins", startNeedsStop},
		{"only a stop record of a greater version replaces one", greaterStopStands},
		{"of concurrent stop records the greatest version stands", stopsRace},
		{"no start follows a stop that was acknowledged", stopIsFinal},
		{"stop records are each job's own", stopsAreSeparate},
		{"the holder's outcome is stored, whether its lease is alive, lapsed or released", ownOutcome},
		{"an outcome is stored where the record is gone", outcomeOfNothing},
		{"another's outcome is stored over a lapsed or released record, not over a live lease", foreignOutcome},
		{"the first outcome stands, is told whole, and ends the attempt", firstOutcomeStands},
		{"of concurrent outcomes and refusals exactly one is stored, and all see it", outcomesRace},
		{"a refusal is stored where nothing is or what was released never ran", refusalOfNothing},
		{"a refusal is not stored over a lease, an outcome or what ever ran", refusalYields},
		{"outcomes stored since the instant that is told are there", keptSinceHolds},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, newFixture(open(t))) })
	}
}
