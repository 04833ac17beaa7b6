package auditwriter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	arrowcompress "github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	parquetgo "github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/schemas"
)

// cells reads an object by Arrow, which did not write it: the names of its columns, and its rows by these, without what is null.
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
		ID: "exe_1/1/succeeded/5", Type: job.EventAttempt, At: at(1), Disposition: job.DispositionFired,
		Entry: job.Entry{
			Locator: job.Locator{DueAt: at(4), ExecutionID: "exe_1", Attempt: 2, DefinitionID: "def_1"},
			JobID:   "job_1", Tenant: 7, Trigger: job.TriggerSchedule, NominalAt: at(2), ScheduledFor: at(3),
			By:     &job.Author{Subject: "key:mh_1", Role: "editor", Request: "01REQUEST", Source: "192.0.2.1"},
			Change: &job.Change{Operation: "cancelExecution", Object: "exe_2", Version: 15},
			Note:   &job.Note{Source: "exe_0", Operation: "op_1", Occurrence: at(18), TZData: "2026a"},
		},
		Target: job.TargetRef{Kind: job.TargetWebhook, Host: "example.com:8443"},
		Outcome: job.Outcome{
			Kind: job.OutcomeFailed, StatusCode: 500, Worker: "executor-0", RequestBytes: 16, ResponseBytes: 17, Error: "a sentence", Fence: fence,
			GaveWayTo: at(12),
			Timeline:  job.Timeline{Taken: at(5), Published: at(6), Consumed: at(7), Invoked: at(8), Completed: at(9)},
		},
		Skipped:   &job.SkippedRange{From: at(10), To: at(11), Count: 12},
		Deadlines: job.Deadlines{StartWithin: at(4).Sub(at(3)), FinishWithin: at(5).Sub(at(3))},
	}
	want := map[string]any{
		"event_id": event.ID, "event_type": string(job.EventAttempt), "event_at": at(1), "tenant_id": "00000007", "job_id": "job_1",
		"definition_id": "def_1", "execution_id": "exe_1", "attempt": int64(2), "trigger": string(job.TriggerSchedule),
		"nominal_at": at(2), "scheduled_for": at(3), "due_at": at(4), "outcome": string(job.OutcomeFailed), "disposition": string(job.DispositionFired),
		"status_code": int64(500), "error": "a sentence", "fencing_token": fence.String(), "taken_at": at(5), "published_at": at(6),
		"consumed_at": at(7), "invoked_at": at(8), "completed_at": at(9), "skipped_from": at(10), "skipped_to": at(11),
		"skipped_count": int64(12), "log_id": "log-7", "log_partition": int64(6), "log_offset": int64(42), "appended_at": at(13),
		"principal": "key:mh_1", "role": "editor", "request_id": "01REQUEST", "source": "192.0.2.1", "operation": "cancelExecution",
		"object": "exe_2", "version": int64(15), "target_kind": job.TargetWebhook, "target_host": "example.com:8443", "worker": "executor-0",
		"request_bytes": int64(16), "response_bytes": int64(17), "reason": "permanent", "source_execution_id": "exe_0",
		"gave_way_to":  job.ScheduleExecutionID("job_1", at(12)),
		"operation_id": "op_1", "occurrence": at(18),
		"tzdata_version": "2026a", "utc_offset_seconds": int64(0), "start_deadline_at": at(4), "deadline_at": at(5),
	}
	empty := map[string]any{
		"tenant_id": "default",
		"attempt":   int64(0), "status_code": int64(0), "skipped_count": int64(0), "log_id": "log-7", "log_partition": int64(6),
		"log_offset": int64(43), "appended_at": at(14), "version": int64(0),
	}
	for codec := range codecs() {
		body, err := encode(&buffer{partition: 6, last: 43}, []row{{event, 42, at(13)}, {job.Event{}, 43, at(14)}}, "log-7", codec)
		if err != nil {
			t.Fatal(err)
		}
		names, rows := cells(t, body)
		want["pool"] = nil // which nothing fills yet
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

// Objects that were written by Arrow have columns of another shape: every one may be null.
func TestObjectOfAnEarlierVersionIsRead(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "event_id", Nullable: true, Type: arrow.BinaryTypes.String},
		{Name: "log_partition", Nullable: true, Type: arrow.PrimitiveTypes.Int64},
		{Name: "log_offset", Nullable: true, Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	const n = 5000
	for i := range n {
		if i == 7 {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.StringBuilder).Append(fmt.Sprint("event ", i))
		}
		b.Field(1).(*array.Int64Builder).Append(6)
		b.Field(2).(*array.Int64Builder).Append(int64(i))
	}
	record := b.NewRecordBatch()
	defer record.Release()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, parquet.NewWriterProperties(
		parquet.WithCompression(arrowcompress.Codecs.Zstd), parquet.WithMaxRowGroupLength(2000), parquet.WithDictionaryDefault(false),
		parquet.WithEncodingFor("event_id", parquet.Encodings.DeltaByteArray), parquet.WithEncodingFor("log_offset", parquet.Encodings.DeltaBinaryPacked),
	), pqarrow.DefaultWriterProps())
	if err == nil {
		err = errors.Join(w.Write(record), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readObject(object{bytes.NewReader(out.Bytes())})
	if err != nil || len(rows) != n {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range rows {
		want := Archived{EventID: fmt.Sprint("event ", i), Partition: 6, Offset: int64(i)}
		if i == 7 {
			want.EventID = ""
		}
		if r != want {
			t.Fatalf("row %d is %+v", i, r)
		}
	}
}

// countedReads is an object that counts what S3 would charge for as requests.
type countedReads struct {
	object
	n *int
}

func (o countedReads) ReadAt(p []byte, offset int64) (int, error) {
	*o.n++
	return o.object.ReadAt(p, offset)
}

func TestReadingAnObjectBackTakesFewRequests(t *testing.T) {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	rows := make([]row, 200_000)
	for i := range rows {
		rows[i] = row{job.Event{ID: fmt.Sprintf("exe_%d/1/succeeded/5", i*7919%len(rows)), At: at}, int64(i), at}
	}
	body, err := encode(&buffer{partition: 6}, rows, "log-7", "zstd")
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	archived, err := readObject(countedReads{object{bytes.NewReader(body)}, &reads})
	if err != nil || len(archived) != len(rows) {
		t.Fatalf("%d rows, %v", len(archived), err)
	}
	const most = 12 // the ends of the file, and a chunk of each of eight columns
	if reads > most {
		t.Errorf("%d reads for %d bytes, want at most %d", reads, len(body), most)
	}
}

// Athena finds a column by its name: what the table has and the objects do not is null for ever.
func TestTableOfTheArchiveHasTheColumnsOfItsObjects(t *testing.T) {
	athena := map[string]string{"BYTE_ARRAY": "string", "INT64": "bigint"}
	var objects, table []string
	for _, field := range parquetgo.SchemaOf(line{}).Fields() {
		kind := athena[field.Type().Kind().String()]
		if logical := field.Type().LogicalType(); logical != nil && strings.HasPrefix(logical.String(), "TIMESTAMP") {
			kind = "timestamp"
		}
		objects = append(objects, field.Name()+" "+kind)
	}
	for _, c := range schemas.ArchiveColumns() {
		table = append(table, c.Name+" "+c.Type)
	}
	if !slices.Equal(objects, table) {
		t.Errorf("the objects have %q\nthe table has %q", objects, table)
	}
}

// Runs of values and of nulls of all lengths and at all places come back as they were.
func TestNullOfTheArchiveComesBackAsNull(t *testing.T) {
	at := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		rows, has := make([]row, 1+r.IntN(400)), r.Float64() < 0.5
		want := make([]bool, len(rows))
		for i := range rows {
			if has = has != (r.Float64() < 0.05); has {
				rows[i].event.Deadlines = job.Deadlines{FinishWithin: time.Hour}
				rows[i].event.Entry.Note = &job.Note{Source: "exe_0"}
			}
			rows[i].event.Entry.ScheduledFor, want[i] = at, has
		}
		body, err := encode(&buffer{partition: 6}, rows, "log-7", "zstd")
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		err = Scan(object{bytes.NewReader(body)}, []string{"deadline_at", "source_execution_id"}, func(v []any) error {
			if (v[0] != nil) != want[i] || (v[1] != nil) != want[i] {
				t.Fatalf("seed %d: row %d of %d is %v, and has values: %v", seed, i, len(rows), v, want[i])
			}
			i++
			return nil
		})
		if err != nil || i != len(rows) {
			t.Fatalf("%d rows, want %d: %v", i, len(rows), err)
		}
	}
}
