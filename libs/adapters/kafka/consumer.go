package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/run"
)

// consumer is a member of a group, with its own connections.
type consumer struct {
	l      *Log
	topic  string
	id     string
	client *kgo.Client
	// left holds what was fetched but not returned yet.
	left []*kgo.Record
	// lookAt is when the topic's id is checked again. recreated is set when it is another one; Commit checks it as well.
	lookAt    time.Time
	recreated atomic.Bool

	// committing makes commits go out one at a time.
	committing sync.Mutex
	mu         sync.Mutex
	// standing holds the committed offsets of this member's partitions.
	standing map[int32]int64
	// epochs holds, by partition, those of the leaders that wrote the returned records.
	epochs map[int32]epochs
}

// epochs are the epochs of a partition's leaders, each with the offset of its first record that was returned.
type epochs []kgo.EpochOffset

// maxEpochs is for how many leaders the start is kept: as many as may follow each other before what was read is committed.
const maxEpochs = 8

// note records that a record is returned.
func (e epochs) note(record *kgo.Record) epochs {
	for len(e) > 0 && e[len(e)-1].Offset >= record.Offset {
		e = e[:len(e)-1]
	}
	if len(e) == 0 || e[len(e)-1].Epoch != record.LeaderEpoch {
		e = append(e, kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset})
	}
	return e[max(0, len(e)-maxEpochs):]
}

// before returns the epoch of the last record before an offset, -1 if that record was not returned.
func (e epochs) before(offset int64) int32 {
	for _, at := range slices.Backward(e) {
		if at.Offset < offset {
			return at.Epoch
		}
	}
	return -1
}

// waits is how many bytes a broker gathers before it answers a fetch, and for how long at most.
type waits struct {
	bytes int32
	wait  time.Duration
}

// patience returns the waits of a group. A broker that answers for every single record spends most of its time on that. So what
// becomes of an execution is written in batches, a moment later. A fire does not wait.
func patience(group string) waits {
	switch group {
	case dispatch.GroupHistory, dispatch.GroupArchive:
		return waits{256 << 10, time.Second}
	case dispatch.GroupSettle:
		return waits{64 << 10, 100 * time.Millisecond}
	}
	return waits{1, 500 * time.Millisecond}
}

// Subscribe implements dispatch.Log.
func (l *Log) Subscribe(ctx context.Context, topic, group string) (dispatch.Consumer, error) {
	var id string
	err := whileBrokersChange(ctx, func() (err error) {
		id, err = l.logID(ctx, l.topic(topic))
		return err
	})
	if err != nil {
		return nil, err
	}
	c := &consumer{l: l, topic: l.topic(topic), id: id, standing: map[int32]int64{}, epochs: map[int32]epochs{}}
	c.client, err = kgo.NewClient(append(l.o.brokers(),
		kgo.ClientID("minutehand-"+group), kgo.ConsumerGroup(l.o.Prefix+group),
		kgo.ConsumeTopics(c.topic), kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(l.o.SessionTimeout), kgo.HeartbeatInterval(l.o.SessionTimeout/12),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMinBytes(patience(group).bytes), kgo.FetchMaxWait(patience(group).wait), kgo.FetchMaxBytes(maxFetchBytes/4), kgo.FetchMaxPartitionBytes(4<<20),
		kgo.MaxConcurrentFetches(4), kgo.RetryTimeout(deliveryTimeout),
		kgo.AdjustFetchOffsetsFn(func(ctx context.Context, assigned map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return assigned, c.begin(ctx, group, topic, assigned[c.topic])
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { c.lose(gone[c.topic]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) { c.lose(gone[c.topic]) }),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: subscribe to %s: %w", topic, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.consumers == nil {
		c.client.Close()
		return nil, fmt.Errorf("kafka: subscribe to %s: %w", topic, dispatch.ErrClosed)
	}
	l.consumers[c] = true
	return c, nil
}

// begin sets where assigned partitions begin: at the offset that was committed for this topic. An offset committed for an earlier
// topic of the same name says nothing about this one. From the committed epoch the client finds out whether the log has since lost
// its end, and reused offsets before the committed one for other records: then it begins where those begin.
func (c *consumer) begin(ctx context.Context, group, topic string, assigned map[int32]kgo.Offset) error {
	committed, err := c.l.committed(ctx, topic, group, c.id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range assigned {
		at := committed[int(p)]
		c.standing[p] = at.Offset
		assigned[p] = kgo.NewOffset().AtStart()
		if at.Offset > 0 {
			assigned[p] = kgo.NewOffset().At(at.Offset).WithEpoch(at.Epoch)
		}
	}
	return nil
}

func (c *consumer) lose(partitions []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range partitions {
		delete(c.standing, p)
		delete(c.epochs, p)
	}
}

// Poll implements dispatch.Consumer.
func (c *consumer) Poll(ctx context.Context, limit int) ([]dispatch.Message, error) {
	for {
		if c.recreated.Load() {
			return nil, fmt.Errorf("kafka: poll: %w", dispatch.ErrRecreated)
		}
		if len(c.left) > 0 && ctx.Err() == nil {
			return c.portion(limit), nil
		}
		waiting, cancel := context.WithTimeout(ctx, recheck)
		fetches := c.client.PollRecords(waiting, limit)
		cancel()
		if fetches.IsClientClosed() {
			return nil, fmt.Errorf("kafka: poll: %w", dispatch.ErrClosed)
		}
		records := fetches.Records()
		c.left = append(c.left, records...) // kept even when this poll ends with an error, because the client returns them once
		failed := c.failure(fetches)
		if err := ctx.Err(); err != nil && len(records) == 0 {
			return nil, err
		}
		if failed != nil || !time.Now().Before(c.lookAt) {
			if err := c.look(ctx, failed); err != nil {
				return nil, err
			}
			if c.recreated.Load() {
				continue // the fetched records may be from the other topic
			}
		}
		if len(records) > 0 {
			return c.portion(limit), nil
		}
	}
}

// portion takes what one poll returns from what is left.
func (c *consumer) portion(limit int) []dispatch.Message {
	n, bytes := 0, 0
	for n < min(limit, len(c.left)) && bytes < dispatch.MaxPollBytes {
		bytes += len(c.left[n].Value)
		n++
	}
	given := messages(c.left[:n])
	c.noteEpochs(c.left[:n])
	c.left = c.left[n:]
	return given
}

func (c *consumer) noteEpochs(given []*kgo.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range given {
		if i == 0 || given[i-1].Partition != r.Partition || given[i-1].LeaderEpoch != r.LeaderEpoch {
			c.epochs[r.Partition] = c.epochs[r.Partition].note(r)
		}
	}
}

// failure returns what went wrong, other than the end of the wait.
func (c *consumer) failure(fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.DeadlineExceeded) && !errors.Is(e.Err, context.Canceled) {
			return e.Err
		}
	}
	return nil
}

// look checks whether the topic is still the same. It waits a little when something has failed.
func (c *consumer) look(ctx context.Context, failed error) error {
	id, err := c.l.logID(ctx, c.topic)
	switch {
	case err == nil && id != c.id:
		c.recreated.Store(true)
		return nil
	case err == nil && failed == nil:
		c.lookAt = time.Now().Add(recheck)
		return nil
	case err == nil:
		err = failed
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.l.o.Logger.Warn("cannot consume", "topic", c.topic, "error", err)
	return run.Sleep(ctx, recheck/10)
}

func messages(records []*kgo.Record) []dispatch.Message {
	list := make([]dispatch.Message, len(records))
	for i, r := range records {
		list[i] = dispatch.Message{
			Partition: int(r.Partition), Offset: r.Offset, Key: string(r.Key), Value: r.Value, AppendedAt: r.Timestamp.UTC(),
		}
	}
	return list
}

// Commit implements dispatch.Consumer.
func (c *consumer) Commit(ctx context.Context, offsets map[int]int64) error {
	c.committing.Lock()
	defer c.committing.Unlock()
	next := map[int32]kgo.EpochOffset{}
	c.mu.Lock()
	for p, offset := range offsets {
		if standing, mine := c.standing[int32(p)]; mine && offset > standing {
			next[int32(p)] = kgo.EpochOffset{Epoch: c.epochs[int32(p)].before(offset), Offset: offset}
		}
	}
	c.mu.Unlock()
	if len(next) == 0 || c.recreated.Load() {
		return nil
	}
	named := kgo.PreCommitFnContext(ctx, func(request *kmsg.OffsetCommitRequest) error {
		for t := range request.Topics {
			for p := range request.Topics[t].Partitions {
				request.Topics[t].Partitions[p].Metadata = &c.id
			}
		}
		return nil
	})
	var failed error
	c.client.CommitOffsetsSync(named, map[string]map[int32]kgo.EpochOffset{c.topic: next},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if err != nil {
				return
			}
			for _, t := range response.Topics {
				for _, p := range t.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						failed = err
						delete(next, p.Partition)
					}
				}
			}
		})
	c.mu.Lock()
	for p, o := range maps.All(next) {
		if _, mine := c.standing[p]; mine && failed == nil {
			c.standing[p] = max(c.standing[p], o.Offset)
		}
	}
	c.mu.Unlock()
	switch {
	case errors.Is(failed, kerr.IllegalGeneration), errors.Is(failed, kerr.UnknownMemberID), errors.Is(failed, kerr.FencedInstanceID),
		errors.Is(failed, kerr.UnknownTopicOrPartition), errors.Is(failed, kerr.UnknownTopicID):
		return nil // another member has the partitions, or the topic no longer exists: what comes again was not committed
	case failed != nil:
		return fmt.Errorf("kafka: commit: %w", failed)
	}
	return nil
}

// Seek implements dispatch.Consumer.
func (c *consumer) Seek(partition int, offset int64) {
	c.left = slices.DeleteFunc(c.left, func(r *kgo.Record) bool { return int(r.Partition) == partition })
	c.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{c.topic: {int32(partition): {Epoch: -1, Offset: offset}}})
}

// LogID implements dispatch.Consumer.
func (c *consumer) LogID() string { return c.id }

// Close implements dispatch.Consumer.
func (c *consumer) Close() error {
	c.l.mu.Lock()
	delete(c.l.consumers, c)
	c.l.mu.Unlock()
	c.client.Close() // which leaves the group
	return nil
}
