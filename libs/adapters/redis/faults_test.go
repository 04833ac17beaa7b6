//go:build servers

package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

func TestEntriesThatWereAddedOverABadNetworkAreThere(t *testing.T) {
	prefix := servertest.Unique("test-") + ":"
	at := job.Instant(time.Now().Add(time.Hour))
	entry := func(i int) job.Entry {
		id := fmt.Sprintf("job_%026d", i)
		return job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: i % 4, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1, DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
			},
			JobID: id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: at,
		}, at)
	}
	var added int
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, servertest.Address(t, "REDIS"))
		tier := redis.Open(redis.Options{Address: p.Address(), Prefix: prefix, Partitions: 4})
		defer func() { _ = tier.Close() }()
		hot := redis.NewHotBuckets(tier)
		defer func() { _ = hot.Close() }()
		const limit = 12 * time.Second // a call waits for a connection, makes it, then asks
		added = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error { return hot.Add(ctx, []job.Entry{entry(i)}) })
	})
	tier := redis.Open(redis.Options{Address: servertest.Address(t, "REDIS"), Prefix: prefix, Partitions: 4})
	defer func() { _ = tier.Close() }()
	hot := redis.NewHotBuckets(tier)
	defer func() { _ = hot.Close() }()
	var entries []*job.Entry
	for i := range added {
		e := entry(i)
		entries = append(entries, &e)
	}
	absent, err := hot.Absent(t.Context(), entries)
	if err != nil || len(absent) > 0 {
		t.Errorf("%d of %d entries are not there (%v)", len(absent), added, err)
	}
}

// Every holder asks for its lease until it has it, starts, and stores its outcome. Answers lost on the way must not create a second
// holder, nor make a call a takeover.
func TestAttemptOverABadNetworkHasOneHolderAndItsOutcome(t *testing.T) {
	o := redis.Options{Address: servertest.Address(t, "REDIS"), Prefix: servertest.Unique("test-") + ":", Partitions: partitions}
	attempt := func(i int) (attempts.Key, *job.Entry) {
		id := fmt.Sprintf("%026d", i)
		e := &job.Entry{Locator: job.Locator{ExecutionID: job.ExecutionPrefix + id + "-s1", Attempt: 1}, JobID: job.JobPrefix + id}
		return attempts.KeyOf(e), e
	}
	execute := func(ctx context.Context, r *redis.Records, i int) error {
		k, e := attempt(i)
		h := attempts.Holder{Name: "executor", Start: int64(i + 1)}
		now := time.Now()
		rec, held, err := r.Acquire(ctx, k, h, now, now.Add(time.Hour))
		if err != nil {
			return err
		}
		if !held {
			if rec.Outcome == nil {
				t.Errorf("attempt %d is another's: %+v", i, rec)
			}
			return nil
		}
		memory, err := r.Memory(ctx, e.JobID)
		if err != nil {
			return err
		}
		if err := r.Renew(ctx, []attempts.Lease{{Key: k, Holder: h, Token: rec.Token}}, now.Add(2*time.Hour)); err != nil {
			return err
		}
		if _, _, err := r.Start(ctx, k, rec.Token, attempts.Check{Entry: e, Incarnation: memory.Incarnation}); err != nil {
			return err
		}
		_, err = r.Finish(ctx, []attempts.Completion{{Key: k, Token: rec.Token, Outcome: &job.Outcome{Kind: job.OutcomeSucceeded, Fence: job.Fence{Start: rec.Token.Start}}}}, now)
		return err
	}
	var done int
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, o.Address)
		bad := o
		bad.Address = p.Address()
		tier := redis.Open(bad)
		defer func() { _ = tier.Close() }()
		records := redis.NewRecords(tier)
		const limit = 30 * time.Second // five calls, each of which may wait for a connection, for its making, and for an answer
		done = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error { return execute(ctx, records, i) })
	})
	tier := redis.Open(o)
	defer func() { _ = tier.Close() }()
	for i := range done {
		k, _ := attempt(i)
		found, err := redis.NewRecords(tier).Lookup(t.Context(), []attempts.Key{k})
		if err != nil || found[0].Outcome == nil || found[0].Token.Counter != 1 || found[0].Takeovers > 0 {
			t.Fatalf("attempt %d is %+v (%v)", i, found, err)
		}
	}
}
