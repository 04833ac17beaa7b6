//go:build servers

package cassandra_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
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

func TestReplicationThatTheClusterCannotHaveIsRefusedBeforeAnythingIsMade(t *testing.T) {
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	if _, err := cassandra.Open(o); !errors.Is(err, cassandra.ErrNotMigrated) {
		t.Errorf("without a keyspace Open gave %v", err)
	}
	three := "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
	for _, wrong := range []string{
		three, "{'class': 'SimpleStrategy', 'replication_factor': 2}", "{'class': 'NetworkTopologyStrategy', 'elsewhere': 1}",
		"{'class': 'SimpleStrategy'}", "three times", "{'class': 'SimpleStrategy', 'replication_factor': 'x'}",
	} {
		if err := cassandra.Migrate(t.Context(), o, wrong, schemas.Cassandra()); !errors.Is(err, cassandra.ErrReplication) {
			t.Errorf("%s gave %v", wrong, err)
		}
	}
	for _, right := range []string{
		"{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}", "{'class':'NetworkTopologyStrategy','datacenter1':'1'}",
		"{'class': 'NetworkTopologyStrategy', 'replication_factor': 1, 'elsewhere': 0}",
	} {
		if err := cassandra.Migrate(t.Context(), o, right, schemas.Cassandra()); err != nil {
			t.Errorf("%s gave %v", right, err)
		}
	}
	err := cassandra.Migrate(t.Context(), o, three, schemas.Cassandra())
	if !errors.Is(err, cassandra.ErrReplication) || !strings.Contains(err.Error(), "replication factor 1 in datacenter1, not replication factor 3") {
		t.Errorf("another replication than the keyspace's gave %v", err)
	}
}

func TestKeyspaceWithoutTablesIsNotMigrated(t *testing.T) {
	o := cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: fmt.Sprintf("test_%d", time.Now().UnixNano()), Timeout: 20 * time.Second,
	}
	if err := cassandra.Migrate(t.Context(), o, replication, fstest.MapFS{}); err != nil {
		t.Fatal(err)
	}
	s, err := cassandra.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CheckPartitions(t.Context(), 4); !errors.Is(err, cassandra.ErrNotMigrated) {
		t.Errorf("without tables the check gave %v", err)
	}
}
