package executor

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// watchedLog tells when a consumer left its group.
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

// slowTarget answers after some time, and counts.
type slowTarget struct {
	takes time.Duration
	calls atomic.Int64
}

func (s *slowTarget) RoundTrip(r *http.Request) (*http.Response, error) {
	s.calls.Add(1)
	select {
	case <-time.After(s.takes):
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// Fires that its group gives to it would else wait until its calls have ended. What it has begun is met by those that go on in
// its place: they wait for its lease and then for the row, which is settled, or told of once more if it is not.
func TestExecutorThatStopsLeavesItsShareAndItsCallsAreNotRepeated(t *testing.T) {
	for name, settled := range map[string]bool{"settled": true, "not settled": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const call = 15 * time.Second
				db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1})
				must(t, err)
				defer db.Close() //nolint:errcheck // in memory
				records, err := embedded.NewRecords(t.Context(), db, 0)
				must(t, err)
				log, err := embedded.NewLog(db)
				must(t, err)
				defer log.Close() //nolint:errcheck // in memory
				watched := &watchedLog{Log: log}
				pending, target := embedded.NewPending(db), &slowTarget{takes: call}
				start := func() (stop context.CancelFunc, ended chan struct{}) {
					s, err := New(DefaultConfig(), Deps{
						Jobs: embedded.NewJobStore(db), Pending: pending, Records: records, Log: watched,
						Coord: embedded.NewCoordinator(db), Board: embedded.NewBoard(), Transport: target, Logger: slog.New(slog.DiscardHandler),
					})
					must(t, err)
					ctx, stop := context.WithCancel(t.Context())
					ended = make(chan struct{})
					go func() {
						defer close(ended)
						if err := s.Run(ctx); err != nil {
							t.Error(err)
						}
					}()
					return stop, ended
				}
				stopA, endedA := start()
				now := job.Instant(time.Now())
				id := "job_01M7ZJW5E6D77SAJPXRW35C2CA"
				incarnation, err := records.Incarnation(t.Context(), id)
				must(t, err)
				fire := &job.Fire{
					Entry: job.Entry{
						Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1, DueAt: now, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ"},
						JobID:   id, ScheduledFor: now, Trigger: job.TriggerSchedule,
					},
					Target: job.Target{URL: "http://target.example/", Method: http.MethodPost, Timeout: 2 * call}, Incarnation: incarnation, TakenAt: now,
				}
				must(t, pending.Put(t.Context(), []job.Entry{fire.Entry}))
				must(t, log.Publish(t.Context(), dispatch.TopicFires, []dispatch.Record{wire.FireRecord(fire)}))
				time.Sleep(time.Second)
				if target.calls.Load() != 1 {
					t.Fatalf("%d calls", target.calls.Load())
				}
				stopA()
				synctest.Wait()
				select {
				case <-endedA:
					t.Fatal("it did not wait for its call")
				default:
				}
				if watched.left.Load() != 1 {
					t.Error("it keeps its share of the fires while its call lasts")
				}
				stopB, endedB := start()
				time.Sleep(call)
				<-endedA
				if settled {
					must(t, pending.MarkDone(t.Context(), []job.Locator{fire.Locator}))
				}
				time.Sleep(3 * settleWait)
				stopB()
				<-endedB
				end, err := log.End(t.Context(), dispatch.TopicEvents)
				must(t, err)
				events, want := int64(0), int64(1)
				if !settled { // the first may have been lost with the one who stored it
					want = 2
				}
				for _, n := range end.Offsets {
					events += n
				}
				if target.calls.Load() != 1 || events != want {
					t.Errorf("%d calls and %d events, want 1 and %d", target.calls.Load(), events, want)
				}
				committed, err := log.Committed(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
				must(t, err)
				if end, err = log.End(t.Context(), dispatch.TopicFires); err != nil || !committed.Passed(end) {
					t.Errorf("the fire came again for ever: %v of %v (%v)", committed, end, err)
				}
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
