package auditwriter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// objects is an archive in memory.
type objects map[string][]byte

type object struct{ *bytes.Reader }

func (object) Close() error { return nil }

func (o objects) PutIfAbsent(_ context.Context, name string, body []byte) error {
	if _, there := o[name]; there {
		return archive.ErrExists
	}
	o[name] = body
	return nil
}

func (o objects) Open(_ context.Context, name string) (archive.Object, error) {
	body, there := o[name]
	if !there {
		return nil, archive.ErrNotFound
	}
	return object{bytes.NewReader(body)}, nil
}

func (o objects) List(_ context.Context, prefix string) ([]string, error) {
	names := slices.Sorted(maps.Keys(o))
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) }), nil
}

// consumer notes what was committed, and where reading is to go on.
type consumer struct {
	dispatch.Consumer
	committed, sought map[int]int64
}

func (*consumer) LogID() string { return "log-7" }

func (c *consumer) Commit(_ context.Context, offsets map[int]int64) error {
	maps.Copy(c.committed, offsets)
	return nil
}

func (c *consumer) Seek(partition int, offset int64) { c.sought[partition] = offset }

func newArchiver(t *testing.T, cfg Config, into objects) (*archiver, *consumer) {
	t.Helper()
	s, err := New(cfg, Deps{Archive: into, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c := &consumer{committed: map[int]int64{}, sought: map[int]int64{}}
	return &archiver{s: s, consumer: c, open: map[int]*buffer{}, there: map[int]contents{}}, c
}

func TestObjectIsPutWhenItIsLargeOrOldOrItsHourEnds(t *testing.T) {
	value := wire.MarshalEvent(&job.Event{ID: "exe_1/1/succeeded/5", Type: job.EventAttempt})
	cfg := DefaultConfig()
	cfg.CloseBytes = 3 * int64(len(value))
	cfg.Codec = "snappy" // zstd's encoders are kept for later, and must not leave a bubble
	into := objects{}
	const name = "audit/region=local/dt=2000-01-01/hour="
	bubble.Test(t, func(t *testing.T) { // it is midnight
		a, c := newArchiver(t, cfg, into)
		offset := int64(0)
		take := func(n int, want int64, why string) {
			t.Helper()
			var messages []dispatch.Message
			for range n {
				messages = append(messages, dispatch.Message{Partition: 1, Offset: offset, Value: value, AppendedAt: time.Now()})
				offset++
			}
			if err := a.take(t.Context(), messages); err != nil {
				t.Fatal(err)
			}
			if c.committed[1] != want {
				t.Errorf("%s: committed up to %d, want %d", why, c.committed[1], want)
			}
		}
		take(2, 0, "small and young")
		take(1, 3, "large")
		take(1, 3, "the next one")
		time.Sleep(cfg.CloseAfter - time.Millisecond)
		take(1, 3, "not quite old")
		time.Sleep(time.Millisecond)
		take(0, 5, "old")
		time.Sleep(time.Hour - cfg.CloseAfter - time.Millisecond)
		take(1, 5, "right before the hour ends")
		time.Sleep(time.Millisecond)
		take(0, 6, "the hour ended")
		take(3, 9, "large, in the next hour")
		time.Sleep(time.Hour - time.Millisecond)
		take(1, 9, "right before that hour ends")
		time.Sleep(time.Millisecond)
		take(1, 10, "the first one of the hour after it")
	})
	got, _ := into.List(t.Context(), "")
	want := []string{
		name + "00/log-7-00001-00000000000000000000.parquet", name + "00/log-7-00001-00000000000000000003.parquet",
		name + "00/log-7-00001-00000000000000000005.parquet", name + "01/log-7-00001-00000000000000000006.parquet",
		name + "01/log-7-00001-00000000000000000009.parquet",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the objects are %q, want %q", got, want)
	}
	all, err := ReadArchive(t.Context(), into)
	if err != nil || len(all) != 10 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	for i, e := range all {
		if e.Offset != int64(i) || e.Partition != 1 || e.LogID != "log-7" {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

// away is an archive that does not answer.
type away struct{ objects }

func (away) PutIfAbsent(context.Context, string, []byte) error { return errors.New("no answer") }

func TestAgeOfWhatIsNotArchivedGrowsWhileTheArchiveIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		metrics := prometheus.NewRegistry()
		cfg := DefaultConfig()
		cfg.Codec = "snappy" // zstd's encoders are kept for later, and must not leave a bubble
		s, err := New(cfg, Deps{Archive: away{objects{}}, Logger: slog.New(slog.DiscardHandler), Metrics: metrics})
		if err != nil {
			t.Fatal(err)
		}
		a := &archiver{s: s, consumer: &consumer{committed: map[int]int64{}, sought: map[int]int64{}}, open: map[int]*buffer{}, there: map[int]contents{}}
		age := func() float64 {
			families, err := metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "minutehand_audit_writer_oldest_unarchived_age_seconds" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			t.Fatal("there is no such metric")
			return 0
		}
		if got := age(); got != 0 {
			t.Errorf("the age of nothing is %v s", got)
		}
		value := wire.MarshalEvent(&job.Event{ID: "exe_1/1/succeeded/5", Type: job.EventAttempt})
		began := time.Now()
		if err := a.take(t.Context(), []dispatch.Message{{Value: value, AppendedAt: began}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		time.AfterFunc(19*time.Minute, func() {
			if got, want := age(), time.Since(began).Seconds(); got != want {
				t.Errorf("after %v s the age is %v s", want, got)
			}
		})
		if err := a.close(ctx, a.buffers()[0]); err == nil {
			t.Error("it was put")
		}
	})
}

// The archive holds every record that the log kept (I8): also one that nobody can read.
func TestRecordThatCannotBeDecodedIsArchivedWithoutItsContent(t *testing.T) {
	into := objects{}
	a, _ := newArchiver(t, DefaultConfig(), into)
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	value := wire.MarshalEvent(&job.Event{ID: "exe_1/1/succeeded/5", Type: job.EventAttempt})
	err := a.take(t.Context(), []dispatch.Message{
		{Offset: 7, Value: []byte{0xff, 0xff}, AppendedAt: at}, {Offset: 8, Value: value, AppendedAt: at},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range a.buffers() {
		if err := a.close(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	for _, body := range into {
		_, rows := cells(t, body)
		if len(rows) != 2 || rows[0]["event_type"] != "undecodable" || rows[0]["log_offset"] != int64(7) || rows[0]["appended_at"] != at ||
			rows[1]["event_id"] != "exe_1/1/succeeded/5" {
			t.Errorf("the rows are %v", rows)
		}
	}
	if len(into) != 1 {
		t.Errorf("%d objects", len(into))
	}
}

// records are those of a log from an offset on, with these event ids.
func records(from int64, ids ...string) []dispatch.Message {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	list := make([]dispatch.Message, len(ids))
	for i, id := range ids {
		list[i] = dispatch.Message{Offset: from + int64(i), Value: wire.MarshalEvent(&job.Event{ID: id, Type: job.EventAttempt}), AppendedAt: at}
	}
	return list
}

// archived reads an archive: OFFSET:ID of each record, in the order of the objects' names.
func archived(t *testing.T, into objects) (list []string) {
	t.Helper()
	all, err := ReadArchive(t.Context(), into)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		list = append(list, fmt.Sprint(x.Offset, ":", x.EventID))
	}
	return list
}

// An object's name follows from where it begins. Who finds it put already, by a process that was taken for dead, puts only what it has
// beyond, or reads on behind all that the other has: nothing is there twice, and the position does not pass what was not read.
func TestReadingGoesOnBehindAnObjectThatAnotherPutFirst(t *testing.T) {
	log := records(0, "a", "b", "c", "d", "e", "f")
	for _, c := range []struct {
		others, own         int
		committed, atTheEnd int64
	}{{3, 4, 4, 6}, {4, 4, 4, 6}, {5, 4, 0, 6}} {
		into := objects{}
		other, _ := newArchiver(t, DefaultConfig(), into)
		own, position := newArchiver(t, DefaultConfig(), into)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(other.take(t.Context(), log[:c.others]))
		must(other.close(t.Context(), other.open[0]))
		must(own.take(t.Context(), log[:c.own]))
		must(own.close(t.Context(), own.open[0]))
		if position.committed[0] != c.committed {
			t.Errorf("%+v: committed is %d", c, position.committed[0])
		}
		if len(position.sought) > 0 {
			t.Errorf("%+v: the consumer was moved, past what a log that lost its end gives anew", c)
		}
		must(own.take(t.Context(), log[c.own:]))
		must(own.close(t.Context(), own.open[0]))
		if position.committed[0] != c.atTheEnd {
			t.Errorf("%+v: committed is %d at the end", c, position.committed[0])
		}
		if got := archived(t, into); !slices.Equal(got, []string{"0:a", "1:b", "2:c", "3:d", "4:e", "5:f"}) {
			t.Errorf("%+v: the archive holds %v", c, got)
		}
	}
}

// A log may lose its end under the same id, to a leader that did not have it, and give the offsets to other records. The archive keeps
// both.
func TestLogThatLostItsEndLosesNothingOfTheArchive(t *testing.T) {
	for name, c := range map[string]struct {
		put  bool // what was read before is put before the end is lost
		from int64
		want []string
	}{
		"in an open object":                  {false, 2, []string{"0:a", "1:b", "2:c", "3:d", "2:x", "3:y", "4:z"}},
		"an open object altogether":          {false, 0, []string{"0:a", "1:b", "2:c", "3:d", "0:x", "1:y", "2:z"}},
		"in an object that was put":          {true, 2, []string{"0:a", "1:b", "2:c", "3:d", "2:x", "3:y", "4:z"}},
		"an object that was put, altogether": {true, 0, []string{"0:a", "1:b", "2:c", "3:d", "0:x", "1:y", "2:z"}},
	} {
		t.Run(name, func(t *testing.T) {
			into := objects{}
			a, position := newArchiver(t, DefaultConfig(), into)
			takeAll := func(list []dispatch.Message) {
				if err := a.take(t.Context(), list); err != nil {
					t.Fatal(err)
				}
			}
			closeAll := func() {
				for _, b := range a.buffers() {
					if err := a.close(t.Context(), b); err != nil {
						t.Fatal(err)
					}
				}
			}
			takeAll(records(0, "a", "b", "c", "d"))
			if c.put {
				closeAll()
			}
			takeAll(records(c.from, "x"))
			if !c.put && position.committed[0] != c.from {
				t.Errorf("committed is %d where the log goes on at %d", position.committed[0], c.from)
			}
			takeAll(records(c.from+1, "y", "z"))
			takeAll(records(c.from+1, "y")) // once more
			closeAll()
			if got := archived(t, into); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.want))) {
				t.Errorf("the archive holds %v, want %v", got, c.want)
			}
			if end := c.from + 3; position.committed[0] != end {
				t.Errorf("committed is %d, want %d", position.committed[0], end)
			}
		})
	}
}

// Positions may be lost: then everything is read once more, and is in the archive once.
func TestLogThatIsReadFromItsBeginningAgainIsInTheArchiveOnce(t *testing.T) {
	into := objects{}
	log := records(0, "a", "b", "c", "d", "e", "f", "g")
	first, _ := newArchiver(t, DefaultConfig(), into)
	for _, end := range []int{2, 3, 6} {
		if err := first.take(t.Context(), log[max(0, end-3):end]); err != nil {
			t.Fatal(err)
		}
		if b := first.open[0]; b != nil {
			if err := first.close(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	second, position := newArchiver(t, DefaultConfig(), into)
	if err := second.take(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	if err := second.close(t.Context(), second.open[0]); err != nil {
		t.Fatal(err)
	}
	if got := archived(t, into); !slices.Equal(got, []string{"0:a", "1:b", "2:c", "3:d", "4:e", "5:f", "6:g"}) || position.committed[0] != 7 {
		t.Errorf("the archive holds %v, committed is %d", got, position.committed[0])
	}
}

// A partition may be another's for a while. What an object holds is without a gap, or the next one that reads the log from its beginning
// would begin an object in the gap, and put what lies behind it a second time.
func TestPartitionThatWasAnothersForAWhileIsInTheArchiveOnce(t *testing.T) {
	into := objects{}
	log := records(0, "a", "b", "c", "d", "e", "f", "g")
	own, _ := newArchiver(t, DefaultConfig(), into)
	other, _ := newArchiver(t, DefaultConfig(), into)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(own.take(t.Context(), log[:2]))
	must(other.take(t.Context(), log[:4]))
	must(other.close(t.Context(), other.open[0]))
	must(own.take(t.Context(), log[4:6]))
	must(own.take(t.Context(), log)) // the positions were lost
	must(own.close(t.Context(), own.open[0]))
	if got := archived(t, into); !slices.Equal(got, []string{"0:a", "1:b", "2:c", "3:d", "4:e", "5:f", "6:g"}) {
		t.Errorf("the archive holds %v", got)
	}
}

// A poll that ends at its bytes says nothing of what the log still holds.
func TestPausesOnlyWhereTheLogHeldNoMore(t *testing.T) {
	s := &Service{cfg: DefaultConfig()}
	message := func(bytes int) dispatch.Message { return dispatch.Message{Value: make([]byte, bytes)} }
	for name, c := range map[string]struct {
		messages []dispatch.Message
		pauses   bool
	}{
		"nothing":            {nil, true},
		"a few":              {slices.Repeat([]dispatch.Message{message(500)}, 100), true},
		"a batch":            {slices.Repeat([]dispatch.Message{message(1)}, s.cfg.Batch), false},
		"few that are large": {slices.Repeat([]dispatch.Message{message(8 << 10)}, 128), false},
	} {
		if s.pauses(c.messages) != c.pauses {
			t.Errorf("after %s it pauses: %t", name, !c.pauses)
		}
	}
}
