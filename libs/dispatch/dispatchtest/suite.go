// Package dispatchtest is the conformance suite of the log: each clause of the port's contract is a test here, named after the
// promise. The log that open returns is empty, each time with newly created topics.
package dispatchtest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/dispatch"
)

// patience is how long the suite waits for messages.
const patience = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fixture is a log with the shorthands of the suite, which uses the topic of events unless it says otherwise.
type fixture struct{ dispatch.Log }

func (f fixture) subscribe(t *testing.T, group string) dispatch.Consumer {
	t.Helper()
	c, err := f.Subscribe(t.Context(), dispatch.TopicEvents, group)
	must(t, err)
	return c
}

func (f fixture) publish(t *testing.T, messages ...dispatch.Message) {
	t.Helper()
	must(t, f.Publish(t.Context(), dispatch.TopicEvents, messages))
}

// publishMany publishes n messages, each under its own key, and returns their values.
func (f fixture) publishMany(t *testing.T, n int) map[string]bool {
	t.Helper()
	values := map[string]bool{}
	var messages []dispatch.Message
	for i := range n {
		values[fmt.Sprint(i)] = true
		messages = append(messages, dispatch.Message{Key: ulid.Make().String(), Value: fmt.Append(nil, i)})
	}
	f.publish(t, messages...)
	return values
}

func (f fixture) committed(t *testing.T, group string) dispatch.Position {
	t.Helper()
	p, err := f.Committed(t.Context(), dispatch.TopicEvents, group)
	must(t, err)
	return p
}

func (f fixture) end(t *testing.T) dispatch.Position {
	t.Helper()
	p, err := f.End(t.Context(), dispatch.TopicEvents)
	must(t, err)
	return p
}

// take polls until n messages have come, at most limit at a time.
func take(t *testing.T, c dispatch.Consumer, n, limit int) []dispatch.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []dispatch.Message
	for len(all) < n {
		messages, err := c.Poll(ctx, limit)
		if err != nil {
			t.Fatalf("after %d messages of %d: %v", len(all), n, err)
		}
		if len(messages) > limit {
			t.Fatalf("%d messages, limit %d", len(messages), limit)
		}
		all = append(all, messages...)
	}
	if len(all) != n {
		t.Fatalf("%d messages, want %d", len(all), n)
	}
	return all
}

// after returns the position after messages.
func after(messages []dispatch.Message) map[int]int64 {
	next := map[int]int64{}
	for _, m := range messages {
		next[m.Partition] = max(next[m.Partition], m.Offset+1)
	}
	return next
}

func values(messages []dispatch.Message) map[string]bool {
	all := map[string]bool{}
	for _, m := range messages {
		all[string(m.Value)] = true
	}
	return all
}

func wantValues(t *testing.T, messages []dispatch.Message, want map[string]bool) {
	t.Helper()
	if got := values(messages); !maps.Equal(got, want) || len(messages) != len(want) {
		t.Errorf("%d messages came, %d of them different, want %d", len(messages), len(got), len(want))
	}
}

// atOnce runs try from n goroutines that begin together.
func atOnce(n int, try func(i int)) {
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-begin
			try(i)
		})
	}
	close(begin)
	wg.Wait()
}

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) dispatch.Log) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, f fixture)
	}{
		{"a message is read back as it was published", recordIsReadBack},
		{"a message of the greatest size fits, a larger one is refused with all of its call", sizeIsBounded},
		{"messages of one key keep their order and their partition beside other publishers", keysKeepOrder},
		{"a call's messages keep their order", callKeepsOrder},
		{"offsets ascend and append times never decrease within a partition", offsetsAscend},
		{"topics are logs of their own", topicsAreSeparate},
		{"a poll gives at most its limit, and the rest to the next", pollIsBounded},
		{"a poll of large messages gives a part of them, and the rest to the next", pollIsBoundedInBytes},
		{"a poll waits for what comes", pollWaits},
		{"a poll ends with its context's error", pollEnds},
		{"a consumer without a committed position starts at the earliest message", startsAtEarliest},
		{"what was not committed is delivered again", deliveredAgain},
		{"a group goes on from its committed position", goesOnFromCommitted},
		{"a smaller offset than the committed one is ignored", smallerCommitIsNone},
		{"of concurrent commits the greatest offset stands", commitsRace},
		{"groups are read and committed each for itself", groupsAreSeparate},
		{"partitions without a committed position stand at 0", nothingCommitted},
		{"the end is behind the last message, and a group that handled all has passed it", endIsPassed},
		{"an end that was noted covers everything published before", endCoversPublished},
		{"a consumer and its topic's positions carry one log id, which stays", logIDIsOne},
		{"seeking makes the next poll go on from there", seeking},
	} {
		t.Run(c.promise, func(t *testing.T) { c.check(t, fixture{open(t)}) })
	}
	t.Run("a topic that was created anew has another log id", func(t *testing.T) {
		seen := map[string]bool{}
		for range 3 {
			id := fixture{open(t)}.end(t).LogID
			if id == "" || seen[id] {
				t.Errorf("log id %q, earlier %v", id, seen)
			}
			seen[id] = true
		}
	})
	t.Run("a position has passed an end of its own log only", positionsPass)
}

func positionsPass(t *testing.T) {
	end := dispatch.Position{LogID: "a", Offsets: map[int]int64{0: 5, 1: 0, 2: 3}}
	for _, c := range []struct {
		id      string
		offsets map[int]int64
		want    bool
	}{
		{"a", map[int]int64{0: 5, 2: 3}, true},
		{"a", map[int]int64{0: 9, 1: 9, 2: 9, 3: 9}, true}, // beyond the end
		{"a", map[int]int64{0: 4, 1: 9, 2: 9}, false},
		{"a", map[int]int64{0: 5}, false},
		{"a", nil, false},
		{"b", map[int]int64{0: 5, 2: 3}, false},
		{"", map[int]int64{0: 5, 2: 3}, false},
	} {
		if got := (dispatch.Position{LogID: c.id, Offsets: c.offsets}).Passed(end); got != c.want {
			t.Errorf("%q at %v has passed: %v", c.id, c.offsets, got)
		}
	}
	settled := dispatch.Position{LogID: "a", Offsets: map[int]int64{0: 4, 2: 3}}
	if present := (dispatch.Position{LogID: "a", Offsets: map[int]int64{0: 4, 1: 7, 2: 3}}); !settled.Passed(end.Within(present)) {
		t.Errorf("%v has not passed what there still is: %v", settled, end.Within(present))
	}
	if other := (dispatch.Position{LogID: "b", Offsets: map[int]int64{0: 1}}); settled.Passed(end.Within(other)) {
		t.Error("the end of another log counts")
	}
}
