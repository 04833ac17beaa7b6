package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/sqs"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
)

// The messages of the demo to each broker.
const (
	demoMessages = 10
	demoMisled   = 2 // go to a topic or queue that is not there, and become dead letters

	demoWord = "demo" // is the region and the key of a server that asks for none
	// demoClean bounds the removal of what the demo made at a broker.
	demoClean = 10 * time.Second
)

// demoBroker is a broker to which jobs of the demo send messages.
type demoBroker struct {
	kind string // of the targets
	// connection is what the API is told of it, place the member of a target that names a topic or a queue.
	connection map[string]any
	place      string
	// attempts is how many attempts it takes to give up a message to a place that is not there.
	attempts int
	// open makes a topic or a queue.
	open func(ctx context.Context, place string) (inbox, error)
}

// inbox is a topic or a queue, and receives what arrives there.
type inbox interface {
	// Receive passes the headers of each message on until ctx ends, Close removes the topic or queue.
	Receive(ctx context.Context, note func(headers map[string]string))
	Close(ctx context.Context) error
}

// demoBrokers are the brokers that the command names.
func (c *demoCmd) demoBrokers() (list []*demoBroker) {
	if c.Kafka != "" {
		list = append(list, &demoBroker{
			kind: job.TargetKafka, place: "topic", attempts: demoAttempts, // since a topic may be made later
			connection: map[string]any{"kafka": map[string]any{"brokers": []string{c.Kafka}}},
			open:       func(ctx context.Context, topic string) (inbox, error) { return kafka.OpenInbox(ctx, c.Kafka, topic) },
		})
	}
	if c.SQS != "" {
		account := messaging.SQS{Region: demoWord, Endpoint: c.SQS, KeyID: demoWord, SecretKey: demoWord}
		list = append(list, &demoBroker{
			kind: job.TargetSQS, place: "queue", attempts: 1,
			connection: map[string]any{"sqs": account},
			open:       func(ctx context.Context, queue string) (inbox, error) { return sqs.OpenInbox(ctx, &account, queue) },
		})
	}
	return list
}

// receive makes the topic, the queue and the connections to them, and notes what arrives there until stop is called, which removes them.
func (d *demo) receive(ctx context.Context) (stop func() error, err error) {
	running, end := context.WithCancel(ctx)
	var reading sync.WaitGroup
	var undo []func(ctx context.Context) error
	stop = func() (err error) {
		end()
		reading.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoClean)
		defer cancel()
		for _, f := range undo {
			err = errors.Join(err, f(ctx))
		}
		return err
	}
	for _, b := range d.brokers {
		from, err := b.open(ctx, d.name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", b.kind, err), stop())
		}
		undo = append(undo, from.Close)
		reading.Go(func() { from.Receive(running, d.sink.message) })
		path := "/connections/" + b.named(d.name)
		if _, err := d.do(ctx, http.MethodPut, path, b.connection, nil); err != nil {
			return nil, errors.Join(err, stop())
		}
		undo = append(undo, func(ctx context.Context) error {
			_, err := d.do(ctx, http.MethodDelete, path, nil, nil)
			return err
		})
	}
	return stop, nil
}

// named returns the name of the connection.
func (b *demoBroker) named(demo string) string { return demo + "-" + b.kind }

// target returns the target of the n-th message to a broker.
func (b *demoBroker) target(demo string, n int) map[string]any {
	place := demo
	if n < demoMisled {
		place += "-nowhere"
	}
	return map[string]any{"kind": b.kind, "connection": b.named(demo), b.place: place, "body": map[string]any{"n": n}}
}

// refused is how many attempts reach no topic and no queue.
func (d *demo) refused() (n int) {
	for _, b := range d.brokers {
		n += demoMisled * b.attempts
	}
	return n
}

// message remembers the attempt that a message is.
func (s *demoSink) message(headers map[string]string) {
	now := time.Now()
	due, err := time.Parse(time.RFC3339Nano, headers["Minutehand-Scheduled-For"])
	if err != nil {
		due = now
	}
	s.note(demoKey{headers["Minutehand-Execution-Id"], headers["Minutehand-Attempt"]}, due, now)
}
