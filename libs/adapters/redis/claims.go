package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

var claimScript = newScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
local standing = {}
for i = 2, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 2], 'NX', 'PX', ARGV[3])
  standing[i - 1] = redis.call('GET', KEYS[i])
end
return standing`)

// Claim implements hotbucket.Buckets.
func (h *HotBuckets) Claim(ctx context.Context, o coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	standing := make([]job.Decision, 0, len(claims))
	for {
		n := min(len(claims), maxBatch)
		keys := []string{h.of(o.Partition, "epochs")}
		args := []any{string(o.Role), o.Epoch, claimTTL.Milliseconds()}
		for _, c := range claims[:n] {
			keys = append(keys, h.of(o.Partition, "claim:"+c.ExecutionID+"/"+c.DefinitionID))
			args = append(args, wire.MarshalDecision(c.Decision))
		}
		texts, err := h.run(ctx, claimScript, keys, args...).StringSlice()
		if err := owned(o, err); err != nil {
			return nil, err
		}
		for _, text := range texts {
			d, err := wire.UnmarshalDecision([]byte(text))
			if err != nil {
				return nil, err
			}
			standing = append(standing, d)
		}
		if claims = claims[n:]; len(claims) == 0 {
			return standing, nil
		}
	}
}

// Horizon implements hotbucket.Buckets.
func (h *HotBuckets) Horizon(ctx context.Context, partition int) (time.Time, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	ms, err := h.client.Get(ctx, h.of(partition, "horizon")).Int64()
	if errors.Is(err, redis.Nil) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("redis: horizon: %w", err)
	}
	return time.UnixMilli(ms).UTC(), nil
}

var horizonScript = newScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
return redis.call('SET', KEYS[2], ARGV[3])`)

// SetHorizon implements hotbucket.Buckets.
func (h *HotBuckets) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error {
	keys := []string{h.of(o.Partition, "epochs"), h.of(o.Partition, "horizon")}
	return owned(o, h.run(ctx, horizonScript, keys, string(o.Role), o.Epoch, horizon.UnixMilli()).Err())
}

// Epochs stay below 2^53, up to which a script's numbers are exact. Entries that the previous worker received may be returned to
// the next one.
var epochScript = newScript(lanesLua + `
local standing = redis.call('HGET', KEYS[1], ARGV[1])
if standing and tonumber(standing) > tonumber(ARGV[2]) then return redis.error_reply('stale') end
if ARGV[1] == 'scheduler-worker' and standing ~= ARGV[2] then bring_back(ARGV[3]) end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])`)

// Incarnations implements hotbucket.Buckets.
func (h *HotBuckets) Incarnations(ctx context.Context, partitions []int) ([]string, error) {
	keys, args := make([][]string, len(partitions)), make([][]any, len(partitions))
	for i, p := range partitions {
		keys[i], args[i] = []string{h.of(p, "incarnation")}, nil
	}
	answers, err := h.runAll(ctx, incarnationScript, keys, args)
	if err != nil {
		return nil, fmt.Errorf("redis: incarnations: %w", err)
	}
	list := make([]string, len(partitions))
	for i, a := range answers {
		if list[i], err = a.Text(); err != nil {
			return nil, fmt.Errorf("redis: incarnations: %w", err)
		}
	}
	return list, nil
}

// SetEpoch implements hotbucket.Buckets.
func (h *HotBuckets) SetEpoch(ctx context.Context, o coord.Owner) error {
	keys := []string{h.of(o.Partition, "epochs")}
	return owned(o, h.run(ctx, epochScript, keys, string(o.Role), o.Epoch, h.prefix(o.Partition)).Err())
}
