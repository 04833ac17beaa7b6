//go:build servers

package redis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
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
		const limit = 12 * time.Second // a connection is waited for, then made, then asked
		added = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error { return hot.Add(ctx, []job.Entry{entry(i)}) })
	})
	tier := redis.Open(redis.Options{Address: servertest.Address(t, "REDIS"), Prefix: prefix, Partitions: 4})
	defer func() { _ = tier.Close() }()
	hot := redis.NewHotBuckets(tier)
	defer func() { _ = hot.Close() }()
	var locators []job.Locator
	for i := range added {
		locators = append(locators, entry(i).Locator)
	}
	absent, err := hot.Absent(t.Context(), locators)
	if err != nil || len(absent) > 0 {
		t.Errorf("%d of %d entries are not there (%v)", len(absent), added, err)
	}
}
