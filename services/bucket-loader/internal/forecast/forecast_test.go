package forecast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

const partitions = 8

// fixture is a forecaster on embedded adapters in memory.
type fixture struct {
	*Forecaster
	t    *testing.T
	jobs int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: partitions, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{t: t, Forecaster: &Forecaster{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), Lists: embedded.NewSettings(db), Partitions: partitions,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Mine: func() bool { return true },
	}}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// register creates a job with its first entry, which it returns.
func (f *fixture) register(s job.Schedule, change func(j *job.Job)) (*job.Job, job.Entry) {
	f.t.Helper()
	now := job.Instant(time.Now())
	f.jobs++
	j := job.Job{
		ID: fmt.Sprintf("%s01M7ZJW5E6D77SAJPX%08d", job.JobPrefix, f.jobs), Tenant: 1, Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
		Definition: job.Definition{ID: job.DefinitionPrefix + ulid.MustNew(ulid.Timestamp(now), nil).String(), EffectiveAt: now, FirstOrdinal: 1, Schedule: s, CatchUpWindow: time.Minute},
	}
	if change != nil {
		change(&j)
	}
	e, ok := f.series(&j).First(bucket.Partition(j.ID, partitions), now)
	if !ok {
		f.t.Fatalf("no occurrence of %+v", s)
	}
	f.must(f.Pending.Put(f.t.Context(), []job.Entry{e}))
	f.must(f.Jobs.Create(f.t.Context(), j, true))
	return &j, e
}

func (f *fixture) series(j *job.Job) *occurrence.Series {
	f.t.Helper()
	plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
	f.must(err)
	return &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &j.Definition, Plan: plan}
}

// next writes what follows from an entry, as a worker does that takes it.
func (f *fixture) next(j *job.Job, e job.Entry) job.Entry {
	f.t.Helper()
	s := f.series(j)
	next, ok := s.Successor(&e, s.OnTime(&e), job.Instant(time.Now()))
	if !ok {
		f.t.Fatal("the schedule has ended")
	}
	f.must(f.Pending.Put(f.t.Context(), []job.Entry{next}))
	return next
}

// planned makes a forecast and returns what it says of the minutes [from, to) from now on, for all and for a tenant.
func (f *fixture) planned(tenant job.Tenant, from, to int64) (all, of int) {
	f.t.Helper()
	_, err := f.Pass(f.t.Context())
	f.must(err)
	store := forecast.Store{Lists: f.Lists}
	got, err := store.All(f.t.Context())
	f.must(err)
	own, err := store.Of(f.t.Context(), tenant)
	f.must(err)
	if !got.Exact() || !own.Exact() {
		f.t.Fatalf("%d of %d partitions were read", got.Read, got.Of)
	}
	now := job.Minute(time.Now())
	all, _ = got.Sum(now+from, now+to)
	of, _ = own.Sum(now+from, now+to)
	return all, of
}

// want fails unless the minutes [from, to) from now on have so many fires.
func (f *fixture) want(from, to int64, n int) {
	f.t.Helper()
	if all, _ := f.planned(1, from, to); all != n {
		f.t.Errorf("%d fires planned in the minutes %d to %d from now on, want %d", all, from, to, n)
	}
}

func cron(expr string) job.Schedule { return job.Schedule{Type: job.ScheduleCron, CronExpr: expr} }

func every(d time.Duration) job.Schedule {
	return job.Schedule{Type: job.ScheduleInterval, Every: d, StartAt: job.Instant(time.Now()).Add(d)}
}

func once(in time.Duration) job.Schedule {
	return job.Schedule{Type: job.ScheduleOneShot, RunAt: job.Instant(time.Now()).Add(in)}
}

const day = forecast.Minutes

func TestEachKindOfScheduleIsCountedInItsMinutes(t *testing.T) {
	limited := cron("* * * * *")
	limited.MaxOccurrences = 10
	ends := cron("* * * * *")
	ends.EndAt = time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC)
	jitter := cron("0 * * * *")
	jitter.Jitter = 30 * time.Minute
	after := job.Schedule{Type: job.ScheduleOneShot, RunAt: time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)}
	for name, c := range map[string]struct {
		schedule job.Schedule
		want     int
	}{
		"once":                   {job.Schedule{Type: job.ScheduleOneShot, RunAt: time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)}, 1},
		"once, in two days":      {after, 0},
		"each minute":            {cron("* * * * *"), day},
		"each hour":              {cron("0 * * * *"), 24},
		"each hour, with jitter": {jitter, 24},
		"each second":            {job.Schedule{Type: job.ScheduleInterval, Every: time.Second, StartAt: time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)}, 60 * (day - 59)},
		"ten times from now on":  {limited, 9},
		"until 00:05":            {ends, 4},
		"each day":               {cron("0 9 * * *"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.register(c.schedule, nil)
				f.want(1, day+1, c.want)
			})
		})
	}
}

func TestAScheduleThatGoesOnMeanwhileIsCountedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		done, called bool
	}{
		"it has not been taken":                   {false, false},
		"its occurrence is in progress":           {false, true},
		"its occurrence is in progress no longer": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j, e := f.register(every(5*time.Minute), nil)
				time.Sleep(5*time.Minute + time.Second)
				if c.called {
					f.next(j, e)
				}
				if c.done {
					f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
				}
				f.want(1, 61, 12)
			})
		})
	}
}

// taken takes entries while they are read.
type taken struct {
	jobstore.Pending
	take func()
}

func (p taken) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	if take := p.take; take != nil {
		take()
	}
	return p.Pending.Scan(ctx, partition, minute, after, limit)
}

func TestAnEntryThatIsTakenWhileThePartitionIsReadIsCountedOnce(t *testing.T) {
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprintf("done %t", done), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j, e := f.register(every(5*time.Minute), nil)
				time.Sleep(5*time.Minute - time.Second)
				store, once := f.Pending, false
				f.Pending = taken{store, func() {
					if once {
						return
					}
					once = true
					time.Sleep(2 * time.Second)
					f.Pending = store
					f.next(j, e)
					if done {
						f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
					}
				}}
				f.want(1, 61, 12)
			})
		})
	}
}

func TestWhatDoesNotFireIsNotPlanned(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.register(once(time.Hour), func(j *job.Job) { j.Status = job.StatusCancelled })
		f.register(once(time.Hour), func(j *job.Job) { j.Deleted, j.Status = true, job.StatusCancelled })
		f.register(cron("0 * * * *"), func(j *job.Job) { j.Status, j.PausedAt = job.StatusPaused, time.Now() })
		_, e := f.register(once(time.Hour), nil)
		f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
		f.want(1, day, 0)
		j, e := f.register(once(2*time.Hour), nil)
		f.want(1, day, 1)
		j.Version++
		j.StoppedExecutions = []string{e.ExecutionID}
		f.must(f.Jobs.Replace(t.Context(), *j))
		f.want(1, day, 0)
	})
}

func TestAScheduleThatIsBehindIsPlannedFromNowOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		limited := cron("* * * * *")
		limited.MaxOccurrences = 100
		f.register(limited, nil)
		time.Sleep(30 * time.Minute)
		f.want(1, day+1, 69) // from 00:31 to 01:39
	})
}

func TestEachTenantHasItsOwnForecast(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for range 3 {
			f.register(once(time.Hour), nil)
		}
		f.register(once(time.Hour), func(j *job.Job) { j.Tenant = 2 })
		if all, of := f.planned(1, 1, day); all != 4 || of != 3 {
			t.Errorf("%d fires planned, %d of the first tenant", all, of)
		}
		if all, of := f.planned(2, 1, day); all != 4 || of != 1 {
			t.Errorf("%d fires planned, %d of the second tenant", all, of)
		}
		if _, of := f.planned(3, 1, day); of != 0 {
			t.Errorf("%d fires planned of a tenant without jobs", of)
		}
	})
}

func TestAForecastStopsAfterItsShareOfRows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for range 400 {
			f.register(once(time.Hour), nil)
		}
		f.Rows, f.Page = 100, 7
		_, err := f.Pass(t.Context())
		f.must(err)
		got, err := forecast.Store{Lists: f.Lists}.All(t.Context())
		f.must(err)
		if got.Read < 1 || got.Read > 4 {
			t.Errorf("%d of %d partitions were read", got.Read, got.Of)
		}
		minute := job.Minute(time.Now().Add(time.Hour))
		if planned, off := got.Sum(minute, minute+1); off == 0 || planned-off > 400 || planned+off < 400 {
			t.Errorf("%d ± %d planned, 400 are right", planned, off)
		}
	})
}

// countedReads is a store that counts reads of buckets.
type countedReads struct {
	jobstore.Pending
	scans, heads *int
}

func (p countedReads) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	*p.scans++
	return p.Pending.Scan(ctx, partition, minute, after, limit)
}

func (p countedReads) Heads(ctx context.Context, partition int, from, to int64, limit int) ([]job.PendingRow, error) {
	*p.heads++
	return p.Pending.Heads(ctx, partition, from, to, limit)
}

func TestSmallBucketsAreReadTogetherAndLargeOnesWhole(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Page = headRows + 2
		n, scans, heads := 0, 0, 0
		// put registers jobs that fire once, so many of them in the first partition.
		put := func(in time.Duration, jobs int) {
			for ; jobs > 0; n++ {
				if _, e := f.register(once(in), nil); e.Partition == 0 {
					jobs--
				}
			}
		}
		for minute := range 60 {
			put(time.Duration(minute+2)*time.Minute, 1)
		}
		put(10*time.Minute, 2*f.Page)
		put(11*time.Minute, headRows-1)
		put(20*time.Minute, headRows-1)
		put(23*time.Hour, 3)
		f.Pending = countedReads{f.Pending, &scans, &heads}
		f.want(1, day, n)
		if most := partitions * (day/span + 2); heads > most || scans > 80 {
			t.Errorf("%d requests for heads, %d for buckets", heads, scans)
		}
	})
}

func TestAPassOverNothingAsksOnceForAPartition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		scans, heads := 0, 0
		f.Pending = countedReads{f.Pending, &scans, &heads}
		f.want(1, day, 0)
		if heads > 0 || scans > 2*partitions {
			t.Errorf("%d requests for heads, %d for buckets", heads, scans)
		}
	})
}

func TestNothingIsStoredOfAPassThatFailed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.register(once(time.Hour), nil)
		f.Jobs = away{f.Jobs}
		if _, err := f.Pass(t.Context()); !errors.Is(err, errAway) {
			t.Errorf("the pass ended with %v", err)
		}
		if _, err := (forecast.Store{Lists: f.Lists}).All(t.Context()); !errors.Is(err, forecast.ErrNone) {
			t.Errorf("a forecast was stored: %v", err)
		}
	})
}

var errAway = errors.New("away")

// away is a store that does not answer.
type away struct{ jobstore.Jobs }

func (away) GetMany(context.Context, []string) (map[string]*job.Job, error) { return nil, errAway }

func TestAScheduleThatGoesOnBehindTheReaderIsCountedFromItsLastEntry(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j, e := f.register(job.Schedule{Type: job.ScheduleInterval, Every: 10 * time.Second, StartAt: job.Instant(time.Now()).Add(45 * time.Second)}, nil)
		time.Sleep(47 * time.Second)
		store := f.Pending
		f.Pending = opened{store, func() { // the minute of the first two was read
			f.Pending = store
			f.next(j, f.next(j, e))
		}}
		f.want(1, 61, 360)
	})
}

// opened calls a function when the first bucket of a job was read.
type opened struct {
	jobstore.Pending
	read func()
}

func (p opened) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	rows, err := p.Pending.Scan(ctx, partition, minute, after, limit)
	if len(rows) > 0 {
		p.read()
	}
	return rows, err
}

func (p opened) Heads(ctx context.Context, partition int, from, to int64, limit int) ([]job.PendingRow, error) {
	rows, err := p.Pending.Heads(ctx, partition, from, to, limit)
	if len(rows) > 0 {
		p.read()
	}
	return rows, err
}

func TestACancelledExecutionIsNotPlannedAndItsScheduleGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		limited := every(5 * time.Minute)
		limited.MaxOccurrences = 10
		for _, s := range []job.Schedule{every(5 * time.Minute), limited} {
			j, e := f.register(s, nil)
			j.Version++
			j.StoppedExecutions = []string{e.ExecutionID}
			f.must(f.Jobs.Replace(t.Context(), *j))
		}
		f.want(1, 61, 11+9)
		time.Sleep(5*time.Minute + time.Second) // it is due, and was not taken yet
		f.want(1, 61, 12+9)
	})
}

func TestAReadThatFailsOnceIsNotTheEndOfAPass(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.register(once(time.Hour), nil)
		store := f.Jobs
		f.Jobs = awayOnce{store, f}
		f.want(1, day, 1)
	})
}

// awayOnce is a store that does not answer the first time.
type awayOnce struct {
	jobstore.Jobs
	f *fixture
}

func (s awayOnce) GetMany(context.Context, []string) (map[string]*job.Job, error) {
	s.f.Jobs = s.Jobs
	return nil, errAway
}

func TestAScheduleThatIsReplacedMeanwhileIsCountedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j, _ := f.register(every(time.Minute), nil)
		store := f.Pending
		f.Pending = opened{store, func() {
			f.Pending = store
			time.Sleep(time.Second)
			now := job.Instant(time.Now())
			j.Version++
			j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(now), nil).String(), now
			j.Definition.Schedule = every(5 * time.Minute)
			e, _ := f.series(j).First(bucket.Partition(j.ID, partitions), now)
			f.must(store.Put(t.Context(), []job.Entry{e}))
			f.must(f.Jobs.Replace(t.Context(), *j))
		}}
		if all, _ := f.planned(1, 1, 61); all > 60 {
			t.Errorf("%d fires planned of a job of each minute", all)
		}
		f.want(1, 61, 12)
	})
}

// A reader that stands still finds a bucket closed in which the heads of schedules were, and later rows say only that there was one.
func TestAPassThatReadsABucketTooLateIsGivenUp(t *testing.T) {
	for still, want := range map[time.Duration]error{20 * time.Second: nil, 2 * time.Minute: errSlow} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.register(every(5*time.Minute), nil)
			stood := false
			f.Pending = taken{f.Pending, func() {
				if !stood {
					stood = true
					time.Sleep(still)
				}
			}}
			if _, err := f.Pass(t.Context()); !errors.Is(err, want) {
				t.Errorf("after %s the pass ended with %v, want %v", still, err, want)
			}
		})
	}
}

// A writer that was late, and the audit of the schedules, write an entry into a later bucket too; what follows from both may lie in two buckets.
func TestAnExecutionWithTwoRowsIsCountedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for _, s := range []job.Schedule{every(5 * time.Minute), once(10 * time.Minute)} {
			_, e := f.register(s, nil)
			e.Minute++
			f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
		}
		f.want(1, 61, 13)
	})
}

// The earlier row is done, or it is gone: the schedule goes on from the later one.
func TestAnExecutionOfWhichOnlyTheLaterRowIsLeftIsCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, e := f.register(every(5*time.Minute), nil)
		time.Sleep(5*time.Minute + time.Second)
		f.must(f.Pending.MarkDone(t.Context(), []job.Locator{e.Locator}))
		e.Minute++
		f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
		f.want(1, 61, 12)
	})
}

// A worker that was late lets what was missed go, and with it instants that were ahead when the pass began.
func TestInstantsThatAreSkippedWhileThePartitionIsReadAreCounted(t *testing.T) {
	for _, late := range []time.Duration{2 * time.Second, 4 * time.Minute} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			j, e := f.register(every(10*time.Second), func(j *job.Job) { j.Definition.CatchUpWindow = 10 * time.Second })
			time.Sleep(10*time.Second + late) // the first is behind
			store, taken := f.Pending, takenOnce{Pending: f.Pending, partition: e.Partition}
			taken.take = func() {
				time.Sleep(25 * time.Second) // so that the instant before the one that comes next was ahead
				s, now := f.series(j), job.Instant(time.Now())
				d := s.Late(&e, now)
				if d.Fire || d.Skipped == nil || !d.Skipped.To.After(now.Add(-25*time.Second)) {
					t.Errorf("%s late: %+v is decided", late, d)
				}
				f.must(store.Decide(t.Context(), e.Locator, d))
				next, ok := s.Successor(&e, d, now)
				if !ok || !next.NominalAt.After(d.Skipped.To) {
					t.Errorf("%s late: the schedule goes on with %+v", late, next)
				}
				f.must(store.Put(t.Context(), []job.Entry{next}))
				f.must(store.MarkDone(t.Context(), []job.Locator{e.Locator}))
			}
			f.Pending = &taken
			f.want(1, 61, 360)
		})
	}
}

// takenOnce is a store of which something is taken when a partition is read first.
type takenOnce struct {
	jobstore.Pending
	partition int
	take      func()
	taken     bool
}

func (p *takenOnce) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	if !p.taken && partition == p.partition {
		p.taken = true
		p.take()
	}
	return p.Pending.Scan(ctx, partition, minute, after, limit)
}
