//go:build servers

package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/redis"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/dedupe/dedupetest"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/hotbucket/hotbuckettest"
)

var tiers atomic.Int64

func open(t *testing.T) *redis.Tier {
	t.Helper()
	tier := redis.Open(redis.Options{Address: servertest.Address(t, "REDIS"), Prefix: fmt.Sprintf("test-%d-%d:", time.Now().UnixNano(), tiers.Add(1))})
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

func TestConformance(t *testing.T) {
	t.Run("hot buckets", func(t *testing.T) {
		hotbuckettest.Run(t, func(t *testing.T) hotbucket.Buckets {
			h := redis.NewHotBuckets(open(t))
			t.Cleanup(func() { _ = h.Close() })
			return h
		})
	})
	t.Run("records", func(t *testing.T) {
		dedupetest.Run(t, func(t *testing.T) dedupe.Records { return redis.NewRecords(open(t)) })
	})
}
