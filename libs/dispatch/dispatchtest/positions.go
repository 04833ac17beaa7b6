package dispatchtest

import (
	"testing"

	"github.com/minutehand/minutehand/libs/dispatch"
)

func startsAtEarliest(t *testing.T, f fixture) {
	want := f.publishMany(t, 30)
	for _, group := range []string{dispatch.GroupSettle, dispatch.GroupHistory, dispatch.GroupArchive} {
		wantValues(t, take(t, f.subscribe(t, group), 30, 100), want)
	}
}

func deliveredAgain(t *testing.T, f fixture) {
	want := f.publishMany(t, 30)
	for range 3 {
		c := f.subscribe(t, dispatch.GroupSettle)
		wantValues(t, take(t, c, 30, 100), want)
		must(t, c.Close())
	}
}

func goesOnFromCommitted(t *testing.T, f fixture) {
	want := f.publishMany(t, 40)
	for _, n := range []int{10, 1, 29} {
		c := f.subscribe(t, dispatch.GroupSettle)
		handled := take(t, c, n, 1)
		must(t, c.Commit(t.Context(), after(handled)))
		must(t, c.Close())
		for v := range values(handled) {
			if !want[v] {
				t.Errorf("message %s came again though it was committed", v)
			}
			delete(want, v)
		}
	}
	if len(want) > 0 {
		t.Errorf("messages %v never came", want)
	}
	more := f.publishMany(t, 5)
	wantValues(t, take(t, f.subscribe(t, dispatch.GroupSettle), 5, 10), more)
}

func smallerCommitIsNone(t *testing.T, f fixture) {
	for range 10 {
		f.publish(t, dispatch.Message{Key: "k", Value: []byte("v")})
	}
	c := f.subscribe(t, dispatch.GroupSettle)
	m := take(t, c, 10, 100)
	p := m[0].Partition
	for _, offset := range []int64{m[6].Offset, m[2].Offset, m[6].Offset, m[0].Offset, 0} {
		must(t, c.Commit(t.Context(), map[int]int64{p: offset}))
		if got := f.committed(t, dispatch.GroupSettle).Offsets[p]; got != m[6].Offset {
			t.Errorf("after committing %d it is %d, want %d", offset, got, m[6].Offset)
		}
	}
	must(t, c.Commit(t.Context(), nil))
	must(t, c.Close())
	if rest := take(t, f.subscribe(t, dispatch.GroupSettle), 4, 10); rest[0].Offset != m[6].Offset {
		t.Errorf("it goes on from %d, want %d", rest[0].Offset, m[6].Offset)
	}
}

func commitsRace(t *testing.T, f fixture) {
	const n = 64
	for range n {
		f.publish(t, dispatch.Message{Key: "k", Value: []byte("v")})
	}
	c := f.subscribe(t, dispatch.GroupSettle)
	m := take(t, c, n, 100)
	atOnce(n, func(i int) {
		if err := c.Commit(t.Context(), map[int]int64{m[i].Partition: m[i].Offset + 1}); err != nil {
			t.Error(err)
		}
		committed, err := f.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		if err != nil || committed.Offsets[m[i].Partition] <= m[i].Offset {
			t.Errorf("after committing %d it is %v, %v", m[i].Offset+1, committed.Offsets, err)
		}
	})
	if got, want := f.committed(t, dispatch.GroupSettle).Offsets[m[0].Partition], m[n-1].Offset+1; got != want {
		t.Errorf("committed is %d, want %d", got, want)
	}
}

func groupsAreSeparate(t *testing.T, f fixture) {
	want := f.publishMany(t, 20)
	settle := f.subscribe(t, dispatch.GroupSettle)
	must(t, settle.Commit(t.Context(), after(take(t, settle, 20, 100))))
	history := f.subscribe(t, dispatch.GroupHistory)
	wantValues(t, take(t, history, 20, 100), want)
	for p, offset := range f.committed(t, dispatch.GroupHistory).Offsets {
		if offset != 0 {
			t.Errorf("the other group stands at %d in partition %d", offset, p)
		}
	}
}

func nothingCommitted(t *testing.T, f fixture) {
	f.publishMany(t, 20)
	committed, end := f.committed(t, dispatch.GroupSettle), f.end(t)
	for p := range end.Offsets {
		if committed.Offsets[p] != 0 {
			t.Errorf("partition %d stands at %d", p, committed.Offsets[p])
		}
	}
	if committed.Passed(end) {
		t.Error("it has passed an end that it never came near")
	}
}

func endIsPassed(t *testing.T, f fixture) {
	if empty := f.end(t); !f.committed(t, dispatch.GroupSettle).Passed(empty) {
		t.Error("the end of an empty log is not passed")
	}
	f.publishMany(t, 40)
	noted := f.end(t)
	c := f.subscribe(t, dispatch.GroupSettle)
	handled := take(t, c, 40, 100)
	must(t, c.Commit(t.Context(), after(handled[:39])))
	if f.committed(t, dispatch.GroupSettle).Passed(noted) {
		t.Error("it is passed though one message was not handled")
	}
	must(t, c.Commit(t.Context(), after(handled)))
	if p := f.committed(t, dispatch.GroupSettle); !p.Passed(noted) {
		t.Errorf("%v has not passed %v", p, noted)
	}
	f.publishMany(t, 1)
	if p := f.committed(t, dispatch.GroupSettle); !p.Passed(noted) || p.Passed(f.end(t)) {
		t.Errorf("%v, noted %v, end %v", p, noted, f.end(t))
	}
}

func endCoversPublished(t *testing.T, f fixture) {
	atOnce(8, func(i int) {
		var last dispatch.Position
		for range 10 {
			r := dispatch.Message{Key: string(rune('a' + i)), Value: []byte("v")}
			if err := f.Publish(t.Context(), dispatch.TopicEvents, []dispatch.Message{r}); err != nil {
				t.Error(err)
			}
			end, err := f.End(t.Context(), dispatch.TopicEvents)
			if err != nil || last.LogID != "" && (!end.Passed(last) || last.Passed(end)) {
				t.Errorf("end %v after %v and a message more, %v", end, last, err)
			}
			last = end
		}
	})
	end := f.end(t)
	for _, m := range take(t, f.subscribe(t, dispatch.GroupSettle), 80, 100) {
		if m.Offset >= end.Offsets[m.Partition] {
			t.Errorf("message %d of partition %d is behind the end %v", m.Offset, m.Partition, end)
		}
	}
}

func logIDIsOne(t *testing.T, f fixture) {
	for range 2 {
		c := f.subscribe(t, dispatch.GroupSettle)
		end, committed := f.end(t), f.committed(t, dispatch.GroupSettle)
		if c.LogID() == "" || c.LogID() != end.LogID || c.LogID() != committed.LogID {
			t.Errorf("log ids are %q, %q and %q", c.LogID(), end.LogID, committed.LogID)
		}
		f.publishMany(t, 3)
		if again := f.end(t); again.LogID != end.LogID {
			t.Errorf("the log id was %q and is %q", end.LogID, again.LogID)
		}
		must(t, c.Close())
	}
}

func seeking(t *testing.T, f fixture) {
	for range 10 {
		f.publish(t, dispatch.Message{Key: "k", Value: []byte("v")})
	}
	c := f.subscribe(t, dispatch.GroupSettle)
	m := take(t, c, 10, 3)
	for _, i := range []int{0, 9, 4} {
		c.Seek(m[i].Partition, m[i].Offset)
		if again := take(t, c, 10-i, 100); again[0].Offset != m[i].Offset {
			t.Errorf("it went on from %d, want %d", again[0].Offset, m[i].Offset)
		}
	}
	fresh := f.subscribe(t, dispatch.GroupHistory)
	take(t, fresh, 1, 1)
	fresh.Seek(m[8].Partition, m[8].Offset) // forward as well
	if rest := take(t, fresh, 2, 100); rest[0].Offset != m[8].Offset {
		t.Errorf("it went on from %d, want %d", rest[0].Offset, m[8].Offset)
	}
}
