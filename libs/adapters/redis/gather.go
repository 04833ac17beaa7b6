package redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/run"
)

const (
	// maxFlights bounds the pipelines that are under way to one server at a time. What is asked meanwhile shares the next one: in an
	// executor at most one call for each attempt that it runs at a time, in a worker or loader one for each partition that it works on.
	maxFlights = 2
	// maxGathered bounds the calls of one pipeline.
	maxGathered = 128
)

// gatherer runs scripts that many goroutines ask for at the same time in few pipelines, of one server each.
type gatherer struct {
	tier *Tier
	g    run.Gatherer[string, call, *redis.Cmd]
}

func newGatherer(t *Tier) *gatherer {
	g := &gatherer{tier: t}
	g.g.Flights, g.g.Most, g.g.Send = maxFlights, maxGathered, g.send
	return g
}

// run runs a script within callLimit, its wait for a pipeline included, as Tier.run does. It may still run after ctx has ended.
func (g *gatherer) run(ctx context.Context, s *script, keys []string, args ...any) *redis.Cmd {
	ctx, cancel := bounded(ctx)
	defer cancel()
	answer, err := g.g.Do(ctx, g.server(ctx, keys[0]), call{s, keys, args})
	if err != nil {
		answer = redis.NewCmd(ctx)
		answer.SetErr(err)
	}
	return answer
}

// server names the server that has a key, as far as that is known.
func (g *gatherer) server(ctx context.Context, key string) string {
	cluster, ok := g.tier.client.(*redis.ClusterClient)
	if !ok {
		return ""
	}
	master, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return "" // not known at the moment: the pipeline finds its way, or fails
	}
	return master.Options().Addr
}

// send sends calls together. Each answer has its own error.
func (g *gatherer) send(ctx context.Context, _ string, calls []call) ([]*redis.Cmd, error) {
	if len(calls) == 1 {
		return []*redis.Cmd{g.tier.run(ctx, calls[0].script, calls[0].keys, calls[0].args...)}, nil
	}
	answers, _ := g.tier.runAll(ctx, calls)
	return answers, nil
}
