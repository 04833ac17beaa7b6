package redis

import (
	"context"
	"runtime"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFlights bounds the pipelines that are under way to one server at a time. What is asked meanwhile shares the next one.
	maxFlights = 2
	// maxGathered bounds the calls of one pipeline.
	maxGathered = 128
)

// gatherer runs a script that many goroutines ask for at the same time in few pipelines. A call that comes alone is sent at once. Those
// of one server of a cluster do not wait for another's.
type gatherer struct {
	tier   *Tier
	script *script
	mu     sync.Mutex
	queues map[string]*queue
}

// queue is what waits for one server: at most one call for each attempt that its executor runs at a time.
type queue struct {
	waiting []*call
	flights int
}

// call is what the script is to be run on, and its answer.
type call struct {
	keys []string
	args []any
	done chan *redis.Cmd
}

func newGatherer(t *Tier, s *script) *gatherer {
	return &gatherer{tier: t, script: s, queues: map[string]*queue{}}
}

// run runs the script, as Tier.run does. It may still run after ctx has ended.
func (g *gatherer) run(ctx context.Context, keys []string, args ...any) *redis.Cmd {
	c := &call{keys, args, make(chan *redis.Cmd, 1)}
	server := g.server(ctx, keys[0])
	g.mu.Lock()
	q := g.queues[server]
	if q == nil {
		q = &queue{}
		g.queues[server] = q
	}
	q.waiting = append(q.waiting, c)
	if q.flights < maxFlights {
		q.flights++
		go g.fly(server, q)
	}
	g.mu.Unlock()
	select {
	case answer := <-c.done:
		return answer
	case <-ctx.Done():
		failed := redis.NewCmd(ctx)
		failed.SetErr(ctx.Err())
		return failed
	}
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

// fly sends what waits until nothing does.
func (g *gatherer) fly(server string, q *queue) {
	for {
		runtime.Gosched() // let goroutines that are about to call join this pipeline
		g.mu.Lock()
		n := min(len(q.waiting), maxGathered)
		if n == 0 {
			if q.flights--; q.flights == 0 {
				delete(g.queues, server)
			}
			g.mu.Unlock()
			return
		}
		calls := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		g.mu.Unlock()
		g.send(calls)
	}
}

// send sends calls together.
func (g *gatherer) send(calls []*call) {
	ctx := context.Background() // each caller ends its own wait, and callLimit bounds a pipeline
	if len(calls) == 1 {
		calls[0].done <- g.tier.run(ctx, g.script, calls[0].keys, calls[0].args...)
		return
	}
	keys, args := make([][]string, len(calls)), make([][]any, len(calls))
	for i, c := range calls {
		keys[i], args[i] = c.keys, c.args
	}
	answers, _ := g.tier.runAll(ctx, g.script, keys, args) // each answer has its own error
	for i, c := range calls {
		c.done <- answers[i]
	}
}
