package sqs

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/run"
)

// Inbox is a queue that somebody makes in order to see what jobs send there.
type Inbox struct {
	client *sqs.Client
	url    *string
}

const (
	// inboxWaits is how long a request waits for messages, in seconds, inboxPause how long a server that does not answer is left alone.
	inboxWaits = 1
	inboxPause = time.Second
)

// OpenInbox makes a standard queue.
func OpenInbox(ctx context.Context, c *messaging.SQS, queue string) (*Inbox, error) {
	client := sqs.New(sqs.Options{
		Region: c.Region, BaseEndpoint: aws.String(c.Endpoint), Credentials: credentials.NewStaticCredentialsProvider(c.KeyID, c.SecretKey, ""),
	})
	made, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &queue})
	if err != nil {
		return nil, err
	}
	return &Inbox{client, made.QueueUrl}, nil
}

// Receive passes the attributes of each message on until ctx ends.
func (i *Inbox) Receive(ctx context.Context, note func(headers map[string]string)) {
	for ctx.Err() == nil {
		got, err := i.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: i.url, MaxNumberOfMessages: atOnce, WaitTimeSeconds: inboxWaits, MessageAttributeNames: []string{"All"},
		})
		if err != nil {
			_ = run.Sleep(ctx, inboxPause)
			continue
		}
		for n := range got.Messages {
			m := &got.Messages[n]
			if _, err := i.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: i.url, ReceiptHandle: m.ReceiptHandle}); err != nil {
				continue // it comes again
			}
			headers := make(map[string]string, len(m.MessageAttributes))
			for name := range m.MessageAttributes {
				headers[name] = aws.ToString(m.MessageAttributes[name].StringValue)
			}
			note(headers)
		}
	}
}

// Close removes the queue.
func (i *Inbox) Close(ctx context.Context) error {
	_, err := i.client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: i.url})
	return err
}
