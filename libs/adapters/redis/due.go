package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// maxBack bounds how many entries one script makes available again, maxLanes how many lanes it looks at.
const (
	maxBack  = 1000
	maxLanes = 2000
)

// dueScript returns whether more entries can be made available again, when there is something to read next, which of the entries are
// parked, and the entries.
var dueScript = newScript(lanesLua + `
local members, epochs, prefix = KEYS[1], KEYS[2], ARGV[3]
if redis.call('HGET', epochs, ARGV[1]) ~= ARGV[2] then return redis.error_reply('stale') end
local now, aside, last, room = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local max_back, max_lanes = ARGV[9], ARGV[10]
if ARGV[8] == '1' then bring_back(prefix) end
for _, m in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'aside', '-inf', now, 'LIMIT', 0, max_back)) do
  put(prefix, m)
  redis.call('ZREM', prefix .. 'aside', m)
end
for _, m in ipairs(redis.call('ZRANGE', prefix .. 'back', 0, max_back - 1)) do
  put(prefix, m)
  redis.call('ZREM', prefix .. 'back', m)
end
local asks = {}
for i = 14, #ARGV, 4 do asks[ARGV[i]] = i end
local open = {}
local list = redis.call('ZRANGEBYSCORE', prefix .. 'lanes', '-inf', last, 'WITHSCORES', 'LIMIT', 0, max_lanes)
for i = 1, #list, 2 do
  local at = asks[list[i]] or 10
  if tonumber(ARGV[at + 2]) > 0 and tonumber(list[i + 1]) <= tonumber(ARGV[at + 1]) then open[#open + 1] = {list[i], at} end
end
local share = room
if #open > 1 then share = math.max(math.floor(room / 2), 1) end
local given, parked = {}, {}
for _, o in ipairs(open) do
  if room == 0 then break end
  local lane, at = o[1], o[2]
  local until_, n = ARGV[at + 1], math.min(tonumber(ARGV[at + 2]), share, room)
  local a = redis.call('ZRANGEBYSCORE', prefix .. 'att:' .. lane, '-inf', until_, 'WITHSCORES', 'LIMIT', 0, n)
  local w = {}
  if ARGV[at + 3] == '0' then
    w = redis.call('ZRANGEBYSCORE', prefix .. 'due:' .. lane, '-inf', until_, 'WITHSCORES', 'LIMIT', 0, n)
  end
  local i, k, from_a, from_w, set_aside = 1, 1, {}, {}, {}
  while n > 0 and (i < #a or k < #w) do
    local m
    local first = k > #w
    if not first and i < #a then
      local x, y = tonumber(a[i + 1]), tonumber(w[k + 1])
      first = x < y or x == y and a[i] < w[k]
    end
    if first then
      m, i = a[i], i + 2
      from_a[#from_a + 1] = m
      parked[#parked + 1] = '0'
    else
      m, k = w[k], k + 2
      from_w[#from_w + 1] = m
      parked[#parked + 1] = string.sub(m, -1)
    end
    given[#given + 1] = m
    set_aside[#set_aside + 1] = aside
    set_aside[#set_aside + 1] = m
    n, room = n - 1, room - 1
  end
  if #from_a > 0 then redis.call('ZREM', prefix .. 'att:' .. lane, unpack(from_a)) end
  if #from_w > 0 then redis.call('ZREM', prefix .. 'due:' .. lane, unpack(from_w)) end
  if #set_aside > 0 then redis.call('ZADD', prefix .. 'aside', unpack(set_aside)) end
  refresh(prefix, lane)
end
local more = redis.call('EXISTS', prefix .. 'back')
local left = redis.call('ZRANGE', prefix .. 'lanes', 0, 0, 'WITHSCORES')[2]
local back = redis.call('ZRANGE', prefix .. 'aside', 0, 0, 'WITHSCORES')[2]
local next = left or back or ''
if left and back and tonumber(back) < tonumber(left) then next = back end
if #given == 0 then return {more, next, ''} end
local answer = redis.call('HMGET', members, unpack(given))
table.insert(answer, 1, table.concat(parked))
table.insert(answer, 1, next)
table.insert(answer, 1, more)
return answer`)

// Due implements hotbucket.Buckets.
func (h *HotBuckets) Due(
	ctx context.Context, owners []coord.Owner, ask hotbucket.Ask,
) (all []hotbucket.Given, next []time.Time, err error) {
	next = make([]time.Time, len(owners))
	owners, places, err := h.notQuiet(ctx, owners, &ask, next)
	if err != nil {
		return nil, nil, err
	}
	for len(owners) > 0 {
		calls := make([]call, len(owners))
		common := askArgs(&ask)
		for i, o := range owners {
			keys := []string{h.of(o.Partition, "members"), h.of(o.Partition, "epochs")}
			args := append(append([]any{string(o.Role), o.Epoch, h.prefix(o.Partition)}, common...), laneArgs(o.Partition, &ask)...)
			calls[i] = call{dueScript, keys, args}
		}
		answers, err := h.runAll(ctx, calls)
		if answers == nil {
			return nil, nil, fmt.Errorf("redis: due: %w", err)
		}
		var more []coord.Owner
		var morePlaces []int
		for i, a := range answers {
			list, err := a.Slice()
			if err := owned(owners[i], err); err != nil {
				return nil, nil, err
			}
			if list[0] == int64(1) {
				more, morePlaces = append(more, owners[i]), append(morePlaces, places[i])
			}
			if next[places[i]], err = instantOf(list[1]); err != nil {
				return nil, nil, err
			}
			parked, _ := list[2].(string)
			for n, one := range list[3:] {
				text, there := one.(string)
				if !there {
					continue
				}
				e, err := wire.UnmarshalEntry([]byte(text))
				if err != nil {
					return nil, nil, err
				}
				all = append(all, hotbucket.Given{Entry: &e, Parked: parked[n] == '1'})
			}
		}
		owners, places, ask.Again = more, morePlaces, false
	}
	return all, next, nil
}

// notQuiet returns the partitions in which there may be something to read, and their places among the owners. For a quiet one it asks by
// plain commands, which take a fraction of the script's time, and notes in next when there is something if there is nothing now. Another may
// take the partition over between these commands, as it may after the script.
func (h *HotBuckets) notQuiet(
	ctx context.Context, owners []coord.Owner, ask *hotbucket.Ask, next []time.Time,
) (left []coord.Owner, places []int, err error) {
	type look struct {
		epoch        *redis.StringCmd
		first, aside *redis.ZSliceCmd
		back         *redis.IntCmd
	}
	looks := make([]look, len(owners))
	pipe := h.client.Pipeline()
	for i, o := range owners {
		if ask.Quiet[o.Partition] && !ask.Again {
			looks[i] = look{
				pipe.HGet(ctx, h.of(o.Partition, "epochs"), string(o.Role)), pipe.ZRangeWithScores(ctx, h.of(o.Partition, "lanes"), 0, 0),
				pipe.ZRangeWithScores(ctx, h.of(o.Partition, "aside"), 0, 0), pipe.Exists(ctx, h.of(o.Partition, "back")),
			}
		}
	}
	if pipe.Len() > 0 {
		ctx, cancel := bounded(ctx)
		defer cancel()
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, nil, fmt.Errorf("redis: due: %w", err)
		}
	}
	now, last := float64(time.Now().UnixMilli()), float64(lastOf(ask).UnixMilli())
	for i, o := range owners {
		l := looks[i]
		if l.epoch == nil {
			left, places = append(left, o), append(places, i)
			continue
		}
		if epoch, err := l.epoch.Int64(); err != nil || epoch != o.Epoch { // there is none, or another
			return nil, nil, owned(o, hotbucket.ErrStaleEpoch)
		}
		first, aside := firstOf(l.first), firstOf(l.aside)
		if first <= last || aside <= now || l.back.Val() > 0 {
			left, places = append(left, o), append(places, i)
		} else if soonest := min(first, aside); !math.IsInf(soonest, 1) {
			next[i] = time.UnixMilli(int64(soonest)).UTC()
		}
	}
	return left, places, nil
}

// firstOf returns the score of the first member of a set, which is infinite if there is none.
func firstOf(c *redis.ZSliceCmd) float64 {
	if list := c.Val(); len(list) > 0 {
		return list[0].Score
	}
	return math.Inf(1)
}

// lastOf returns the last instant up to which anything is asked for.
func lastOf(ask *hotbucket.Ask) time.Time {
	last := ask.PerLane.Until
	for _, l := range ask.Lanes {
		last = job.Later(last, l.Until)
	}
	return last
}

// instantOf returns the instant of a score, which is zero if there is none.
func instantOf(score any) (at time.Time, err error) {
	text, _ := score.(string)
	if text == "" {
		return at, nil
	}
	ms, err := strconv.ParseFloat(text, 64) // as Redis writes scores
	if err != nil {
		return at, fmt.Errorf("redis: due: %w", err)
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}

// askArgs returns the arguments of dueScript from its fourth on that are the same for every partition.
func askArgs(ask *hotbucket.Ask) []any {
	now := time.Now()
	again := 0
	if ask.Again {
		again = 1
	}
	// The last of these is in the place of a lane's name, so that what is asked of all other lanes follows it as it follows a lane.
	return []any{
		now.UnixMilli(), now.Add(hotbucket.GivenFor).UnixMilli(), lastOf(ask).UnixMilli(), ask.Room(), again, maxBack, maxLanes,
	}
}

// laneArgs returns what an ask wants of the lanes of a partition, as arguments that follow askArgs.
func laneArgs(partition int, ask *hotbucket.Ask) []any {
	args := appendLane(make([]any, 0, 3+4*len(ask.Lanes)), ask.PerLane)
	for lane := range ask.Lanes {
		args = appendLane(append(args, lane), ask.Of(partition, lane))
	}
	return args
}

func appendLane(args []any, l hotbucket.LaneAsk) []any {
	attended := 0
	if l.Attended {
		attended = 1
	}
	return append(args, l.Until.UnixMilli(), l.Limit, attended)
}
