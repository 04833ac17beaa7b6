//go:build servers

package kafka_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/dispatch/dispatchtest"
)

var logs atomic.Int64

func broker(t *testing.T) string {
	t.Helper()
	port := os.Getenv("KAFKA_PORT")
	if port == "" {
		t.Fatal("KAFKA_PORT is not set; run make test-servers")
	}
	return "127.0.0.1:" + port
}

// open makes a log with topics of its own on the server that infra/local started.
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
		err = l.EnsureTopics(t.Context()) // those that are there stay
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

func TestConsumerOfATopicThatIsCreatedAnewIsToldAndTheNextOneMissesNothing(t *testing.T) {
	l, prefix := open(t)
	publish := func(value string) {
		t.Helper()
		r := []dispatch.Record{{Key: "k", Value: []byte(value)}}
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
	for i := range 8 { // more than were committed of the old one
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
