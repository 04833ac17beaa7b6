package kafka_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	t.Parallel()
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

// certified returns what a broker shows, and the authority that issued it, as PEM.
func certified(t *testing.T) (own *tls.Config, ca string) {
	t.Helper()
	a, err := certificatestest.New(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.Issue("kafka", "")
	if err != nil {
		t.Fatal(err)
	}
	own, err = certificates.Server(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(a.File)
	if err != nil {
		t.Fatal(err)
	}
	return own, string(text)
}

func TestSenderAuthenticatesOverTLS(t *testing.T) {
	t.Parallel()
	own, ca := certified(t)
	for _, mechanism := range []string{messaging.MechanismPlain, messaging.MechanismSHA256, messaging.MechanismSHA512} {
		fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(own), kfake.EnableSASL(), kfake.Superuser(mechanism, "minutehand", "right"), kfake.SeedTopics(1, "t"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fake.Close)
		dial := new(net.Dialer).DialContext
		k := messaging.Kafka{Brokers: fake.ListenAddrs(), TLS: true, CA: ca, Username: "minutehand", Password: "right", Mechanism: mechanism}
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

// one returns a cluster of one broker with the topic t, of one partition.
func one(t *testing.T) *kfake.Cluster {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake
}

// over returns a sender to a cluster.
func over(t *testing.T, fake *kfake.Cluster, dial messaging.Dial) messaging.Sender {
	t.Helper()
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	s, err := kafka.Senders(dial)(&messaging.Connection{Kafka: &messaging.Kafka{Brokers: fake.ListenAddrs()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func ofBody(body string) *messaging.Message {
	return &messaging.Message{Queue: "t", Group: "g", Body: []byte(body)}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// bodies returns those of all records on the topic t.
func bodies(t *testing.T, fake *kfake.Cluster, atLeast int) (list []string) {
	t.Helper()
	reader, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for ctx := within(t, 30*time.Second); len(list) < atLeast && ctx.Err() == nil; {
		reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) { list = append(list, string(r.Value[:min(len(r.Value), 10)])) })
	}
	return list
}

// The driver gives up all records of a partition with the one that the broker refuses.
func TestRecordThatIsTooLargeHarmsNoOther(t *testing.T) {
	t.Parallel()
	fake := one(t)
	s := over(t, fake, nil)
	if _, err := s.Send(within(t, 10*time.Second), ofBody("first")); err != nil {
		t.Fatal(err)
	}
	fake.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		p := r.(*kmsg.ProduceRequest)
		if len(p.Topics[0].Partitions[0].Records) <= 8<<10 {
			return nil, nil, false
		}
		refusal := p.ResponseKind().(*kmsg.ProduceResponse)
		topic, partition := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
		topic.Topic, topic.TopicID = p.Topics[0].Topic, p.Topics[0].TopicID
		partition.Partition, partition.ErrorCode = p.Topics[0].Partitions[0].Partition, kerr.MessageTooLarge.Code
		topic.Partitions = append(topic.Partitions, partition)
		refusal.Topics = append(refusal.Topics, topic)
		return refusal, nil, true
	})
	large := make([]byte, 100<<10)
	for i := range large {
		large[i] = byte(i * 7919 >> 3) // it does not become smaller
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.Send(within(t, 20*time.Second), ofBody("small")); err != nil {
				t.Error(err)
			}
		})
	}
	var r *messaging.Refusal
	if _, err := s.Send(within(t, 20*time.Second), ofBody(string(large))); !errors.As(err, &r) || !r.Permanent {
		t.Errorf("the large one: %v", err)
	}
	wg.Wait()
	if got := bodies(t, fake, 5); len(got) != 5 {
		t.Errorf("%q", got)
	}
}

// The driver looks at the context of the first record of a partition only.
func TestNothingIsSentOfACallThatIsOverBehindAnother(t *testing.T) {
	t.Parallel()
	fake := one(t)
	var off atomic.Bool
	var mu sync.Mutex
	var conns []net.Conn
	s := over(t, fake, func(ctx context.Context, network, address string) (net.Conn, error) {
		if off.Load() {
			return nil, syscall.ECONNREFUSED
		}
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c, err
	})
	if _, err := s.Send(within(t, 10*time.Second), ofBody("first")); err != nil {
		t.Fatal(err)
	}
	off.Store(true)
	mu.Lock()
	for _, c := range conns {
		_ = c.Close()
	}
	mu.Unlock()
	var others sync.WaitGroup
	for _, body := range []string{"before", "between"} {
		others.Go(func() {
			if _, err := s.Send(within(t, 30*time.Second), ofBody(body)); err != nil {
				t.Errorf("%s: %v", body, err)
			}
		})
	}
	over, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(time.Second, cancel)
	defer stop.Stop()
	if _, err := s.Send(over, ofBody("over")); err == nil {
		t.Error("it was sent")
	}
	off.Store(false)
	others.Wait()
	if _, err := s.Send(within(t, 10*time.Second), ofBody("last")); err != nil {
		t.Fatal(err)
	}
	if got := bodies(t, fake, 4); len(got) != 4 || slices.Contains(got, "over") {
		t.Errorf("%q", got)
	}
}

// What stays with a client of the driver does not stay with the connection.
func TestSenderRecoversFromWhatItsClientKeeps(t *testing.T) {
	t.Parallel()
	t.Run("it got no producer id", func(t *testing.T) {
		fake := one(t)
		var asked atomic.Int32
		fake.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
			fake.KeepControl()
			if asked.Add(1) > 1 {
				return nil, nil, false
			}
			refusal := r.ResponseKind().(*kmsg.InitProducerIDResponse)
			refusal.ErrorCode = kerr.ClusterAuthorizationFailed.Code
			return refusal, nil, true
		})
		s := over(t, fake, nil)
		var r *messaging.Refusal
		if _, err := s.Send(within(t, 10*time.Second), ofBody("x")); !errors.As(err, &r) {
			t.Errorf("%v", err)
		}
		if _, err := s.Send(within(t, 10*time.Second), ofBody("x")); err != nil {
			t.Errorf("once it may: %v", err)
		}
	})
	t.Run("the topic is another one", func(t *testing.T) {
		fake := one(t)
		s := over(t, fake, nil)
		if _, err := s.Send(within(t, 10*time.Second), ofBody("x")); err != nil {
			t.Fatal(err)
		}
		client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		admin := kadm.NewClient(client)
		if _, err := admin.DeleteTopics(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil {
			t.Fatal(err)
		}
		var failed error
		for range 5 { // it may take the driver a few tries to see it
			if _, failed = s.Send(within(t, 10*time.Second), ofBody("y")); failed == nil {
				break
			}
		}
		if failed != nil {
			t.Error(failed)
		}
	})
}

// The driver waits for as long as it takes.
func TestBrokerThatIsSilentIsPassedOver(t *testing.T) {
	t.Parallel()
	own, ca := certified(t)
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(own), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is answered
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	k := &messaging.Kafka{Brokers: append([]string{silent.Addr().String()}, fake.ListenAddrs()...), TLS: true, CA: ca}
	s, err := kafka.Senders(new(net.Dialer).DialContext)(&messaging.Connection{Kafka: k})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Send(within(t, 50*time.Second), ofBody("x")); err != nil {
		t.Error(err)
	}
}

func TestBrokerCannotAskForEndlessWork(t *testing.T) {
	for iterations, bounded := range map[string]bool{"4096": true, "9000000000000000000": false, "x": false, "100001": false} {
		if err := kafka.Challenge([]byte("r=abc,s=c2FsdA==,i=" + iterations)); (err == nil) != bounded {
			t.Errorf("%s iterations: %v", iterations, err)
		}
	}
}
