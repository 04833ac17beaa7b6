//go:build servers

package cassandra_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/schemas"
)

func TestEntriesThatWerePutAndMarkedOverABadNetworkAreThere(t *testing.T) {
	o := cassandra.Options{Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: servertest.Unique("test_"), Timeout: 20 * time.Second}
	if err := cassandra.Migrate(t.Context(), o, replication, schemas.Cassandra()); err != nil {
		t.Fatal(err)
	}
	calm, err := cassandra.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer calm.Close()
	const partitions = 4
	if err := calm.SetUp(t.Context(), partitions, job.Minute(time.Now())); err != nil {
		t.Fatal(err)
	}
	at := job.Instant(time.Now().Add(time.Hour))
	entry := func(i int) job.Entry {
		id := fmt.Sprintf("job_%026d", i)
		return job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: i % partitions, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1,
				DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
			},
			JobID: id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: at,
		}, at)
	}
	var put int
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, servertest.Address(t, "CASSANDRA"))
		o := o
		o.Dial, o.Timeout = p.Dial, 3*time.Second
		s, err := cassandra.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		pending := cassandra.NewPending(s)
		const limit = 20 * time.Second // a few tries of each statement
		put = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error {
			e := entry(i)
			if err := pending.Put(ctx, []job.Entry{e}); err != nil {
				return err
			}
			return pending.MarkDone(ctx, []job.Locator{e.Locator})
		})
	})
	pending := cassandra.NewPending(calm)
	var locators []job.Locator
	for i := range put {
		e := entry(i)
		if locators = append(locators, e.Locator); len(locators) < jobstore.MaxGetMany && i < put-1 {
			continue
		}
		rows, err := pending.Rows(t.Context(), locators)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range locators {
			if row, there := rows[l]; !there || !row.Done {
				t.Errorf("%v is there: %t, and done: %t", l, there, row.Done)
			}
		}
		locators = nil
	}
}

// A service must be able to stop while its cluster is away.
func TestCloseEndsWhileTheClusterIsAway(t *testing.T) {
	for range 5 {
		p := servertest.NewProxy(t, servertest.Address(t, "CASSANDRA"))
		s, err := cassandra.Open(cassandra.Options{Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: "system", Dial: p.Dial})
		if err != nil {
			t.Fatal(err)
		}
		p.Cut() // the driver is reconnecting
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.Close()
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("close has not ended after 10 s")
		}
	}
}
