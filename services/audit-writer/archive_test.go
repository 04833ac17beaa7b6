package auditwriter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/minutehand/minutehand/libs/archive"
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

func (o objects) List(context.Context, string) ([]string, error) {
	return slices.Sorted(maps.Keys(o)), nil
}

// consumer records what was committed, and where reading goes on.
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

// cells reads an object. It returns the names of its columns, and its rows by column name, without nulls.
func cells(t *testing.T, body []byte) (names []string, rows []map[string]any) {
	t.Helper()
	r, err := file.NewParquetReader(io.NewSectionReader(bytes.NewReader(body), 0, int64(len(body))))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was read
	reader, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := reader.ReadTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	rows = make([]map[string]any, table.NumRows())
	for i := range rows {
		rows[i] = map[string]any{}
	}
	for i := range int(table.NumCols()) {
		name := table.Schema().Field(i).Name
		names = append(names, name)
		n := 0
		for _, chunk := range table.Column(i).Data().Chunks() {
			for k := range chunk.Len() {
				if !chunk.IsNull(k) {
					switch c := chunk.(type) {
					case *array.String:
						rows[n][name] = c.Value(k)
					case *array.Int64:
						rows[n][name] = c.Value(k)
					case *array.Timestamp:
						rows[n][name] = time.UnixMilli(int64(c.Value(k))).UTC()
					}
				}
				n++
			}
		}
	}
	return names, rows
}

func TestEveryColumnOfTheArchiveComesBack(t *testing.T) {
	at := func(n int) time.Time { return time.Date(2030, 1, 1, 12, 0, n, n*int(time.Millisecond), time.UTC) }
	fence := job.Fence{Epoch: 3, Counter: 4, Start: 5}
	event := job.Event{
		ID: "exe_1/1/succeeded/5", Type: job.EventAttempt, At: at(1), TenantID: "acme", Disposition: job.DispositionFired,
		Entry: job.Entry{
			Locator: job.Locator{DueAt: at(4), ExecutionID: "exe_1", Attempt: 2, DefinitionID: "def_1"},
			JobID:   "job_1", Trigger: job.TriggerSchedule, NominalAt: at(2), ScheduledFor: at(3),
		},
		Outcome: job.Outcome{
			Kind: job.OutcomeSucceeded, StatusCode: 204, Error: "a sentence", Fence: fence,
			Timeline: job.Timeline{Taken: at(5), Published: at(6), Consumed: at(7), Invoked: at(8), Completed: at(9)},
		},
		Skipped: &job.SkippedRange{From: at(10), To: at(11), Count: 12},
	}
	want := map[string]any{
		"event_id": event.ID, "event_type": string(job.EventAttempt), "event_at": at(1), "tenant_id": "acme", "job_id": "job_1",
		"definition_id": "def_1", "execution_id": "exe_1", "attempt": int64(2), "trigger": string(job.TriggerSchedule),
		"nominal_at": at(2), "scheduled_for": at(3), "due_at": at(4), "outcome": string(job.OutcomeSucceeded), "disposition": string(job.DispositionFired),
		"status_code": int64(204), "error": "a sentence", "fencing_token": fence.String(), "taken_at": at(5), "published_at": at(6),
		"consumed_at": at(7), "invoked_at": at(8), "completed_at": at(9), "skipped_from": at(10), "skipped_to": at(11),
		"skipped_count": int64(12), "log_id": "log-7", "log_partition": int64(6), "log_offset": int64(42), "appended_at": at(13),
	}
	empty := map[string]any{
		"attempt": int64(0), "status_code": int64(0), "skipped_count": int64(0), "log_id": "log-7", "log_partition": int64(6),
		"log_offset": int64(43), "appended_at": at(14),
	}
	for codec := range codecs() {
		body, err := encode(&buffer{partition: 6, last: 43}, []row{{event, 42, at(13)}, {job.Event{}, 43, at(14)}}, "log-7", codec)
		if err != nil {
			t.Fatal(err)
		}
		names, rows := cells(t, body)
		if len(names) != len(want) || len(rows) != 2 {
			t.Fatalf("%s: %d columns and %d rows", codec, len(names), len(rows))
		}
		for _, name := range names {
			if rows[0][name] != want[name] || rows[1][name] != empty[name] {
				t.Errorf("%s: %s is %v and %v, want %v and %v", codec, name, rows[0][name], rows[1][name], want[name], empty[name])
			}
		}
	}
}

func TestObjectIsPutWhenItIsLargeOrOldOrItsHourEnds(t *testing.T) {
	value := wire.MarshalEvent(&job.Event{ID: "exe_1/1/succeeded/5", Type: job.EventAttempt})
	cfg := DefaultConfig()
	cfg.CloseBytes = 3 * int64(len(value))
	cfg.Codec = "snappy" // zstd's encoders are pooled, and must not leave a bubble
	into := objects{}
	const name = "audit/region=local/dt=2000-01-01/hour="
	synctest.Test(t, func(t *testing.T) { // the bubble starts at midnight
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

// The archive holds every record that the log kept (I8), even one that nobody can decode.
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

// records returns records of a log from an offset on, with these event ids.
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

// An object's name follows from where it begins. A process may find that another, which took it for dead, put the object
// already. It then puts only what it has beyond, or reads on after all that the other has. Nothing is archived twice, and
// the position does not pass what was not read.
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

// A log may lose its end under the same id, to a leader that did not have it, and give the offsets to other records. The
// archive keeps both.
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

// Positions may be lost. Then everything is read once more, and is in the archive once.
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

// A partition may belong to another for a while. An object has no gap. Otherwise the next process that reads the log from
// its beginning would begin an object in the gap, and put what lies after it a second time.
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
