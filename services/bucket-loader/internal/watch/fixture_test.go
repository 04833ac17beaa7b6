package watch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

const partitions = 2

// fixture is a watchdog on embedded adapters in memory.
type fixture struct {
	*Watchdog
	t     *testing.T
	hands *hands
}

// hands are ports that fail when they are told to.
type hands struct {
	jobstore.Settings
	attempts.Records
	hotbucket.Buckets
	// put returns the error of a write of an item; away lets the records of attempts not be read.
	put  func(list string) error
	away bool
	// lost lets what is asked of attempts, and of the last partition, not be answered.
	lost bool
	// forgets lets them have forgotten everything.
	forgets bool
}

func (h *hands) Incarnations(ctx context.Context, asked []int) ([]string, error) {
	if h.away || h.lost && slices.Contains(asked, partitions-1) {
		return nil, errors.New("away")
	}
	return h.Buckets.Incarnations(ctx, asked)
}

func (h *hands) Memory(ctx context.Context, jobID string) (attempts.Memory, error) {
	m, err := h.Records.Memory(ctx, jobID)
	if h.forgets {
		m.KeptSince = time.Now()
	}
	return m, err
}

func (h *hands) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	if h.put != nil {
		if err := h.put(list); err != nil {
			return err
		}
	}
	return h.Settings.PutItem(ctx, list, i)
}

func (h *hands) Lookup(ctx context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	if h.away || h.lost {
		return nil, errors.New("away")
	}
	return h.Records.Lookup(ctx, keys)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: partitions, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	records, err := embedded.NewRecords(t.Context(), db, 1000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &hands{Settings: embedded.NewSettings(db), Records: records, Buckets: embedded.NewHotBuckets(db.Incarnation(), partitions, 0)}
	f := &fixture{t: t, hands: h, Watchdog: &Watchdog{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: embedded.NewPending(db), History: embedded.NewHistory(db), Settings: h, Records: h,
		Hot: h, Partitions: partitions, Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
	}}
	for p := range partitions {
		f.must(f.Hot.SetEpoch(t.Context(), coord.Owner{Role: coord.RoleWorker, Partition: p, Epoch: 1}))
	}
	return f
}

// incidents returns the incidents as others read and write them.
func (f *fixture) incidents() incidents.Store { return incidents.Store{Lists: f.Settings} }

// another returns a watchdog of another process.
func (f *fixture) another() *Watchdog {
	w := f.Watchdog
	return &Watchdog{
		Config: w.Config, Jobs: w.Jobs, Pending: w.Pending, History: w.History, Settings: w.Settings, Hot: w.Hot, Records: w.Records, Partitions: w.Partitions,
		Logger: w.Logger, Metrics: NewMetrics(nil),
	}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// create creates a job that is due every ten seconds, and is to begin within two and to succeed within four. The functions change it before.
func (f *fixture) create(change ...func(j *job.Job)) *job.Job {
	f.t.Helper()
	now := job.Instant(time.Now())
	id := ulid.Make().String()
	j := &job.Job{
		ID: job.JobPrefix + id, Tenant: 7, Name: "n", Owner: "team", Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
		Definition: job.Definition{
			ID: job.DefinitionPrefix + id, EffectiveAt: now, FirstOrdinal: 1, CatchUpWindow: time.Minute, Retry: job.DefaultRetryPolicy(),
			Schedule:  job.Schedule{Type: job.ScheduleInterval, Every: 10 * time.Second, StartAt: now.Add(10 * time.Second)},
			Deadlines: job.Deadlines{StartWithin: 2 * time.Second, FinishWithin: 4 * time.Second},
		},
	}
	for _, c := range change {
		c(j)
	}
	f.must(f.incidents().Watch(f.t.Context(), j))
	f.must(f.Jobs.Create(f.t.Context(), *j, true))
	return j
}

// redefine gives a job another definition, which a function changes, and returns when.
func (f *fixture) redefine(j *job.Job, change func()) time.Time {
	f.t.Helper()
	ctx, now := f.t.Context(), job.Instant(time.Now())
	f.must(f.Jobs.PutDefinition(ctx, j.ID, j.Definition))
	j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(now), ulid.DefaultEntropy()).String(), now
	j.Version++
	change()
	f.must(f.incidents().Watch(ctx, j))
	f.must(f.Jobs.Replace(ctx, *j))
	return now
}

func startOnly(j *job.Job) { j.Definition.Deadlines.FinishWithin = 0 }

// nth returns an instant of a job's schedule, from 1.
func nth(j *job.Job, n int) time.Time {
	return j.Definition.Schedule.StartAt.Add(time.Duration(n-1) * j.Definition.Schedule.Every)
}

// entry returns the entry of an instant of a job.
func (f *fixture) entry(j *job.Job, n int) job.Entry {
	f.t.Helper()
	plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
	f.must(err)
	s := &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &j.Definition, Plan: plan}
	e, ok := s.Resume(bucket.Partition(j.ID, partitions), nth(j, n), job.Instant(time.Now()))
	if !ok {
		f.t.Fatal("no instant")
	}
	return e
}

// outcome is how a call went that began some time after its instant, and took half a second.
func outcome(j *job.Job, n int, k job.OutcomeKind, after time.Duration) job.Outcome {
	began := nth(j, n).Add(after)
	return job.Outcome{
		Kind: k, Retryable: k == job.OutcomeFailed, Disposition: job.DispositionFired, Timeline: job.Timeline{Invoked: began, Completed: began.Add(time.Second / 2)},
	}
}

// record puts the end of an attempt on record.
func (f *fixture) record(j *job.Job, n, attempt int, o job.Outcome) {
	f.t.Helper()
	e := f.entry(j, n)
	e.Attempt = attempt
	event := job.AttemptEvent(&job.Fire{Entry: e, Retry: j.Definition.Retry}, job.TargetRef{}, o, time.Now())
	f.must(f.History.Record(f.t.Context(), jobstore.Unencoded(&event)))
}

// succeed lets an occurrence be called in time.
func (f *fixture) succeed(j *job.Job, n int) {
	f.record(j, n, 1, outcome(j, n, job.OutcomeSucceeded, time.Millisecond))
}

// until watches up to an instant.
func (f *fixture) until(at time.Time) {
	f.t.Helper()
	for time.Now().Before(at) {
		time.Sleep(f.Tick)
		f.turn()
	}
}

func (f *fixture) turn() {
	f.t.Helper()
	if mine, err := f.hold(f.t.Context()); err == nil && mine {
		_ = f.step(f.t.Context()) // what fails is tried again
	}
}

// all returns the incidents of the fixture's tenant, the latest first.
func (f *fixture) all() []incidents.Incident {
	f.t.Helper()
	list, _, err := f.incidents().List(f.t.Context(), 7, "", time.Now(), 100)
	f.must(err)
	return list
}

// one returns the only incident.
func (f *fixture) one() incidents.Incident {
	f.t.Helper()
	list := f.all()
	if len(list) != 1 {
		f.t.Fatalf("%d incidents: %+v", len(list), list)
	}
	return list[0]
}
