package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/wire"
)

// The decisions about a minute's occurrences of a partition lie in one hash: a key for each would take more memory than all else of a fire.
var claimScript = newScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
local standing = {}
for i = 4, #ARGV, 3 do
  local key = KEYS[tonumber(ARGV[i])]
  standing[#standing + 1] = redis.call('HSETNX', key, ARGV[i + 1], ARGV[i + 2]) == 1 and ARGV[i + 2] or redis.call('HGET', key, ARGV[i + 1])
end
for i = 2, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
return standing`)

// claimField identifies an occurrence under a definition among the claims of its minute, as [attempts.Digest] does attempts.
func claimField(c *hotbucket.Claim) string {
	sum := sha256.Sum256([]byte(c.ExecutionID + "/" + c.DefinitionID))
	return string(sum[:attempts.DigestBytes])
}

// Claim implements hotbucket.Buckets.
func (h *HotBuckets) Claim(ctx context.Context, o coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	standing := make([]job.Decision, 0, len(claims))
	for {
		n := min(len(claims), maxBatch)
		keys := []string{h.of(o.Partition, "epochs")}
		args := []any{string(o.Role), o.Epoch, claimTTL.Milliseconds()}
		places := map[string]int{} // of the minutes' hashes among the keys
		for i := range claims[:n] {
			c := &claims[i]
			minute := minuteOf(c.ExecutionID)
			if places[minute] == 0 {
				keys = append(keys, h.of(o.Partition, "claims:"+minute))
				places[minute] = len(keys)
			}
			args = append(args, places[minute], claimField(c), wire.MarshalDecision(c.Decision))
		}
		texts, err := h.gather.run(ctx, claimScript, keys, args...).StringSlice()
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

// Claimed implements hotbucket.Buckets.
func (h *HotBuckets) Claimed(ctx context.Context, partition int, c hotbucket.Claim) (*job.Decision, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	text, err := h.client.HGet(ctx, h.of(partition, "claims:"+minuteOf(c.ExecutionID)), claimField(&c)).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("redis: claimed: %w", err)
	}
	d, err := wire.UnmarshalDecision(text)
	return &d, err
}

// Horizons implements hotbucket.Buckets.
func (h *HotBuckets) Horizons(ctx context.Context, partitions []int) ([]time.Time, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	pipe := h.client.Pipeline()
	kept := make([]*redis.StringCmd, len(partitions))
	for i, p := range partitions {
		kept[i] = pipe.Get(ctx, h.of(p, "horizon"))
	}
	_, _ = pipe.Exec(ctx) // each answer has its own error
	horizons := make([]time.Time, len(partitions))
	for i, k := range kept {
		ms, err := k.Int64()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("redis: horizons: %w", err)
		}
		horizons[i] = time.UnixMilli(ms).UTC()
	}
	return horizons, nil
}

var horizonScript = newScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
return redis.call('SET', KEYS[2], ARGV[3])`)

// SetHorizon implements hotbucket.Buckets.
func (h *HotBuckets) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error {
	keys := []string{h.of(o.Partition, "epochs"), h.of(o.Partition, "horizon")}
	return owned(o, h.gather.run(ctx, horizonScript, keys, string(o.Role), o.Epoch, horizon.UnixMilli()).Err())
}

// Epochs stay below 2^53, up to which a script's numbers are exact. Entries that the previous worker received may be returned to
// the next one.
var epochScript = newScript(lanesLua + `
local standing = redis.call('HGET', KEYS[1], ARGV[1])
if standing and tonumber(standing) > tonumber(ARGV[2]) then return redis.error_reply('stale') end
if ARGV[1] == 'scheduler-worker' and standing ~= ARGV[2] then bring_back(ARGV[3]) end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])`)

// Incarnations implements hotbucket.Buckets. A partition's name ends in the reign of the server that gave it. So each server is asked once
// for its reign, and only a name of none of them is asked of the partition's own server by script.
func (h *HotBuckets) Incarnations(ctx context.Context, partitions []int) ([]string, error) {
	list, err := h.standing(ctx, partitions)
	if err != nil {
		return nil, fmt.Errorf("redis: incarnations: %w", err)
	}
	var calls []call
	var others []int
	for i, p := range partitions {
		if list[i] == "" {
			calls, others = append(calls, call{script: incarnationScript, keys: []string{h.of(p, "incarnation")}}), append(others, i)
		}
	}
	if len(calls) == 0 {
		return list, nil
	}
	answers, err := h.runAll(ctx, calls)
	if err != nil {
		return nil, fmt.Errorf("redis: incarnations: %w", err)
	}
	for i, a := range answers {
		if list[others[i]], err = a.Text(); err != nil {
			return nil, fmt.Errorf("redis: incarnations: %w", err)
		}
	}
	return list, nil
}

// standing returns the names of incarnations that a server gave which still reigns, and nothing for the others. What a server says of its
// reign and of its partitions is asked on one connection, so it is one server that answers.
func (h *HotBuckets) standing(ctx context.Context, partitions []int) ([]string, error) {
	names := make([]string, len(partitions))
	byServer := map[*redis.Client][]int{} // places in partitions
	for i, p := range partitions {
		server, err := h.serverOf(ctx, h.of(p, "incarnation"))
		if err != nil {
			return nil, err
		}
		byServer[server] = append(byServer[server], i)
	}
	servers := slices.Collect(maps.Keys(byServer))
	return names, run.Each(len(servers), hotbucket.AtOnce, func(n int) error {
		ctx, cancel := bounded(ctx)
		defer cancel()
		pipe := servers[n].Pipeline()
		info := pipe.Info(ctx, "replication")
		places := byServer[servers[n]]
		kept := make([]*redis.StringCmd, len(places))
		for i, place := range places {
			kept[i] = pipe.Get(ctx, h.of(partitions[place], "incarnation"))
		}
		_, _ = pipe.Exec(ctx) // each answer has its own error; a partition may have moved
		_, id, _ := strings.Cut(info.Val(), "master_replid:")
		if info.Err() != nil || len(id) < reignLength {
			return info.Err()
		}
		for i, place := range places {
			if name := kept[i].Val(); len(name) >= reignFrom+reignLength && name[reignFrom:reignFrom+reignLength] == id[:reignLength] {
				names[place] = name
			}
		}
		return nil
	})
}

// serverOf returns the server that has a key.
func (t *Tier) serverOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := t.client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Client:
		return c, nil
	default:
		return nil, fmt.Errorf("redis: unknown client %T", c)
	}
}

// SetEpoch implements hotbucket.Buckets.
func (h *HotBuckets) SetEpoch(ctx context.Context, o coord.Owner) error {
	keys := []string{h.of(o.Partition, "epochs")}
	return owned(o, h.gather.run(ctx, epochScript, keys, string(o.Role), o.Epoch, h.prefix(o.Partition)).Err())
}
