// Package messengers names what opens the connections of tenants, for each kind of target.
package messengers

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/sqs"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
)

// All returns all kinds. Every address is reached by dial, over at most so many connections at a time: a cluster names its brokers itself.
func All(dial messaging.Dial, most int) map[string]messaging.Open {
	dial = AtMost(dial, most)
	return map[string]messaging.Open{job.TargetKafka: kafka.Senders(dial), job.TargetSQS: sqs.Senders(dial)}
}

// Share returns how many of the connections that a process may have for its calls are for brokers, and how many are left.
func Share(calls int) (brokers, left int) { return calls / 8, calls - calls/8 }

// ErrTooMany means that no further connection may be made.
var ErrTooMany = errors.New("as many connections to brokers are open as may be")

// AtMost returns a dial that fails with [ErrTooMany] while so many of its connections are open.
func AtMost(dial messaging.Dial, most int) messaging.Dial {
	var open atomic.Int64
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if open.Add(1) > int64(most) {
			open.Add(-1)
			return nil, ErrTooMany
		}
		c, err := dial(ctx, network, address)
		if err != nil {
			open.Add(-1)
			return nil, err
		}
		return &counted{Conn: c, closed: sync.OnceFunc(func() { open.Add(-1) })}, nil
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}
