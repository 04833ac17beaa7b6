package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// claimTTL is how long a claim is kept.
const claimTTL = 2 * time.Hour

// HotBuckets is the hot buckets on Redis.
type HotBuckets struct {
	*Tier
	hints chan struct{}
	sub   *redis.PubSub
}

var _ hotbucket.Buckets = (*HotBuckets)(nil)

// NewHotBuckets returns the hot buckets of a tier. They listen for hints until Close.
func NewHotBuckets(t *Tier) *HotBuckets {
	h := &HotBuckets{Tier: t, hints: make(chan struct{}, 1), sub: t.client.Subscribe(context.Background(), t.key("hints"))}
	go func() {
		for range h.sub.Channel() {
			select {
			case h.hints <- struct{}{}:
			default:
			}
		}
	}()
	return h
}

// Close ends the listening for hints. The tier stays open.
func (h *HotBuckets) Close() error { return h.sub.Close() }

// Hints implements hotbucket.Buckets.
func (h *HotBuckets) Hints() <-chan struct{} { return h.hints }

// member names an occurrence in the sets, so that those of one instant have the order of their ids.
func member(l job.Locator) string {
	return fmt.Sprintf("%s|%010d|%s|%d", l.ExecutionID, l.Attempt, l.DefinitionID, l.DueAt.UnixMilli())
}

var addScript = newScript(`
local due, held, entries = KEYS[1], KEYS[2], KEYS[3]
local fresh = {}
for i = 2, #ARGV, 3 do
  if not redis.call('ZSCORE', due, ARGV[i]) and not redis.call('ZSCORE', held, ARGV[i]) then
    fresh[#fresh + 1] = i
  end
end
if redis.call('ZCARD', due) + redis.call('ZCARD', held) + #fresh > tonumber(ARGV[1]) then return 0 end
for _, i in ipairs(fresh) do
  redis.call('ZADD', due, 'NX', ARGV[i + 1], ARGV[i])
  redis.call('HSET', entries, ARGV[i], ARGV[i + 2])
end
return 1`)

// Add implements hotbucket.Buckets. More than 500 entries of a partition are added 500 at a time.
func (h *HotBuckets) Add(ctx context.Context, entries []job.Entry) error {
	now := time.Now()
	var keys [][]string
	var args [][]any
	open := map[int]int{} // by partition, which of args is being filled
	hinted := false
	for i := range entries {
		e := &entries[i]
		n, ok := open[e.Partition]
		if !ok || len(args[n]) > 3*maxBatch {
			n = len(args)
			open[e.Partition] = n
			keys = append(keys, []string{h.of(e.Partition, "due"), h.of(e.Partition, "held"), h.of(e.Partition, "entries")})
			args = append(args, []any{h.o.MaxEntries})
		}
		if e.DueAt.After(now.Add(hotbucket.RoomWithin)) || e.DueAt.Before(now.Add(-hotbucket.RoomWithin)) {
			args[n][0] = h.o.MaxEntries * 4 / 5
		}
		args[n] = append(args[n], member(e.Locator), e.DueAt.UnixMilli(), wire.MarshalEntry(e))
		hinted = hinted || e.DueAt.Before(now.Add(hotbucket.HintWithin))
	}
	if len(entries) == 0 {
		return nil
	}
	answers, err := h.runAll(ctx, addScript, keys, args)
	if redis.HasErrorPrefix(err, "OOM") {
		return fmt.Errorf("redis: add: %w", hotbucket.ErrFull)
	}
	if err != nil {
		return fmt.Errorf("redis: add: %w", err)
	}
	if hinted {
		ctx, cancel := bounded(ctx)
		defer cancel()
		_ = h.client.Publish(ctx, h.key("hints"), "").Err() // a hint may be lost
	}
	for _, a := range answers {
		if added, err := a.Int(); err != nil || added == 0 {
			return fmt.Errorf("redis: add: %w", errors.Join(hotbucket.ErrFull, err))
		}
	}
	return nil
}

// stale is what scripts answer to an owner whose epoch is not the one that stands.
const stale = "stale"

func owned(o hotbucket.Owner, err error) error {
	if redis.HasErrorPrefix(err, stale) {
		err = hotbucket.ErrStaleEpoch
	}
	if err != nil {
		return fmt.Errorf("redis: partition %d: %w", o.Partition, err)
	}
	return nil
}

var dueScript = newScript(`
local due, held, entries, epochs = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('HGET', epochs, ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
for _, m in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', ARGV[3], 'LIMIT', 0, 500)) do
  redis.call('ZADD', due, string.match(m, '(%d+)$'), m)
  redis.call('ZREM', held, m)
end
local list = redis.call('ZRANGEBYSCORE', due, '-inf', ARGV[4], 'LIMIT', ARGV[5], ARGV[6])
if #list == 0 then return {} end
return redis.call('HMGET', entries, unpack(list))`)

// Due implements hotbucket.Buckets.
func (h *HotBuckets) Due(
	ctx context.Context, owners []hotbucket.Owner, until time.Time, limit int,
) ([]*job.Entry, error) {
	var all []*job.Entry
	first, err := h.firstDue(ctx, owners, until, min(limit, maxBatch))
	if err != nil {
		return nil, err
	}
	for i, o := range owners {
		page := first[i]
		for offset := 0; ; {
			for _, text := range page {
				e, err := wire.UnmarshalEntry([]byte(text))
				if err != nil {
					return nil, err
				}
				if len(all) < limit {
					all = append(all, &e)
				}
			}
			offset += len(page)
			if len(page) < maxBatch || len(all) >= limit {
				break
			}
			k, a := h.dueCall(o, until, offset, maxBatch)
			if page, err = h.run(ctx, dueScript, k, a...).StringSlice(); owned(o, err) != nil {
				return nil, owned(o, err)
			}
		}
	}
	return all, nil
}

// firstDue reads the first entries of every owner in one pipeline.
func (h *HotBuckets) firstDue(
	ctx context.Context, owners []hotbucket.Owner, until time.Time, limit int,
) ([][]string, error) {
	keys, args := make([][]string, len(owners)), make([][]any, len(owners))
	for i, o := range owners {
		keys[i], args[i] = h.dueCall(o, until, 0, limit)
	}
	if len(owners) == 0 {
		return nil, nil
	}
	answers, err := h.runAll(ctx, dueScript, keys, args)
	if answers == nil {
		return nil, fmt.Errorf("redis: due: %w", err)
	}
	pages := make([][]string, len(owners))
	for i, a := range answers {
		page, err := a.StringSlice()
		if err := owned(owners[i], err); err != nil {
			return nil, err
		}
		pages[i] = page
	}
	return pages, nil
}

func (h *HotBuckets) dueCall(o hotbucket.Owner, until time.Time, offset, count int) ([]string, []any) {
	p := o.Partition
	return []string{h.of(p, "due"), h.of(p, "held"), h.of(p, "entries"), h.of(p, "epochs")},
		[]any{string(o.Role), o.Epoch, time.Now().UnixMilli(), until.UnixMilli(), offset, count}
}

var postponeScript = newScript(`
local due, held, epochs = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', epochs, ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
for i = 4, #ARGV do
  if redis.call('ZREM', due, ARGV[i]) == 1 or redis.call('ZSCORE', held, ARGV[i]) then
    redis.call('ZADD', held, ARGV[3], ARGV[i])
  end
end
return 1`)

// Postpone implements hotbucket.Buckets.
func (h *HotBuckets) Postpone(ctx context.Context, o hotbucket.Owner, locators []job.Locator, until time.Time) error {
	keys := []string{h.of(o.Partition, "due"), h.of(o.Partition, "held"), h.of(o.Partition, "epochs")}
	for {
		n := min(len(locators), maxBatch)
		args := []any{string(o.Role), o.Epoch, until.UnixMilli()}
		for _, l := range locators[:n] {
			args = append(args, member(l))
		}
		if err := owned(o, h.run(ctx, postponeScript, keys, args...).Err()); err != nil {
			return err
		}
		if locators = locators[n:]; len(locators) == 0 {
			return nil
		}
	}
}

var removeScript = newScript(`
redis.call('ZREM', KEYS[1], unpack(ARGV))
redis.call('ZREM', KEYS[2], unpack(ARGV))
redis.call('HDEL', KEYS[3], unpack(ARGV))
return 1`)

// Remove implements hotbucket.Buckets.
func (h *HotBuckets) Remove(ctx context.Context, locators []job.Locator) error {
	_, _, err := h.byPartition(ctx, removeScript, locators)
	if err != nil {
		return fmt.Errorf("redis: remove: %w", err)
	}
	return nil
}

var absentScript = newScript(`
local absent = {}
for i, m in ipairs(ARGV) do
  if not redis.call('ZSCORE', KEYS[1], m) and not redis.call('ZSCORE', KEYS[2], m) then absent[#absent + 1] = i end
end
return absent`)

// Absent implements hotbucket.Buckets.
func (h *HotBuckets) Absent(ctx context.Context, locators []job.Locator) (absent []job.Locator, err error) {
	answers, asked, err := h.byPartition(ctx, absentScript, locators)
	if err != nil {
		return nil, fmt.Errorf("redis: absent: %w", err)
	}
	missing := map[int]bool{}
	for i, a := range answers {
		list, err := a.Int64Slice()
		if err != nil {
			return nil, fmt.Errorf("redis: absent: %w", err)
		}
		for _, n := range list {
			missing[asked[i][n-1]] = true
		}
	}
	for i, l := range locators {
		if missing[i] {
			absent = append(absent, l)
		}
	}
	return absent, nil
}

// byPartition runs a script on the members of each partition, at most maxBatch at a time. asked says which locators each
// answer is about.
func (h *HotBuckets) byPartition(
	ctx context.Context, s *script, locators []job.Locator,
) (answers []*redis.Cmd, asked [][]int, err error) {
	var keys [][]string
	var args [][]any
	open := map[int]int{}
	for i, l := range locators {
		n, ok := open[l.Partition]
		if !ok || len(args[n]) == maxBatch {
			n = len(args)
			open[l.Partition] = n
			keys = append(keys, []string{h.of(l.Partition, "due"), h.of(l.Partition, "held"), h.of(l.Partition, "entries")})
			args, asked = append(args, nil), append(asked, nil)
		}
		args[n], asked[n] = append(args[n], member(l)), append(asked[n], i)
	}
	if len(keys) == 0 {
		return nil, nil, nil
	}
	answers, err = h.runAll(ctx, s, keys, args)
	return answers, asked, err
}

var claimScript = newScript(`
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
local standing = {}
for i = 2, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 2], 'NX', 'PX', ARGV[3])
  standing[i - 1] = redis.call('GET', KEYS[i])
end
return standing`)

// Claim implements hotbucket.Buckets.
func (h *HotBuckets) Claim(ctx context.Context, o hotbucket.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
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
func (h *HotBuckets) SetHorizon(ctx context.Context, o hotbucket.Owner, horizon time.Time) error {
	keys := []string{h.of(o.Partition, "epochs"), h.of(o.Partition, "horizon")}
	return owned(o, h.run(ctx, horizonScript, keys, string(o.Role), o.Epoch, horizon.UnixMilli()).Err())
}

// Epochs stay below 2^53, up to which a script's numbers are exact.
var epochScript = newScript(`
local standing = redis.call('HGET', KEYS[1], ARGV[1])
if standing and tonumber(standing) > tonumber(ARGV[2]) then return redis.error_reply('stale') end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])`)

// Incarnations implements hotbucket.Buckets.
func (h *HotBuckets) Incarnations(ctx context.Context, partitions []int) ([]string, error) {
	keys, args := make([][]string, len(partitions)), make([][]any, len(partitions))
	fresh := ulid.Make().String()
	for i, p := range partitions {
		keys[i], args[i] = []string{h.of(p, "incarnation")}, []any{fresh}
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
func (h *HotBuckets) SetEpoch(ctx context.Context, o hotbucket.Owner) error {
	return owned(o, h.run(ctx, epochScript, []string{h.of(o.Partition, "epochs")}, string(o.Role), o.Epoch).Err())
}
