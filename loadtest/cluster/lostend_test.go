//go:build servers

package cluster_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/kafka"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/dispatch"
)

// Kafka loses the end of its log, as in a power failure, after a group has committed beyond it. It gives the offsets to
// other records before a member of the group comes back. Kafka knows from its leader epochs, and the member from what it
// has committed.
func TestGroupReadsWhatALogThatLostItsEndGaveItsOffsetsTo(t *testing.T) {
	prefix := servertest.Unique("lost-end-") + "."
	open := func() *kafka.Log {
		l, err := kafka.Open(kafka.Options{
			Brokers: []string{servertest.Address(t, "KAFKA")}, Prefix: prefix, Partitions: 1, Replication: 1, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			err = l.EnsureTopics(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	publish(t, l, "a", "b", "c", "d", "e")
	readAndCommit(t, l, 5)
	l.Close()

	local(t, "kill", "kafka")
	dropBatches(t, filepath.Join(cmp.Or(os.Getenv("MINUTEHAND_LOCAL_DIR"), "../../.data/local"), "data", "kafka", prefix+dispatch.TopicEvents+"-0"), 2)
	local(t, "up", "kafka")

	l = open()
	defer l.Close()
	publish(t, l, "x", "y", "z")
	if got, want := readAndCommit(t, l, 3), []string{"3:x", "4:y", "5:z"}; !slices.Equal(got, want) {
		t.Errorf("the group was given %v, want %v", got, want)
	}
}

// publish publishes records one by one, so that each is its own batch.
func publish(t *testing.T, l *kafka.Log, values ...string) {
	t.Helper()
	for _, v := range values {
		if err := l.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: "k", Value: []byte(v)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// readAndCommit reads n records as a member of the archive's group, and returns OFFSET:VALUE of each.
func readAndCommit(t *testing.T, l *kafka.Log, n int) (got []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := l.Subscribe(ctx, dispatch.TopicEvents, dispatch.GroupArchive)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // what it read was committed
	for len(got) < n {
		messages, err := c.Poll(ctx, n)
		if err != nil {
			t.Fatalf("%v after %v", err, got)
		}
		for _, m := range messages {
			got = append(got, fmt.Sprint(m.Offset, ":", string(m.Value)))
			if err := c.Commit(ctx, map[int]int64{m.Partition: m.Offset + 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return got
}

// dropBatches removes the last n batches of records from the only segment of a partition. A batch begins with its first
// offset in eight bytes and the length of the rest in four (Kafka's documentation, "Message Format").
func dropBatches(t *testing.T, dir string, n int) {
	t.Helper()
	name := filepath.Join(dir, "00000000000000000000.log")
	segment, err := os.ReadFile(name) //nolint:gosec // below the directory of the local servers
	if err != nil {
		t.Fatal(err)
	}
	const header = 12
	var begins []int64
	for at := 0; at+header <= len(segment) && binary.BigEndian.Uint32(segment[at+8:]) > 0; at += header + int(binary.BigEndian.Uint32(segment[at+8:])) {
		begins = append(begins, int64(at))
	}
	if len(begins) <= n {
		t.Fatalf("%s has %d batches", name, len(begins))
	}
	if err := os.Truncate(name, begins[len(begins)-n]); err != nil {
		t.Fatal(err)
	}
}
