package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

const partitions = 2

// fixture is an audit on embedded adapters in memory.
type fixture struct {
	*Audit
	t *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: partitions, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	log, err := embedded.NewLog(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, Audit: &Audit{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), History: embedded.NewHistory(db),
		Settings: embedded.NewSettings(db), Hot: embedded.NewHotBuckets(db.Incarnation(), partitions, 0), Log: log, Partitions: partitions,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Mine: func() bool { return true },
	}}
	f.Page = 2
	for p := range partitions {
		o := coord.Owner{Role: coord.RoleLoader, Partition: p, Epoch: 1}
		f.must(f.Hot.SetEpoch(t.Context(), o))
		f.must(f.Hot.SetHorizon(t.Context(), o, time.Now().Add(time.Hour)))
	}
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// create creates a job without an entry.
func (f *fixture) create(n int, s job.Schedule) *job.Job {
	f.t.Helper()
	now := job.Instant(time.Now())
	j := job.Job{
		ID: fmt.Sprintf("%s01M7ZJW5E6D77SAJPXRW35C2%02d", job.JobPrefix, n), Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
		Definition: job.Definition{ID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", EffectiveAt: now, FirstOrdinal: 1, Schedule: s, CatchUpWindow: time.Minute},
	}
	f.must(f.Jobs.Create(f.t.Context(), j, true))
	l := job.ChangeLocator((&subject{job: &j}).partition(partitions), j.ID, strings.TrimPrefix(j.ID, job.JobPrefix))
	event := job.ChangeEvent(job.NewChange(l, j.ID, j.Tenant, job.Change{Operation: "createJob", Version: 1}, job.Author{}), now)
	f.must(f.History.Record(f.t.Context(), jobstore.Unencoded(&event)))
	return &j
}

func every(d time.Duration) job.Schedule {
	return job.Schedule{Type: job.ScheduleInterval, Every: d, StartAt: job.Instant(time.Now()).Add(d)}
}

// entry returns the entry of an instant of a job, written now.
func (f *fixture) entry(j *job.Job, at time.Time) job.Entry {
	f.t.Helper()
	plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
	f.must(err)
	s := &occurrence.Series{JobID: j.ID, Def: &j.Definition, Plan: plan}
	e, ok := s.Resume((&subject{job: j}).partition(partitions), at, job.Instant(time.Now()))
	if !ok || !e.NominalAt.Equal(at) {
		f.t.Fatalf("%s is no instant of the schedule", at)
	}
	return e
}

// record puts a success of an instant on record.
func (f *fixture) record(j *job.Job, at time.Time) {
	f.t.Helper()
	e := f.entry(j, at)
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired}, at)
	f.must(f.History.Record(f.t.Context(), jobstore.Unencoded(&event)))
}

// pass looks at all jobs once.
func (f *fixture) pass() error {
	f.t.Helper()
	f.mine = false
	f.must(f.read(f.t.Context()))
	if !f.progress.Ended.IsZero() {
		time.Sleep(f.Pause)
	}
	for began := false; !began || f.progress.Ended.IsZero(); began = true {
		if _, err := f.step(f.t.Context()); err != nil {
			return err
		}
	}
	return nil
}

// entries returns all rows of jobs.
func (f *fixture) entries(jobs ...*job.Job) (rows []job.PendingRow) {
	f.t.Helper()
	for _, j := range jobs {
		for minute := job.Minute(time.Now()) - 60; minute < job.Minute(time.Now())+600; minute++ {
			page, err := f.Pending.Scan(f.t.Context(), (&subject{job: j}).partition(partitions), minute, nil, 500)
			f.must(err)
			for _, row := range page {
				if row.JobID == j.ID {
					rows = append(rows, row)
				}
			}
		}
	}
	return rows
}

func (f *fixture) wants(what string, j *job.Job, at time.Time, ordinal int, minute int64) {
	f.t.Helper()
	rows := f.entries(j)
	if len(rows) != 1 || !rows[0].NominalAt.Equal(at) || rows[0].Ordinal != ordinal || rows[0].Minute != minute {
		f.t.Errorf("%s: its entries are %+v, want one of %s, the %dth, in minute %d", what, rows, at, ordinal, minute)
	}
}

func TestScheduleThatLostItsEntryGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		next := f.create(1, every(10*time.Minute))
		once := f.create(2, job.Schedule{Type: job.ScheduleOneShot, RunAt: began.Add(time.Hour)})
		past, ended := f.create(3, every(7*time.Minute)), f.create(4, every(4*time.Minute))
		for j, most := range map[*job.Job]int{past: 3, ended: 2} {
			j.Definition.Schedule.MaxOccurrences = most
			j.Version++
			f.must(f.Jobs.Replace(t.Context(), *j))
		}
		called := f.create(5, job.Schedule{Type: job.ScheduleOneShot, RunAt: began.Add(time.Minute)})
		f.record(past, began.Add(7*time.Minute))
		f.record(called, began.Add(time.Minute))
		time.Sleep(9*time.Minute + 30*time.Second)
		f.record(ended, began.Add(4*time.Minute))
		f.must(f.pass())
		f.wants("what is lost is ahead", next, began.Add(10*time.Minute), 1, job.Minute(began)+10)
		f.wants("a one_shot", once, began.Add(time.Hour), 1, job.Minute(began)+60)
		f.wants("one instant is on record", past, began.Add(14*time.Minute), 2, job.Minute(began)+14)
		if rows := f.entries(called, ended); len(rows) > 0 {
			t.Errorf("what has ended has the entries %+v", rows)
		}
		n := len(f.entries(next, once, past))
		f.must(f.pass())
		if again := len(f.entries(next, once, past)); again != n { // some are late by now
			t.Errorf("there were %d entries, and after another pass there are %d", n, again)
		}
	})
}

func TestScheduleThatHasItsEntryIsLeftAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		next, behind, jitters := f.create(1, every(10*time.Minute)), f.create(2, every(time.Minute)), f.create(3, every(time.Hour))
		jitters.Definition.Schedule.Jitter = 50 * time.Minute
		jitters.Version++
		f.must(f.Jobs.Replace(t.Context(), *jitters))
		held, paused := f.create(4, every(time.Minute)), f.create(5, every(time.Minute))
		held.Labels, held.Version = map[string]string{"team": "red"}, 2
		paused.Status, paused.Version = job.StatusPaused, 2
		f.must(f.Jobs.Replace(t.Context(), *held))
		f.must(f.Jobs.Replace(t.Context(), *paused))
		value, err := json.Marshal(job.DispatchHold{Hold: job.Hold{Labels: []string{"team=red"}}})
		f.must(err)
		f.must(f.Settings.SwapSetting(t.Context(), jobstore.SettingDispatchHold, nil, value))
		f.must(f.Pending.Put(t.Context(), []job.Entry{
			f.entry(next, began.Add(10*time.Minute)), f.entry(behind, began.Add(time.Minute)), f.entry(jitters, began.Add(time.Hour)),
		}))
		for _, wait := range []time.Duration{5 * time.Minute, 55*time.Minute + time.Second} {
			time.Sleep(wait)
			f.must(f.pass())
			for _, j := range []*job.Job{next, behind, jitters} {
				if rows := f.entries(j); len(rows) > 1 {
					t.Errorf("after %s, %s has the entries %+v", wait, j.ID, rows)
				}
			}
			if rows := f.entries(held, paused); len(rows) > 0 {
				t.Errorf("after %s, jobs that wait have the entries %+v", wait, rows)
			}
		}
	})
}

// A job's entry was written by time zone data in which the clocks of its zone change on another day, perhaps after today's occurrence, and due by the
// whole jitter, although the next instant is nearer by this data.
func TestScheduleThatOtherTimeZoneDataPlannedIsLeftAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for n, c := range []struct{ by, jitter time.Duration }{
			{-time.Hour, 0}, {30 * time.Minute, 0}, {24 * time.Hour, 0}, {23 * time.Hour, 0}, {-time.Hour, 2 * time.Hour}, {0, 0},
		} {
			by := c.by
			j := f.create(20+n, job.Schedule{Type: job.ScheduleCron, CronExpr: "0 9 * * *", Timezone: "America/New_York", Jitter: c.jitter})
			plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
			f.must(err)
			next, _ := plan.First(time.Now())
			e := f.entry(j, next)
			at := next.Add(by)
			alone, err := schedule.Compile(job.Schedule{Type: job.ScheduleOneShot, RunAt: at, Jitter: c.jitter}, j.ID)
			f.must(err)
			due := alone.ScheduledFor(at)
			e.ExecutionID, e.NominalAt, e.ScheduledFor, e.DueAt = job.ScheduleExecutionID(j.ID, at), at, due, due
			if e = job.NewEntry(e, time.Now()); by != 0 { // with 0 it is lost
				f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
			}
			f.must(f.pass())
			row, err := f.Pending.Row(t.Context(), f.entry(j, next).Locator)
			if mended := err == nil && !row.Done; mended != (by == 0) {
				t.Errorf("an entry %s later than planned, with a jitter of %s: mended is %t (%v)", by, c.jitter, mended, err)
			}
		}
	})
}

// The store says which release of the time zone data the schedules are planned by; a pass by other data takes its place once it finds each in
// its place.
func TestSchedulesThatOtherTimeZoneDataPlannedAreTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var told strings.Builder
		f.Logger = slog.New(slog.NewTextHandler(&told, nil))
		wants := func(when, planned string, differs bool) {
			t.Helper()
			f.must(f.checkZones(t.Context()))
			value, err := f.Settings.Setting(t.Context(), zoneSetting)
			f.must(err)
			series := make(chan prometheus.Metric, 10)
			f.Metrics.otherZones.Collect(series)
			if string(value) != planned || (len(series) == 1) != differs {
				t.Errorf("%s: planned by %q, want %q; %d series say that it differs", when, value, planned, len(series))
			}
		}
		here := schedule.TZDataVersion()
		wants("at first", here, false)
		f.must(f.Settings.SwapSetting(t.Context(), zoneSetting, []byte(here), []byte("2020a")))
		// elsewhere makes a job that other data has planned, and returns the entry that this data plans.
		elsewhere := func(n int) job.Entry {
			j := f.create(n, job.Schedule{Type: job.ScheduleCron, CronExpr: "0 9 * * *", Timezone: "America/New_York"})
			plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
			f.must(err)
			next, _ := plan.First(time.Now())
			e := f.entry(j, next)
			at := next.Add(time.Hour)
			e.ExecutionID, e.NominalAt, e.ScheduledFor, e.DueAt = job.ScheduleExecutionID(j.ID, at), at, at, at
			f.must(f.Pending.Put(t.Context(), []job.Entry{job.NewEntry(e, time.Now())}))
			return f.entry(j, next)
		}
		planned := elsewhere(1)
		wants("after a change of the data", "2020a", true)
		f.must(f.pass())
		wants("after a pass that found an entry elsewhere", "2020a", true)
		f.must(f.Pending.Put(t.Context(), []job.Entry{planned}))
		held, _ := json.Marshal(job.DispatchHold{Hold: job.Hold{All: true}})
		f.must(f.Settings.SwapSetting(t.Context(), jobstore.SettingDispatchHold, nil, held))
		f.must(f.pass())
		wants("after a pass over jobs that are held", "2020a", true)
		f.must(f.Settings.SwapSetting(t.Context(), jobstore.SettingDispatchHold, held, []byte("{}")))
		f.must(f.pass())
		wants("after a pass that found each in its place", here, false)
		// A process with other data has planned one since.
		planned = elsewhere(2)
		f.must(f.pass())
		wants("after a pass that found another one elsewhere", here, true)
		f.must(f.Pending.Put(t.Context(), []job.Entry{planned}))
		f.must(f.pass())
		wants("after a pass that found both in their place", here, false)
		for _, line := range []string{
			"md)\" planned_by=2020a", "schedules=1 planned_by=2020a", "all schedules are planned by", "planned_by=other tzdata", "schedules=1 planned_by=" + here,
		} {
			if strings.Count(told.String(), line) != 1 {
				t.Errorf("%q is told %d times: %s", line, strings.Count(told.String(), line), told.String())
			}
		}
	})
}

// failing is a store that takes no entries.
type failing struct{ jobstore.Pending }

var errFails = errors.New("it does not answer")

func (failing) Put(context.Context, []job.Entry) error { return errFails }

// A process dies, or stands still, between the note of a mend and its write. Whoever goes on writes the row that it would write, or one that
// says that it repeats it.
func TestMendHasOneKeyWhoeverWritesIt(t *testing.T) {
	for _, wait := range []time.Duration{30 * time.Second, 10 * time.Minute} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			began := job.Instant(time.Now())
			j := f.create(1, every(time.Minute))
			time.Sleep(3*time.Minute + 10*time.Second)
			store := f.Pending
			f.Pending = failing{store}
			if err := f.pass(); !errors.Is(err, errFails) {
				t.Fatalf("the pass ended with %v", err)
			}
			noted := job.Minute(time.Now())
			f.Pending = store
			time.Sleep(wait)
			f.must(f.pass())
			minute, repeats := noted, int64(0)
			if wait > time.Minute {
				minute, repeats = job.Minute(time.Now()), noted
			}
			f.wants("it was noted", j, began.Add(time.Minute), 1, minute)
			if r := f.entries(j)[0]; r.Repeats != repeats {
				t.Errorf("after %s it repeats %d, want %d", wait, r.Repeats, repeats)
			}
			if len(f.progress.Mends) > 0 {
				t.Errorf("the note stays: %s", f.stored)
			}
		})
	}
}

// stalls is a store whose reader stands still behind its third read of rows, with what it was answered.
type stalls struct {
	jobstore.Pending
	reads int
	then  func()
}

func (s *stalls) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	rows, err := s.Pending.Rows(ctx, locators)
	if s.reads++; s.reads == 3 {
		time.Sleep(100 * time.Second)
		s.then()
	}
	return rows, err
}

// A worker dropped the entry of a job whose registration was slow, and while the audit stands still the registration writes it.
func TestWhatWasWrittenSinceTheLookIsNoLoss(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		j := f.create(1, every(3*time.Minute))
		store := f.Pending
		time.Sleep(time.Minute)
		f.Pending = &stalls{Pending: store, then: func() { f.must(store.Put(t.Context(), []job.Entry{f.entry(j, began.Add(3*time.Minute))})) }}
		if err := f.pass(); !errors.Is(err, errLate) {
			t.Fatalf("the pass ended with %v", err)
		}
		time.Sleep(time.Minute)
		f.must(f.pass())
		f.wants("it was registered late", j, began.Add(3*time.Minute), 1, job.Minute(began)+3)
	})
}

// unreadable is a store in which a job's rows cannot be read.
type unreadable struct {
	jobstore.Pending
	job string
}

func (u unreadable) Rows(ctx context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	for _, l := range locators {
		if ref, err := job.ParseExecutionID(l.ExecutionID); err == nil && ref.JobID == u.job {
			return nil, errFails
		}
	}
	return u.Pending.Rows(ctx, locators)
}

func TestPassGoesOnBehindWhatCannotBeRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		var jobs []*job.Job
		for n := range 6 {
			jobs = append(jobs, f.create(30+n, every(time.Hour)))
		}
		for _, j := range jobs[4:] { // the first page, behind which nothing is noted
			f.must(f.Pending.Put(t.Context(), []job.Entry{f.entry(j, began.Add(time.Hour))}))
		}
		f.Pending = unreadable{f.Pending, jobs[2].ID} // on the second of three pages
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.Run(ctx)
		}()
		time.Sleep(10 * time.Minute)
		cancel()
		<-ended
		for _, n := range []int{0, 1, 4, 5} {
			f.wants("it is on another page", jobs[n], began.Add(time.Hour), 1, job.Minute(began)+60)
		}
	})
}

func TestOtherProcessGoesOnWhereOneWasStopped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		var jobs []*job.Job
		for n := range 5 {
			jobs = append(jobs, f.create(10+n, every(time.Hour)))
		}
		f.must(f.read(t.Context()))
		_, err := f.step(t.Context())
		f.must(err)
		other := &fixture{t: t, Audit: &Audit{}}
		*other.Audit = *f.Audit
		f.must(other.pass())
		if _, err := f.step(t.Context()); !errors.Is(err, jobstore.ErrConflict) {
			t.Errorf("the first one, which knows nothing of the other, ended with %v", err)
		}
		for _, j := range jobs {
			f.wants("all are mended", j, began.Add(time.Hour), 1, job.Minute(began)+60)
		}
	})
}

// An event is in the log that the history does not have yet: it may be that of an instant that seems to be lost.
func TestNothingIsMendedWhileTheHistoryIsBehindTheLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(1, every(time.Minute))
		time.Sleep(90 * time.Second)
		f.must(f.Log.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: j.ID, Value: []byte("an event")}}))
		f.must(f.pass())
		if rows := f.entries(j); len(rows) > 0 {
			t.Errorf("there are the entries %+v", rows)
		}
	})
}

// The row of a registration came after its entry was dropped. Whoever repeats the registration writes both anew, and is answered then.
func TestJobWhoseRegistrationWasNotAnsweredIsLeftAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(1, every(time.Minute))
		f.must(f.History.Forget(t.Context(), jobstore.Of{ID: job.ChangesOf(j.ID)}))
		dropped := f.entry(j, j.Definition.Schedule.StartAt)
		f.must(f.Pending.Put(t.Context(), []job.Entry{dropped}))
		f.must(f.Pending.MarkDone(t.Context(), []job.Locator{dropped.Locator}))
		time.Sleep(150 * time.Second)
		f.must(f.pass())
		if rows := f.entries(j); len(rows) != 1 {
			t.Errorf("there are the entries %+v", rows)
		}
	})
}

// buries is a store that lets nothing have the key of a row that was deleted.
type buries struct {
	jobstore.Pending
	deleted job.Locator
}

func (b buries) Put(ctx context.Context, entries []job.Entry) error {
	return b.Pending.Put(ctx, slices.DeleteFunc(slices.Clone(entries), func(e job.Entry) bool { return e.Locator == b.deleted }))
}

func TestEntryIsWrittenAMinuteLaterWhereItsRowWasDeleted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		j := f.create(1, every(10*time.Minute))
		f.Pending = buries{f.Pending, f.entry(j, began.Add(10*time.Minute)).Locator}
		for range 2 { // the second pass finds it there
			f.must(f.pass())
			f.wants("its row was deleted", j, began.Add(10*time.Minute), 1, job.Minute(began)+11)
		}
		if r := f.entries(j)[0]; r.Repeats != job.Minute(began)+10 {
			t.Errorf("it repeats the row in minute %d", r.Repeats)
		}
	})
}

// An operation has executed more than the audit reads of what is not the schedule's.
func TestScheduleThatLostItsEntryBehindALargeOperationGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := job.Instant(time.Now())
		j := f.create(1, every(10*time.Minute))
		f.record(j, began.Add(10*time.Minute))
		time.Sleep(15 * time.Minute)
		var events []job.Event
		for n := range mostRecords + 100 {
			asked := job.Instant(time.Now())
			e := job.Entry{JobID: j.ID, Trigger: job.TriggerBackfill, NominalAt: asked}
			e.ExecutionID, e.Attempt = job.BackfillExecutionID(j.ID, "op_"+ulid.MustNew(uint64(asked.UnixMilli()), nil).String(), began.Add(time.Duration(n)*time.Second)), 1
			events = append(events, job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired}, asked))
		}
		for i := range events {
			f.must(f.History.Record(t.Context(), jobstore.Unencoded(&events[i])))
		}
		time.Sleep(6 * time.Minute)
		f.must(f.pass())
		f.wants("it goes on behind what is on record", j, began.Add(20*time.Minute), 2, job.Minute(time.Now()))
	})
}
