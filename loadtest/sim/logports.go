package sim

import (
	"cmp"
	"context"
	"slices"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/wire"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
)

var (
	opPublishFires  = newOp("log", "Publish fires", WriteMany, often)
	opPublishEvents = newOp("log", "Publish events", WriteMany, often)
	opPublishDLQ    = newOp("log", "Publish dlq", Write, seldom)
	opEnd           = newOp("log", "End", Read, often)
	opCommitted     = newOp("log", "Committed", Read, often)
	opPoll          = newOp("log", "Poll", Poll, steadily)
	opCommit        = newOp("log", "Commit", Write, always)
)

func publishOp(topic string) *Op {
	switch topic {
	case dispatch.TopicFires:
		return opPublishFires
	case dispatch.TopicEvents:
		return opPublishEvents
	}
	return opPublishDLQ
}

type log struct{ *client }

func (c log) Publish(ctx context.Context, topic string, list []dispatch.Message) error {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	if topic == dispatch.TopicFires {
		c.p.w.publishes(c.p, list)
	}
	key := func(r dispatch.Message) string { return r.Key }
	return write(ctx, c.p, publishOp(topic), list, key, func(ctx context.Context, list []dispatch.Message) error {
		c.wrote(topic, list)
		return c.p.w.log.Publish(ctx, topic, list)
	})
}

// wrote notes what a worker writes about instants.
func (c log) wrote(topic string, list []dispatch.Message) {
	for _, r := range list {
		if f, err := wire.UnmarshalFire(r.Value); topic == dispatch.TopicFires && err == nil {
			c.p.w.did(c.p, writes, &f.Entry, f.NominalAt)
		}
		if e, err := wire.UnmarshalEvent(r.Value); topic == dispatch.TopicEvents && err == nil {
			at, _ := e.Place()
			c.p.w.did(c.p, writes, &e.Entry, at)
		}
	}
}

func (c log) Subscribe(_ context.Context, topic, group string) (dispatch.Consumer, error) {
	if err := c.p.ready(); err != nil {
		return nil, err
	}
	m := c.p.w.log.Member(topic, group)
	c.p.mu.Lock()
	c.p.consumers = append(c.p.consumers, m)
	c.p.mu.Unlock()
	return consumer{c.client, m, group}, nil
}

func (c log) End(ctx context.Context, topic string) (dispatch.Position, error) {
	return through(ctx, c.p, opEnd, topic, func(ctx context.Context) (dispatch.Position, error) { return c.p.w.log.End(ctx, topic) })
}

func (c log) Committed(ctx context.Context, topic, group string) (dispatch.Position, error) {
	return through(ctx, c.p, opCommitted, c.p.name+"/"+group, func(ctx context.Context) (dispatch.Position, error) {
		return c.p.w.log.Committed(ctx, topic, group)
	})
}

type consumer struct {
	*client
	*servers.Consumer
	group string
}

func (c consumer) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	if err := c.p.ready(); err != nil {
		return nil, err
	}
	if c.p.w.away("log") {
		c.p.waitFor(ctx, c.p.w.hanging("log"))
		return nil, errOutage
	}
	messages, err := c.Consumer.Poll(ctx, limit)
	if err != nil {
		return nil, cmp.Or(c.p.ready(), err)
	}
	// Decided only when there are records: how often a poll returns nothing depends on timing.
	key := c.p.name + "/" + c.group
	f := c.p.w.faults.At(c.p.kind, opPoll, key)
	if f.Kind != None {
		c.p.w.tell(c.p.name, key, "FAULT "+f.String())
	}
	switch f.Kind {
	case FailBefore, Redeliver:
		c.Redeliver()
		if f.Kind == FailBefore {
			return nil, errFault
		}
	case DieBefore, DieAfter:
		c.p.die(f.For)
	case StallBefore, StallAfter:
		c.p.w.delayed(c.p, f.For, true)
		c.p.stall(f.For)
	}
	return messages, c.p.ready()
}

func (c consumer) Commit(ctx context.Context, offsets map[int]int64) error {
	return do(ctx, c.p, opCommit, c.p.name+"/"+c.group, func(ctx context.Context) error { return c.Consumer.Commit(ctx, offsets) })
}

func (c consumer) Close() error {
	if err := c.p.ready(); err != nil {
		return nil //nolint:nilerr // nobody hears of the dead
	}
	return c.Consumer.Close()
}
