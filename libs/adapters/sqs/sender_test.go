//go:build servers

package sqs_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	driver "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/adapters/sqs"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/messaging/messagingtest"
)

// connection is the one to the server that infra/local started.
func connection(t *testing.T) *messaging.Connection {
	return &messaging.Connection{SQS: &messaging.SQS{
		Region: "elasticmq", Endpoint: "http://" + servertest.Address(t, "SQS"), KeyID: "x", SecretKey: "y",
	}}
}

// account returns what the suite sends to, with a queue of its own, which keeps messages in order if suffix says so.
func account(t *testing.T, suffix string) *messagingtest.Broker {
	t.Helper()
	c := connection(t)
	client := driver.New(driver.Options{
		Region: c.SQS.Region, BaseEndpoint: &c.SQS.Endpoint, Credentials: credentials.NewStaticCredentialsProvider("x", "y", ""),
	})
	name, attributes := servertest.Unique("q")+suffix, map[string]string{}
	if suffix != "" {
		attributes["FifoQueue"] = "true"
	}
	q, err := client.CreateQueue(t.Context(), &driver.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		t.Fatal(err)
	}
	return &messagingtest.Broker{
		Open:  func(dial messaging.Dial) (messaging.Sender, error) { return sqs.Senders(dial)(c) },
		Queue: name, Missing: "missing" + suffix,
		Receive: func(n int) (got []messagingtest.Received) {
			for deadline := time.Now().Add(30 * time.Second); len(got) < n && time.Now().Before(deadline); {
				out, err := client.ReceiveMessage(t.Context(), &driver.ReceiveMessageInput{
					QueueUrl: q.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
					MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
				})
				if err != nil {
					t.Fatal(err)
				}
				for i := range out.Messages {
					m := &out.Messages[i]
					r := messagingtest.Received{Group: m.Attributes["MessageGroupId"], Headers: map[string]string{}, Body: []byte(aws.ToString(m.Body))}
					for name := range m.MessageAttributes {
						r.Headers[name] = aws.ToString(m.MessageAttributes[name].StringValue)
					}
					if _, err := client.DeleteMessage(t.Context(), &driver.DeleteMessageInput{QueueUrl: q.QueueUrl, ReceiptHandle: m.ReceiptHandle}); err != nil {
						t.Fatal(err)
					}
					got = append(got, r)
				}
			}
			return got
		},
	}
}

func TestSenderConforms(t *testing.T) {
	for name, suffix := range map[string]string{"standard": "", "FIFO": ".fifo"} {
		t.Run(name, func(t *testing.T) {
			messagingtest.Run(t, func(t *testing.T) *messagingtest.Broker { return account(t, suffix) })
		})
	}
}

// A message that was sent and whose answer was lost is sent again under its id.
func TestFIFOQueueTakesAMessageOnce(t *testing.T) {
	b := account(t, ".fifo")
	s, err := b.Open(new(net.Dialer).DialContext)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, id := range []string{"a", "a", "b"} {
		if _, err := s.Send(t.Context(), &messaging.Message{Queue: b.Queue, Group: "g", ID: id, Body: []byte(`"` + id + `"`)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Receive(2); len(got) != 2 || string(got[0].Body) != `"a"` || string(got[1].Body) != `"b"` || got[0].Group != "g" {
		t.Errorf("%q", got)
	}
}

func TestMessageThatTheQueueDoesNotTakeIsRefusedForGood(t *testing.T) {
	b := account(t, "")
	s, err := b.Open(new(net.Dialer).DialContext)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	huge := []byte(`"` + strings.Repeat("x", 2<<20) + `"`)
	var r *messaging.Refusal
	if _, err = s.Send(t.Context(), &messaging.Message{Queue: b.Queue, ID: "a", Body: huge}); !errors.As(err, &r) || !r.Permanent {
		t.Errorf("%v", err)
	}
}
