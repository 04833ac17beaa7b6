package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/minutehand/minutehand/libs/diagnosis"
	"github.com/minutehand/minutehand/libs/dispatch"
)

const (
	diagnoseWithin = 8 * time.Second
	// safeCopies is the replication below which a lost disk loses records, and leastInSync how many must have a record before it counts.
	safeCopies, leastInSync = 3, 2
	// leastRetention is how long a topic must keep records: an audit-writer or a settler may be away for a while.
	leastRetention = 24 * time.Hour
	// farBehind is the lag from which a group is told to be behind.
	farBehind = 50_000
)

// Diagnose examines brokers, topics and groups.
func Diagnose(ctx context.Context, o Options, r *diagnosis.Report) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseWithin)
	defer cancel()
	l, err := Open(o)
	if err == nil {
		defer l.Close()
		err = l.Check(ctx)
	}
	var brokers kadm.Metadata
	if err == nil {
		brokers, err = l.admin.BrokerMetadata(ctx)
	}
	if err != nil {
		r.Wrong("kafka", "bring it back; until then due work waits", "it does not answer: %v", err)
		return
	}
	if n := len(brokers.Brokers); n < safeCopies {
		r.Notice("kafka", "run three or more, in different zones", "it has fewer than three brokers (%d): a lost disk loses records", n)
	} else {
		r.Fine("kafka", "it has %d brokers", n)
	}
	var names []string
	for _, t := range dispatch.Topics() {
		names = append(names, l.topic(t))
	}
	topics, err := l.admin.ListTopics(ctx, names...)
	if err != nil {
		r.Wrong("kafka", "", "its topics cannot be read: %v", err)
		return
	}
	configs, err := l.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		r.Notice("kafka", "allow DESCRIBE_CONFIGS on the topics", "the settings of its topics cannot be read: %v", err)
	}
	for _, name := range names {
		d, ok := topics[name]
		if !ok || d.Err != nil {
			r.Wrong("kafka topic "+name, "minutehand migrate", "it is not there")
			continue
		}
		settings := map[string]string{}
		if c, err := configs.On(name, nil); err == nil {
			for _, one := range c.Configs {
				settings[one.Key] = one.MaybeValue()
			}
		}
		o.topic(r, d, settings)
	}
	// The group of the archive commits what is in an object, once a minute: the age of what is not archived tells more of it.
	for _, group := range []string{dispatch.GroupExecutor, dispatch.GroupSettle, dispatch.GroupHistory} {
		l.group(ctx, r, group)
	}
}

// topic examines a topic.
func (o *Options) topic(r *diagnosis.Report, d kadm.TopicDetail, settings map[string]string) {
	subject := "kafka topic " + d.Topic
	copies := d.Partitions.NumReplicas()
	var behind, headless []int32
	for _, p := range d.Partitions.Sorted() {
		if p.Leader < 0 {
			headless = append(headless, p.Partition)
		}
		if len(p.ISR) < len(p.Replicas) {
			behind = append(behind, p.Partition)
		}
	}
	switch {
	case len(headless) > 0:
		r.Wrong(subject, "bring back the brokers that hold them", "partitions %v have no leader", headless)
	case len(behind) > 0:
		r.Wrong(subject, "bring back the broker that is away, before another one fails", "replicas of the partitions %v are not in step", behind)
	case o.Partitions > 0 && len(d.Partitions) != o.Partitions:
		r.Notice(subject, "set MINUTEHAND_KAFKA_PARTITIONS to what it has", "it has %d partitions, and the settings say %d", len(d.Partitions), o.Partitions)
	case copies < safeCopies:
		r.Notice(subject, "raise it by a reassignment of partitions (kafka-reassign-partitions)", "its replication is %d: a lost disk loses records", copies)
	default:
		r.Fine(subject, "it has %d partitions, each with %d replicas in step", len(d.Partitions), copies)
	}
	number := func(name string) (int64, bool) {
		n, err := strconv.ParseInt(settings[name], 10, 64)
		return n, err == nil
	}
	alter := func(name, value string) string {
		return fmt.Sprintf("kafka-configs --alter --entity-type topics --entity-name %s --add-config %s=%s", d.Topic, name, value)
	}
	if n, ok := number("min.insync.replicas"); ok && copies >= safeCopies && n < leastInSync {
		r.Wrong(subject, alter("min.insync.replicas", "2"), "min.insync.replicas is %d: a record that one broker has counts as durable", n)
	}
	if n, ok := number("retention.ms"); ok && n >= 0 && n < leastRetention.Milliseconds() {
		r.Wrong(subject, alter("retention.ms", "604800000"), "it keeps records for %s only: a service that is away for longer misses them", time.Duration(n)*time.Millisecond)
	}
	if n, ok := number("max.message.bytes"); ok && n < dispatch.MaxMessageBytes+batchOverhead {
		r.Wrong(subject, alter("max.message.bytes", strconv.Itoa(dispatch.MaxMessageBytes+batchOverhead)), "max.message.bytes is %d: a fire with a large payload is refused", n)
	}
	if v := settings["message.timestamp.type"]; v != "" && v != "LogAppendTime" {
		r.Wrong(subject, alter("message.timestamp.type", "LogAppendTime"), "its records carry the time of their senders (%s)", v)
	}
	if v := settings["cleanup.policy"]; v != "" && v != "delete" {
		r.Wrong(subject, alter("cleanup.policy", "delete"), "its cleanup.policy is %s, which drops records that were not read", v)
	}
	if settings["unclean.leader.election.enable"] == "true" {
		r.Wrong(subject, alter("unclean.leader.election.enable", "false"), "a replica that is not in step may become leader, and drop what was acknowledged")
	}
}

// group examines how far a group has read.
func (l *Log) group(ctx context.Context, r *diagnosis.Report, group string) {
	subject := "kafka group " + l.o.Prefix + group
	topic := dispatch.TopicOf(group)
	end, err := l.End(ctx, topic)
	if err != nil {
		return // the topic was told of
	}
	committed, err := l.Committed(ctx, topic, group)
	if err != nil {
		r.Notice(subject, "", "its position cannot be read: %v", err)
		return
	}
	var behind int64
	for p, offset := range end.Offsets {
		behind += offset - committed.Offsets[p]
	}
	described, err := l.admin.DescribeGroups(ctx, l.o.Prefix+group)
	if err = errors.Join(err, described[l.o.Prefix+group].Err); err != nil {
		r.Notice(subject, "allow DESCRIBE on the group, or ask again", "its members cannot be read: %v", err)
		return
	}
	members := len(described[l.o.Prefix+group].Members)
	switch {
	case members == 0:
		r.Wrong(subject, "start its service (runbooks/MinutehandServiceDown.md)", "nobody reads %s for it, and it is %d records behind", topic, behind)
	case behind > farBehind:
		r.Wrong(subject, "runbooks/MinutehandLogBehind.md", "its %d members are %d records behind in %s", members, behind, topic)
	default:
		r.Fine(subject, "its %d members are %d records behind in %s", members, behind, topic)
	}
}
