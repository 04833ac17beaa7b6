package kafka

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"golang.org/x/sync/semaphore"

	"github.com/minutehand/minutehand/libs/messaging"
)

const (
	// senderBuffered bounds the records of a sender that wait for their broker.
	senderBuffered = 4096
	// senderBytes bounds their bytes, senderBatch those of a batch: a broker's own limit by default.
	senderBytes, senderBatch = 32 << 20, 1 << 20
	// senderAnswer bounds the answers of brokers: the tenant chooses who answers.
	senderAnswer = 1 << 20
	// senderLinger is how long records to the same partition wait for one another.
	senderLinger = 2 * time.Millisecond
	// senderDial bounds the making of a connection, with TLS.
	senderDial = 10 * time.Second
	// senderRenew is the shortest time after which a client is replaced by another one.
	senderRenew = 5 * time.Second
	// maxIterations bounds how much work a broker may ask for that is to learn that a password is known.
	maxIterations = 100_000
)

// Senders returns what opens connections of tenants to clusters of theirs. All addresses, those that their brokers name too, are
// reached by dial.
func Senders(dial messaging.Dial) messaging.Open {
	return func(c *messaging.Connection) (messaging.Sender, error) { return newSender(c.Kafka, dial) }
}

// sender sends records to a cluster of a tenant's.
//
// The driver gives up all records of a partition when it gives up one: because its context ended, or because the broker refuses it for good.
// So whose record is given up without being the cause sends it again, and a refusal for good counts only if the record was alone.
type sender struct {
	opts []kgo.Opt
	// user is whether the connection has one.
	user bool
	// room has a place for each record that is on its way; a record that must be alone takes all.
	room *semaphore.Weighted
	// closing are the clients that were replaced.
	closing sync.WaitGroup

	mu        sync.Mutex
	client    *kgo.Client
	renewedAt time.Time
	closed    bool
	// last is why the latest connection failed; nil since one was made.
	last error
	// together are the records of each topic that the driver holds.
	together map[string]*generation
}

// generation is what the driver holds at a time of one topic: it looks at the context of the first record of a partition only, so all have the
// same.
type generation struct {
	ctx    context.Context //nolint:containedctx // the records' own
	cancel context.CancelFunc
	users  int
}

var _ messaging.Sender = (*sender)(nil)

func newSender(k *messaging.Kafka, dial messaging.Dial) (*sender, error) {
	s := &sender{user: k.Username != "", room: semaphore.NewWeighted(senderBuffered), together: map[string]*generation{}}
	var t *tls.Config
	if k.TLS {
		t = &tls.Config{MinVersion: tls.VersionTLS12}
		if k.CA != "" {
			if t.RootCAs = x509.NewCertPool(); !t.RootCAs.AppendCertsFromPEM([]byte(k.CA)) {
				return nil, errors.New("kafka: the connection's CA certificate is not PEM")
			}
		}
	}
	s.opts = []kgo.Opt{
		kgo.SeedBrokers(k.Brokers...), kgo.ClientID("minutehand"), kgo.Dialer(dialler(dial, t)), kgo.WithHooks(s), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(senderLinger), kgo.ProducerBatchMaxBytes(senderBatch), kgo.MaxBufferedRecords(senderBuffered), kgo.MaxBufferedBytes(senderBytes),
		kgo.BrokerMaxReadBytes(senderAnswer), kgo.FetchMaxBytes(senderAnswer),
		// Once a call is over nothing is sent for it any more. What is under way then may be there, and be sent again under the same execution id.
		kgo.AllowIdempotentProduceCancellation(),
	}
	switch {
	case k.Username == "":
	case k.Mechanism == messaging.MechanismPlain:
		s.opts = append(s.opts, kgo.SASL(plain.Auth{User: k.Username, Pass: k.Password}.AsMechanism()))
	case k.Mechanism == messaging.MechanismSHA256:
		s.opts = append(s.opts, kgo.SASL(bounded{scram.Auth{User: k.Username, Pass: k.Password}.AsSha256Mechanism()}))
	default:
		s.opts = append(s.opts, kgo.SASL(bounded{scram.Auth{User: k.Username, Pass: k.Password}.AsSha512Mechanism()}))
	}
	var err error
	if s.client, err = kgo.NewClient(s.opts...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return s, nil
}

// dialler returns a dial that speaks TLS with what is dialled, if t is not nil, and gives up after a while.
func dialler(dial messaging.Dial, t *tls.Config) messaging.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, senderDial)
		defer cancel()
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		raw, err := dial(ctx, network, address)
		if err != nil || t == nil {
			return raw, err
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

// bounded is a SCRAM mechanism that does only so much work for a broker.
type bounded struct{ sasl.Mechanism }

// Authenticate implements sasl.Mechanism.
func (b bounded) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	s, first, err := b.Mechanism.Authenticate(ctx, host)
	return boundedSession{s}, first, err
}

type boundedSession struct{ sasl.Session }

// Challenge implements sasl.Session. The server's first message names the iterations: RFC 5802, section 5.1.
func (s boundedSession) Challenge(message []byte) (bool, []byte, error) {
	for part := range bytes.SplitSeq(message, []byte(",")) {
		if n, found := bytes.CutPrefix(part, []byte("i=")); found {
			if i, err := strconv.Atoi(string(n)); err != nil || i > maxIterations {
				return false, nil, errIterations
			}
		}
	}
	return s.Session.Challenge(message)
}

var errIterations = fmt.Errorf("the broker asks for more than %d iterations of SCRAM", maxIterations)

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (s *sender) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// Send implements messaging.Sender. The receipt has the members partition and offset.
func (s *sender) Send(ctx context.Context, m *messaging.Message) ([]byte, error) {
	places := int64(1)
	for {
		r := &kgo.Record{Topic: m.Queue, Key: []byte(m.Group), Value: m.Body} // the driver may still hold the former one
		for name, value := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		slices.SortFunc(r.Headers, func(a, b kgo.RecordHeader) int { return strings.Compare(a.Key, b.Key) })
		if err := s.room.Acquire(ctx, places); err != nil {
			return nil, s.failure(ctx, err)
		}
		err := s.produce(ctx, r)
		s.room.Release(places)
		switch {
		case err == nil:
			return fmt.Appendf(nil, `{"partition":%d,"offset":%d}`, r.Partition, r.Offset), nil
		case ctx.Err() != nil:
			return nil, s.failure(ctx, err)
		case ofRecord(err) && places == 1:
			places = senderBuffered // perhaps another one was meant
		case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed) && !s.isClosed():
			// It was given up with another one.
		default:
			return nil, s.failure(ctx, err)
		}
	}
}

// produce waits for a record to be acknowledged. If the context ends before, the record and those that the driver holds with it are given up.
func (s *sender) produce(ctx context.Context, r *kgo.Record) error {
	client, g := s.enter(r.Topic)
	if client == nil {
		return kgo.ErrClientClosed
	}
	ended := make(chan error, 1)
	client.TryProduce(g.ctx, r, func(_ *kgo.Record, err error) { ended <- err })
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.leave(r.Topic, g, ctx.Err() != nil)
	if spoils(err) {
		s.renew(client)
	}
	return err
}

// enter returns the client, and the generation of a topic that its records join; nil once the sender is closed.
func (s *sender) enter(topic string) (*kgo.Client, *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	g := s.together[topic]
	if g == nil {
		g = &generation{}
		g.ctx, g.cancel = context.WithCancel(context.Background())
		s.together[topic] = g
	}
	g.users++
	return s.client, g
}

// leave leaves a generation; if the driver may still hold the record, it gives up all.
func (s *sender) leave(topic string, g *generation, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.users--; g.users > 0 && !held {
		return
	}
	g.cancel()
	if s.together[topic] == g {
		delete(s.together, topic)
	}
}

// ofRecord reports whether a broker refuses a record for what it is, and not for where it goes or who sends it.
func ofRecord(err error) bool {
	for _, of := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// spoils reports whether an error stays with the client that had it, although its cause may pass: the driver keeps that it got no producer id, and
// the id of a topic that was made again.
func spoils(err error) bool {
	var answered *kerr.Error
	return errors.As(err, &answered) && !answered.Retriable && !ofRecord(err) || errors.Is(err, kerr.UnknownTopicID)
}

// renew replaces the client that had an error which stays.
func (s *sender) renew(old *kgo.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.client != old || time.Since(s.renewedAt) < senderRenew {
		return
	}
	client, err := kgo.NewClient(s.opts...)
	if err != nil {
		return // it was possible before
	}
	s.client, s.renewedAt = client, time.Now()
	s.closing.Go(old.Close)
}

func (s *sender) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// failure says why a record was not sent. What ends with its context while no broker can be reached ended for that reason.
func (s *sender) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		s.mu.Lock()
		if err = ctx.Err(); s.last != nil {
			err = s.last
		}
		s.mu.Unlock()
	}
	var answered *kerr.Error
	switch {
	case errors.As(err, &answered):
		return ofBroker(answered)
	case errors.Is(err, errIterations):
		return &messaging.Refusal{Permanent: true, Reason: errIterations.Error()}
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
	case errors.Is(err, kerr.SaslAuthenticationFailed): // brokers learn of a new password one after the other
		r.Reason += ": the connection's user or password is wrong"
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		r.Permanent, r.Reason = true, r.Reason+": the connection's user must not write to the topic"
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		r.Permanent, r.Reason = true, r.Reason+": the topic does not take a message of this size"
	case ofRecord(err), errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.UnsupportedSaslMechanism):
		r.Permanent = true
	}
	return r
}

// Close implements messaging.Sender.
func (s *sender) Close() {
	s.mu.Lock()
	s.closed = true
	client := s.client
	s.mu.Unlock()
	client.Close()
	s.closing.Wait()
}
