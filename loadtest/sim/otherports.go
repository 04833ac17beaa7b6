package sim

import (
	"context"
	"net/http"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
)

var (
	opStartNumber = newOp("coord", "StartNumber", Write, seldom)
	opJoin        = newOp("coord", "Join", Read, seldom)
)

type coordinator struct{ *client }

func (c coordinator) StartNumber(ctx context.Context) (int64, error) {
	return through(ctx, c.p, opStartNumber, c.p.name, c.p.w.coord.StartNumber)
}

func (c coordinator) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	m, err := through(ctx, c.p, opJoin, c.p.name, func(context.Context) (*servers.Member, error) {
		m := c.p.w.coord.Member(role)
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		c.p.members = append(c.p.members, m) // also if the process dies before it hears of it: its session times out
		return m, nil
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		if c.p.ready() == nil {
			m.Leave() // others notice the dead when their session times out
		}
	})
	return m.Sets(), nil
}

var (
	opPutIfAbsent = newOp("archive", "PutIfAbsent", Write, 3*seldom)
	opOpen        = newOp("archive", "Open", Read, rarely)
)

type objects struct{ *client }

func (c objects) PutIfAbsent(ctx context.Context, name string, body []byte) error {
	return do(ctx, c.p, opPutIfAbsent, name, func(ctx context.Context) error { return c.p.w.archive.PutIfAbsent(ctx, name, body) })
}

func (c objects) Open(ctx context.Context, name string) (archive.Object, error) {
	return through(ctx, c.p, opOpen, name, func(ctx context.Context) (archive.Object, error) { return c.p.w.archive.Open(ctx, name) })
}

func (c objects) List(ctx context.Context, prefix string) ([]string, error) {
	return c.p.w.archive.List(ctx, prefix)
}

var opInvoke = newOp("target", "Invoke", Call, often)

type transport struct{ *client }

func (c transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.Header.Get("Webhook-Id") + "/" + r.Header.Get("Minutehand-Attempt")
	return through(r.Context(), c.p, opInvoke, key, func(context.Context) (*http.Response, error) {
		return c.p.w.invoke(c.p, r)
	})
}

var opNotify = newOp("target", "Notify", Call, seldom)

type owners struct{ *client }

func (c owners) RoundTrip(r *http.Request) (*http.Response, error) {
	return through(r.Context(), c.p, opNotify, r.Header.Get("Webhook-Id"), func(context.Context) (*http.Response, error) {
		return c.p.w.notified(c.p, r)
	})
}
