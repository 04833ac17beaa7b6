// Package messagingtest is the conformance suite of messaging.Sender.
package messagingtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/messaging"
)

// Received is a message as a consumer sees it.
type Received struct {
	// Group is the key or the group; "" where the queue keeps none.
	Group   string
	Headers map[string]string
	Body    []byte
}

// Broker is what a test sends to.
type Broker struct {
	// Open opens a sender that dials as it is told.
	Open func(dial messaging.Dial) (messaging.Sender, error)
	// Queue is the name of an empty queue, Missing one of which there is no queue.
	Queue, Missing string
	// Receive returns at least n messages of the queue, in any order.
	Receive func(n int) []Received
}

// Run runs the suite. open returns a broker with a queue of its own.
func Run(t *testing.T, open func(t *testing.T) *Broker) {
	for name, test := range map[string]func(t *testing.T, b *Broker){
		"a message arrives as it was sent":             arrives,
		"many at once arrive once each":                many,
		"a large message arrives":                      large,
		"a queue that is not there is a refusal":       missing,
		"a broker that hangs ends with the context":    hangs,
		"a broker that is away is an error in time":    away,
		"nothing is sent of a call that is over":       over,
		"a sender that is closed sends nothing":        closed,
		"a sender goes on when its broker comes again": again,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of them wait
			test(t, open(t))
		})
	}
}

// patience is more than any broker takes, brief less than a call may take.
const (
	patience = 30 * time.Second
	brief    = 2 * time.Second
)

func (b *Broker) sender(t *testing.T, dial messaging.Dial) messaging.Sender {
	t.Helper()
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	s, err := b.Open(dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (b *Broker) message(n int) *messaging.Message {
	return &messaging.Message{
		Queue: b.Queue, Group: "job_1", ID: fmt.Sprintf("exe_%d", n), Body: fmt.Appendf(nil, `{"n":%d}`, n),
		Headers: map[string]string{"Minutehand-Execution-Id": fmt.Sprintf("exe_%d", n), "customer": "ünïcode & <more>"},
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func send(t *testing.T, s messaging.Sender, m *messaging.Message) []byte {
	t.Helper()
	receipt, err := s.Send(within(t, patience), m)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func arrives(t *testing.T, b *Broker) {
	m := b.message(1)
	var receipt map[string]any
	if r := send(t, b.sender(t, nil), m); json.Unmarshal(r, &receipt) != nil || len(receipt) == 0 {
		t.Errorf("the receipt is %s", r)
	}
	got := b.Receive(1)
	if len(got) != 1 || !bytes.Equal(got[0].Body, m.Body) || !maps.Equal(got[0].Headers, m.Headers) || got[0].Group != "" && got[0].Group != m.Group {
		t.Errorf("%q", got)
	}
}

func many(t *testing.T, b *Broker) {
	const n = 200
	s := b.sender(t, nil)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := s.Send(within(t, patience), b.message(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, m := range b.Receive(n) {
		seen[string(m.Body)]++
		if id := fmt.Sprintf(`{"n":%s}`, m.Headers["Minutehand-Execution-Id"][len("exe_"):]); id != string(m.Body) {
			t.Errorf("%s has the headers of %s", m.Body, id)
		}
	}
	for i := range n {
		if body := fmt.Sprintf(`{"n":%d}`, i); seen[body] != 1 {
			t.Errorf("%s arrived %d times", body, seen[body])
		}
	}
}

func large(t *testing.T, b *Broker) {
	m := b.message(1)
	m.Body = fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), 250<<10))
	send(t, b.sender(t, nil), m)
	if got := b.Receive(1); len(got) != 1 || !bytes.Equal(got[0].Body, m.Body) {
		t.Error("it did not arrive")
	}
}

func missing(t *testing.T, b *Broker) {
	m, s := b.message(1), b.sender(t, nil)
	m.Queue = b.Missing
	_, err := s.Send(within(t, patience), m)
	var r *messaging.Refusal
	if !errors.As(err, &r) || r.Reason == "" {
		t.Errorf("%v", err)
	}
	send(t, s, b.message(2)) // the other queues are not harmed
}

func hangs(t *testing.T, b *Broker) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s := b.sender(t, func(ctx context.Context, network, _ string) (net.Conn, error) { // the system accepts, and nobody answers
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	})
	ctx := within(t, brief)
	var r *messaging.Refusal
	if _, err := s.Send(ctx, b.message(1)); err == nil || ctx.Err() == nil || errors.As(err, &r) {
		t.Errorf("%v", err)
	}
}

func away(t *testing.T, b *Broker) {
	refused := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	if _, err := b.sender(t, refused).Send(within(t, brief), b.message(1)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, want what the connection says", err)
	}
}

func over(t *testing.T, b *Broker) {
	s := b.sender(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Send(ctx, b.message(1)); err == nil {
		t.Error("it was sent")
	}
	send(t, s, b.message(2))
	if got := b.Receive(1); len(got) != 1 || string(got[0].Body) != `{"n":2}` {
		t.Errorf("%q", got)
	}
}

func closed(t *testing.T, b *Broker) {
	s := b.sender(t, nil)
	send(t, s, b.message(1))
	s.Close()
	if _, err := s.Send(within(t, patience), b.message(2)); err == nil {
		t.Error("it was sent")
	}
}

func again(t *testing.T, b *Broker) {
	var there atomic.Bool
	s := b.sender(t, func(ctx context.Context, network, address string) (net.Conn, error) {
		if !there.Load() {
			return nil, syscall.ECONNREFUSED
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	if _, err := s.Send(within(t, brief), b.message(1)); err == nil {
		t.Fatal("nobody is there")
	}
	there.Store(true)
	send(t, s, b.message(2))
	if got := b.Receive(1); len(got) != 1 || string(got[0].Body) != `{"n":2}` {
		t.Errorf("%q: what was given up is not sent later", got)
	}
}
