package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// Pools is the queues of pools on Redis. All keys of a pool have one hash tag. A channel tells every process that tasks were added.
type Pools struct {
	*Tier
	gather *gatherer
	bell   *pools.Bell
	sub    *redis.PubSub
	ended  chan struct{}

	mu sync.Mutex
	// noted is when this process noted pools.
	noted map[pools.Pool]time.Time
}

var _ pools.Queue = (*Pools)(nil)

// bellChannel is the name of the channel, poolsName that of the pools to which tasks were added.
const bellChannel, poolsName = "tasks", "pools"

// NewPools returns the pools of a tier. They listen for new tasks until Close.
func NewPools(t *Tier) *Pools {
	q := &Pools{Tier: t, gather: newGatherer(t), bell: pools.NewBell(), sub: t.client.Subscribe(context.Background(), t.key(bellChannel)), ended: make(chan struct{}), noted: map[pools.Pool]time.Time{}}
	go func() {
		defer close(q.ended)
		for m := range q.sub.ChannelWithSubscriptions() {
			switch m := m.(type) {
			case *redis.Subscription: // rings may have been lost before
				q.bell.RingAll()
			case *redis.Message:
				name, handler, _ := strings.Cut(m.Payload, "|")
				if p, ok := pools.ParsePool(name); ok {
					q.bell.Ring(p, handler, 1)
				}
			}
		}
	}()
	return q
}

// Close stops listening. The tier stays open.
func (q *Pools) Close() error {
	err := q.sub.Close()
	<-q.ended
	return err
}

// Bell implements pools.Queue.
func (q *Pools) Bell() *pools.Bell { return q.bell }

// of returns a key of a pool; its name has only letters, digits and a few signs.
func (q *Pools) of(p pools.Pool, name string) string { return q.key("{w" + p.String() + "}:" + name) }

// poolLua holds what the scripts have in common. A task that waits is in one sorted set for each handler and priority, "wait:<priority>:<handler>". What
// is taken is in "taken", and counted by handler in "running"; "held" names the handlers of which limits kept tasks back.
const poolLua = `
local prefix = KEYS[1]
local function k(name) return prefix .. name end
local function let_wait(id)
  local line = redis.call('HGET', k('lines'), id)
  if line then
    local due, name = string.match(line, '^(%d+) (.*)$')
    redis.call('ZADD', k(name), due, id)
    redis.call('PEXPIRE', k(name), 691200000)
  end
end
local function waits(handler)
  return redis.call('EXISTS', k('wait:high:' .. handler), k('wait:normal:' .. handler), k('wait:low:' .. handler)) > 0
end
local function free(id, channel, pool)
  if redis.call('ZREM', k('taken'), id) == 0 then return end
  local own = string.match(redis.call('HGET', k('lines'), id) or '', '^%d+ wait:%a+:(.*)$')
  if own and redis.call('HINCRBY', k('running'), own, -1) <= 0 then redis.call('HDEL', k('running'), own) end
  if redis.call('EXISTS', k('held')) == 0 then return end
  local rung = redis.call('SRANDMEMBER', k('held'), 8)
  if own and redis.call('SISMEMBER', k('held'), own) == 1 then rung[#rung + 1] = own end
  for _, h in ipairs(rung) do
    if waits(h) then redis.call('PUBLISH', channel, pool .. '|' .. h) else redis.call('SREM', k('held'), h) end
  end
end
local function forget(id)
  redis.call('INCRBY', k('bytes'), -redis.call('HSTRLEN', k('tasks'), id))
  redis.call('HDEL', k('tasks'), id)
  redis.call('HDEL', k('lines'), id)
  redis.call('HDEL', k('leases'), id)
end
`

// poolTTL is how long a pool's keys are kept after the last task was added. A task that is kept so long was put back many times.
const poolTTL = 8 * 24 * time.Hour

// addTaskScript returns 1 if the task waits, 0 if somebody has it, -1 if there is no room.
var addTaskScript = newScript(poolLua + `
local id, now, due, name, blob = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local until_ = redis.call('ZSCORE', k('taken'), id)
if until_ and now < tonumber(until_) then return 0 end
local old = redis.call('HSTRLEN', k('tasks'), id)
if old == 0 and redis.call('HLEN', k('tasks')) >= tonumber(ARGV[6]) or tonumber(redis.call('GET', k('bytes')) or 0) + #blob - old > tonumber(ARGV[7]) then
  return -1
end
if until_ then
  free(id, ARGV[9], ARGV[11])
  redis.call('HDEL', k('leases'), id)
end
local line = redis.call('HGET', k('lines'), id)
if line then redis.call('ZREM', k(string.match(line, '^%d+ (.*)$')), id) end
redis.call('INCRBY', k('bytes'), #blob - old)
redis.call('HSET', k('tasks'), id, blob)
redis.call('HSET', k('lines'), id, due .. ' ' .. name)
if redis.call('SCARD', k('names')) < 1000 then redis.call('SADD', k('names'), name) end
let_wait(id)
redis.call('PUBLISH', ARGV[9], ARGV[10])
for _, one in ipairs({'bytes', 'tasks', 'lines', 'names', 'leases', 'taken', 'running', 'turn', name}) do redis.call('PEXPIRE', k(one), ARGV[8]) end
return 1`)

// Add implements pools.Queue.
func (q *Pools) Add(ctx context.Context, t *pools.Task, now time.Time) error {
	p, handler := t.Pool(), t.Fire.Target.Handler
	name := lineName(pools.PriorityOf(t), handler)
	added, err := q.gather.run(ctx, addTaskScript, []string{q.of(p, "")}, t.ID(), now.UnixMilli(), t.Fire.DueAt.UnixMilli(), name, pools.MarshalTask(t),
		pools.MaxTasks, pools.MaxBytes, poolTTL.Milliseconds(), q.key(bellChannel), p.String()+"|"+handler, p.String()).Int()
	if err != nil {
		return fmt.Errorf("redis: add a task: %w", err)
	}
	if added < 0 {
		return pools.ErrFull
	}
	return q.note(ctx, p, now)
}

// notedFor is how long a process does not note a pool again.
const notedFor = time.Minute

var noteScript = newScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 or redis.call('HLEN', KEYS[1]) < tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return 1`)

// note notes that a pool is in use, so that Pools returns it.
func (q *Pools) note(ctx context.Context, p pools.Pool, now time.Time) error {
	q.mu.Lock()
	recent := now.Sub(q.noted[p]) < notedFor
	q.mu.Unlock()
	if recent {
		return nil
	}
	if err := q.gather.run(ctx, noteScript, []string{q.key(poolsName)}, p.String(), now.UnixMilli(), pools.MaxPools).Err(); err != nil {
		return fmt.Errorf("redis: note a pool: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.noted) >= pools.MaxPools {
		clear(q.noted)
	}
	q.noted[p] = now
	return nil
}

func lineName(p job.Priority, handler string) string { return "wait:" + string(p) + ":" + handler }

// takeTasksScript returns whether the poll took tasks before, and for each task its id, the task and its lease. The order of the priorities is Turn's. From its sixth argument on it gets the
// bound of the pool, and each handler with its bound; -1 for none.
var takeTasksScript = newScript(poolLua + `
local now, most, taken_ms, kept_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local poll = k('poll:' .. ARGV[5])
local ids = {}
local kept = redis.call('GET', poll)
if kept then
  for id in string.gmatch(kept, '[^ ]+') do
    if redis.call('ZSCORE', k('taken'), id) then ids[#ids + 1] = id end
  end
else
  local orders = {{1, 2, 3}, {2, 1, 3}, {1, 2, 3}, {3, 1, 2}, {1, 2, 3}, {2, 1, 3}, {1, 2, 3}}
  local names = {'high', 'normal', 'low'}
  local lists = {}
  local limit, room, of = tonumber(ARGV[6]), most, {}
  if limit >= 0 then room = math.max(0, math.min(room, limit - redis.call('ZCARD', k('taken')))) end
  for i = 7, #ARGV, 2 do
    local bound = tonumber(ARGV[i + 1])
    of[ARGV[i]] = most
    if bound >= 0 then
      of[ARGV[i]] = math.max(0, math.min(most, bound - tonumber(redis.call('HGET', k('running'), ARGV[i]) or 0)))
    end
  end
  for p = 1, 3 do
    local all = {}
    for i = 7, #ARGV, 2 do
      local name = k('wait:' .. names[p] .. ':' .. ARGV[i])
      local some = {}
      if room > 0 and of[ARGV[i]] > 0 then some = redis.call('ZRANGE', name, 0, most - 1, 'WITHSCORES') end
      for n = 1, #some, 2 do all[#all + 1] = {some[n], tonumber(some[n + 1]), name, ARGV[i]} end
    end
    table.sort(all, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[1] < b[1] end)
    lists[p] = {all, 1}
  end
  local turn = tonumber(redis.call('GET', k('turn')) or 0)
  while #ids < room do
    local found
    for _, p in ipairs(orders[turn % 7 + 1]) do
      repeat
        found = lists[p][1][lists[p][2]]
        if found and of[found[4]] == 0 then lists[p][2] = lists[p][2] + 1 end
      until not found or of[found[4]] > 0
      if found then
        lists[p][2] = lists[p][2] + 1
        break
      end
    end
    if not found then break end
    turn = turn + 1
    if redis.call('ZREM', found[3], found[1]) == 1 then
      redis.call('ZADD', k('taken'), now + taken_ms, found[1])
      redis.call('HINCRBY', k('running'), found[4], 1)
      of[found[4]] = of[found[4]] - 1
      ids[#ids + 1] = found[1]
    end
  end
  if #ids < most then
    for i = 7, #ARGV, 2 do
      if (#ids == room or of[ARGV[i]] == 0) and waits(ARGV[i]) and redis.call('SCARD', k('held')) < 1000 then
        redis.call('SADD', k('held'), ARGV[i])
        redis.call('PEXPIRE', k('held'), 691200000)
      end
    end
  end
  if #ids > 0 then
    redis.call('PEXPIRE', k('taken'), 691200000)
    redis.call('PEXPIRE', k('running'), 691200000)
    redis.call('SET', k('turn'), turn, 'PX', 691200000)
    redis.call('SET', poll, table.concat(ids, ' '), 'PX', kept_ms)
  end
end
local answer = {kept and 1 or 0}
for _, id in ipairs(ids) do
  answer[#answer + 1] = id
  answer[#answer + 1] = redis.call('HGET', k('tasks'), id)
  answer[#answer + 1] = redis.call('HGET', k('leases'), id)
end
return answer`)

// Take implements pools.Queue.
func (q *Pools) Take(ctx context.Context, p pools.Pool, t pools.Take) (taken pools.Taken, err error) {
	args := []any{t.Now.UnixMilli(), t.Most, pools.TakenFor.Milliseconds(), pools.PollKept.Milliseconds(), t.Poll, -1}
	if n := t.Limits.Running; n != nil {
		args[len(args)-1] = *n
	}
	for _, h := range t.Handlers {
		n, there := t.Limits.Handlers[h]
		if !there {
			n = -1
		}
		args = append(args, h, n)
	}
	list, err := q.gather.run(ctx, takeTasksScript, []string{q.of(p, "")}, args...).Slice()
	if err != nil {
		return taken, fmt.Errorf("redis: take tasks: %w", err)
	}
	taken.Again = len(list) > 0 && list[0] == int64(1)
	for i := 1; i+2 < len(list); i += 3 {
		text, there := list[i+1].(string)
		if !there {
			continue
		}
		one, err := pools.UnmarshalTask([]byte(text))
		if err == nil {
			one.Lease, err = leaseOf(list[i+2])
		}
		if err != nil {
			return taken, err
		}
		taken.Tasks = append(taken.Tasks, one)
	}
	return taken, nil
}

// leaseOf returns the lease in an answer of Redis, nil if there is none. Its fence and its number go before it.
func leaseOf(value any) (*pools.Lease, error) {
	text, there := value.(string)
	if !there {
		return nil, nil //nolint:nilnil // there is none
	}
	_, rest, _ := strings.Cut(text, " ")
	_, rest, _ = strings.Cut(rest, " ")
	return pools.UnmarshalLease([]byte(rest))
}

var bindScript = newScript(poolLua + `
local id, fence = ARGV[1], ARGV[2]
local until_, lease = redis.call('ZSCORE', k('taken'), id), redis.call('HGET', k('leases'), id)
if not until_ or tonumber(ARGV[3]) >= tonumber(until_) or (lease and string.match(lease, '^[^ ]+ %d+ ') or '') ~= ARGV[7] then return 0 end
redis.call('HSET', k('leases'), id, fence .. ' ' .. ARGV[5])
redis.call('ZADD', k('taken'), ARGV[4], id)
redis.call('PEXPIRE', k('leases'), ARGV[6])
redis.call('PEXPIRE', k('taken'), ARGV[6])
redis.call('PEXPIRE', k('running'), ARGV[6])
return 1`)

// Bind implements pools.Queue.
func (q *Pools) Bind(ctx context.Context, p pools.Pool, id string, l *pools.Lease, now time.Time) (ok bool, err error) {
	before, fence := "", l.Fence.String()
	if l.Number > 0 {
		before = fmt.Sprintf("%s %d ", fence, l.Number-1)
	}
	text := append(fmt.Appendf(nil, "%d ", l.Number), pools.MarshalLease(l)...)
	n, err := q.gather.run(ctx, bindScript, []string{q.of(p, "")}, id, fence, now.UnixMilli(), l.Until.UnixMilli(), text, poolTTL.Milliseconds(), before).Int()
	if err != nil {
		return false, fmt.Errorf("redis: bind a lease: %w", err)
	}
	return n == 1, nil
}

// Leases implements pools.Queue.
func (q *Pools) Leases(ctx context.Context, p pools.Pool, ids []string) ([]*pools.Lease, error) {
	leases := make([]*pools.Lease, len(ids))
	if len(ids) == 0 {
		return leases, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	list, err := q.client.HMGet(ctx, q.of(p, "leases"), ids...).Result()
	for i := 0; err == nil && i < len(list); i++ {
		leases[i], err = leaseOf(list[i])
	}
	if err != nil {
		return nil, fmt.Errorf("redis: leases of tasks: %w", err)
	}
	return leases, nil
}

var removeTaskScript = newScript(poolLua + `
local id, fence = ARGV[1], ARGV[2]
if not redis.call('ZSCORE', k('taken'), id) then return 0 end
local lease = redis.call('HGET', k('leases'), id)
if (lease and string.match(lease, '^[^ ]+') or '') ~= fence then return 0 end
if lease and ARGV[5] ~= '-1' and string.match(lease, '^[^ ]+ (%d+) ') ~= ARGV[5] then return 0 end
free(id, ARGV[3], ARGV[4])
forget(id)
return 1`)

// Remove implements pools.Queue.
func (q *Pools) Remove(ctx context.Context, p pools.Pool, id string, fence job.Fence, number int64) (removed bool, err error) {
	text := ""
	if fence != (job.Fence{}) {
		text = fence.String()
	}
	n, err := q.gather.run(ctx, removeTaskScript, []string{q.of(p, "")}, id, text, q.key(bellChannel), p.String(), number).Int()
	if err != nil {
		return false, fmt.Errorf("redis: remove a task: %w", err)
	}
	return n == 1, nil
}

var forgetTaskScript = newScript(poolLua + `
local line = redis.call('HGET', k('lines'), ARGV[1])
if not line or redis.call('ZREM', k(string.match(line, '^%d+ (.*)$')), ARGV[1]) == 0 then return 0 end
forget(ARGV[1])
return 1`)

// Forget implements pools.Queue.
func (q *Pools) Forget(ctx context.Context, p pools.Pool, id string) error {
	if err := q.gather.run(ctx, forgetTaskScript, []string{q.of(p, "")}, id).Err(); err != nil {
		return fmt.Errorf("redis: forget a task: %w", err)
	}
	return nil
}

var lapsedScript = newScript(poolLua + `
local found, handlers = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', k('taken'), '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  local lease = redis.call('HGET', k('leases'), id)
  if lease then
    found[#found + 1] = lease
  else
    free(id, ARGV[3], ARGV[4])
    let_wait(id)
    local line = redis.call('HGET', k('lines'), id)
    if line then handlers[#handlers + 1] = string.match(line, '^%d+ wait:%a+:(.*)$') end
  end
end
return {handlers, found}`)

// Lapsed implements pools.Queue.
func (q *Pools) Lapsed(ctx context.Context, p pools.Pool, now time.Time) (leases []*pools.Lease, err error) {
	answer, err := q.run(ctx, lapsedScript, []string{q.of(p, "")}, now.UnixMilli(), pools.MaxLapsed, q.key(bellChannel), p.String()).Slice()
	if err != nil {
		return nil, fmt.Errorf("redis: lapsed tasks: %w", err)
	}
	handlers, _ := answer[0].([]any)
	found, _ := answer[1].([]any)
	for _, h := range handlers {
		handler, _ := h.(string)
		q.bell.Ring(p, handler, 1)
	}
	for _, one := range found {
		l, err := leaseOf(one)
		if err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	return leases, nil
}

// Pools implements pools.Queue.
func (q *Pools) Pools(ctx context.Context, now time.Time) (list []pools.Pool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	all, err := q.client.HGetAll(ctx, q.key(poolsName)).Result()
	if err != nil {
		return nil, fmt.Errorf("redis: pools: %w", err)
	}
	var old []string
	for name, at := range all {
		ms, _ := strconv.ParseInt(at, 10, 64)
		p, ok := pools.ParsePool(name)
		if !ok || now.Sub(time.UnixMilli(ms)) > poolTTL { // nothing is left of it
			old = append(old, name)
			continue
		}
		list = append(list, p)
	}
	if len(old) > 0 {
		if err := q.client.HDel(ctx, q.key(poolsName), old...).Err(); err != nil {
			return nil, fmt.Errorf("redis: pools: %w", err)
		}
	}
	slices.SortFunc(list, func(a, b pools.Pool) int { return cmp.Compare(a.String(), b.String()) })
	return list[:min(len(list), pools.MaxPools)], nil
}
