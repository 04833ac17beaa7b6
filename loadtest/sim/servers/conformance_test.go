package servers_test

import (
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/archive/archivetest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/attempts/attemptstest"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/coord/coordtest"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/dispatch/dispatchtest"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/hotbucket/hotbuckettest"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/jobstore/jobstoretest"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/pools/poolstest"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
)

const (
	partitions  = 4
	firstMinute = 31_000_000
	bound       = 5
)

func name() string { return ulid.Make().String() }

func TestConformance(t *testing.T) {
	cold := func() *servers.Cold { return servers.NewCold(partitions, firstMinute) }
	t.Run("jobs", func(t *testing.T) {
		jobstoretest.RunJobs(t, func(*testing.T) jobstore.Jobs { return cold() })
	})
	t.Run("pending", func(t *testing.T) {
		jobstoretest.RunPending(t, func(*testing.T) jobstore.Pending { return cold() })
	})
	t.Run("settings", func(t *testing.T) {
		jobstoretest.RunSettings(t, func(*testing.T) jobstore.Settings { return cold() })
	})
	t.Run("history", func(t *testing.T) {
		jobstoretest.RunHistory(t, func(*testing.T) (jobstore.History, jobstore.Jobs) {
			c := cold()
			return c, c
		})
	})
	t.Run("hot buckets", func(t *testing.T) {
		hotbuckettest.Run(t, func(*testing.T) hotbucket.Buckets { return servers.NewHot(name(), partitions, 0, 0).Client("") })
		hotbuckettest.RunBound(t, bound, func(*testing.T) hotbucket.Buckets { return servers.NewHot(name(), partitions, bound, 0).Client("") })
	})
	t.Run("records", func(t *testing.T) {
		attemptstest.Run(t, func(*testing.T) attempts.Records { return servers.NewHot(name(), partitions, 0, 0).Client("") })
		attemptstest.RunBound(t, bound, func(*testing.T) attempts.Records { return servers.NewHot(name(), 1, 0, bound).Client("") })
	})
	t.Run("pools", func(t *testing.T) {
		poolstest.Run(t, func(*testing.T) pools.Queue { return servers.NewHot(name(), partitions, 0, 0).Client("").Pools() })
	})
	t.Run("log", func(t *testing.T) {
		dispatchtest.Run(t, func(*testing.T) dispatch.Log { return servers.NewLog(name()) })
	})
	t.Run("coordinator", func(t *testing.T) {
		coordtest.Run(t, func(*testing.T) coord.Coordinator { return servers.NewCoord(partitions) })
	})
	t.Run("archive", func(t *testing.T) {
		archivetest.Run(t, func(*testing.T) archive.Archive { return servers.NewArchive() })
	})
}
