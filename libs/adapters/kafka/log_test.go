//go:build servers

package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/dispatch/dispatchtest"
)

var logs atomic.Int64

func broker(t *testing.T) string { return servertest.Address(t, "KAFKA") }

// open returns a log with topics of its own on the server that infra/local started.
func open(t *testing.T) (*kafka.Log, string) {
	t.Helper()
	prefix := fmt.Sprintf("test-%d-%d.", time.Now().UnixNano(), logs.Add(1))
	l, err := kafka.Open(kafka.Options{
		Brokers: []string{broker(t)}, Prefix: prefix, Partitions: 3, Replication: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		t.Cleanup(l.Close)
		err = l.EnsureTopics(t.Context())
	}
	if err == nil {
		err = l.EnsureTopics(t.Context()) // existing topics stay
	}
	if err != nil {
		t.Fatal(err)
	}
	return l, prefix
}

func TestConformance(t *testing.T) {
	dispatchtest.Run(t, func(t *testing.T) dispatch.Log {
		l, _ := open(t)
		return l
	})
}

// A topic exists once the controller has it; a broker that is asked a moment later may not have read of it.
func TestSubscriptionWaitsForATopicThatTheBrokerHasNotHeardOf(t *testing.T) {
	asked := make(chan struct{}, 1)
	l, err := kafka.Open(kafka.Options{
		Brokers: []string{broker(t)}, Prefix: fmt.Sprintf("test-%d-late.", time.Now().UnixNano()), Partitions: 1, Replication: 1,
		Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	subscribed := make(chan error, 1)
	go func() {
		_, err := l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		subscribed <- err
	}()
	<-asked
	if err := l.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-subscribed; err != nil {
		t.Error(err)
	}
}

// endsWhenAsked is a context that ends right after it has said that it has not ended.
type endsWhenAsked struct {
	context.Context
	end func()
}

func (c endsWhenAsked) Err() error {
	defer c.end()
	return c.Context.Err()
}

func TestWhatAPollFetchedAtItsDeadlineComesWithTheNext(t *testing.T) {
	l, _ := open(t)
	const n = 20
	records := make([]dispatch.Message, n)
	for i := range records {
		records[i] = dispatch.Message{Key: "k", Value: []byte(fmt.Sprint(i))}
	}
	if err := l.Publish(t.Context(), dispatch.TopicEvents, records); err != nil {
		t.Fatal(err)
	}
	c, err := l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupArchive)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(6 * time.Second) // until the client asks for the topic's id again instead of remembering it
	var got []string
	for deadline := time.Now().Add(30 * time.Second); len(got) < n && time.Now().Before(deadline); {
		ctx, end := context.WithCancel(t.Context())
		messages, err := c.Poll(endsWhenAsked{ctx, end}, 7)
		end()
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		for _, m := range messages {
			got = append(got, string(m.Value))
		}
	}
	for i := range n {
		if i >= len(got) || got[i] != fmt.Sprint(i) {
			t.Fatalf("of %d records came %v", n, got)
		}
	}
}

func TestConsumerOfATopicThatIsCreatedAnewIsToldAndTheNextOneMissesNothing(t *testing.T) {
	l, prefix := open(t)
	publish := func(value string) {
		t.Helper()
		r := []dispatch.Message{{Key: "k", Value: []byte(value)}}
		err := l.Publish(t.Context(), dispatch.TopicEvents, r)
		for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); {
			err = l.Publish(t.Context(), dispatch.TopicEvents, r) // as the services do
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	poll := func(c dispatch.Consumer) (values []string, err error) {
		messages, err := c.Poll(t.Context(), 100)
		for _, m := range messages {
			values = append(values, string(m.Value))
			if err := c.Commit(t.Context(), map[int]int64{m.Partition: m.Offset + 1}); err != nil {
				t.Fatal(err)
			}
		}
		return values, err
	}
	for i := range 5 {
		publish(fmt.Sprint("old ", i))
	}
	c, err := l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 5; {
		values, err := poll(c)
		if err != nil {
			t.Fatal(err)
		}
		n += len(values)
	}

	client, err := kgo.NewClient(kgo.SeedBrokers(broker(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteTopics(t.Context(), prefix+dispatch.TopicEvents); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := l.EnsureTopics(t.Context())
		if end, errEnd := l.End(t.Context(), dispatch.TopicEvents); err == nil && errEnd == nil && end.LogID != c.LogID() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the topic was not created anew: ", err)
		}
	}
	for i := range 8 { // more than were committed for the old one
		publish(fmt.Sprint("new ", i))
	}
	for {
		values, err := poll(c)
		if errors.Is(err, dispatch.ErrRecreated) {
			break
		}
		if err != nil || len(values) > 0 {
			t.Fatalf("the old consumer got %q, %v", values, err)
		}
	}
	next, err := dispatch.Rejoin(t.Context(), l, dispatch.TopicEvents, dispatch.GroupSettle, c)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for len(all) < 8 {
		values, err := poll(next)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, values...)
	}
	if all[0] != "new 0" || len(all) != 8 {
		t.Errorf("the next consumer got %q", all)
	}
}

// TestGroupPassesRecordsThatAreGone: a group does not wait for records that expired before it consumed them.
func TestGroupPassesRecordsThatAreGone(t *testing.T) {
	l, prefix := open(t)
	for i := range 20 {
		if err := l.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: fmt.Sprint(i), Value: []byte("v")}}); err != nil {
			t.Fatal(err)
		}
	}
	end, err := l.End(t.Context(), dispatch.TopicEvents)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := l.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle); err != nil || p.Passed(end) {
		t.Fatalf("the group stands at %v, %v", p, err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var gone kadm.Offsets
	for p, offset := range end.Offsets {
		gone.AddOffset(prefix+dispatch.TopicEvents, int32(p), offset, -1)
	}
	deleted, err := kadm.NewClient(client).DeleteRecords(t.Context(), gone)
	if err := errors.Join(err, deleted.Error()); err != nil {
		t.Fatal(err)
	}
	if p, err := l.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle); err != nil || !p.Passed(end) {
		t.Errorf("the group stands at %v, the log begins at %v, %v", p, end, err)
	}
}

func TestRecordsThatWerePublishedOverABadNetworkAreThere(t *testing.T) {
	calm, prefix := open(t)
	var published int
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, broker(t))
		l, err := kafka.Open(kafka.Options{
			Brokers: []string{p.Address()}, Dial: p.Dial, Prefix: prefix, Partitions: 3, Replication: 1, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		const limit = 45 * time.Second // a record that no broker takes fails after 30 s
		published = servertest.UnderFaults(t, p, limit, func(ctx context.Context, i int) error {
			return l.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: fmt.Sprint(i), Value: []byte(fmt.Sprint(i))}})
		})
	})
	c, err := calm.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); len(seen) < published; {
		messages, err := c.Poll(t.Context(), 1000)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of %d records are there (%v)", len(seen), published, err)
		}
		for _, m := range messages {
			seen[string(m.Value)] = true
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A consumer that is cut off reconnects by itself and misses nothing.
func TestConsumerOverABadNetworkMissesNothing(t *testing.T) {
	calm, prefix := open(t)
	p := servertest.NewProxy(t, broker(t))
	l, err := kafka.Open(kafka.Options{
		Brokers: []string{p.Address()}, Dial: p.Dial, Prefix: prefix, Partitions: 3, Replication: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var c dispatch.Consumer
	for deadline := time.Now().Add(30 * time.Second); c == nil; {
		if c, err = l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	var polling sync.WaitGroup
	polling.Go(func() {
		for ctx.Err() == nil {
			messages, err := c.Poll(ctx, 1000)
			mu.Lock()
			ends := map[int]int64{}
			for _, m := range messages {
				seen[string(m.Value)], ends[m.Partition] = true, m.Offset+1
			}
			mu.Unlock()
			if err == nil {
				_ = c.Commit(ctx, ends) // over a bad network
			}
		}
	})
	const records = 200
	for i := range records {
		if err := calm.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: fmt.Sprint(i), Value: []byte(fmt.Sprint(i))}}); err != nil {
			t.Fatal(err)
		}
		if i%20 == 10 {
			p.Cut()
		}
		if i == records/2 {
			p.Silence(8 * time.Second)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		mu.Lock()
		n := len(seen)
		mu.Unlock()
		if n == records {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d records were read", n, records)
		}
	}
	stop()
	polling.Wait()
	_ = c.Close()
}
