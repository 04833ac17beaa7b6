//go:build servers

package redis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/attempts/attemptstest"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/capacity"
	"github.com/minutehand/minutehand/libs/capacity/capacitytest"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/hotbucket/hotbuckettest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/pools/poolstest"
)

var tiers atomic.Int64

const partitions = 4

// open connects to what infra/local started: the single server, or the cluster.
func open(t *testing.T, o redis.Options) *redis.Tier {
	t.Helper()
	o.Address = servertest.Address(t, map[bool]string{false: "REDIS", true: "REDIS_CLUSTER"}[o.Cluster])
	o.Prefix = cmp.Or(o.Prefix, fmt.Sprintf("test-%d-%d:", time.Now().UnixNano(), tiers.Add(1)))
	o.Partitions = cmp.Or(o.Partitions, partitions)
	tier := redis.Open(o)
	t.Cleanup(func() {
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := tier.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tier
}

func buckets(t *testing.T, o redis.Options) hotbucket.Buckets {
	h := redis.NewHotBuckets(open(t, o))
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func TestConformance(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		name := map[bool]string{false: "one server", true: "cluster"}[cluster]
		t.Run("hot buckets, "+name, func(t *testing.T) {
			hotbuckettest.Run(t, func(t *testing.T) hotbucket.Buckets { return buckets(t, redis.Options{Cluster: cluster}) })
		})
		t.Run("bounded hot buckets, "+name, func(t *testing.T) {
			const bound = 10
			hotbuckettest.RunBound(t, bound, func(t *testing.T) hotbucket.Buckets {
				return buckets(t, redis.Options{Cluster: cluster, MaxEntries: bound})
			})
		})
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("records, %s, together: %t", name, together), func(t *testing.T) {
				o := redis.Options{Cluster: cluster, OutcomesTogether: together}
				attemptstest.Run(t, func(t *testing.T) attempts.Records { return redis.NewRecords(open(t, o)) })
			})
		}
		t.Run("board, "+name, func(t *testing.T) {
			real := func(t *testing.T, check func(t *testing.T)) { check(t) } // the server's clock is not a bubble's
			capacitytest.Run(t, real, func(t *testing.T) capacity.Board {
				return redis.NewBoard(open(t, redis.Options{Cluster: cluster}))
			})
		})
		t.Run("pools, "+name, func(t *testing.T) {
			poolstest.Run(t, func(t *testing.T) pools.Queue {
				q := redis.NewPools(open(t, redis.Options{Cluster: cluster}))
				t.Cleanup(func() { _ = q.Close() })
				return q
			})
		})
	}
}

func TestIncarnationOfAJobIsThatOfItsPartition(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		tier := open(t, redis.Options{Cluster: cluster})
		hot := redis.NewHotBuckets(tier)
		defer func() { _ = hot.Close() }()
		for i := range 20 {
			id := fmt.Sprintf("%s%026d", job.JobPrefix, i)
			want, err := hot.Incarnations(t.Context(), []int{bucket.Partition(id, partitions)})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := redis.NewRecords(tier).Memory(t.Context(), id); err != nil || got.Incarnation != want[0] {
				t.Errorf("the incarnation is %q, want %q (%v)", got.Incarnation, want[0], err)
			}
		}
	}
}

// TestServerThatMayEvictIsRefused: a stop record that was evicted stops nothing.
func TestServerThatMayEvictIsRefused(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		tier := open(t, redis.Options{Cluster: cluster})
		address := servertest.Address(t, map[bool]string{false: "REDIS", true: "REDIS_CLUSTER"}[cluster])
		first, _, _ := strings.Cut(address, ",")
		server := goredis.NewClient(&goredis.Options{Addr: first})
		set := func(policy, limit string) {
			t.Helper()
			// t.Context has ended when the server's settings are restored.
			ctx := context.WithoutCancel(t.Context())
			err := errors.Join(server.ConfigSet(ctx, "maxmemory-policy", policy).Err(), server.ConfigSet(ctx, "maxmemory", limit).Err())
			if err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(func() {
			set("noeviction", "0")
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		for _, c := range []struct {
			policy, limit string
			refused       bool
		}{
			{"allkeys-lru", "0", false}, // without a limit nothing is evicted
			{"noeviction", "4gb", false},
			{"volatile-ttl", "4gb", true},
			{"allkeys-lru", "4gb", true},
		} {
			set(c.policy, c.limit)
			if err := tier.Check(t.Context()); errors.Is(err, redis.ErrEvicts) != c.refused || err != nil && !c.refused {
				t.Errorf("%s with a limit of %s: %v", c.policy, c.limit, err)
			}
		}
		set("noeviction", "0")
	}
}

// Most partitions of a worker that has little to do are read only to show that it still owns them.
func TestPartitionInWhichNothingIsDueCostsNoScript(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		tier := open(t, redis.Options{Cluster: cluster})
		h := redis.NewHotBuckets(tier)
		defer func() { _ = h.Close() }()
		now := job.Instant(time.Now())
		owners := []coord.Owner{{Role: coord.RoleWorker, Partition: 1, Epoch: 1}, {Role: coord.RoleWorker, Partition: 2, Epoch: 1}}
		for _, o := range owners {
			if err := h.SetEpoch(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		entry := func(partition int, due time.Time) job.Entry {
			id := job.JobPrefix + ulid.Make().String()
			return job.NewEntry(job.Entry{
				Locator: job.Locator{Partition: partition, DueAt: due, ExecutionID: job.ScheduleExecutionID(id, due), Attempt: 1, DefinitionID: "def_1"},
				JobID:   id, NominalAt: due, ScheduledFor: due,
			}, due)
		}
		later := entry(1, now.Add(time.Hour))
		if err := h.Add(t.Context(), []job.Entry{later}); err != nil {
			t.Fatal(err)
		}
		ask := hotbucket.All(now.Add(time.Minute))
		ask.Quiet = map[int]bool{1: true, 2: true}
		scripts := tier.Scripts()
		given, next, err := h.Due(t.Context(), owners, ask)
		if err != nil || len(given) > 0 || !next[0].Equal(later.DueAt) || !next[1].IsZero() {
			t.Errorf("given %v, next %v, %v", given, next, err)
		}
		if n := scripts.Load(); n > 0 {
			t.Errorf("%d scripts were run", n)
		}
		if err := h.Add(t.Context(), []job.Entry{entry(2, now)}); err != nil {
			t.Fatal(err)
		}
		scripts.Store(0)
		if given, _, err = h.Due(t.Context(), owners, ask); err != nil || len(given) != 1 || scripts.Load() != 1 {
			t.Errorf("given %v by %d scripts, %v; want what is due in one of them, by one", given, scripts.Load(), err)
		}
	}
}
