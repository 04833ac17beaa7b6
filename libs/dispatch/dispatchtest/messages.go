package dispatchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
)

func recordIsReadBack(t *testing.T, f fixture) {
	messages := []dispatch.Message{
		{Key: "job_1", Value: []byte("value")},
		{Key: "", Value: []byte("no key")},
		{Key: "job_2", Value: []byte{}},
		{Key: "ü\x00\xff", Value: []byte("\x00\xff\n")},
		{Key: strings.Repeat("k", 300), Value: make([]byte, 100_000)},
	}
	f.publish(t, messages...)
	f.publish(t)
	got := map[string]dispatch.Message{}
	for _, m := range take(t, f.subscribe(t, dispatch.GroupSettle), len(messages), 100) {
		got[m.Key] = m
	}
	for _, r := range messages {
		if m, ok := got[r.Key]; !ok || !bytes.Equal(m.Value, r.Value) || m.AppendedAt.IsZero() {
			t.Errorf("the message of key %.10q came back as %d bytes at %s, %v", r.Key, len(m.Value), m.AppendedAt, ok)
		}
	}
}

func sizeIsBounded(t *testing.T, f fixture) {
	const key = "job_1"
	greatest := dispatch.Message{Key: key, Value: make([]byte, dispatch.MaxMessageBytes-len(key))}
	f.publish(t, greatest)
	for _, large := range []dispatch.Message{
		{Key: key, Value: make([]byte, dispatch.MaxMessageBytes+1)},
		{Key: strings.Repeat("k", dispatch.MaxMessageBytes+1)},
	} {
		err := f.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{{Key: key, Value: []byte("with it")}, large})
		if !errors.Is(err, dispatch.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	}
	f.publish(t, dispatch.Message{Key: key, Value: []byte("last")})
	messages := take(t, f.subscribe(t, dispatch.GroupSettle), 2, 1)
	if !bytes.Equal(messages[0].Value, greatest.Value) || string(messages[1].Value) != "last" {
		t.Errorf("%d bytes came back, then %.20q", len(messages[0].Value), messages[1].Value)
	}
}

// wantOrder checks that each key's values count from 0 and lie in one partition.
func wantOrder(t *testing.T, messages []dispatch.Message) {
	t.Helper()
	next, partition := map[string]int{}, map[string]int{}
	for _, m := range messages {
		if p, ok := partition[m.Key]; ok && p != m.Partition {
			t.Fatalf("key %s lies in partitions %d and %d", m.Key, p, m.Partition)
		}
		partition[m.Key] = m.Partition
		if string(m.Value) != fmt.Sprint(next[m.Key]) {
			t.Fatalf("key %s: message %s, want %d", m.Key, m.Value, next[m.Key])
		}
		next[m.Key]++
	}
}

func keysKeepOrder(t *testing.T, f fixture) {
	const keys, each = 8, 40
	atOnce(keys, func(k int) {
		for i := range each {
			r := dispatch.Message{Key: fmt.Sprint("key", k), Value: fmt.Append(nil, i)}
			if err := f.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{r}); err != nil {
				t.Error(err)
			}
		}
	})
	wantOrder(t, take(t, f.subscribe(t, dispatch.GroupSettle), keys*each, 17))
}

func callKeepsOrder(t *testing.T, f fixture) {
	const keys, each = 8, 100
	var messages []dispatch.Message
	for i := range each {
		for k := range keys {
			messages = append(messages, dispatch.Message{Key: fmt.Sprint("key", k), Value: fmt.Append(nil, i)})
		}
	}
	f.publish(t, messages...)
	wantOrder(t, take(t, f.subscribe(t, dispatch.GroupSettle), keys*each, 1000))
}

func offsetsAscend(t *testing.T, f fixture) {
	const n = 200
	for range 4 {
		f.publishMany(t, n/4)
	}
	last := map[int]dispatch.Message{}
	for _, m := range take(t, f.subscribe(t, dispatch.GroupSettle), n, 13) {
		if p, ok := last[m.Partition]; ok && (m.Offset <= p.Offset || m.AppendedAt.Before(p.AppendedAt)) {
			t.Fatalf("partition %d: %d at %s after %d at %s", m.Partition, m.Offset, m.AppendedAt, p.Offset, p.AppendedAt)
		}
		last[m.Partition] = m
	}
}

func topicsAreSeparate(t *testing.T, f fixture) {
	for _, topic := range dispatch.Topics() {
		must(t, f.Publish(t.Context(), topic, []dispatch.Message{{Key: "k", Value: []byte(topic)}}))
	}
	fires, err := f.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
	must(t, err)
	wantValues(t, take(t, fires, 1, 10), map[string]bool{dispatch.TopicFires: true})
	wantValues(t, take(t, f.subscribe(t, dispatch.GroupSettle), 1, 10), map[string]bool{dispatch.TopicEvents: true})
	for _, topic := range dispatch.Topics() {
		end, err := f.End(t.Context(), topic)
		must(t, err)
		messages := int64(0)
		for _, offset := range end.Offsets {
			messages += offset
		}
		if messages < 1 {
			t.Errorf("the end of %s is %v", topic, end)
		}
	}
}

func pollIsBounded(t *testing.T, f fixture) {
	want := f.publishMany(t, 50)
	for limit, group := range map[int]string{1: dispatch.GroupSettle, 7: dispatch.GroupHistory, 1000: dispatch.GroupArchive} {
		wantValues(t, take(t, f.subscribe(t, group), 50, limit), want)
	}
}

func pollIsBoundedInBytes(t *testing.T, f fixture) {
	const published = 24
	want := map[string]bool{}
	for i := range published { // one by one: each is nearly as large as a call may be
		value := bytes.Repeat([]byte{byte('a' + i)}, dispatch.MaxMessageBytes-1024)
		want[string(value)] = true
		f.publish(t, dispatch.Message{Key: fmt.Sprint("key", i%3), Value: value})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := f.subscribe(t, dispatch.GroupSettle)
	var all []dispatch.Message
	for len(all) < published {
		messages, err := c.Poll(ctx, published)
		if err != nil {
			t.Fatalf("after %d messages of %d: %v", len(all), published, err)
		}
		size := 0
		for _, m := range messages {
			size += len(m.Value)
		}
		if size > dispatch.MaxPollBytes+dispatch.MaxMessageBytes {
			t.Errorf("%d messages of %d bytes together came at once", len(messages), size)
		}
		all = append(all, messages...)
	}
	wantValues(t, all, want)
}

func pollWaits(t *testing.T, f fixture) {
	c := f.subscribe(t, dispatch.GroupSettle)
	for i := range 3 {
		got := make(chan []dispatch.Message, 1)
		go func() {
			defer close(got)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			m, err := c.Poll(ctx, 10)
			if err != nil {
				t.Error(err)
			}
			got <- m
		}()
		f.publish(t, dispatch.Message{Key: fmt.Sprint("key", i), Value: fmt.Append(nil, i)})
		if m := <-got; len(m) != 1 || string(m[0].Value) != fmt.Sprint(i) {
			t.Errorf("got %v", m)
		}
	}
}

func pollEnds(t *testing.T, f fixture) {
	c := f.subscribe(t, dispatch.GroupSettle)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if m, err := c.Poll(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a poll whose time was up gave %v, %v", m, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if m, err := c.Poll(ctx, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled poll gave %v, %v", m, err)
	}
	want := f.publishMany(t, 3)
	wantValues(t, take(t, c, 3, 10), want) // and the consumer remains usable
}
