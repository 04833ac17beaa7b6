// Package kafka is the log on Kafka: one topic for each of the port's, consumer groups under their names.
//
// A topic's log id is Kafka's own, which is new when the topic is re-created. The driver never switches from one to the other, and
// a committed offset carries the log id that it belongs to.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/reason"
	"github.com/minutehand/minutehand/libs/run"
)

// Options say where the cluster is.
type Options struct {
	Brokers []string // host:port
	// Prefix of the names of topics and groups, such as "minutehand.".
	Prefix string
	// Partitions and Replication of topics that EnsureTopics creates.
	Partitions, Replication int
	// SessionTimeout is how long a consumer may be silent before its partitions go to others; 0 means 6 s.
	SessionTimeout time.Duration
	// Username and Password are those of SASL with SCRAM-SHA-512; empty for none.
	Username, Password string
	// Dial connects to a broker; nil means in plain text.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger *slog.Logger
	// Observe is told the name of each request that was sent to a broker, such as Fetch; nil for nobody.
	Observe func(request string)
	// why keeps why connections fail.
	why *reason.Keeper
}

// brokers returns the options that say where to connect.
func (o *Options) brokers() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.WithHooks(connects{o.why, o.Username})}
	if o.Observe != nil {
		opts = append(opts, kgo.WithHooks(observer(o.Observe)))
	}
	if o.Dial != nil {
		opts = append(opts, kgo.Dialer(o.Dial))
	}
	if o.Username != "" {
		opts = append(opts, kgo.SASL(scram.Auth{User: o.Username, Pass: o.Password}.AsSha512Mechanism()))
	}
	return opts
}

const (
	// batchOverhead is by how much a batch may exceed the size of its records.
	batchOverhead = 64 << 10
	// maxBuffered bounds the records that wait to be produced, maxBufferedBytes their bytes; above that Publish waits.
	maxBuffered      = 50_000
	maxBufferedBytes = 256 << 20
	// maxFetchBytes bounds what a consumer holds in memory that was not polled yet, and so what one poll returns.
	maxFetchBytes = 32 << 20
	// deliveryTimeout is how long a record may wait for a broker to accept it before it fails.
	deliveryTimeout = 30 * time.Second
	// recheck is how often an idle consumer checks whether its topic is still the same.
	recheck = time.Second
)

// Log is the log. It is safe for concurrent use.
type Log struct {
	o        Options
	producer *kgo.Client
	admin    *kadm.Client

	mu        sync.Mutex
	consumers map[*consumer]bool
	// expired holds, by topic, group and partition, up to which offset missing records were reported.
	expired map[string]int64
}

var _ dispatch.Log = (*Log)(nil)

// Open returns a log. It does not wait for the brokers; every call does, up to its context's end or its time limit.
func Open(o Options) (*Log, error) {
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 6 * time.Second
	}
	o.why = &reason.Keeper{Server: "kafka", Logger: o.Logger}
	producer, err := kgo.NewClient(append(o.brokers(),
		kgo.ClientID("minutehand"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond), kgo.ProducerBatchMaxBytes(dispatch.MaxMessageBytes+batchOverhead),
		kgo.MaxBufferedRecords(maxBuffered), kgo.MaxBufferedBytes(maxBufferedBytes), kgo.RecordDeliveryTimeout(deliveryTimeout),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Log{o: o, producer: producer, admin: kadm.NewClient(producer), consumers: map[*consumer]bool{}, expired: map[string]int64{}}, nil
}

// Close closes the log and its consumers.
func (l *Log) Close() {
	l.mu.Lock()
	consumers := l.consumers
	l.consumers = nil
	l.mu.Unlock()
	for c := range consumers {
		c.client.Close()
	}
	l.producer.Close()
}

// Check reports whether a broker answers.
func (l *Log) Check(ctx context.Context) error {
	if err := l.producer.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: %w", l.o.why.Explain(err))
	}
	return nil
}

// observer tells of requests.
type observer func(request string)

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (o observer) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	o(kmsg.NameForKey(key))
}

// connects keeps why a broker refused a connection: the driver tries again until the time is over.
type connects struct {
	*reason.Keeper
	user string
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (c connects) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if c.user != "" && errors.Is(err, io.EOF) {
		err = fmt.Errorf("the broker ended the connection, perhaps because of the password of user %s: %w", c.user, err)
	}
	if !errors.Is(err, context.Canceled) {
		c.Failed(net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port))), err)
	}
}

func (l *Log) topic(name string) string { return l.o.Prefix + name }

// EnsureTopics creates the topics that do not exist.
func (l *Log) EnsureTopics(ctx context.Context) error {
	value := func(s string) *string { return &s }
	configs := map[string]*string{
		"message.timestamp.type": value("LogAppendTime"),
		"max.message.bytes":      value(fmt.Sprint(dispatch.MaxMessageBytes + batchOverhead)),
	}
	if l.o.Replication >= 3 {
		// Otherwise a record that only one broker has would count as durable.
		configs["min.insync.replicas"] = value("2")
	}
	var names []string
	for _, t := range dispatch.Topics() {
		names = append(names, l.topic(t))
	}
	created, err := l.admin.CreateTopics(ctx, int32(l.o.Partitions), int16(l.o.Replication), configs, names...)
	for _, t := range created.Sorted() {
		if t.Err != nil && !errors.Is(t.Err, kerr.TopicAlreadyExists) {
			err = errors.Join(err, t.Err)
		}
	}
	if err != nil {
		return fmt.Errorf("kafka: create topics: %w", err)
	}
	return nil
}

// logID returns the id of a topic.
func (l *Log) logID(ctx context.Context, topic string) (string, error) {
	topics, err := l.admin.ListTopics(ctx, topic)
	if err == nil {
		err = topics[topic].Err
	}
	if err != nil {
		return "", fmt.Errorf("kafka: topic %s: %w", topic, err)
	}
	return topics[topic].ID.String(), nil
}

// Publish implements dispatch.Log. After an error some records may be in the log.
func (l *Log) Publish(ctx context.Context, topic string, records []dispatch.Message) error {
	list := make([]*kgo.Record, len(records))
	for i := range records {
		if len(records[i].Key)+len(records[i].Value) > dispatch.MaxMessageBytes {
			return fmt.Errorf("kafka: publish: %w", dispatch.ErrTooLarge)
		}
	}
	for i := range records {
		list[i] = &kgo.Record{Topic: l.topic(topic), Key: []byte(records[i].Key), Value: records[i].Value}
		if t := records[i].Trace; t != "" {
			list[i].Headers = []kgo.RecordHeader{{Key: "traceparent", Value: []byte(t)}}
		}
	}
	err := l.producer.ProduceSync(ctx, list...).FirstErr()
	if errors.Is(err, kerr.UnknownTopicID) {
		// The topic was re-created. The driver forgets the old one when it is told to; the caller tries again.
		l.producer.PurgeTopicsFromProducing(l.topic(topic))
	}
	if err != nil {
		return fmt.Errorf("kafka: publish to %s: %w", topic, err)
	}
	return nil
}

// End implements dispatch.Log.
func (l *Log) End(ctx context.Context, topic string) (dispatch.Position, error) {
	return l.position(ctx, topic, func(string) (map[int]int64, error) {
		listed, err := l.admin.ListEndOffsets(ctx, l.topic(topic))
		if err == nil {
			err = listed.Error()
		}
		offsets := map[int]int64{}
		listed.Each(func(o kadm.ListedOffset) { offsets[int(o.Partition)] = o.Offset })
		return offsets, err
	})
}

// Committed implements dispatch.Log.
func (l *Log) Committed(ctx context.Context, topic, group string) (dispatch.Position, error) {
	return l.position(ctx, topic, func(id string) (map[int]int64, error) {
		committed, err := l.committed(ctx, topic, group, id)
		if err != nil {
			return nil, err
		}
		offsets := map[int]int64{}
		for p, at := range committed {
			offsets[p] = at.Offset
		}
		starts, err := l.admin.ListStartOffsets(ctx, l.topic(topic))
		if err == nil {
			err = starts.Error()
		}
		starts.Each(func(o kadm.ListedOffset) {
			if at := offsets[int(o.Partition)]; o.Offset > at {
				l.tellExpired(topic, group, int(o.Partition), at, o.Offset)
				offsets[int(o.Partition)] = o.Offset
			}
		})
		return offsets, err
	})
}

// tellExpired logs once that records are gone that a group had not consumed: they were older than the topic keeps them, or somebody
// deleted them. The group goes on after them, and the sweeps find what they were about.
func (l *Log) tellExpired(topic, group string, partition int, from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprint(topic, "/", group, "/", partition)
	if l.expired[key] < to {
		l.expired[key] = to
		l.o.Logger.Error("records are gone that were not consumed", "topic", topic, "group", group, "partition", partition,
			"from", from, "to", to)
	}
}

// committed returns a group's offsets that belong to the topic with that id, each with the epoch of the leader that wrote the
// record before it.
func (l *Log) committed(ctx context.Context, topic, group, id string) (map[int]kgo.EpochOffset, error) {
	offsets := map[int]kgo.EpochOffset{}
	responses, err := l.admin.FetchOffsetsForTopics(ctx, l.o.Prefix+group, l.topic(topic))
	if errors.Is(err, kerr.GroupIDNotFound) {
		return offsets, nil
	}
	if err == nil {
		err = responses.Error()
	}
	responses.Each(func(o kadm.OffsetResponse) {
		if o.Topic == l.topic(topic) && o.Metadata == id && o.At > 0 {
			offsets[int(o.Partition)] = kgo.EpochOffset{Epoch: o.LeaderEpoch, Offset: o.At}
		}
	})
	return offsets, err
}

// position reads offsets between two reads of the topic's id, which must be the same.
func (l *Log) position(
	ctx context.Context, topic string, read func(id string) (map[int]int64, error),
) (p dispatch.Position, err error) {
	err = whileBrokersChange(ctx, func() error {
		p, err = l.positionOnce(ctx, topic, read)
		return err
	})
	return p, err
}

// whileBrokersChange repeats ask, for deliveryTimeout at most, while brokers are changing who leads a partition, or have not yet
// heard of a topic that was just created. A topic exists once the controller has it, but is known only when the broker that is
// asked has read of it.
func whileBrokersChange(ctx context.Context, ask func() error) error {
	deadline := time.Now().Add(deliveryTimeout)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := ask()
		if err == nil || !kerr.IsRetriable(err) && !errors.Is(err, errChanged) || time.Now().After(deadline) {
			return err
		}
		if run.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// errChanged means: the topic was re-created while its offsets were read.
var errChanged = errors.New("the topic is being created anew")

func (l *Log) positionOnce(
	ctx context.Context, topic string, read func(id string) (map[int]int64, error),
) (dispatch.Position, error) {
	before, err := l.logID(ctx, l.topic(topic))
	if err != nil {
		return dispatch.Position{}, err
	}
	offsets, err := read(before)
	if err != nil {
		return dispatch.Position{}, fmt.Errorf("kafka: position of %s: %w", topic, err)
	}
	after, err := l.logID(ctx, l.topic(topic))
	if err == nil && before != after {
		err = fmt.Errorf("kafka: position of %s: %w", topic, errChanged)
	}
	return dispatch.Position{LogID: after, Offsets: offsets}, err
}
