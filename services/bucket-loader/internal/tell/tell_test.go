package tell

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/notices"
)

// fixture is a teller on embedded adapters in memory, and its targets.
type fixture struct {
	*Teller
	t *testing.T
	// puts returns the error of a write of an item.
	puts func(name string) error

	mu sync.Mutex
	// answer is what a target answers; nil means 204.
	answer func(r *http.Request) (int, error)
	calls  []*http.Request
	bodies []Body
	// most is how many calls were in progress at once, by host.
	most, now map[string]int
}

type settings struct {
	jobstore.Settings
	f *fixture
}

func (s settings) PutItem(ctx context.Context, list string, i jobstore.Item) error {
	if s.f.puts != nil {
		if err := s.f.puts(i.Name); err != nil {
			return err
		}
	}
	return s.Settings.PutItem(ctx, list, i)
}

func (f *fixture) RoundTrip(r *http.Request) (*http.Response, error) {
	var b Body
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	f.calls, f.bodies = append(f.calls, r), append(f.bodies, b)
	f.now[r.URL.Host]++
	f.most[r.URL.Host] = max(f.most[r.URL.Host], f.now[r.URL.Host])
	answer := f.answer
	f.mu.Unlock()
	code, err := http.StatusNoContent, error(nil)
	if answer != nil {
		code, err = answer(r)
	}
	f.mu.Lock()
	f.now[r.URL.Host]--
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader("x"))}, nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 2, SetupMinute: job.Minute(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, most: map[string]int{}, now: map[string]int{}}
	f.Teller = &Teller{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), History: embedded.NewHistory(db), Settings: settings{embedded.NewSettings(db), f}, Targets: f,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil),
	}
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// create creates a job that tells of everything.
func (f *fixture) create(tenant job.Tenant, urls ...string) *job.Job {
	f.t.Helper()
	now := job.Instant(time.Now())
	j := &job.Job{
		ID: job.JobPrefix + ulid.Make().String(), Tenant: tenant, Name: "n", Owner: "team", Status: job.StatusActive, Version: 1, CreatedAt: now, UpdatedAt: now,
		Definition: job.Definition{ID: job.DefinitionPrefix + ulid.Make().String(), EffectiveAt: now, Schedule: job.Schedule{Type: job.ScheduleOneShot, RunAt: now}},
	}
	for _, url := range urls {
		j.Notify = append(j.Notify, job.Notify{
			On: []job.Cause{job.CauseDeadLetter, job.CauseSLAMissed, job.CausePausedBy410, job.CauseRecovered}, Quiet: 10 * time.Minute,
			Target: job.Target{Kind: job.TargetWebhook, URL: url, Headers: map[string]string{"Authorization": "Bearer s"}},
		})
	}
	f.must(f.Jobs.Create(f.t.Context(), *j, true))
	return j
}

// owe owes the n-th whom a job tells a notice of now.
func (f *fixture) owe(j *job.Job, n int, c job.Cause, change ...func(*notices.Notice)) notices.Notice {
	f.t.Helper()
	x := notices.Of(j.ID, &j.Notify[n], c, time.Now())
	x.Reason = "It failed."
	for _, do := range change {
		do(&x)
	}
	f.must(f.store().Owe(f.t.Context(), &x))
	return x
}

// run runs the teller for a while.
func (f *fixture) run(d time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	time.Sleep(d)
	cancel()
	running.Wait()
}

// left returns what is in the lists.
func (f *fixture) left() (list []notices.Standing) {
	f.t.Helper()
	for slice := range notices.Slices {
		page, _, err := f.store().List(f.t.Context(), slice, "", 1000)
		f.must(err)
		list = append(list, page...)
	}
	return list
}

func TestWhatIsOwedIsToldOnceInItsPeriod(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.GiveUp = time.Hour
		j := f.create(1, "https://a.example/x")
		x := f.owe(j, 0, job.CauseDeadLetter, func(x *notices.Notice) { x.ExecutionID, x.Attempts, x.Hops = "exe_1", 3, 2 })
		f.run(20 * time.Second)
		if len(f.calls) != 1 {
			t.Fatalf("%d calls", len(f.calls))
		}
		h, b := f.calls[0].Header, f.bodies[0]
		if h.Get("Idempotency-Key") != x.ID() || h.Get("Minutehand-Hops") != "2" || h.Get("Authorization") != "Bearer s" || h.Get("Content-Type") != "application/json" {
			t.Errorf("the headers are %v", h)
		}
		if b.NotificationID != x.ID() || b.Cause != job.CauseDeadLetter || b.JobID != j.ID || b.Owner != "team" || b.ExecutionID != "exe_1" || b.Attempts != 3 ||
			b.Reason != "It failed." || !b.QuietUntil.Equal(x.Period.Add(10*time.Minute)) {
			t.Errorf("the body is %+v", b)
		}
		f.must(f.store().Owe(t.Context(), &x)) // found again
		f.run(20 * time.Second)
		if len(f.calls) != 1 {
			t.Errorf("%d calls in one period", len(f.calls))
		}
		time.Sleep(10 * time.Minute)
		f.owe(j, 0, job.CauseDeadLetter)
		f.run(75 * time.Minute)
		if len(f.calls) != 2 || len(f.left()) != 0 {
			t.Errorf("%d calls in two periods, and %d notices are left", len(f.calls), len(f.left()))
		}
	})
}

func TestCallThatFailsIsMadeAgainUnderOneIDUntilItIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(n int) (int, error)
		// calls is how many are made at least, most at most.
		calls, most int
		told        bool
	}{
		"it is away for a while": {func(n int) (int, error) {
			if n < 4 {
				return 0, errors.New("refused")
			}
			return 200, nil
		}, 4, 4, true},
		"it is overloaded": {func(n int) (int, error) { return []int{503, 429, 408, 200}[min(n, 4)-1], nil }, 4, 4, true},
		"it stays away":    {func(int) (int, error) { return 503, nil }, 20, 30, false},
		"it is gone":       {func(int) (int, error) { return 410, nil }, 1, 1, false},
		"it redirects":     {func(int) (int, error) { return 302, nil }, 1, 1, false},
		"it is a loop":     {func(int) (int, error) { return 400, nil }, 1, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				n := 0
				f.answer = func(*http.Request) (int, error) { n++; return c.answer(n) }
				x := f.owe(f.create(1, "https://a.example/x"), 0, job.CauseSLAMissed)
				if f.GiveUp = 3 * time.Hour; c.calls < 10 {
					f.GiveUp = time.Hour
				}
				f.run(f.GiveUp + 30*time.Minute)
				if len(f.calls) < c.calls || len(f.calls) > c.most {
					t.Errorf("%d calls", len(f.calls))
				}
				for _, b := range f.bodies {
					if b.NotificationID != x.ID() {
						t.Errorf("told as %s and as %s", x.ID(), b.NotificationID)
					}
				}
				if len(f.left()) != 0 {
					t.Errorf("%+v is left", f.left())
				}
			})
		})
	}
}

// What an owner does not want it is not told again in the period, however often it is owed.
func TestWhatWasRefusedIsNotToldAgainInItsPeriod(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.answer = func(*http.Request) (int, error) { return http.StatusNotFound, nil }
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Minute).Add(10 * time.Minute)))
		j := f.create(1, "https://a.example/x")
		for range 5 {
			f.owe(j, 0, job.CauseDeadLetter)
			f.run(time.Minute)
		}
		if len(f.calls) != 1 {
			t.Errorf("%d calls", len(f.calls))
		}
	})
}

func TestWhatIsTooOldIsNotTold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.owe(f.create(1, "https://a.example/x"), 0, job.CauseDeadLetter)
		time.Sleep(25 * time.Hour)
		f.run(time.Minute)
		if len(f.calls) != 0 || len(f.left()) != 0 {
			t.Errorf("%d calls, and %d notices are left", len(f.calls), len(f.left()))
		}
	})
}

// unreadable are jobs of which one cannot be read.
type unreadable struct {
	jobstore.Jobs
	id string
}

func (u unreadable) Get(ctx context.Context, id string) (job.Job, error) {
	if id == u.id {
		return job.Job{}, errors.New("it cannot be read")
	}
	return u.Jobs.Get(ctx, id)
}

func (u unreadable) GetMany(context.Context, []string) (map[string]*job.Job, error) {
	return nil, errors.New("one cannot be read")
}

func TestJobThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		jobs := []*job.Job{f.create(1, "https://a.example/x"), f.create(1, "https://b.example/x"), f.create(1, "https://c.example/x")}
		for _, j := range jobs {
			f.owe(j, 0, job.CauseDeadLetter)
		}
		f.Jobs = unreadable{f.Jobs, jobs[0].ID}
		f.run(time.Minute)
		if len(f.calls) != 2 {
			t.Errorf("%d calls", len(f.calls))
		}
	})
}

// The mark behind a call fails, and then the process dies.
func TestCallIsRepeatedUnderItsIDIfItsMarkIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.puts = func(name string) error {
			if strings.HasSuffix(name, "/told") {
				return errors.New("it does not answer")
			}
			return nil
		}
		f.owe(f.create(1, "https://a.example/x"), 0, job.CauseDeadLetter)
		f.run(time.Hour)
		if len(f.calls) != 1 {
			t.Errorf("%d calls while one process knows that it made it", len(f.calls))
		}
		f.puts = nil
		f.run(time.Minute)
		if n := len(f.calls); n != 2 || f.bodies[0].NotificationID != f.bodies[1].NotificationID {
			t.Errorf("%d calls: %+v", n, f.bodies)
		}
	})
}

func TestHostThatHangsHoldsUpNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.answer = func(r *http.Request) (int, error) {
			if r.URL.Host == "hangs.example" {
				<-r.Context().Done()
				return 0, r.Context().Err()
			}
			return 200, nil
		}
		for range 50 {
			f.owe(f.create(1, "https://hangs.example/x"), 0, job.CauseDeadLetter)
		}
		f.owe(f.create(2, "https://well.example/x"), 0, job.CauseDeadLetter)
		f.run(30 * time.Second)
		if f.most["hangs.example"] != 2 || f.most["well.example"] != 1 {
			t.Errorf("calls at once: %v", f.most)
		}
	})
}

func TestNobodyIsToldOfWhatTheJobDoesNotTellAnyMore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		gone, other := f.create(1, "https://a.example/x"), f.create(1, "https://a.example/y")
		f.owe(gone, 0, job.CauseDeadLetter)
		f.owe(other, 0, job.CauseDeadLetter)
		gone.Deleted, gone.Version, other.Version = true, 2, 2
		other.Notify[0].On = []job.Cause{job.CauseSLAMissed}
		f.must(f.Jobs.Replace(t.Context(), *gone))
		f.must(f.Jobs.Replace(t.Context(), *other))
		f.run(time.Minute)
		if len(f.calls) != 0 || len(f.left()) != 0 {
			t.Errorf("%d calls, and %d notices are left", len(f.calls), len(f.left()))
		}
	})
}

// A process that is told to stop ends the call that it is at, so that the next one does not make it again.
func TestCallThatIsUnderWayAtAStopIsNotMadeAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.answer = func(r *http.Request) (int, error) {
			select {
			case <-r.Context().Done():
				return 0, r.Context().Err()
			case <-time.After(2 * time.Second):
				return 200, nil
			}
		}
		f.owe(f.create(1, "https://a.example/x"), 0, job.CauseDeadLetter)
		f.run(6 * time.Second)
		f.run(time.Minute)
		if len(f.calls) != 1 {
			t.Errorf("%d calls", len(f.calls))
		}
	})
}

// record puts an execution of a job that ends now into the history, and returns its instant.
func (f *fixture) record(j *job.Job, n int, k job.OutcomeKind) time.Time {
	f.t.Helper()
	now := job.Instant(time.Now())
	e := job.NewEntry(job.Entry{
		Locator: job.Locator{DueAt: now, ExecutionID: job.ScheduleExecutionID(j.ID, now), Attempt: 1, DefinitionID: j.Definition.ID},
		JobID:   j.ID, Tenant: 1, Trigger: job.TriggerSchedule, NominalAt: now, ScheduledFor: now, Ordinal: n,
	}, now)
	o := job.Outcome{Kind: k, Disposition: job.DispositionFired, Timeline: job.Timeline{Invoked: now, Completed: now}}
	event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, o, now)
	f.must(f.History.Record(f.t.Context(), jobstore.Unencoded(&event)))
	return now
}

// A log that begins over brings dead letters that were told of, and are over, once more. (Seed 1903430 of the simulation.)
func TestRecoveryThatIsOwedAgainComesToTheSame(t *testing.T) {
	for _, later := range []time.Duration{time.Second, time.Hour} { // until the first success
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			j := f.create(1, "https://a.example/x")
			f.record(j, 1, job.OutcomeFailed)
			x := f.owe(j, 0, job.CauseRecovered, func(x *notices.Notice) { x.AfterSuccess = true })
			time.Sleep(later)
			f.record(j, 2, job.OutcomeSucceeded)
			f.run(time.Minute)
			for n := range eventsRead + 100 {
				time.Sleep(10 * time.Second)
				f.record(j, 3+n, job.OutcomeSucceeded)
			}
			f.must(f.store().Owe(t.Context(), &x))
			f.run(time.Minute)
			if n := len(f.calls); n == 0 || f.bodies[n-1].NotificationID != f.bodies[0].NotificationID || f.bodies[n-1].ExecutionID != f.bodies[0].ExecutionID {
				t.Errorf("%d calls: %+v", n, f.bodies)
			}
		})
	}
}

func TestRecoveryIsToldOnceWhenAnExecutionHasSucceeded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(1, "https://a.example/x")
		record := func(n int, k job.OutcomeKind) time.Time { return f.record(j, n, k) }
		record(1, job.OutcomeSucceeded)
		time.Sleep(time.Second)
		record(2, job.OutcomeFailed)
		f.owe(j, 0, job.CauseRecovered, func(x *notices.Notice) { x.AfterSuccess = true })
		f.run(10 * time.Minute)
		if len(f.calls) != 0 {
			t.Fatalf("%d calls before it recovered", len(f.calls))
		}
		for range 5 { // in other periods
			time.Sleep(20 * time.Minute)
			record(3, job.OutcomeFailed)
			f.owe(j, 0, job.CauseRecovered, func(x *notices.Notice) { x.AfterSuccess = true })
		}
		time.Sleep(time.Second)
		at := record(4, job.OutcomeSucceeded)
		f.run(10 * time.Minute)
		if len(f.calls) != 1 || !f.bodies[0].At.Equal(at) || f.bodies[0].ExecutionID != job.ScheduleExecutionID(j.ID, at) {
			t.Errorf("%d calls: %+v", len(f.calls), f.bodies)
		}
	})
}

// A teller that stalls removes a recovery that has come late: by then another failure may wait for one. (Seed 991391876 of the simulation.)
func TestRecoveryFromALaterFailureIsNotRemovedWithAnEarlierOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		j := f.create(1, "https://a.example/x")
		waits := func(x *notices.Notice) { x.AfterSuccess = true }
		f.record(j, 1, job.OutcomeFailed)
		f.owe(j, 0, job.CauseRecovered, waits)
		time.Sleep(time.Second)
		f.record(j, 2, job.OutcomeSucceeded)
		f.puts = func(string) error { // the recovery is owed, and what waited for it not removed yet
			f.puts = nil
			time.Sleep(time.Second)
			f.record(j, 3, job.OutcomeFailed)
			f.owe(j, 0, job.CauseRecovered, waits)
			return nil
		}
		f.run(20 * time.Minute) // until another period
		if len(f.calls) != 1 {
			t.Fatalf("%d calls", len(f.calls))
		}
		f.record(j, 4, job.OutcomeSucceeded)
		f.run(20 * time.Minute)
		if len(f.calls) != 2 || f.bodies[1].NotificationID == f.bodies[0].NotificationID {
			t.Errorf("%d calls: %+v", len(f.calls), f.bodies)
		}
		for _, x := range f.left() {
			if x.Owed {
				t.Errorf("%s is left", x.ID())
			}
		}
	})
}

func TestOneProcessCallsAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		other := &Teller{
			Config: f.Config, Jobs: f.Jobs, History: f.History, Settings: f.Settings, Targets: f, Logger: f.Logger, Metrics: NewMetrics(nil),
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { other.Run(ctx) })
		time.Sleep(time.Minute)
		f.answer = func(*http.Request) (int, error) { time.Sleep(8 * time.Second); return 200, nil }
		for range 10 {
			f.owe(f.create(1, "https://a.example/x"), 0, job.CauseDeadLetter)
		}
		f.run(5 * time.Minute)
		cancel()
		running.Wait()
		if len(f.calls) != 10 {
			t.Errorf("%d calls, want 10", len(f.calls))
		}
	})
}

func TestPrivateAddressIsNotCalled(t *testing.T) {
	transport := Transport(false)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:9/x", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transport.RoundTrip(req); !egress.Refused(err) {
		t.Errorf("it ended with %v", err)
	}
}
