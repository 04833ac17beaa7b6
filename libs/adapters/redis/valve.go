package redis

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/clock"
)

const (
	// The valve forgets outcomes when a server has used more than valveOpens of the memory that it may use, until it uses valveCloses.
	valveOpens, valveCloses = 0.9, 0.8
	valveEvery              = 5 * time.Second
	// neverForgotten is the age below which no outcome is forgotten, because its fire may be in flight.
	neverForgotten = time.Minute
	// valveBatch is how many hashes of outcomes are forgotten at once, maxCandidates how many one look considers.
	valveBatch, maxCandidates = 200, 20_000
)

// Valve watches the memory of the servers while its process runs. Where it runs short, the valve forgets the oldest outcomes before
// their time, which attempts.Memory reports. If a server has evicted keys in spite of what Check asks for, nobody knows which, so
// every partition gets a new incarnation.
type Valve struct {
	tier   *Tier
	logger *slog.Logger
	stop   context.CancelFunc
	done   chan struct{}
}

// NewValve returns a valve that looks every few seconds until Close.
func NewValve(t *Tier, logger *slog.Logger) *Valve {
	ctx, stop := context.WithCancel(context.Background())
	v := &Valve{tier: t, logger: logger, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		every := time.NewTicker(valveEvery)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				if err := v.Look(ctx); err != nil && ctx.Err() == nil {
					logger.Debug("cannot watch the memory of Redis", "error", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return v
}

// Close stops the looking.
func (v *Valve) Close() {
	v.stop()
	<-v.done
}

// Look looks once. Several valves may look at the same time.
func (v *Valve) Look(ctx context.Context) error {
	var mu sync.Mutex
	var evicted int64
	err := v.tier.masters(ctx, func(ctx context.Context, c *redis.Client) error {
		answer, err := c.Info(ctx, "memory", "stats").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		evicted += infoNumber(answer, "evicted_keys")
		mu.Unlock()
		return v.relieve(ctx, c, answer)
	})
	if err == nil && evicted > 0 {
		err = v.renew(ctx, evicted)
	}
	return err
}

// candidate is a hash of outcomes that may be forgotten, with its remaining TTL.
type candidate struct {
	key  string
	left time.Duration
}

// relieve forgets the oldest outcomes of a server whose memory runs short.
func (v *Valve) relieve(ctx context.Context, c *redis.Client, info string) error {
	limit := float64(infoNumber(info, "maxmemory"))
	if used := float64(infoNumber(info, "used_memory")); limit == 0 || used < valveOpens*limit {
		return nil
	}
	oldest, err := v.candidates(ctx, c)
	if err != nil {
		return err
	}
	var forgotten int64
	for batch := range slices.Chunk(oldest, valveBatch) {
		pipe := c.Pipeline()
		for _, of := range batch {
			partition, _, _ := strings.Cut(of.key, endedName)
			forgetScript.Eval(ctx, pipe, []string{of.key, partition + keptName}, outcomeTTL.Milliseconds(), neverForgotten.Milliseconds(),
				clock.MaxDifference.Milliseconds())
		}
		answers, err := pipe.Exec(ctx)
		if err != nil {
			return fmt.Errorf("redis: forget outcomes: %w", err)
		}
		for _, a := range answers {
			n, _ := a.(*redis.Cmd).Int64()
			forgotten += n
		}
		info, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return fmt.Errorf("redis: forget outcomes: %w", err)
		}
		if float64(infoNumber(info, "used_memory")) < valveCloses*limit {
			break
		}
	}
	v.logger.Warn("the memory of Redis runs short: outcomes are forgotten before their time, and fires that come twice take longer to tell",
		"outcomes", forgotten, "maxmemory", int64(limit))
	return nil
}

// candidates returns the hashes of outcomes on a server, the oldest first.
func (v *Valve) candidates(ctx context.Context, c *redis.Client) ([]candidate, error) {
	var all []candidate
	oldest := func() {
		slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.left, b.left) })
		all = all[:min(len(all), maxCandidates)]
	}
	cursor := uint64(0)
	for {
		keys, next, err := c.Scan(ctx, cursor, v.tier.key("{p*}:"+endedName+"*"), 1000).Result()
		if err != nil {
			return nil, fmt.Errorf("redis: look for outcomes: %w", err)
		}
		pipe := c.Pipeline()
		for _, key := range keys {
			pipe.PTTL(ctx, key)
		}
		answers, err := pipe.Exec(ctx)
		if err != nil {
			return nil, fmt.Errorf("redis: look for outcomes: %w", err)
		}
		for i, a := range answers {
			all = append(all, candidate{keys[i], a.(*redis.DurationCmd).Val()})
		}
		if cursor = next; cursor == 0 {
			oldest()
			return all, nil
		}
		if len(all) > 2*maxCandidates {
			oldest()
		}
	}
}

// The remaining TTL of a hash of outcomes shows when it was last written to: everything stored up to then may be gone.
var forgetScript = newScript(`
local left = redis.call('PTTL', KEYS[1])
if left < 0 or left > ARGV[1] - ARGV[2] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = string.format('%d', now - (ARGV[1] - left) + ARGV[3] + 1)
local n = redis.call('HLEN', KEYS[1])
redis.call('UNLINK', KEYS[1])
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(kept) then redis.call('SET', KEYS[2], kept, 'PX', ARGV[1]) end
return n`)

// A partition notes the number of evictions at which it got its current incarnation.
var renewIncarnationScript = newScript(`
if redis.call('GET', KEYS[2]) == ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
local now = redis.call('GET', KEYS[1])
if not now then return 0 end
redis.call('SET', KEYS[1], string.format('%014x', tonumber(string.sub(now, 1, 14), 16) + 1) .. string.sub(now, 15))
return 1`)

// renew gives every partition a new incarnation, once for each number of evictions.
func (v *Valve) renew(ctx context.Context, evicted int64) error {
	calls := make([]call, v.tier.o.Partitions)
	for p := range calls {
		calls[p] = call{renewIncarnationScript, []string{v.tier.of(p, "incarnation"), v.tier.of(p, "evicted")}, []any{evicted}}
	}
	answers, err := v.tier.runAll(ctx, calls)
	if err != nil {
		return fmt.Errorf("redis: renew incarnations: %w", err)
	}
	for _, a := range answers {
		if n, _ := a.Int64(); n > 0 {
			v.logger.Error("Redis has evicted keys, maybe stop records: everything is asked for again", "evicted_keys", evicted, "error", ErrEvicts)
			break
		}
	}
	return nil
}

// masters calls fn for each server that holds keys, some at the same time.
func (t *Tier) masters(ctx context.Context, fn func(context.Context, *redis.Client) error) error {
	switch c := t.client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, fn)
	case *redis.Client:
		return fn(ctx, c)
	}
	return nil
}

// infoField returns a field of a reply to INFO, "" if it is not there.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if n, value, _ := strings.Cut(strings.TrimSpace(line), ":"); n == name {
			return value
		}
	}
	return ""
}

func infoNumber(info, name string) int64 {
	n, _ := strconv.ParseInt(infoField(info, name), 10, 64)
	return n
}
