package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

var seeScript = newScript(poolLua + `
if redis.call('HEXISTS', k('workers'), ARGV[1]) == 0 and redis.call('HLEN', k('workers')) >= tonumber(ARGV[3]) then
  if not redis.call('SET', k('tidied'), '1', 'NX', 'PX', 10000) then return 0 end
  local all = redis.call('HGETALL', k('workers'))
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^(%d+) ')) < tonumber(ARGV[4]) then redis.call('HDEL', k('workers'), all[i]) end
  end
  if redis.call('HLEN', k('workers')) >= tonumber(ARGV[3]) then return 0 end
end
-- A heartbeat shows that a worker is there and has a task; the rest is as it told before. The instant before its JSON counts.
local text, old = ARGV[2], ARGV[6] == '1' and redis.call('HGET', k('workers'), ARGV[1])
if old then
  local at, rest = string.match(old, '^(%d+) (.*)$')
  local seen = string.match(text, '^%d+')
  if tonumber(at) > tonumber(seen) then seen = at end
  text = seen .. ' ' .. string.gsub(rest, '"running":0,', '"running":1,', 1)
end
redis.call('HSET', k('workers'), ARGV[1], text)
return redis.call('PEXPIRE', k('workers'), ARGV[5])`)

// See implements pools.Queue.
func (q *Pools) See(ctx context.Context, p pools.Pool, w *pools.Worker) error {
	text, err := json.Marshal(w)
	if err == nil {
		err = q.gather.run(ctx, seeScript, []string{q.of(p, "")}, w.Name, strconv.FormatInt(w.SeenAt.UnixMilli(), 10)+" "+string(text), pools.MaxWorkers,
			w.SeenAt.Add(-pools.WorkerKept).UnixMilli(), pools.WorkerKept.Milliseconds(), w.Beats).Err()
	}
	if err != nil {
		return fmt.Errorf("redis: note a worker: %w", err)
	}
	return nil
}

// Show implements pools.Queue.
func (q *Pools) Show(ctx context.Context, p pools.Pool, now time.Time) (*pools.State, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	s := &pools.State{Waiting: map[string]map[job.Priority]int{}, Running: map[string]int{}}
	pipe := q.client.Pipeline()
	names, taken, workers := pipe.SMembers(ctx, q.of(p, "names")), pipe.ZCard(ctx, q.of(p, "taken")), pipe.HGetAll(ctx, q.of(p, "workers"))
	running := pipe.HGetAll(ctx, q.of(p, "running"))
	_, err := pipe.Exec(ctx)
	counts := map[string]*redis.IntCmd{}
	if err == nil && len(names.Val()) > 0 {
		pipe = q.client.Pipeline()
		for _, name := range names.Val() {
			counts[name] = pipe.ZCard(ctx, q.of(p, name))
		}
		_, err = pipe.Exec(ctx)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("redis: show a pool: %w", err)
	}
	for name, n := range counts {
		_, rest, _ := strings.Cut(name, ":")
		priority, handler, _ := strings.Cut(rest, ":")
		if n.Val() == 0 {
			continue
		}
		if s.Waiting[handler] == nil {
			s.Waiting[handler] = map[job.Priority]int{}
		}
		s.Waiting[handler][job.Priority(priority)] = int(n.Val())
	}
	s.Taken = int(taken.Val())
	for handler, n := range running.Val() {
		s.Running[handler], _ = strconv.Atoi(n)
	}
	for _, text := range workers.Val() {
		at, rest, _ := strings.Cut(text, " ")
		var w pools.Worker
		seen, err := strconv.ParseInt(at, 10, 64)
		if err := errors.Join(err, json.Unmarshal([]byte(rest), &w)); err != nil {
			return nil, fmt.Errorf("redis: show a pool: %w", err)
		}
		w.SeenAt = time.UnixMilli(seen).UTC() // a heartbeat may have come since the worker told the rest
		if now.Sub(w.SeenAt) <= pools.WorkerKept {
			s.Workers = append(s.Workers, w)
		}
	}
	slices.SortFunc(s.Workers, func(a, b pools.Worker) int { return cmp.Compare(a.Name, b.Name) })
	return s, nil
}
