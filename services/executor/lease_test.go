package executor

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
)

// deaf loses the answer of the first call that takes a lease.
type deaf struct {
	attempts.Records
	lost bool
}

func (d *deaf) Acquire(ctx context.Context, k attempts.Key, h attempts.Holder, now, lapsesAt time.Time) (attempts.Record, bool, error) {
	rec, ok, err := d.Records.Acquire(ctx, k, h, now, lapsesAt)
	if !d.lost {
		d.lost = true
		return attempts.Record{}, false, errors.New("connection reset")
	}
	return rec, ok, err
}

// Otherwise the executor would wait for its own lease to expire, and a few more lost answers would end the attempt as
// worker_lost.
func TestLeaseWhoseAnswerWasLostIsHeldAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &Service{cfg: DefaultConfig(), deps: Deps{Records: &deaf{Records: newRecords(t)}, Logger: slog.New(slog.DiscardHandler)}, name: "executor"}
		began := time.Now()
		rec, held := s.acquire(t.Context(), s.attempt(&task{fire: &job.Fire{Entry: job.Entry{
			Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ"},
		}}}))
		if took := time.Since(began); !held || took > 100*time.Millisecond || rec.Takeovers > 0 {
			t.Errorf("held %v after %s: %+v", held, took, rec)
		}
	})
}

// Otherwise an executor that stalled could take over its own lease and call the target a second time.
func TestSecondFireOfAnAttemptWaitsForTheFirstInTheSameProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		s := &Service{cfg: cfg, deps: Deps{Records: newRecords(t), Logger: slog.New(slog.DiscardHandler)}, name: "executor", metrics: newMetrics(nil)}
		s.hosts = newHosts(cfg, s.deps.Clock, s.metrics)
		second := &task{fire: &job.Fire{Entry: job.Entry{Locator: job.Locator{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1}}}}
		key := attempts.KeyOf(&second.fire.Entry)
		first := s.leases.reserve(key)
		rec, held := s.acquire(t.Context(), s.attempt(second))
		if !held {
			t.Fatal("no lease")
		}
		s.leases.set(first, lease{token: rec.Token, begun: true})
		time.Sleep(2 * cfg.LeaseTTL) // it could not renew
		s.execute(t.Context(), second)
		found, err := s.deps.Records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || found[0].Token != rec.Token {
			t.Errorf("it took over from itself: %+v (%v)", found, err)
		}
		if again, next := s.hosts.takeDelayed(time.Now()); len(again) != 0 || next.After(time.Now().Add(leaseWait)) {
			t.Errorf("%d fires no longer wait, the next one goes on at %s", len(again), next)
		}
		s.hosts.wake(key)
		if again, _ := s.hosts.takeDelayed(time.Now()); len(again) != 1 || again[0] != second {
			t.Errorf("%d fires go on once the attempt is free", len(again))
		}
		s.leases.drop(key, first)
		if s.leases.reserve(key) == nil {
			t.Error("nobody may have it any more")
		}
		s.leases.drop(key, first) // again, and now the attempt is another task's
		if s.leases.reserve(key) != nil {
			t.Error("who was done with it gave away what is another's")
		}
	})
}

func newRecords(t *testing.T) *embedded.Records {
	t.Helper()
	db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	records, err := embedded.NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// A record that names no definition counts for all of them. The entry that a later definition has for the instant would
// count as dispatched, and its chain would end there.
func TestLeaseThatTheHotTierForgotComesBackWithItsDefinition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		records := newRecords(t)
		s := &Service{cfg: DefaultConfig(), deps: Deps{Records: records, Logger: slog.New(slog.DiscardHandler)}, name: "executor"}
		key := attempts.Key{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1}
		s.leases.set(s.leases.reserve(key), lease{
			token: job.Token{Counter: 3, Start: 7}, definitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", mayHaveBegun: true,
		})

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.renewLoop(ctx)
		}()
		time.Sleep(s.cfg.RenewEvery)
		synctest.Wait()
		stop()
		<-done

		found, err := records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil {
			t.Fatal(err)
		}
		if r := found[0]; !r.Exists || !r.Of("def_01M7ZJW5E6D77SAJPXRZ65CMZZ") || r.Of("def_01M7ZJW5E6D77SAJPXRZ000000") {
			t.Errorf("the record is %+v", r)
		}
	})
}
