package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// claimTTL is how long the claims of a minute are kept after the last of them: as long as outcomes, so that clocks that differ leave the hour
// that is promised.
const claimTTL = outcomeTTL

// HotBuckets is the hot buckets on Redis.
type HotBuckets struct {
	*Tier
	hints  *hotbucket.Hints
	sub    *redis.PubSub
	gather *gatherer
}

var _ hotbucket.Buckets = (*HotBuckets)(nil)

// NewHotBuckets returns the hot buckets of a tier. They listen for hints until Close.
func NewHotBuckets(t *Tier) *HotBuckets {
	all := make([]int, t.o.Partitions)
	for i := range all {
		all[i] = i
	}
	h := &HotBuckets{Tier: t, hints: hotbucket.NewHints(), sub: t.client.Subscribe(context.Background(), t.key("hints")), gather: newGatherer(t)}
	go func() {
		first := true
		for received := range h.sub.ChannelWithSubscriptions() {
			m, ok := received.(*redis.Message)
			if !ok {
				if !first { // subscribed once more: hints may have been lost meanwhile
					h.hints.Add(all...)
				}
				first = false
				continue
			}
			var hinted []int
			for text := range strings.SplitSeq(m.Payload, ",") {
				if p, err := strconv.Atoi(text); err == nil && p >= 0 && p < t.o.Partitions {
					hinted = append(hinted, p)
				}
			}
			h.hints.Add(hinted...)
		}
	}()
	return h
}

// Close stops listening for hints. The tier stays open.
func (h *HotBuckets) Close() error { return h.sub.Close() }

// Hints implements hotbucket.Buckets.
func (h *HotBuckets) Hints() *hotbucket.Hints { return h.hints }

// member names an occurrence in the sets, so that those of one instant are ordered by id, together with its lane and whether it
// needs attention.
func member(e *job.Entry) string {
	attended := 0
	if e.Attended() {
		attended = 1
	}
	return fmt.Sprintf("%s|%010d|%s|%d|%d|%d", e.ExecutionID, e.Attempt, e.DefinitionID, e.DueAt.UnixMilli(), e.Lane, attended)
}

// lanesLua works on the sets of a partition, whose keys begin with prefix. due:<lane> holds what Due may return, att:<lane> what
// needs attention first, lanes the first instant of each lane, aside what is set aside and until when, back what was set aside and
// may be returned again.
const lanesLua = `
local function parts(m)
  local due, lane, attended = string.match(m, '|(%d+)|(%d+)|(%d)$')
  return due, lane, attended == '1' and 'att:' or 'due:'
end
local function refresh(prefix, lane)
  local first
  for _, set in ipairs({'due:', 'att:'}) do
    local at = redis.call('ZRANGE', prefix .. set .. lane, 0, 0, 'WITHSCORES')[2]
    if at and (not first or tonumber(at) < tonumber(first)) then first = at end
  end
  if first then redis.call('ZADD', prefix .. 'lanes', first, lane) else redis.call('ZREM', prefix .. 'lanes', lane) end
end
local function put(prefix, m)
  local due, lane, set = parts(m)
  redis.call('ZADD', prefix .. set .. lane, due, m)
  redis.call('ZADD', prefix .. 'lanes', 'LT', due, lane)
end
local function take(prefix, m)
  if redis.call('ZREM', prefix .. 'aside', m) > 0 or redis.call('ZREM', prefix .. 'back', m) > 0 then return end
  local _, lane = parts(m)
  if redis.call('ZREM', prefix .. 'due:' .. lane, m) + redis.call('ZREM', prefix .. 'att:' .. lane, m) > 0 then refresh(prefix, lane) end
end
local function bring_back(prefix)
  if redis.call('EXISTS', prefix .. 'aside') == 0 then return end
  if redis.call('EXISTS', prefix .. 'back') == 0 then
    redis.call('RENAME', prefix .. 'aside', prefix .. 'back')
    return
  end
  redis.call('ZUNIONSTORE', prefix .. 'back', 2, prefix .. 'back', prefix .. 'aside')
  redis.call('DEL', prefix .. 'aside')
end
`

// prefix returns the start of a partition's keys.
func (h *HotBuckets) prefix(partition int) string { return h.of(partition, "") }

var addScript = newScript(lanesLua + `
local members, prefix = KEYS[1], ARGV[2]
local fresh = {}
for i = 3, #ARGV, 2 do
  if redis.call('HEXISTS', members, ARGV[i]) == 0 then fresh[#fresh + 1] = i end
end
if redis.call('HLEN', members) + #fresh > tonumber(ARGV[1]) then return 0 end
for _, i in ipairs(fresh) do
  put(prefix, ARGV[i])
  redis.call('HSET', members, ARGV[i], ARGV[i + 1])
end
return 1`)

// Add implements hotbucket.Buckets. More than 500 entries of a partition are added 500 at a time.
func (h *HotBuckets) Add(ctx context.Context, entries []job.Entry) error {
	now := time.Now()
	var calls []call
	open := map[int]int{} // by partition: which of calls is being filled
	hinted := map[string]bool{}
	for i := range entries {
		e := &entries[i]
		n, ok := open[e.Partition]
		if !ok || len(calls[n].args) > 2*maxBatch {
			n = len(calls)
			open[e.Partition] = n
			calls = append(calls, call{addScript, []string{h.of(e.Partition, "members")}, []any{h.o.MaxEntries, h.prefix(e.Partition)}})
		}
		c := &calls[n]
		if e.DueAt.After(now.Add(hotbucket.RoomWithin)) || e.DueAt.Before(now.Add(-hotbucket.RoomWithin)) {
			c.args[0] = h.o.MaxEntries * 4 / 5
		}
		c.args = append(c.args, member(e), wire.MarshalEntry(e))
		if hotbucket.Hurries(e, now) {
			hinted[strconv.Itoa(e.Partition)] = true
		}
	}
	if len(entries) == 0 {
		return nil
	}
	answers, err := h.runAll(ctx, calls)
	if redis.HasErrorPrefix(err, "OOM") {
		return fmt.Errorf("redis: add: %w", hotbucket.ErrFull)
	}
	if err != nil {
		return fmt.Errorf("redis: add: %w", err)
	}
	h.hint(ctx, hinted)
	for _, a := range answers {
		if added, err := a.Int(); err != nil || added == 0 {
			return fmt.Errorf("redis: add: %w", errors.Join(hotbucket.ErrFull, err))
		}
	}
	return nil
}

// stale is the scripts' reply to an owner whose epoch is not the current one.
const stale = "stale"

func owned(o coord.Owner, err error) error {
	if redis.HasErrorPrefix(err, stale) {
		err = hotbucket.ErrStaleEpoch
	}
	if err != nil {
		return fmt.Errorf("redis: partition %d: %w", o.Partition, err)
	}
	return nil
}

var postponeScript = newScript(lanesLua + `
local prefix = ARGV[3]
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
for i = 5, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    take(prefix, ARGV[i])
    redis.call('ZADD', prefix .. 'aside', ARGV[4], ARGV[i])
  end
end
return 1`)

// Postpone implements hotbucket.Buckets.
func (h *HotBuckets) Postpone(ctx context.Context, o coord.Owner, entries []*job.Entry, until time.Time) error {
	return h.move(ctx, postponeScript, o, entries, until.UnixMilli())
}

var recallScript = newScript(lanesLua + `
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    take(ARGV[1], ARGV[i])
    put(ARGV[1], ARGV[i])
  end
end
return 1`)

// Recall implements hotbucket.Buckets.
func (h *HotBuckets) Recall(ctx context.Context, entries []*job.Entry) error {
	if _, _, err := h.byPartition(ctx, recallScript, entries); err != nil {
		return fmt.Errorf("redis: recall: %w", err)
	}
	hinted := map[string]bool{}
	for _, e := range entries {
		hinted[strconv.Itoa(e.Partition)] = true
	}
	h.hint(ctx, hinted)
	return nil
}

// hint tells the readers of partitions that there is something to read. It may be lost.
func (h *HotBuckets) hint(ctx context.Context, partitions map[string]bool) {
	if len(partitions) == 0 {
		return
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_ = h.client.Publish(ctx, h.key("hints"), strings.Join(slices.Collect(maps.Keys(partitions)), ",")).Err()
}

var parkScript = newScript(lanesLua + `
local prefix = ARGV[3]
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
for i = 5, #ARGV do
  local m = ARGV[i]
  if redis.call('HEXISTS', KEYS[1], m) == 1 then
    take(prefix, m)
    local due, lane = parts(m)
    redis.call('ZADD', prefix .. 'due:' .. lane, due, m)
    redis.call('ZADD', prefix .. 'lanes', 'LT', due, lane)
  end
end
return 1`)

// Park implements hotbucket.Buckets.
func (h *HotBuckets) Park(ctx context.Context, o coord.Owner, entries []*job.Entry) error {
	return h.move(ctx, parkScript, o, entries, 0)
}

// move runs a script that moves an owner's entries within their partition, at most maxBatch at a time.
func (h *HotBuckets) move(ctx context.Context, s *script, o coord.Owner, entries []*job.Entry, at int64) error {
	keys := []string{h.of(o.Partition, "members"), h.of(o.Partition, "epochs")}
	for {
		n := min(len(entries), maxBatch)
		args := []any{string(o.Role), o.Epoch, h.prefix(o.Partition), at}
		for _, e := range entries[:n] {
			args = append(args, member(e))
		}
		if err := owned(o, h.gather.run(ctx, s, keys, args...).Err()); err != nil {
			return err
		}
		if entries = entries[n:]; len(entries) == 0 {
			return nil
		}
	}
}

var removeScript = newScript(lanesLua + `
for i = 2, #ARGV do take(ARGV[1], ARGV[i]) end
return redis.call('HDEL', KEYS[1], unpack(ARGV, 2))`)

// Remove implements hotbucket.Buckets.
func (h *HotBuckets) Remove(ctx context.Context, entries []*job.Entry) error {
	_, _, err := h.byPartition(ctx, removeScript, entries)
	if err != nil {
		return fmt.Errorf("redis: remove: %w", err)
	}
	return nil
}

var absentScript = newScript(`
local absent = {}
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then absent[#absent + 1] = i - 1 end
end
return absent`)

// Absent implements hotbucket.Buckets.
func (h *HotBuckets) Absent(ctx context.Context, entries []*job.Entry) (absent []job.Locator, err error) {
	answers, asked, err := h.byPartition(ctx, absentScript, entries)
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
	for i, e := range entries {
		if missing[i] {
			absent = append(absent, e.Locator)
		}
	}
	return absent, nil
}

// byPartition runs a script on the members of each partition, at most maxBatch at a time. asked lists the entries that each answer
// is about.
func (h *HotBuckets) byPartition(
	ctx context.Context, s *script, entries []*job.Entry,
) (answers []*redis.Cmd, asked [][]int, err error) {
	var calls []call
	open := map[int]int{}
	for i, e := range entries {
		n, ok := open[e.Partition]
		if !ok || len(calls[n].args) > maxBatch {
			n = len(calls)
			open[e.Partition] = n
			calls, asked = append(calls, call{s, []string{h.of(e.Partition, "members")}, []any{h.prefix(e.Partition)}}), append(asked, nil)
		}
		calls[n].args, asked[n] = append(calls[n].args, member(e)), append(asked[n], i)
	}
	if len(calls) == 0 {
		return nil, nil, nil
	}
	answers, err = h.runAll(ctx, calls)
	return answers, asked, err
}
