package redis

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/attempts"
)

// Prefix returns the prefix of the tier's keys.
func (t *Tier) Prefix() string { return t.o.Prefix }

// EndedKeys returns the keys of the hashes of which one may hold the packed outcome of an attempt.
func (t *Tier) EndedKeys(k attempts.Key) []string { return NewRecords(t).keysOf(k)[1:] }

// Scripts counts the scripts that the tier runs from now on.
func (t *Tier) Scripts() *atomic.Int64 {
	c := &counter{}
	t.client.AddHook(c)
	return &c.n
}

type counter struct{ n atomic.Int64 }

func (c *counter) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if name := cmd.Name(); name == "eval" || name == "evalsha" {
			c.n.Add(1)
		}
	}
}

// DialHook implements redis.Hook.
func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

// ProcessHook implements redis.Hook.
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}
