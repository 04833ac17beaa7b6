package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/messaging/messagingtest"
)

// cluster returns what the suite sends to on a cluster, with a topic of its own.
func cluster(t *testing.T, brokers []string, topic string) *messagingtest.Broker {
	t.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	if _, err := kadm.NewClient(reader).CreateTopic(t.Context(), 3, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	return &messagingtest.Broker{
		Open: func(dial messaging.Dial) (messaging.Sender, error) {
			return kafka.Senders(dial)(&messaging.Connection{Kafka: &messaging.Kafka{Brokers: brokers}})
		},
		Queue: topic, Missing: topic + ".missing",
		Receive: func(n int) (got []messagingtest.Received) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for len(got) < n && ctx.Err() == nil {
				reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
					m := messagingtest.Received{Group: string(r.Key), Headers: map[string]string{}, Body: r.Value}
					for _, h := range r.Headers {
						m.Headers[h.Key] = string(h.Value)
					}
					got = append(got, m)
				})
			}
			return got
		},
	}
}

func TestSenderConformsOnAFake(t *testing.T) {
	messagingtest.Run(t, func(t *testing.T) *messagingtest.Broker {
		fake, err := kfake.NewCluster(kfake.NumBrokers(2))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fake.Close)
		return cluster(t, fake.ListenAddrs(), "t")
	})
}

// send sends a message over a connection, for at most two seconds.
func send(t *testing.T, k *messaging.Kafka, dial messaging.Dial) error {
	t.Helper()
	s, err := kafka.Senders(dial)(&messaging.Connection{Kafka: k})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = s.Send(ctx, &messaging.Message{Queue: "t", Body: []byte("{}")})
	return err
}

func TestSenderAuthenticatesOverTLS(t *testing.T) {
	a, err := certificatestest.New(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue("kafka", "")
	if err != nil {
		t.Fatal(err)
	}
	own, err := certificates.Server(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, mechanism := range []string{messaging.MechanismPlain, messaging.MechanismSHA256, messaging.MechanismSHA512} {
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(own), kfake.EnableSASL(), kfake.Superuser(mechanism, "minutehand", "right"), kfake.SeedTopics(1, "t"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fake.Close)
		dial := new(net.Dialer).DialContext
		k := messaging.Kafka{Brokers: fake.ListenAddrs(), TLS: true, CA: string(ca), Username: "minutehand", Password: "right", Mechanism: mechanism}
		if err := send(t, &k, dial); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		wrong := k
		wrong.Password = "hunter2"
		var r *messaging.Refusal
		if err := send(t, &wrong, dial); !errors.As(err, &r) || !strings.Contains(r.Reason, "password") || strings.Contains(r.Reason, "hunter2") {
			t.Errorf("%s with another password: %v", mechanism, err)
		}
		stranger := k
		stranger.CA = ""
		var certificate *tls.CertificateVerificationError
		if err := send(t, &stranger, dial); !errors.As(err, &certificate) {
			t.Errorf("%s of an authority that is not known: %v", mechanism, err)
		}
	}
}

// Brokers name one another, and any of them may be inside.
func TestSenderDialsNoBrokerBehindTheGuard(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	guard := egress.Dialer(false)
	if err := send(t, &messaging.Kafka{Brokers: fake.ListenAddrs()}, guard.DialContext); !egress.Refused(err) {
		t.Errorf("to begin with: %v", err)
	}
	public := func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "broker.example.com:") {
			return new(net.Dialer).DialContext(ctx, network, fake.ListenAddrs()[0])
		}
		return guard.DialContext(ctx, network, address)
	}
	if err := send(t, &messaging.Kafka{Brokers: []string{"broker.example.com:9092"}}, public); !egress.Refused(err) {
		t.Errorf("as a broker named it: %v", err)
	}
}
