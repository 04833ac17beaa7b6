package bulk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
)

const (
	partitions = 2
	jobID      = "job_01M7ZJW5E6D77SAJPXRW35C2CA"
	tenant     = job.Tenant(7)
)

// fixture is a runner on embedded adapters in memory, and a job of every minute that began an hour ago.
type fixture struct {
	*Runner
	t     *testing.T
	began time.Time
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
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	settings, pending := embedded.NewSettings(db), embedded.NewPending(db)
	f := &fixture{t: t, began: job.Instant(time.Now()), Runner: &Runner{
		Config: DefaultConfig(), Jobs: embedded.NewJobStore(db), Pending: pending, History: embedded.NewHistory(db),
		Store: operations.Store{Settings: settings, Recorder: jobchange.Recorder{Pending: pending, Entropy: rand.Reader, Partitions: partitions, Grace: time.Minute}},
		Hot:   embedded.NewHotBuckets(db.Incarnation(), partitions, 0), Stops: records, Log: log, Partitions: partitions, Entropy: rand.Reader,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(nil), Mine: func() bool { return true },
	}}
	for p := range partitions {
		o := coord.Owner{Role: coord.RoleLoader, Partition: p, Epoch: 1}
		f.must(f.Hot.SetEpoch(t.Context(), o))
		f.must(f.Hot.SetHorizon(t.Context(), o, time.Now().Add(24*time.Hour)))
	}
	f.must(f.Jobs.Create(t.Context(), job.Job{
		ID: jobID, Tenant: tenant, Status: job.StatusActive, Version: 1, CreatedAt: f.began, UpdatedAt: f.began,
		Definition: job.Definition{
			ID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", EffectiveAt: f.began, FirstOrdinal: 1,
			Schedule: job.Schedule{Type: job.ScheduleCron, CronExpr: "* * * * *", Timezone: "Asia/Kolkata"}, Target: job.Target{URL: "http://a.example/"},
		},
	}, true))
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// begin makes a backfill of the n minutes before the beginning, or a replay of what was executed then.
func (f *fixture) begin(n, rate int, change func(o *operations.Operation)) string {
	f.t.Helper()
	now := job.Instant(time.Now())
	o := operations.Operation{
		ID: job.OperationPrefix + ulid.MustNew(uint64(now.UnixMilli()), rand.Reader).String(), Type: operations.TypeBackfill, JobID: jobID,
		Status: operations.StatusRunning, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", From: f.began.Add(time.Duration(-n) * time.Minute), To: f.began,
		Order: operations.OldestFirst, Rate: rate, Total: n, CreatedAt: now, UpdatedAt: now, DueAt: now, By: job.Author{Subject: "key:mh_1"},
	}
	if change != nil {
		change(&o)
	}
	o, err := f.Store.Create(f.t.Context(), tenant, o, operations.Edit{Operation: "backfillJob"})
	f.must(err)
	return o.ID
}

// rounds carries operations on for a time.
func (f *fixture) rounds(d time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	f.Run(ctx)
}

func (f *fixture) operation(id string) operations.Operation {
	f.t.Helper()
	o, err := f.Store.Get(f.t.Context(), tenant, id)
	f.must(err)
	return o
}

// rows returns the rows that were written for an operation.
func (f *fixture) rows(id string) (rows []job.PendingRow) {
	f.t.Helper()
	for minute := job.Minute(f.began) - 1; minute < job.Minute(time.Now())+10; minute++ {
		for p := range partitions {
			page, err := f.Pending.Scan(f.t.Context(), p, minute, nil, 5000)
			f.must(err)
			for _, row := range page {
				if row.Change == nil && row.Note != nil && row.Note.Operation == id {
					rows = append(rows, row)
				}
			}
		}
	}
	return rows
}

// wants checks that an operation wrote one row for each of its last n minutes, in order, at a rate.
func (f *fixture) wants(id string, n, rate int) {
	f.t.Helper()
	rows, seen := f.rows(id), map[string]bool{}
	if len(rows) != n {
		f.t.Errorf("there are %d rows, want %d", len(rows), n)
		return
	}
	for i, row := range rows {
		at := f.began.Add(time.Duration(i-n) * time.Minute)
		if f.operation(id).Order == operations.NewestFirst {
			at = f.began.Add(time.Duration(-1-i) * time.Minute)
		}
		if seen[row.ExecutionID] || !row.Note.Occurrence.Equal(at) || row.ExecutionID != job.BackfillExecutionID(jobID, id, at) {
			f.t.Errorf("row %d is of %s (%s), want %s", i, row.Note.Occurrence, row.ExecutionID, at)
		}
		if seen[row.ExecutionID] = true; i > 0 && row.DueAt.Sub(rows[i-1].DueAt) < time.Second/time.Duration(rate)-time.Millisecond {
			f.t.Errorf("row %d is due %s after the one before", i, row.DueAt.Sub(rows[i-1].DueAt))
		}
		if row.Tenant != tenant || row.Trigger != job.TriggerBackfill || row.By == nil || row.By.Subject != "key:mh_1" || row.Lane == 0 || row.Note.UTCOffset != 19800 {
			f.t.Errorf("row %d is %+v", i, row)
		}
	}
	if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != n || !o.Settled() {
		f.t.Errorf("the operation is %+v", o)
	}
}

func TestEachInstantOfARangeIsHandedOutOnceAtTheRate(t *testing.T) {
	for _, order := range []operations.Order{operations.OldestFirst, operations.NewestFirst} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			id := f.begin(1000, 40, func(o *operations.Operation) { o.Order = order })
			f.rounds(10 * time.Second)
			if n := len(f.rows(id)); n < 360 || n > 13*40+1 {
				t.Errorf("%d rows were written within ten seconds", n)
			}
			f.rounds(30 * time.Second)
			f.wants(id, 1000, 40)
			f.rounds(nameStays - time.Minute) // a request may have named it, and be about to make an operation
			index, err := f.Store.Index(t.Context())
			if f.must(err); len(index.Tenants) != 1 {
				t.Errorf("the index names %v", index.Tenants)
			}
			f.rounds(nameStays + time.Minute)
			if index, err = f.Store.Index(t.Context()); err != nil || len(index.Tenants) != 0 {
				t.Errorf("the index names %v", index.Tenants)
			}
		})
	}
}

// hindered fails, or does something else, before or after the n-th note, write, mark of a dead letter, row of a job or stop record.
type hindered struct {
	jobstore.Settings
	jobstore.Pending
	jobstore.History
	jobstore.Jobs
	attempts.Stops
	notes                    int
	puts, marks, rows, stops atomic.Int64
	before, after            func(what string, n int) error
	// fails is a job of which no definition can be stored.
	fails string
}

func (h *hindered) SwapSetting(ctx context.Context, name string, old, value []byte) error {
	h.notes++
	return h.do("note", h.notes, func() error { return h.Settings.SwapSetting(ctx, name, old, value) })
}

func (h *hindered) Put(ctx context.Context, entries []job.Entry) error {
	return h.do("put", int(h.puts.Add(1)), func() error { return h.Pending.Put(ctx, entries) })
}

func (h *hindered) MarkRedriven(ctx context.Context, d job.DeadLetter, id string) error {
	return h.do("mark", int(h.marks.Add(1)), func() error { return h.History.MarkRedriven(ctx, d, id) })
}

func (h *hindered) PutDefinition(ctx context.Context, id string, d job.Definition) error {
	if id == h.fails {
		return errDied
	}
	return h.Jobs.PutDefinition(ctx, id, d)
}

func (h *hindered) Replace(ctx context.Context, j job.Job) error {
	return h.do("row", int(h.rows.Add(1)), func() error { return h.Jobs.Replace(ctx, j) })
}

func (h *hindered) SetStop(ctx context.Context, id string, s job.State) (holdsIn time.Duration, err error) {
	err = h.do("stop", int(h.stops.Add(1)), func() error {
		holdsIn, err = h.Stops.SetStop(ctx, id, s)
		return err
	})
	return holdsIn, err
}

func (h *hindered) do(what string, n int, write func() error) error {
	if h.before != nil {
		if err := h.before(what, n); err != nil {
			return err
		}
	}
	if err := write(); err != nil {
		return err
	}
	if h.after != nil {
		return h.after(what, n)
	}
	return nil
}

// hinder puts a hindered store in front of the fixture's.
func (f *fixture) hinder() *hindered {
	h := &hindered{Settings: f.Store.Settings, Pending: f.Pending, History: f.History, Jobs: f.Jobs, Stops: f.Stops}
	f.Store.Settings, f.Pending, f.History, f.Jobs, f.Stops = h, h, h, h, h
	return h
}

var errDied = errors.New("the process died")

// eachDeath ends a runner before and after each of its first writes of some kinds; another one carries on, at once or after so long that what was
// noted must be looked for. begin makes what is carried on, and returns what is checked after that.
func eachDeath(t *testing.T, kinds []string, begin func(f *fixture) (check func())) {
	t.Helper()
	for _, away := range []time.Duration{time.Second, 10 * time.Minute} {
		for _, what := range kinds {
			for n := 1; n <= 4; n++ {
				for _, applied := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %d of a %s, applied: %t", away, n, what, applied), func(t *testing.T) {
						bubble.Test(t, func(t *testing.T) {
							f := newFixture(t)
							check := begin(f)
							h := f.hinder()
							ctx, die := context.WithTimeout(t.Context(), time.Minute)
							hinder := func(w string, k int) error {
								if w == what && k == n {
									die()
									return errDied
								}
								return nil
							}
							if h.before = hinder; applied {
								h.before, h.after = nil, hinder
							}
							f.Run(ctx)
							if !errors.Is(ctx.Err(), context.Canceled) {
								t.Fatal("it did not die")
							}
							h.before, h.after = nil, nil
							time.Sleep(away)
							f.rounds(30 * time.Second)
							check()
						})
					})
				}
			}
		}
	}
}

func TestRunnerThatDiesAtAnyWriteLeavesEachExecutionOnce(t *testing.T) {
	eachDeath(t, []string{"note", "put"}, func(f *fixture) func() {
		id := f.begin(120, 20, nil)
		return func() { f.wants(id, 120, 20) }
	})
}

// What was noted long ago was written in part; some of that was called since, and its bucket was closed.
func TestWhatWasNotedLongAgoIsLookedForBeforeItIsWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.begin(10, 1000, nil)
		h := f.hinder()
		ctx, die := context.WithCancel(t.Context())
		h.before = func(what string, _ int) error {
			if what == "put" {
				die()
				return errDied
			}
			return nil
		}
		f.Run(ctx)
		h.before = nil
		o := f.operation(id)
		entries, err := f.entries(t.Context(), tenant, &o, 10)
		f.must(err)
		f.must(f.Pending.Put(t.Context(), entries[:3]))
		for i := range entries[3:6] {
			event := job.AttemptEvent(&job.Fire{Entry: entries[3+i]}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSucceeded}, time.Now())
			f.must(f.History.Record(t.Context(), jobstore.Unencoded(&event)))
		}
		time.Sleep(10 * time.Minute)
		// The history does not have yet what the log has: nobody can tell whether the others were called.
		f.must(f.Log.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: jobID, Value: []byte("x")}}))
		f.rounds(time.Minute)
		if n := len(f.rows(id)); n != 3 {
			t.Errorf("there are %d rows while the history is behind, want 3", n)
		}
		end, err := f.Log.End(t.Context(), dispatch.TopicEvents)
		f.must(err)
		c, err := f.Log.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupHistory)
		f.must(err)
		_, err = c.Poll(t.Context(), 1)
		f.must(err)
		f.must(c.Commit(t.Context(), end.Offsets))
		f.must(c.Close())
		f.rounds(time.Minute)
		rows := f.rows(id)
		slices.SortFunc(rows, func(a, b job.PendingRow) int { return a.Note.Occurrence.Compare(b.Note.Occurrence) })
		var got []int
		for _, row := range rows {
			got = append(got, 10+int(row.Note.Occurrence.Sub(f.began)/time.Minute))
		}
		if want := []int{0, 1, 2, 6, 7, 8, 9}; !slices.Equal(got, want) {
			t.Errorf("rows of %v, want of %v", got, want)
		}
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != 10 {
			t.Errorf("the operation is %+v", o)
		}
	})
}

func TestPausedOperationHandsOutWhatIsNotedAndNothingElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.begin(200, 10, nil)
		edit := operations.Edit{Operation: "pauseOperation"}
		f.rounds(3 * time.Second)
		_, err := f.Store.Change(t.Context(), tenant, id, edit, func(o *operations.Operation) error {
			o.Status = operations.StatusPaused
			return nil
		})
		f.must(err)
		f.rounds(time.Second)
		handedOut := f.operation(id).HandedOut
		f.rounds(time.Minute)
		if o, rows := f.operation(id), len(f.rows(id)); rows != handedOut || o.HandedOut != handedOut || rows == 0 || rows > 100 || o.Chunk != nil {
			t.Errorf("%d rows were written, %d at the pause: %+v", rows, handedOut, o)
		}
		_, err = f.Store.Change(t.Context(), tenant, id, edit, func(o *operations.Operation) error {
			o.Status, o.Rate = operations.StatusRunning, 50
			return nil
		})
		f.must(err)
		began := time.Now()
		f.rounds(2 * time.Minute)
		if f.wants(id, 200, 50); f.operation(id).EndedAt.Sub(began) > 6*time.Second {
			t.Errorf("it ended after %s", f.operation(id).EndedAt.Sub(began))
		}
	})
}

// notes lets an operation note its first part, which nobody writes.
func (f *fixture) notes() {
	f.t.Helper()
	h := f.hinder()
	h.before = func(what string, _ int) error {
		if what == "put" {
			return errDied
		}
		return nil
	}
	f.rounds(3 * time.Second)
	h.before = nil
}

func (f *fixture) change(id string, fn func(o *operations.Operation)) {
	f.t.Helper()
	_, err := f.Store.Change(f.t.Context(), tenant, id, operations.Edit{Operation: "pauseOperation"}, func(o *operations.Operation) error {
		fn(o)
		return nil
	})
	f.must(err)
}

// Nobody was there to write what is noted until the operation had been paused or cancelled for long.
func TestWhatWasNotedBeforeAStopAndNotWrittenIsNotWrittenLongAfterIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		paused, cancelled := f.begin(200, 10, nil), f.begin(200, 10, nil)
		f.notes()
		f.change(paused, func(o *operations.Operation) { o.Status = operations.StatusPaused })
		f.change(cancelled, func(o *operations.Operation) { o.End(operations.StatusCancelled, "", time.Now()) })
		time.Sleep(10 * time.Minute)
		f.rounds(time.Minute)
		for _, id := range []string{paused, cancelled} {
			if o, n := f.operation(id), len(f.rows(id)); n != 0 || o.HandedOut != 0 {
				t.Errorf("%d rows were written: %+v", n, o)
			}
		}
		if o := f.operation(cancelled); !o.Settled() {
			t.Errorf("the cancelled one is %+v", o)
		}
		f.change(paused, func(o *operations.Operation) { o.Status = operations.StatusRunning })
		f.rounds(time.Minute)
		f.wants(paused, 200, 10)
	})
}

// What is noted at a high rate, and not written, is handed out at the rate that holds by then, three seconds ahead.
func TestRateHoldsForWhatWasNotedBefore(t *testing.T) {
	for _, away := range []time.Duration{0, 10 * time.Minute} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			id := f.begin(300, 1000, nil)
			f.notes()
			time.Sleep(away)
			f.change(id, func(o *operations.Operation) { o.Rate = 1 })
			f.rounds(10 * time.Second)
			n := len(f.rows(id))
			if away > 0 && n > 14 {
				t.Errorf("%d rows were written within ten seconds at one a second", n)
			}
			f.change(id, func(o *operations.Operation) { o.Status = operations.StatusPaused })
			f.rounds(time.Minute)
			if again := len(f.rows(id)); again > n+4 {
				t.Errorf("%d rows were written at the pause, %d a minute later", n, again)
			}
			f.change(id, func(o *operations.Operation) { o.Status = operations.StatusRunning })
			f.rounds(6 * time.Minute)
			f.wants(id, 300, 1000)
		})
	}
}

// The history is behind, so one operation cannot go on; one of a job whose row cannot be read cannot either.
func TestOperationThatCannotGoOnHoldsUpNoOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		waits := f.begin(10, 1000, nil)
		f.notes()
		time.Sleep(10 * time.Minute)
		f.must(f.Log.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: jobID, Value: []byte("x")}}))
		const other = "job_01M7ZJW5E6D77SAJPXRW35C2CB"
		j, err := f.Jobs.Get(t.Context(), jobID)
		f.must(err)
		j.ID, j.Definition.Schedule.Timezone = other, "Nowhere/Else"
		f.must(f.Jobs.Create(t.Context(), j, true))
		unread := f.begin(10, 1000, func(o *operations.Operation) { o.JobID = other })
		goesOn := f.begin(100, 20, nil)
		f.rounds(30 * time.Second)
		f.wants(goesOn, 100, 20)
		if o := f.operation(waits); o.Chunk == nil || o.HandedOut != 0 {
			t.Errorf("what cannot be told is %+v", o)
		}
		if o := f.operation(unread); o.Status != operations.StatusFailed || o.Reason == "" {
			t.Errorf("what cannot be read is %+v", o)
		}
	})
}

func TestOperationEndsBeforeTheHistoryForgetsIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.begin(200, 10, func(o *operations.Operation) {
			o.Status, o.CreatedAt = operations.StatusPaused, o.CreatedAt.Add(-operations.Lasts-time.Minute)
		})
		f.rounds(5 * time.Second)
		if o := f.operation(id); o.Status != operations.StatusFailed || o.Reason == "" || o.HandedOut != 0 {
			t.Errorf("the operation is %+v", o)
		}
	})
}

func TestCancelledOperationEndsWithWhatIsNoted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.begin(200, 10, nil)
		f.notes()
		f.change(id, func(o *operations.Operation) { o.End(operations.StatusCancelled, "", time.Now()) })
		noted := len(f.operation(id).Chunk.At)
		f.rounds(time.Minute)
		if o, rows := f.operation(id), len(f.rows(id)); rows != noted || o.HandedOut != noted || noted == 0 || !o.Settled() || o.Status != operations.StatusCancelled {
			t.Errorf("%d rows were written, %d were noted: %+v", rows, noted, o)
		}
	})
}

func TestOperationOfAJobThatIsGoneFails(t *testing.T) {
	for _, what := range []string{"cancelled", "deleted", "removed", "its definition"} {
		bubble.Test(t, func(t *testing.T) {
			f := newFixture(t)
			id := f.begin(200, 10, nil)
			f.rounds(2 * time.Second)
			j, err := f.Jobs.Get(t.Context(), jobID)
			f.must(err)
			switch what {
			case "cancelled":
				j.Status = job.StatusCancelled
			case "deleted":
				j.Deleted = true
			case "its definition":
				j.Definition.ID = "def_01M7ZJW5E6D77SAJPXRZ65CMZZZ"
			}
			if j.Version++; what == "removed" {
				f.must(f.Jobs.Remove(t.Context(), tenant, jobID))
			} else {
				f.must(f.Jobs.Replace(t.Context(), j))
			}
			f.rounds(time.Minute)
			if o := f.operation(id); o.Status != operations.StatusFailed || o.Reason == "" || o.HandedOut != len(f.rows(id)) || !o.Settled() {
				t.Errorf("%s: the operation is %+v, with %d rows", what, o, len(f.rows(id)))
			}
		})
	}
}

func TestTwoRunnersAtOnceHandOutOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ids := []string{f.begin(500, 40, nil), f.begin(300, 40, nil)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		other := *f.Runner
		done := make(chan struct{})
		go func() {
			defer close(done)
			other.Run(ctx)
		}()
		f.Run(ctx)
		<-done
		f.wants(ids[0], 500, 40)
		f.wants(ids[1], 300, 40)
	})
}

// An operation goes on under the definition that was in force when it began.
func TestUpdatedJobIsBackfilledAsItWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		id := f.begin(200, 10, nil)
		j, err := f.Jobs.Get(t.Context(), jobID)
		f.must(err)
		f.must(f.Jobs.PutDefinition(t.Context(), jobID, j.Definition))
		j.Version++
		j.Definition.ID, j.Definition.Schedule.CronExpr, j.Definition.EffectiveAt = "def_01M7ZJW5E7D77SAJPXRZ65CMZZ", "0 * * * *", time.Now().Add(time.Millisecond)
		f.must(f.Jobs.Replace(t.Context(), j))
		f.rounds(time.Minute)
		f.wants(id, 200, 10)
	})
}

// A job had an execution every minute: one in three failed for good, one in three was cancelled. Only what ended in the states is repeated, the
// newest first, each once, whatever pages the history is read in.
func TestReplayRepeatsWhatEndedInItsStates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var want []string
		for n := range 900 {
			at := f.began.Add(time.Duration(-1-n) * time.Minute)
			e := job.Entry{JobID: jobID, Tenant: tenant, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at}
			e.ExecutionID, e.Attempt = job.ScheduleExecutionID(jobID, at), 1
			outcomes := []job.Outcome{{Kind: job.OutcomeFailed, Retryable: true}, {Kind: job.OutcomeSucceeded}}
			switch n % 3 {
			case 1:
				outcomes[1] = job.Outcome{Kind: job.OutcomeFailed}
				want = append(want, e.ExecutionID)
			case 2:
				outcomes = []job.Outcome{{Kind: job.OutcomeCancelled}}
			}
			for _, o := range outcomes {
				event := job.AttemptEvent(&job.Fire{Entry: e, Retry: job.RetryPolicy{MaxAttempts: 3, Window: time.Hour}}, job.TargetRef{}, o, at)
				f.must(f.History.Record(t.Context(), jobstore.Unencoded(&event)))
				e.Attempt++
			}
		}
		id := f.begin(900, 20, func(o *operations.Operation) {
			o.Type, o.States, o.Order = operations.TypeReplay, []string{string(job.EndDead)}, operations.NewestFirst
		})
		f.rounds(time.Minute)
		rows := f.rows(id)
		if len(rows) != len(want) {
			t.Fatalf("%d executions are repeated, want %d", len(rows), len(want))
		}
		for i, row := range rows {
			ref, err := job.ParseExecutionID(want[i])
			f.must(err)
			if row.Note.Source != want[i] || row.Trigger != job.TriggerReplay || !row.Note.Occurrence.Equal(ref.NominalAt) ||
				row.ExecutionID != job.ReplayExecutionID(jobID, id[3:], want[i]) {
				t.Errorf("row %d repeats %s as %s, want %s", i, row.Note.Source, row.ExecutionID, want[i])
			}
		}
		if o := f.operation(id); o.Status != operations.StatusDone || o.HandedOut != len(want) {
			t.Errorf("the operation is %+v", o)
		}
	})
}
