package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/minutehand/minutehand/libs/messaging"
)

const (
	// senderBuffered bounds the records of a sender that wait for their broker, senderBytes their bytes.
	senderBuffered = 4096
	senderBytes    = 32 << 20
	// senderBatch bounds a batch of records: a broker's own limit by default.
	senderBatch = 1 << 20
	// senderLinger is how long records to the same partition wait for one another.
	senderLinger = 2 * time.Millisecond
)

// Senders returns what opens connections of tenants to clusters of theirs. All addresses, those that their brokers name too, are
// reached by dial.
func Senders(dial messaging.Dial) messaging.Open {
	return func(c *messaging.Connection) (messaging.Sender, error) { return newSender(c.Kafka, dial) }
}

// sender sends records to a cluster of a tenant's.
type sender struct {
	client *kgo.Client
	// user is whether the connection has one.
	user bool

	mu sync.Mutex
	// last is why the latest connection failed; nil since one was made.
	last error
}

var _ messaging.Sender = (*sender)(nil)

func newSender(k *messaging.Kafka, dial messaging.Dial) (*sender, error) {
	s := &sender{user: k.Username != ""}
	if k.TLS {
		t := &tls.Config{MinVersion: tls.VersionTLS12}
		if k.CA != "" {
			if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM([]byte(k.CA)) {
				return nil, errors.New("kafka: the connection's CA certificate is not PEM")
			}
		}
		dial = encrypted(dial, t)
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.Brokers...), kgo.ClientID("minutehand"), kgo.Dialer(dial), kgo.WithHooks(s), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(senderLinger), kgo.ProducerBatchMaxBytes(senderBatch), kgo.MaxBufferedRecords(senderBuffered), kgo.MaxBufferedBytes(senderBytes),
		// A call that is over sends nothing any more. What was sent already may be there twice, under the same execution id.
		kgo.AllowIdempotentProduceCancellation(),
	}
	switch {
	case k.Username == "":
	case k.Mechanism == messaging.MechanismPlain:
		opts = append(opts, kgo.SASL(plain.Auth{User: k.Username, Pass: k.Password}.AsMechanism()))
	case k.Mechanism == messaging.MechanismSHA256:
		opts = append(opts, kgo.SASL(scram.Auth{User: k.Username, Pass: k.Password}.AsSha256Mechanism()))
	default:
		opts = append(opts, kgo.SASL(scram.Auth{User: k.Username, Pass: k.Password}.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.client = client
	return s, nil
}

// encrypted returns a dial that speaks TLS with what is dialled.
func encrypted(dial messaging.Dial, t *tls.Config) messaging.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		of := t.Clone()
		of.ServerName = host
		c := tls.Client(raw, of)
		if err := c.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		return c, nil
	}
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (s *sender) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// Send implements messaging.Sender. The receipt has the members partition and offset.
func (s *sender) Send(ctx context.Context, m *messaging.Message) ([]byte, error) {
	r := &kgo.Record{Topic: m.Queue, Key: []byte(m.Group), Value: m.Body}
	for name, value := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	slices.SortFunc(r.Headers, func(a, b kgo.RecordHeader) int { return strings.Compare(a.Key, b.Key) })
	for {
		err := s.produce(ctx, r)
		if err == nil {
			return fmt.Appendf(nil, `{"partition":%d,"offset":%d}`, r.Partition, r.Offset), nil
		}
		// A record that is given up takes those behind it in its partition with it.
		if ours := ctx.Err() != nil; ours || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return nil, s.failure(ctx, err)
		}
		again := *r
		again.Partition, again.Offset = 0, 0
		r = &again // the driver may still hold the former
	}
}

// produce waits for a record to be acknowledged, but no longer than the context: the driver may not be able to give it up at once.
func (s *sender) produce(ctx context.Context, r *kgo.Record) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ended := make(chan error, 1)
	s.client.TryProduce(ctx, r, func(_ *kgo.Record, err error) { ended <- err })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failure says why a record was not sent. What ends with its context while no broker can be reached ended for that reason.
func (s *sender) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err = ctx.Err(); s.last != nil {
			err = s.last
		}
	}
	var answered *kerr.Error
	switch {
	case errors.As(err, &answered):
		return ofBroker(answered)
	case s.user && errors.Is(err, io.EOF):
		return &messaging.Refusal{Reason: "a broker ended a connection while it was made: perhaps the connection's user or password is wrong"}
	case errors.Is(err, kgo.ErrMaxBuffered):
		return &messaging.Refusal{Reason: "too many records wait for the cluster"}
	}
	return err
}

// ofBroker says what a broker's error means: its text is Kafka's own, and repeats nothing of the request.
func ofBroker(err *kerr.Error) error {
	r := &messaging.Refusal{Reason: "the broker answered " + err.Message}
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		r.Reason += ": there is no such topic, or it is only just being made"
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		r.Permanent, r.Reason = true, r.Reason+": the connection's user or password is wrong"
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		r.Permanent, r.Reason = true, r.Reason+": the connection's user must not write to the topic"
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		r.Permanent, r.Reason = true, r.Reason+": the topic does not take a message of this size"
	case errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.PolicyViolation),
		errors.Is(err, kerr.UnsupportedSaslMechanism):
		r.Permanent = true
	}
	return r
}

// Close implements messaging.Sender.
func (s *sender) Close() { s.client.Close() }
