package executor

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// watchedLog records when a consumer leaves its group.
type watchedLog struct {
	dispatch.Log
	left atomic.Int64
}

type watchedConsumer struct {
	dispatch.Consumer
	log *watchedLog
}

func (l *watchedLog) Subscribe(ctx context.Context, topic, group string) (dispatch.Consumer, error) {
	c, err := l.Log.Subscribe(ctx, topic, group)
	return watchedConsumer{c, l}, err
}

func (c watchedConsumer) Close() error {
	c.log.left.Add(1)
	return c.Consumer.Close()
}

// slowTarget takes a while to answer, and counts its calls.
type slowTarget struct {
	takes time.Duration
	calls atomic.Int64
	// lastAt is the instant of the last call, in nanoseconds since the Unix epoch.
	lastAt atomic.Int64
}

func (s *slowTarget) RoundTrip(r *http.Request) (*http.Response, error) {
	s.calls.Add(1)
	s.lastAt.Store(time.Now().UnixNano())
	select {
	case <-time.After(s.takes):
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// bench holds the ports an executor works on in a test.
type bench struct {
	t       *testing.T
	db      *embedded.DB
	log     *watchedLog
	pending *embedded.Pending
	records *embedded.Records
	// shown are the records as the executor sees them.
	shown  attempts.Records
	target *slowTarget
	// rows counts the reads of entries' rows.
	rows atomic.Int64
	// precision is that of the fires that it publishes.
	precision job.Precision
	cfg       Config
	nap       func(time.Duration)
}

func newBench(t *testing.T, takes time.Duration) *bench {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1})
	must(t, err)
	records, err := embedded.NewRecords(t.Context(), db, 0)
	must(t, err)
	log, err := embedded.NewLog(db)
	must(t, err)
	t.Cleanup(func() {
		log.Close()
		_ = db.Close()
	})
	return &bench{
		t: t, db: db, log: &watchedLog{Log: log}, pending: embedded.NewPending(db), records: records, shown: records, target: &slowTarget{takes: takes},
		cfg: DefaultConfig(),
	}
}

// start starts an executor. Calling stop ends its calls.
func (b *bench) start() (stop context.CancelFunc, ended chan struct{}) {
	b.t.Helper()
	return b.startWith(clock.Clock{})
}

// startWith starts an executor whose clock is ahead.
func (b *bench) startWith(ahead clock.Clock) (stop context.CancelFunc, ended chan struct{}) {
	b.t.Helper()
	s, err := New(b.cfg, Deps{
		Jobs: embedded.NewJobStore(b.db), Pending: countedRows{b.pending, &b.rows}, Records: b.shown, Log: b.log, Coord: embedded.NewCoordinator(b.db),
		Board: embedded.NewBoard(), Transport: b.target, Logger: slog.New(slog.DiscardHandler),
		Clock: ahead, Nap: b.nap,
	})
	must(b.t, err)
	ctx, stop := context.WithCancel(b.t.Context())
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			b.t.Error(err)
		}
	}()
	return stop, ended
}

// publish writes an entry that was due at an instant, and its fire.
func (b *bench) publish(due time.Time, done bool) *job.Fire {
	b.t.Helper()
	const jobID = "job_01M7ZJW5E6D77SAJPXRW35C2CA"
	memory, err := b.records.Memory(b.t.Context(), jobID)
	must(b.t, err)
	due = job.Instant(due)
	fire := &job.Fire{
		Entry: job.Entry{
			Locator: job.Locator{
				DueAt: due, ExecutionID: job.ScheduleExecutionID(jobID, due), Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
			},
			JobID: jobID, ScheduledFor: due, Trigger: job.TriggerSchedule, Precision: b.precision,
		},
		Target:      job.Target{Kind: job.TargetWebhook, URL: "http://target.example/", Method: http.MethodPost, Timeout: time.Minute},
		Incarnation: memory.Incarnation, TakenAt: job.Instant(time.Now()),
	}
	must(b.t, b.pending.Put(b.t.Context(), []job.Entry{fire.Entry}))
	if done {
		must(b.t, b.pending.MarkDone(b.t.Context(), []job.Locator{fire.Locator}))
	}
	must(b.t, b.log.Publish(b.t.Context(), dispatch.TopicFires, []dispatch.Message{wire.FireMessage(fire)}))
	return fire
}

// events returns the number of events in the log.
func (b *bench) events() (n int64) {
	b.t.Helper()
	end, err := b.log.End(b.t.Context(), dispatch.TopicEvents)
	must(b.t, err)
	for _, offset := range end.Offsets {
		n += offset
	}
	return n
}

// wantCommitted checks that every fire is complete.
func (b *bench) wantCommitted() {
	b.t.Helper()
	committed, err := b.log.Committed(b.t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
	must(b.t, err)
	if end, err := b.log.End(b.t.Context(), dispatch.TopicFires); err != nil || !committed.Passed(end) {
		b.t.Errorf("a fire comes again for ever: %v of %v (%v)", committed, end, err)
	}
}

// Otherwise the fires that its group still assigns to it would wait until its calls have ended. Executors that take over
// meet the fires that it has begun: they wait for its lease, then for the row to be settled, and publish the outcome again
// if it is not.
func TestExecutorThatStopsLeavesItsShareAndItsCallsAreNotRepeated(t *testing.T) {
	for name, settled := range map[string]bool{"settled": true, "not settled": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const call = 15 * time.Second
				b := newBench(t, call)
				stopA, endedA := b.start()
				fire := b.publish(time.Now(), false)
				time.Sleep(time.Second)
				if b.target.calls.Load() != 1 {
					t.Fatalf("%d calls", b.target.calls.Load())
				}
				stopA()
				synctest.Wait()
				select {
				case <-endedA:
					t.Fatal("it did not wait for its call")
				default:
				}
				if b.log.left.Load() != 1 {
					t.Error("it keeps its share of the fires while its call lasts")
				}
				stopB, endedB := b.start()
				time.Sleep(call)
				<-endedA
				if settled {
					must(t, b.pending.MarkDone(t.Context(), []job.Locator{fire.Locator}))
				}
				time.Sleep(3 * settleWait)
				stopB()
				<-endedB
				want := int64(1)
				if !settled { // the first event may have been lost with the executor that stored it
					want = 2
				}
				if b.target.calls.Load() != 1 || b.events() != want {
					t.Errorf("%d calls and %d events, want 1 and %d", b.target.calls.Load(), b.events(), want)
				}
				b.wantCommitted()
			})
		})
	}
}

// countedRows is a cold store that counts the reads of single entries.
type countedRows struct {
	jobstore.Pending
	n *atomic.Int64
}

func (p countedRows) Row(ctx context.Context, l job.Locator) (job.PendingRow, error) {
	p.n.Add(1)
	return p.Pending.Row(ctx, l)
}

// stopsMeanwhile writes a stop record right before a check arrives that relies on one.
type stopsMeanwhile struct {
	attempts.Records
	stop   job.State
	checks []int64
}

func (r *stopsMeanwhile) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	r.checks = append(r.checks, c.StopVersion)
	if c.StopVersion > 0 {
		if _, err := r.SetStop(ctx, c.Entry.JobID, r.stop); err != nil {
			return job.Fence{}, nil, err
		}
	}
	return r.Records.Start(ctx, k, t, c)
}

func TestStopThatComesBetweenTheJudgementAndTheLastCheckIsObeyed(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile job.Status
		calls     int64
		checks    []int64
	}{
		"cancelled meanwhile": {job.StatusCancelled, 0, []int64{0, 1}},
		"changed meanwhile":   {job.StatusActive, 1, []int64{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBench(t, time.Second)
				fire := b.publish(time.Now(), false)
				standing := job.State{Version: 1, Status: job.StatusActive, DefinitionID: fire.DefinitionID}
				_, err := b.records.SetStop(t.Context(), fire.JobID, standing)
				must(t, err)
				records := &stopsMeanwhile{Records: b.records, stop: job.State{Version: 2, Status: c.meanwhile, DefinitionID: fire.DefinitionID}}
				b.shown = records
				stop, ended := b.start()
				time.Sleep(10 * time.Second)
				stop()
				<-ended
				if b.target.calls.Load() != c.calls || b.events() != 1 || !slices.Equal(records.checks, c.checks) {
					t.Errorf("%d calls, %d events, checks by versions %v; want %d calls, one event, versions %v",
						b.target.calls.Load(), b.events(), records.checks, c.calls, c.checks)
				}
			})
		})
	}
}

// slowCheck answers the first last check that it accepts two seconds later, when an update has reached the stop record.
type slowCheck struct {
	attempts.Records
	stop job.State
	slow atomic.Bool
}

func (r *slowCheck) Start(ctx context.Context, k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	fence, stop, err := r.Records.Start(ctx, k, t, c)
	if err == nil && stop == nil && r.slow.CompareAndSwap(false, true) {
		time.Sleep(2 * time.Second)
		_, err = r.SetStop(ctx, c.Entry.JobID, r.stop)
	}
	return fence, stop, err
}

// Otherwise nobody would end what the newer definition's entry began: the older one's entry is done, and the newer one's finds the attempt
// begun for another definition.
func TestAttemptThatIsLetGoUncalledIsAgainTheOneOfTheDefinitionThatBeganIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const newer = "def_01M7ZJW5E6D77SAJPXRZZZZZZZ"
		b := newBench(t, time.Second)
		fire := b.publish(time.Now(), false)
		key, began := attempts.KeyOf(&fire.Entry), fire.Entry
		began.DefinitionID = newer
		rec, _, err := b.records.Acquire(t.Context(), key, attempts.Holder{Name: "another", Start: 7, DefinitionID: newer}, time.Now(), time.Now().Add(time.Minute))
		must(t, err)
		_, _, err = b.records.Start(t.Context(), key, rec.Token, attempts.Check{Entry: &began, Incarnation: fire.Incarnation})
		must(t, err)
		must(t, b.records.Release(t.Context(), key, rec.Token, true, newer)) // as by a worker of a pool that gives its task back
		records := &slowCheck{Records: b.records, stop: job.State{Version: 1, Status: job.StatusActive, DefinitionID: newer}}
		b.shown = records
		stop, ended := b.start()
		time.Sleep(10 * time.Second)
		stop()
		<-ended
		if !records.slow.Load() || b.target.calls.Load() != 0 || b.events() != 1 {
			t.Errorf("a check was slow: %t; %d calls and %d events, want none and that it was released", records.slow.Load(), b.target.calls.Load(), b.events())
		}
		found, err := b.records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || !found[0].Running || !found[0].Of(newer) || found[0].Of(fire.DefinitionID) {
			t.Errorf("the attempt is %+v, %v; want it begun for %s", found, err, newer)
		}
		b.wantCommitted()
	})
}

// losesAnAnswer stores outcomes, and fails the first call that does.
type losesAnAnswer struct {
	attempts.Records
	lost atomic.Bool
}

func (r *losesAnAnswer) Finish(ctx context.Context, completions []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	completed, err := r.Records.Finish(ctx, completions, now)
	if err == nil && r.lost.CompareAndSwap(false, true) {
		return nil, errors.New("connection reset")
	}
	return completed, err
}

// Otherwise the executor would take its own outcome for another's: its event would come seconds later, or not at all if the hot tier
// forgot the outcome by then.
func TestOutcomeWhoseAnswerWasLostIsPublishedAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		b.publish(time.Now(), false)
		b.shown = &losesAnAnswer{Records: b.records}
		stop, ended := b.start()
		time.Sleep(1500 * time.Millisecond)
		if b.target.calls.Load() != 1 || b.events() != 1 {
			t.Errorf("%d calls and %d events half a second after the call, want one each", b.target.calls.Load(), b.events())
		}
		stop()
		<-ended
		b.wantCommitted()
	})
}

// takenMeanwhile answers the first call that stores outcomes as if another executor had taken the attempts.
type takenMeanwhile struct {
	attempts.Records
	taken atomic.Bool
}

func (r *takenMeanwhile) Finish(ctx context.Context, completions []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	if r.taken.CompareAndSwap(false, true) {
		return []attempts.Completed{{Record: attempts.Record{LapsesAt: now.Add(time.Second)}}}, nil
	}
	return r.Records.Finish(ctx, completions, now)
}

// The other executor may have found the attempt stopped, and dropped it. Nobody else knows of the call then.
func TestOutcomeOfACallIsToldWhenAnotherExecutorHadTheAttemptAndDroppedIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		b.publish(time.Now(), false)
		b.shown = &takenMeanwhile{Records: b.records}
		stop, ended := b.start()
		time.Sleep(time.Minute)
		if b.target.calls.Load() != 1 || b.events() != 1 {
			t.Errorf("%d calls and %d events, want one each", b.target.calls.Load(), b.events())
		}
		stop()
		<-ended
		b.wantCommitted()
	})
}

// conversation notes what is asked of the hot tier before a call.
type conversation struct {
	attempts.Records
	asked []string
}

func (c *conversation) Begin(
	ctx context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, check attempts.Check, keptSince time.Time,
) (job.Fence, bool, error) {
	c.asked = append(c.asked, "begin")
	return c.Records.Begin(ctx, k, h, lapsesAt, check, keptSince)
}

func (c *conversation) Acquire(ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time) (attempts.Record, bool, error) {
	c.asked = append(c.asked, "acquire")
	return c.Records.Acquire(ctx, k, h, now, lapsesAt)
}

func (c *conversation) Memory(ctx context.Context, jobID string) (attempts.Memory, error) {
	c.asked = append(c.asked, "memory")
	return c.Records.Memory(ctx, jobID)
}

func (c *conversation) Start(ctx context.Context, k attempts.Key, t job.Token, check attempts.Check) (job.Fence, *job.State, error) {
	c.asked = append(c.asked, "start")
	return c.Records.Start(ctx, k, t, check)
}

func TestCallOfAJobThatNothingEverChangedAsksTheHotTierOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t, time.Second)
		b.publish(time.Now(), false)
		records := &conversation{Records: b.records}
		b.shown = records
		stop, ended := b.start()
		time.Sleep(10 * time.Second)
		stop()
		<-ended
		if b.target.calls.Load() != 1 || !slices.Equal(records.asked, []string{"begin"}) {
			t.Errorf("%d calls, asked was %v", b.target.calls.Load(), records.asked)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
