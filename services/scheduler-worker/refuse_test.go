package schedulerworker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// told records the events that are published, and counts the fires.
type told struct {
	dispatch.Log
	events []job.Event
	fires  int
}

func (l *told) Publish(_ context.Context, topic string, records []dispatch.Message) error {
	for _, r := range records {
		if topic != dispatch.TopicEvents {
			l.fires++
			continue
		}
		e, err := wire.UnmarshalEvent(r.Value)
		if err != nil {
			return err
		}
		l.events = append(l.events, e)
	}
	return nil
}

// fixture is a worker on embedded adapters in memory, and a paused job with an entry.
type fixture struct {
	*Service
	t       *testing.T
	log     *told
	records *embedded.Records
	row     job.Job
	entry   job.Entry
	owner   coord.Owner
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, log: &told{}, records: records, owner: coord.Owner{Role: coord.RoleWorker, Epoch: 1}}
	f.Service, err = New(DefaultConfig(), Deps{
		Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), History: embedded.NewHistory(db),
		Settings: embedded.NewSettings(db), Hot: embedded.NewHotBuckets(db.Incarnation(), 1, 0), Outcomes: records, Stops: records, Log: f.log,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	f.row = job.Job{
		ID: "job_01M7ZJW5E6D77SAJPXRW35C2CA", Tenant: job.DefaultTenant, Status: job.StatusPaused, Version: 3, PausedAt: begin.Add(time.Minute),
		Definition: job.Definition{
			ID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", EffectiveAt: begin, FirstOrdinal: 1, CatchUpWindow: 10 * time.Second,
			Schedule: job.Schedule{Type: job.ScheduleInterval, Every: 10 * time.Second, StartAt: begin},
		},
	}
	f.entry = job.NewEntry(job.Entry{
		Locator: job.Locator{
			DueAt: begin, ExecutionID: job.ScheduleExecutionID(f.row.ID, begin), Attempt: 1, DefinitionID: f.row.Definition.ID,
		},
		JobID: f.row.ID, Trigger: job.TriggerSchedule, NominalAt: begin, ScheduledFor: begin, Ordinal: 1,
	}, begin)
	f.must(f.deps.Hot.SetEpoch(t.Context(), f.owner))
	f.must(f.deps.Pending.Put(t.Context(), []job.Entry{f.entry}))
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// task returns the entry as this worker has judged it.
func (f *fixture) task() *task {
	f.t.Helper()
	series, err := f.series(f.t.Context(), &f.row, &f.entry)
	f.must(err)
	return &task{
		entry: &f.entry, from: newShard(f.Service), owner: f.owner, series: series, tenant: f.row.Tenant, judgedAt: f.deps.Clock.Now(),
	}
}

func (f *fixture) refused(v job.Verdict) {
	f.t.Helper()
	_, err := f.refuse(f.t.Context(), f.task(), v, &f.row)
	f.must(err)
}

// An instant fired under the previous definition keeps its outcome, so the refusal of the next definition's entry for it is
// recorded nowhere. The entry may come again before it is settled, when a pause has become a cancel.
func TestInstantsThatARefusalStopsAreToldInOneWay(t *testing.T) {
	f := newFixture(t)
	ctx, key, begin := t.Context(), attempts.KeyOf(&f.entry), f.entry.DueAt
	former := attempts.Holder{Name: "executor", DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ000000", Start: 1}
	rec, held, err := f.records.Acquire(ctx, key, former, begin, begin.Add(time.Minute))
	if err != nil || !held {
		t.Fatal(held, err)
	}
	outcome := job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 1, Counter: 1, Start: rec.Token.Start}, DefinitionID: former.DefinitionID}
	_, err = f.deps.Outcomes.Finish(ctx, []attempts.Completion{{Key: key, Token: rec.Token, Outcome: &outcome}}, begin.Add(time.Second))
	f.must(err)

	f.refused(job.VerdictPaused)
	f.row.Status, f.row.Version, f.row.EndsAt = job.StatusCancelled, 4, begin.Add(2*time.Minute)
	f.refused(job.VerdictCancelled)

	if told := f.log.events; len(told) != 2 || told[0].Disposition != job.DispositionSkippedPaused || told[1].ID != told[0].ID {
		t.Errorf("told %+v, want the same twice", told)
	}
}

// The owner that refused may have died before it published what else that stops. The entry is its proof that this must
// still be done, and a fire would end it.
func TestOwnerThatStoodStillJudgesAnewWhatAnotherHasRefused(t *testing.T) {
	f := newFixture(t)
	now := f.entry.DueAt.Add(time.Hour)
	refusal := job.Refusal(job.VerdictCancelled, &f.entry)
	_, stored, err := f.deps.Outcomes.Refuse(t.Context(), attempts.KeyOf(&f.entry), refusal, now)
	if err != nil || !stored {
		t.Fatal(stored, err)
	}
	if err := f.sendAside(t.Context(), f.task(), now); !errors.Is(err, errRefused) {
		t.Errorf("a late entry that another has refused: %v, want %v", err, errRefused)
	}
	if len(f.log.events) > 0 {
		t.Errorf("told %+v", f.log.events)
	}
}

// Where a writer was slow, two rows stand for an occurrence. What was decided about the first holds for the second, also when the hot tier has
// forgotten that the attempt was refused.
func TestAnOccurrenceThatWasSkippedIsNotFiredUnderTheRowThatRepeatsIt(t *testing.T) {
	f := newFixture(t)
	ctx, now := t.Context(), f.entry.DueAt.Add(time.Hour)
	f.entry.Repeats = f.entry.Minute
	f.entry.Minute++
	f.must(f.deps.Pending.Put(ctx, []job.Entry{f.entry}))
	first := f.entry.Locator
	first.Minute = f.entry.Repeats
	task := f.task()
	late := task.series.Late(&f.entry, now)
	f.must(f.deps.Pending.Decide(ctx, first, late))
	original := f.entry
	original.Minute = first.Minute
	next, _ := task.series.Successor(&original, late, now)
	f.must(f.deps.Pending.Put(ctx, []job.Entry{next}))

	f.must(f.sendAside(ctx, task, now))

	if told := f.log.events; f.log.fires != 0 || len(told) != 1 || told[0].Disposition != job.DispositionSkippedMissed || told[0].Entry.Minute != f.entry.Minute {
		t.Errorf("%d fires, and told %+v; want that the second row is skipped", f.log.fires, told)
	}
}

// The executor of the first row stored the refusal. The owner explains it by the job's row, so it does not judge the second for ever.
func TestRowThatRepeatsAStoppedExecutionEnds(t *testing.T) {
	f := newFixture(t)
	ctx, now := t.Context(), f.entry.DueAt.Add(time.Hour)
	f.row.Status, f.row.PausedAt, f.row.StoppedExecutions = job.StatusActive, time.Time{}, []string{f.entry.ExecutionID}
	f.must(f.deps.Jobs.Create(ctx, f.row, false))
	f.entry.Repeats = f.entry.Minute
	f.entry.Minute++
	f.must(f.deps.Pending.Put(ctx, []job.Entry{f.entry}))
	_, stored, err := f.deps.Outcomes.Refuse(ctx, attempts.KeyOf(&f.entry), job.Refusal(job.VerdictCancelled, &f.entry), now)
	if err != nil || !stored {
		t.Fatal(stored, err)
	}
	one := f.task()
	one.from.reads.own([]coord.Owner{f.owner})
	one.from.reads.accept([]coord.Owner{f.owner}, f.deps.Clock.Now(), make([]time.Time, 1))
	if p := f.judge(ctx, one, &f.row, true); p.err != nil || p.aside != nil {
		t.Fatalf("judged: %+v", p)
	}
	f.must(f.sendAside(ctx, one, now))
	if f.log.fires != 1 {
		t.Errorf("%d fires, want one, whose executor ends the row", f.log.fires)
	}
}

// stopsWhile and putsWhile let something happen while a stop record, or an entry, is written.
type stopsWhile struct {
	attempts.Stops
	meanwhile func()
}

func (s stopsWhile) SetStop(ctx context.Context, jobID string, state job.State) (time.Duration, error) {
	s.meanwhile()
	return s.Stops.SetStop(ctx, jobID, state)
}

type putsWhile struct {
	jobstore.Pending
	meanwhile func()
}

func (p putsWhile) Put(ctx context.Context, entries []job.Entry) error {
	p.meanwhile()
	return p.Pending.Put(ctx, entries)
}

// An owner reads the row of an entry that it refuses, and stands still. Meanwhile others end the entry and all that followed from it, and the
// bucket closes. That no successor is found then does not say that none was there, and the claim went with the hot tier before.
func TestNothingFollowsFromARefusedEntryThatWasSettledMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name             string
		decided, writing bool
	}{
		{name: "on time"},
		{name: "late", decided: true},
		{name: "late, while its successor was written", decided: true, writing: true},
	} {
		f := newFixture(t)
		ctx, loader := t.Context(), coord.Owner{Role: coord.RoleLoader, Epoch: 1}
		f.must(f.deps.Hot.SetEpoch(ctx, loader))
		f.must(f.deps.Hot.SetHorizon(ctx, loader, f.entry.DueAt.Add(time.Hour)))
		hot := &addsBadly{Buckets: f.deps.Hot}
		f.deps.Hot = hot
		series := f.task().series
		onTime := series.OnTime(&f.entry)
		next, _ := series.Successor(&f.entry, onTime, f.entry.DueAt)
		if c.decided {
			f.must(f.deps.Pending.Decide(ctx, f.entry.Locator, onTime))
		}
		pending := f.deps.Pending
		settle := func() {
			f.must(pending.Put(ctx, []job.Entry{next}))
			f.must(pending.MarkDone(ctx, []job.Locator{f.entry.Locator, next.Locator}))
			f.must(pending.Close(ctx, f.entry.Partition, next.Minute+1))
		}
		if c.writing {
			f.deps.Pending = putsWhile{pending, settle}
		} else {
			f.deps.Stops = stopsWhile{f.deps.Stops, settle}
		}

		_, err := f.refuse(ctx, f.task(), job.VerdictPaused, &f.row)

		if !errors.Is(err, errSettled) || len(f.log.events) > 0 || hot.added > 0 {
			t.Errorf("%s: %v, told %+v, %d added", c.name, err, f.log.events, hot.added)
		}
		if _, err := f.refuse(ctx, f.task(), job.VerdictPaused, &f.row); err != nil || len(f.log.events) > 0 || hot.added > 0 {
			t.Errorf("%s, taken again: %v, told %+v, %d added", c.name, err, f.log.events, hot.added)
		}
	}
}

// addsBadly fails one add.
type addsBadly struct {
	hotbucket.Buckets
	err   error
	added int
}

func (a *addsBadly) Add(ctx context.Context, entries []job.Entry) error {
	if err := a.err; err != nil {
		a.err = nil
		return err
	}
	a.added += len(entries)
	return a.Buckets.Add(ctx, entries)
}

// A schedule of every second would stand still until the sweep that closes the minute.
func TestParentOfASuccessorThatIsNotHotIsTakenAgain(t *testing.T) {
	f := newFixture(t)
	loader := coord.Owner{Role: coord.RoleLoader, Epoch: 1}
	f.must(f.deps.Hot.SetEpoch(t.Context(), loader))
	f.must(f.deps.Hot.SetHorizon(t.Context(), loader, f.entry.DueAt.Add(time.Hour)))
	hot := &addsBadly{Buckets: f.deps.Hot, err: errors.New("connection reset")}
	f.deps.Hot = hot
	successors := []job.Entry{f.entry}
	if err := f.chain(t.Context(), successors, f.deps.Clock.Now()); err == nil || hot.added != 0 {
		t.Errorf("its fire would be published: %v, %d added", err, hot.added)
	}
	if err := f.chain(t.Context(), successors, f.deps.Clock.Now()); err != nil || hot.added != 1 {
		t.Errorf("the second time gave %v, %d added", err, hot.added)
	}
	hot.err = hotbucket.ErrFull // the loader adds it when there is room: nothing else is held up
	if err := f.chain(t.Context(), successors, f.deps.Clock.Now()); err != nil {
		t.Errorf("a full hot tier gave %v", err)
	}
}

// A pause is judged by the clock of the API that answered it, and takes as long as its row write takes. What was called
// after it must not be called again by the resume, although the pause lasted longer than outcomes are kept.
func TestResumeDoesNotRepeatWhatWasCalledWhileThePauseWasOnItsWay(t *testing.T) {
	f := newFixture(t)
	ctx, key, former := t.Context(), attempts.KeyOf(&f.entry), f.entry
	former.DefinitionID = "def_01M7ZJW5E6D77SAJPXRZ000000"
	called := job.AttemptEvent(&job.Fire{Entry: former},
		job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, Fence: job.Fence{Epoch: 1, Counter: 1, Start: 1}}, f.entry.DueAt)
	f.must(f.deps.History.Record(ctx, jobstore.Unencoded(&called)))
	f.row.Status = job.StatusActive
	pausedAt := f.entry.NominalAt.Add(-time.Second)

	knows := func(pausedAt, effectiveAt time.Time) bool {
		t.Helper()
		row := f.row
		row.PausedAt, row.Definition.EffectiveAt = pausedAt, effectiveAt
		series, err := f.series(ctx, &row, &f.entry)
		f.must(err)
		if p := f.judge(ctx, &task{entry: &f.entry, owner: f.owner, series: series}, &row, true); p.err != nil || p.aside != nil {
			t.Fatalf("judged: %+v", p)
		}
		records, err := f.deps.Outcomes.Lookup(ctx, []attempts.Key{key})
		f.must(err)
		return records[0].Outcome != nil && records[0].Outcome.DefinitionID == former.DefinitionID
	}
	for name, known := range map[string]bool{
		"an update":                              knows(pausedAt.Add(-time.Second), pausedAt.Add(time.Millisecond)),
		"an entry long after the resume's first": knows(pausedAt.Add(-time.Hour), pausedAt.Add(time.Millisecond-time.Hour)),
	} {
		if known {
			t.Errorf("%s: the history was asked", name)
		}
	}
	if !knows(pausedAt, pausedAt.Add(time.Millisecond)) {
		t.Error("the hot tier does not know of the call")
	}
}

// A parent that is dispatched again makes successors hot that were settled long ago, and a hot tier that started since then
// knows nothing of them. Where it has forgotten nothing, no read is needed.
func TestLateEntryIsAskedAboutOnlyWhereTheHotTierMayHaveForgottenIt(t *testing.T) {
	f := newFixture(t)
	ctx, now := t.Context(), f.deps.Clock.Now()
	incarnations := map[bool]string{
		true:  attempts.IncarnationName(now.Add(-2*time.Hour).UnixMicro(), "old"),
		false: attempts.IncarnationName(now.UnixMicro(), "new"),
	}
	for _, c := range []struct {
		name                string
		due                 time.Duration
		covered, done, left bool
	}{
		{name: "before its instant", due: -10 * time.Millisecond, done: true, left: true},
		{name: "a little late and done", due: 10 * time.Millisecond, done: true},
		{name: "late and done", due: time.Minute, done: true},
		{name: "late and open", due: 61 * time.Second, left: true},
		{name: "late and covered", due: 62 * time.Second, covered: true, done: true, left: true},
		{name: "older than what outcomes are kept", due: attempts.Retention, covered: true, done: true},
	} {
		at := now.Add(-c.due).Truncate(time.Millisecond)
		entry := job.NewEntry(job.Entry{
			Locator: job.Locator{
				DueAt: at, ExecutionID: job.ScheduleExecutionID(f.row.ID, at), Attempt: 1, DefinitionID: f.row.Definition.ID,
			},
			JobID: f.row.ID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1,
		}, at)
		f.must(f.deps.Pending.Put(ctx, []job.Entry{entry}))
		if c.done {
			f.must(f.deps.Pending.MarkDone(ctx, []job.Locator{entry.Locator}))
		}
		one := &task{entry: &entry, owner: f.owner, incarnation: incarnations[c.covered]}
		left, err := f.clearUp(ctx, []*task{one}, now)
		f.must(err)
		if len(left) == 1 != c.left {
			t.Errorf("%s: it is left: %t", c.name, len(left) == 1)
		}
		if asked := c.left && !c.done; one.fresh != asked {
			t.Errorf("%s: its row was read and found open: %t", c.name, one.fresh)
		}
	}
}

// An earlier worker skipped a late entry, or the run after it, and died before it published that; its claim went with the
// hot tier. The schedule goes on from what is on the row.
func TestDecisionThatOnlyTheRowRemembersIsCarriedOut(t *testing.T) {
	f := newFixture(t)
	ctx, now := t.Context(), f.deps.Clock.Now()
	f.row.Status, f.row.PausedAt = job.StatusActive, time.Time{}
	f.row.Definition.Schedule.StartAt = now.Add(-time.Hour).Truncate(time.Second)
	f.row.Definition.EffectiveAt = f.row.Definition.Schedule.StartAt
	f.row.Definition.MissedRun = job.MissedSkip
	f.must(f.deps.Jobs.Create(ctx, f.row, false))
	at := f.row.Definition.Schedule.StartAt
	f.entry = job.NewEntry(job.Entry{
		Locator: job.Locator{
			DueAt: at, ExecutionID: job.ScheduleExecutionID(f.row.ID, at), Attempt: 1, DefinitionID: f.row.Definition.ID,
		},
		JobID: f.row.ID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1,
	}, at)
	f.must(f.deps.Pending.Put(ctx, []job.Entry{f.entry}))
	one := f.task()
	one.incarnation = attempts.IncarnationName(now.UnixMicro(), "new")
	f.must(f.deps.Pending.Decide(ctx, f.entry.Locator, one.series.Late(&f.entry, now)))

	left, err := f.clearUp(ctx, []*task{one}, now)
	f.must(err)
	if len(left) != 0 {
		t.Error("it is fired although its row says that it was skipped")
	}
	records, err := f.deps.Outcomes.Lookup(ctx, []attempts.Key{attempts.KeyOf(&f.entry)})
	f.must(err)
	if o := records[0].Outcome; o == nil || o.Disposition != job.DispositionSkippedMissed {
		t.Errorf("its outcome is %+v", o)
	}
	if len(f.log.events) != 2 {
		t.Errorf("%d events tell of it and of the run behind it", len(f.log.events))
	}
}

// An occurrence that gave way, whose claim's answer was lost, is decided again when what it gave way to has ended.
func TestOccurrenceThatGaveWayDoesNotEnterAListThatIsFreeMeanwhile(t *testing.T) {
	f := newFixture(t)
	f.row.Status, f.row.PausedAt = job.StatusActive, time.Time{}
	f.row.Definition.Overlap = job.OverlapSkip
	f.entry.Alone = true
	one := f.task()
	gave := one.series.OnTime(&f.entry)
	gave.Fire, gave.GaveWayTo = false, f.entry.NominalAt.Add(-10*time.Second)
	_, err := f.deps.Hot.Claim(t.Context(), f.owner, []hotbucket.Claim{claimOf(one, gave)})
	f.must(err)
	f.must(f.deps.Pending.Put(t.Context(), []job.Entry{f.entry}))
	one.from.reads.own([]coord.Owner{f.owner})
	one.from.reads.accept([]coord.Owner{f.owner}, f.deps.Clock.Now(), make([]time.Time, 1))
	d, err := f.decide(t.Context(), one, f.deps.Clock.Now())
	f.must(err)
	if d == nil || d.Fire || !d.GaveWayTo.Equal(gave.GaveWayTo) {
		t.Errorf("its decision is %+v", d)
	}
	if runs, err := f.deps.Jobs.Runs(t.Context(), f.row.ID); err != nil || len(runs) > 0 {
		t.Errorf("the list holds %v (%v)", runs, err)
	}
}

// The claim of an occurrence that has entered fails, and it is decided again when it is late.
func TestOccurrenceThatHasEnteredIsNotMissed(t *testing.T) {
	for _, c := range []struct {
		policy       job.MissedRun
		entered      bool
		fires, skips bool
	}{
		{job.MissedSkip, true, true, false},
		{job.MissedSkip, false, false, true},
		{job.MissedFireOnce, true, true, true},
		{job.MissedFireOnce, false, true, true},
	} {
		f := newFixture(t)
		f.row.Status, f.row.PausedAt = job.StatusActive, time.Time{}
		f.row.Definition.Overlap, f.row.Definition.MissedRun = job.OverlapSkip, c.policy
		f.entry.Alone = true
		one := f.task()
		if c.entered {
			f.must(f.deps.Jobs.SwapRuns(t.Context(), f.row.ID, nil, []job.Locator{f.entry.Locator}))
		}
		now := f.entry.DueAt.Add(10 * time.Minute)
		one.missed, one.judgedAt = true, now
		d, err := f.byMissedRun(t.Context(), one, now)
		f.must(err)
		if d.Fire != c.fires || (d.Skipped != nil) != c.skips {
			t.Errorf("%+v: its decision is %+v", c, d)
		}
	}
}

func TestFireOfAPartitionThatMayBeAnothersIsNotPublished(t *testing.T) {
	f := newFixture(t)
	now := f.deps.Clock.Now()
	next := f.owner
	next.Epoch++
	for _, c := range []struct {
		name        string
		taken, read time.Duration // ago
		owner       coord.Owner
		published   bool
	}{
		{"read lately", time.Hour, 0, f.owner, true},
		{"taken lately, and lost since", 0, 0, next, true},
		{"not read lately", time.Hour, f.cfg.OwnerTTL + time.Second, f.owner, false},
		{"lost since, although the others' are read", f.cfg.OwnerTTL + time.Second, 0, next, false},
	} {
		one := f.task()
		one.takenAt, f.log.fires = now.Add(-c.taken), 0
		one.from.reads.own([]coord.Owner{c.owner})
		one.from.reads.accept([]coord.Owner{c.owner}, now.Add(-c.read), make([]time.Time, 1))
		err := f.publish(t.Context(), []*task{one})
		if (f.log.fires == 1) != c.published || one.published != c.published || errors.Is(err, errLapsed{}) == c.published {
			t.Errorf("%s: %d fires were published: %v", c.name, f.log.fires, err)
		}
	}
}
