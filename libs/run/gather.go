package run

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Gatherer makes few requests of calls that many goroutines make at the same time. A call that comes alone is sent at once; those that come
// while Flights requests of their kind are under way share the next ones. Calls of one kind do not wait for another's. K is what kinds
// are told apart by, Q what a call asks, A what is answered.
type Gatherer[K comparable, Q, A any] struct {
	// Send asks together, and returns the answers in the order of the calls, or what failed for all of them. Its context does not end with a
	// call's, so it has to bound its time itself.
	Send func(ctx context.Context, kind K, calls []Q) ([]A, error)
	// Flights bounds the requests of a kind that are under way, Most the calls of one request.
	Flights, Most int

	mu     sync.Mutex
	queues map[K]*queue[Q, A]
}

type queue[Q, A any] struct {
	waiting []*call[Q, A]
	flights int
}

type call[Q, A any] struct {
	ctx  context.Context //nolint:containedctx // it says whether anybody still waits for the answer
	asks Q
	done chan answer[A]
}

type answer[A any] struct {
	a   A
	err error
}

// Do asks, and returns the answer. If ctx ends before, the call is not made, unless its request is under way.
func (g *Gatherer[K, Q, A]) Do(ctx context.Context, kind K, asks Q) (a A, err error) {
	c := &call[Q, A]{ctx, asks, make(chan answer[A], 1)}
	g.mu.Lock()
	q := g.queues[kind]
	if q == nil {
		if g.queues == nil {
			g.queues = map[K]*queue[Q, A]{}
		}
		q = &queue[Q, A]{}
		g.queues[kind] = q
	}
	q.waiting = append(q.waiting, c)
	if q.flights < g.Flights {
		q.flights++
		go g.fly(kind, q)
	}
	g.mu.Unlock()
	select {
	case got := <-c.done:
		return got.a, got.err
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// fly sends what waits until nothing does.
func (g *Gatherer[K, Q, A]) fly(kind K, q *queue[Q, A]) {
	for {
		runtime.Gosched() // let goroutines that are about to call join this request
		g.mu.Lock()
		n := min(len(q.waiting), g.Most)
		if n == 0 {
			if q.flights--; q.flights == 0 {
				delete(g.queues, kind)
			}
			g.mu.Unlock()
			return
		}
		calls := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		g.mu.Unlock()
		g.send(kind, slices.DeleteFunc(calls, func(c *call[Q, A]) bool { return c.ctx.Err() != nil }))
	}
}

// send sends calls, and tells each what came of it.
func (g *Gatherer[K, Q, A]) send(kind K, calls []*call[Q, A]) {
	if len(calls) == 0 {
		return
	}
	asks := make([]Q, len(calls))
	for i, c := range calls {
		asks[i] = c.asks
	}
	answers, err := g.Send(context.Background(), kind, asks)
	if err == nil && len(answers) != len(calls) {
		err = fmt.Errorf("%d answers to %d calls", len(answers), len(calls))
	}
	for i, c := range calls {
		got := answer[A]{err: err}
		if err == nil {
			got.a = answers[i]
		}
		c.done <- got
	}
}
