// Package dispatchtest is the conformance suite of the log.
package dispatchtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// take polls until n records came.
func take(t *testing.T, c dispatch.Consumer, n int) []dispatch.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all []dispatch.Message
	for len(all) < n {
		messages, err := c.Poll(ctx, 100)
		must(t, err)
		all = append(all, messages...)
	}
	return all
}

// Run runs the suite; the log that open gives is empty.
func Run(t *testing.T, open func(t *testing.T) dispatch.Log) {
	subscribe := func(t *testing.T, l dispatch.Log) dispatch.Consumer {
		t.Helper()
		c, err := l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		must(t, err)
		return c
	}
	publish := func(t *testing.T, l dispatch.Log, key, value string) {
		t.Helper()
		must(t, l.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Record{{Key: key, Value: []byte(value)}}))
	}
	t.Run("records of one key keep their order, and append times never decrease", func(t *testing.T) {
		l := open(t)
		const keys, each = 5, 40
		var wg sync.WaitGroup
		for k := range keys {
			wg.Go(func() {
				for i := range each {
					publish(t, l, fmt.Sprint("key", k), fmt.Sprint(i))
				}
			})
		}
		wg.Wait()
		next := map[string]int{}
		last := map[int]dispatch.Message{}
		for _, m := range take(t, subscribe(t, l), keys*each) {
			if string(m.Value) != fmt.Sprint(next[m.Key]) {
				t.Fatalf("key %s: record %s, want %d", m.Key, m.Value, next[m.Key])
			}
			next[m.Key]++
			if p, ok := last[m.Partition]; ok && (m.Offset <= p.Offset || m.AppendedAt.Before(p.AppendedAt)) {
				t.Fatalf("partition %d: %d at %s after %d at %s", m.Partition, m.Offset, m.AppendedAt, p.Offset, p.AppendedAt)
			}
			last[m.Partition] = m
		}
	})
	t.Run("a consumer waits for what comes, and goes when its context ends", func(t *testing.T) {
		l := open(t)
		c := subscribe(t, l)
		got := make(chan []dispatch.Message)
		go func() {
			m, err := c.Poll(t.Context(), 10)
			if err != nil {
				t.Error(err)
			}
			got <- m
		}()
		publish(t, l, "k", "v")
		if m := <-got; len(m) != 1 {
			t.Errorf("got %v", m)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Poll(ctx, 10); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled poll gave %v", err)
		}
	})
	t.Run("a group goes on from what it committed, another from the start", func(t *testing.T) {
		l := open(t)
		for i := range 10 {
			publish(t, l, "k", fmt.Sprint(i))
		}
		c := subscribe(t, l)
		m := take(t, c, 10)
		must(t, c.Commit(t.Context(), map[int]int64{m[3].Partition: m[3].Offset + 1}))
		must(t, c.Commit(t.Context(), map[int]int64{m[1].Partition: m[1].Offset + 1})) // a smaller one is ignored
		must(t, c.Close())
		again := subscribe(t, l)
		if rest := take(t, again, 6); len(rest) != 6 || string(rest[0].Value) != "4" {
			t.Errorf("went on with %v", rest)
		}
		other, err := l.Subscribe(t.Context(), dispatch.TopicEvents, dispatch.GroupHistory)
		must(t, err)
		if all := take(t, other, 10); string(all[0].Value) != "0" {
			t.Errorf("the other group began with %s", all[0].Value)
		}
	})
	t.Run("positions tell whether an end was passed", func(t *testing.T) {
		l := open(t)
		publish(t, l, "k", "v")
		end, err := l.End(t.Context(), dispatch.TopicEvents)
		must(t, err)
		committed, err := l.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		must(t, err)
		if committed.Passed(end) {
			t.Error("passed before anything was committed")
		}
		c := subscribe(t, l)
		m := take(t, c, 1)
		must(t, c.Commit(t.Context(), map[int]int64{m[0].Partition: m[0].Offset + 1}))
		committed, err = l.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		must(t, err)
		if !committed.Passed(end) {
			t.Errorf("%v has not passed %v", committed, end)
		}
		if (dispatch.Position{LogID: "other", Offsets: committed.Offsets}).Passed(end) {
			t.Error("a position of another log passed")
		}
	})
	t.Run("seeking goes back", func(t *testing.T) {
		l := open(t)
		publish(t, l, "k", "v")
		c := subscribe(t, l)
		m := take(t, c, 1)
		c.Seek(m[0].Partition, m[0].Offset)
		if again := take(t, c, 1); again[0].Offset != m[0].Offset {
			t.Errorf("got %v", again)
		}
	})
	t.Run("a record that is too large is refused", func(t *testing.T) {
		l := open(t)
		err := l.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Record{{Key: "k", Value: make([]byte, dispatch.MaxRecordBytes+1)}})
		if !errors.Is(err, dispatch.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	})
}
