package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Inbox is a topic that somebody makes in order to see what jobs send there.
type Inbox struct {
	client *kgo.Client
	topic  string
}

// inboxPartitions is the partition count of an inbox.
const inboxPartitions = 3

// OpenInbox makes a topic, which must not exist.
func OpenInbox(ctx context.Context, broker, topic string) (*Inbox, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	if _, err := kadm.NewClient(client).CreateTopic(ctx, inboxPartitions, 1, nil, topic); err != nil {
		client.Close()
		return nil, err
	}
	return &Inbox{client, topic}, nil
}

// Receive passes the headers of each record on until ctx ends.
func (i *Inbox) Receive(ctx context.Context, note func(headers map[string]string)) {
	for ctx.Err() == nil {
		i.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			headers := make(map[string]string, len(r.Headers))
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			note(headers)
		})
	}
}

// Close removes the topic.
func (i *Inbox) Close(ctx context.Context) error {
	defer i.client.Close()
	_, err := kadm.NewClient(i.client).DeleteTopic(ctx, i.topic)
	return err
}
