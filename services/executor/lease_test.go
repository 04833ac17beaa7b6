package executor

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
)

// A record that says of no definition counts for every one: the entry that a later definition has for the instant would be
// taken for dispatched, and its chain end there.
func TestLeaseThatTheHotTierForgotComesBackWithItsDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := embedded.Open(embedded.Options{Dir: "/data", FS: vfs.NewMem(), Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		records, err := embedded.NewRecords(t.Context(), db, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &Service{cfg: DefaultConfig(), deps: Deps{Records: records, Logger: slog.New(slog.DiscardHandler)}, name: "executor"}
		key := dedupe.Key{ExecutionID: "exe_01M7ZJW5E6D77SAJPXRW35C2CA-s1", Attempt: 1}
		s.leases.hold(key, job.Token{Counter: 3, Start: 7}, "def_01M7ZJW5E6D77SAJPXRZ65CMZZ", true)

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

		found, err := records.Lookup(t.Context(), []dedupe.Key{key})
		if err != nil {
			t.Fatal(err)
		}
		if r := found[0]; !r.Exists || !r.Of("def_01M7ZJW5E6D77SAJPXRZ65CMZZ") || r.Of("def_01M7ZJW5E6D77SAJPXRZ000000") {
			t.Errorf("the record is %+v", r)
		}
	})
}
