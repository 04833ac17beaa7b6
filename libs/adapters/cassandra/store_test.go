//go:build servers

package cassandra_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/jobstore/jobstoretest"
	"github.com/minutehand/minutehand/schemas"
)

const replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"

// open makes a keyspace of its own.
func open(t *testing.T) *cassandra.Store {
	t.Helper()
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	for range 2 { // it may be run again
		if err := cassandra.Migrate(t.Context(), o, replication, schemas.Cassandra()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := cassandra.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestConformance(t *testing.T) {
	s := open(t)
	if err := s.SetUp(t.Context(), 4, job.Minute(time.Now())); err != nil {
		t.Fatal(err)
	}
	t.Run("jobs", func(t *testing.T) {
		jobstoretest.RunJobs(t, func(*testing.T) jobstore.Jobs { return cassandra.NewJobStore(s) })
	})
	t.Run("pending", func(t *testing.T) {
		var stores atomic.Int64
		jobstoretest.RunPending(t, func(t *testing.T) jobstore.Pending {
			p := cassandra.NewPending(s)
			// Each test works above the minutes of those before.
			for partition := range 4 {
				if err := p.Close(t.Context(), partition, job.Minute(time.Now())+200*stores.Load()); err != nil {
					t.Fatal(err)
				}
			}
			stores.Add(1)
			return p
		})
	})
	t.Run("history", func(t *testing.T) {
		jobstoretest.RunHistory(t, func(*testing.T) jobstore.History { return cassandra.NewHistory(s) })
	})
}

func TestSettings(t *testing.T) {
	jobstoretest.RunSettings(t, func(t *testing.T) jobstore.Settings { return cassandra.NewSettings(open(t)) })
}

func TestStoreIsSetUpOnce(t *testing.T) {
	s := open(t)
	for range 2 {
		if err := s.SetUp(t.Context(), 4, 1000); err != nil {
			t.Fatal(err)
		}
	}
	low, err := cassandra.NewPending(s).LowWater(t.Context(), 3)
	if err != nil || low != 999 {
		t.Errorf("low-water mark %d, %v", low, err)
	}
	if err := s.CheckPartitions(t.Context(), 4); err != nil {
		t.Error(err)
	}
	if err := s.CheckPartitions(t.Context(), 8); !errors.Is(err, jobstore.ErrPartitions) {
		t.Errorf("another count gave %v", err)
	}
	if err := s.SetUp(t.Context(), 8, 1000); err == nil {
		t.Error("it was set up for another number of partitions")
	}
}
