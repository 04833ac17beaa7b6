// Package redis is the hot tier on one Redis server: hot buckets, leases, outcomes and stop records.
// schemas/redis/KEYS.md tells of the keys.
//
// Whatever reads and then writes is one script, so every call on one record is atomic. The tier's incarnation holds the
// server's run id: the first connection after a restart or a failover makes a new one, before anything else is asked.
package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/go-redis/v9"
)

// Options say where the server is.
type Options struct {
	Address            string // host:port
	Username, Password string
	// Prefix of all keys, such as "minutehand:".
	Prefix string
	// MaxEntries bounds the entries of one partition; 0 means 1,000,000.
	MaxEntries int
}

const (
	// maxBatch bounds the members that one script works on, so that none takes longer than a few milliseconds.
	maxBatch = 500
	// poolSize bounds the connections of a process; beyond it calls wait, for poolTimeout at most.
	poolSize    = 64
	poolTimeout = 5 * time.Second
	callTimeout = 3 * time.Second
)

// Tier is a connection to the hot tier, which HotBuckets and Records share.
type Tier struct {
	o      Options
	client *redis.Client
}

// Open makes a tier. It does not wait for the server; every call does, up to its time limit.
func Open(o Options) *Tier {
	if o.MaxEntries == 0 {
		o.MaxEntries = 1_000_000
	}
	t := &Tier{o: o}
	t.client = redis.NewClient(&redis.Options{
		Addr: o.Address, Username: o.Username, Password: o.Password, ClientName: "minutehand",
		// Nothing is tried again here: whoever called knows what a second try means.
		MaxRetries: -1, DialTimeout: callTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		PoolSize: poolSize, PoolTimeout: poolTimeout, ContextTimeoutEnabled: true,
		OnConnect: func(ctx context.Context, c *redis.Conn) error {
			return incarnate.Eval(ctx, c, []string{t.key("incarnation")}, ulid.Make().String()).Err()
		},
	})
	return t
}

// Close closes the connections.
func (t *Tier) Close() error { return t.client.Close() }

// Check tells whether the server answers.
func (t *Tier) Check(ctx context.Context) error {
	if err := t.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

func (t *Tier) key(name string) string { return t.o.Prefix + name }

// incarnate gives the incarnation, a new one if there is none of this run of the server.
var incarnate = redis.NewScript(`
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local now = redis.call('GET', KEYS[1])
if not now or string.sub(now, 1, #run) ~= run then
  now = run .. '-' .. ARGV[1]
  redis.call('SET', KEYS[1], now)
end
return now`)

// Incarnation is that of the tier.
func (t *Tier) Incarnation(ctx context.Context) (string, error) {
	now, err := t.client.Get(ctx, t.key("incarnation")).Result()
	if errors.Is(err, redis.Nil) { // someone has flushed it
		now, err = incarnate.Eval(ctx, t.client, []string{t.key("incarnation")}, ulid.Make().String()).Text()
	}
	if err != nil {
		return "", fmt.Errorf("redis: incarnation: %w", err)
	}
	return now, nil
}

// run runs a script by its hash, or by its text where the server does not know it yet.
func (t *Tier) run(ctx context.Context, s *redis.Script, keys []string, args ...any) *redis.Cmd {
	return s.Run(ctx, t.client, keys, args...)
}

// errScripts means: the server forgets scripts as fast as they are loaded.
var errScripts = errors.New("redis: the server does not keep scripts")

// runAll runs a script on many sets of keys and arguments in one pipeline.
func (t *Tier) runAll(ctx context.Context, s *redis.Script, keys [][]string, args [][]any) ([]*redis.Cmd, error) {
	answers := make([]*redis.Cmd, len(keys))
	for range 2 {
		pipe := t.client.Pipeline()
		for i := range keys {
			answers[i] = s.EvalSha(ctx, pipe, keys[i], args[i]...)
		}
		_, err := pipe.Exec(ctx)
		if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return answers, err
		}
		if err := s.Load(ctx, t.client).Err(); err != nil {
			return nil, err
		}
	}
	return nil, errScripts
}
