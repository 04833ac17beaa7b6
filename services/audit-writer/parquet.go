package auditwriter

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/compress/snappy"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/minutehand/minutehand/libs/job"
)

// line is a row of an object, with its columns in their order: schemas/athena has the same, and says what each means. Nothing fills
// Pool yet; it is there so that the table need not change when something does. An empty text and a zero instant are null. Texts of few values
// have a dictionary; the others are ids with long common beginnings, of which only the differences are stored.
type line struct {
	EventID      string `parquet:"event_id,optional,delta"`
	EventType    string `parquet:"event_type,optional,dict"`
	EventAt      int64  `parquet:"event_at,optional,delta,timestamp(millisecond)"`
	Tenant       string `parquet:"tenant_id,optional,dict"`
	JobID        string `parquet:"job_id,optional,delta"`
	DefinitionID string `parquet:"definition_id,optional,delta"`
	ExecutionID  string `parquet:"execution_id,optional,delta"`
	Attempt      int64  `parquet:"attempt,delta"`
	Trigger      string `parquet:"trigger,optional,dict"`
	NominalAt    int64  `parquet:"nominal_at,optional,delta,timestamp(millisecond)"`
	ScheduledFor int64  `parquet:"scheduled_for,optional,delta,timestamp(millisecond)"`
	DueAt        int64  `parquet:"due_at,optional,delta,timestamp(millisecond)"`
	Outcome      string `parquet:"outcome,optional,dict"`
	Disposition  string `parquet:"disposition,optional,dict"`
	StatusCode   int64  `parquet:"status_code,delta"`
	Error        string `parquet:"error,optional,dict"`
	FencingToken string `parquet:"fencing_token,optional,delta"`
	TakenAt      int64  `parquet:"taken_at,optional,delta,timestamp(millisecond)"`
	PublishedAt  int64  `parquet:"published_at,optional,delta,timestamp(millisecond)"`
	ConsumedAt   int64  `parquet:"consumed_at,optional,delta,timestamp(millisecond)"`
	InvokedAt    int64  `parquet:"invoked_at,optional,delta,timestamp(millisecond)"`
	CompletedAt  int64  `parquet:"completed_at,optional,delta,timestamp(millisecond)"`
	SkippedFrom  int64  `parquet:"skipped_from,optional,delta,timestamp(millisecond)"`
	SkippedTo    int64  `parquet:"skipped_to,optional,delta,timestamp(millisecond)"`
	SkippedCount int64  `parquet:"skipped_count,delta"`
	LogID        string `parquet:"log_id,optional,dict"`
	LogPartition int64  `parquet:"log_partition,delta"`
	LogOffset    int64  `parquet:"log_offset,delta"`
	AppendedAt   int64  `parquet:"appended_at,optional,delta,timestamp(millisecond)"`
	By           string `parquet:"principal,optional,dict"`
	Role         string `parquet:"role,optional,dict"`
	RequestID    string `parquet:"request_id,optional,delta"`
	Source       string `parquet:"source,optional,dict"`
	Operation    string `parquet:"operation,optional,dict"`
	Object       string `parquet:"object,optional,dict"`
	Version      int64  `parquet:"version,delta"`
	TargetKind   string `parquet:"target_kind,optional,dict"`
	TargetHost   string `parquet:"target_host,optional,dict"`
	Pool         string `parquet:"pool,optional,dict"`
	Worker       string `parquet:"worker,optional,dict"`
	RequestSize  int64  `parquet:"request_bytes,optional,delta"`
	ResponseSize int64  `parquet:"response_bytes,optional,delta"`
	Reason       string `parquet:"reason,optional,dict"`
	SourceID     string `parquet:"source_execution_id,optional,delta"`
	GaveWayTo    string `parquet:"gave_way_to,optional,delta"`
	OperationID  string `parquet:"operation_id,optional,dict"`
	DeadlineAt   int64  `parquet:"deadline_at,optional,delta,timestamp(millisecond)"`
	TZData       string `parquet:"tzdata_version,optional,dict"`
	UTCOffset    *int64 `parquet:"utc_offset_seconds,optional,dict"`
	Occurrence   int64  `parquet:"occurrence,optional,delta,timestamp(millisecond)"`
	StartBy      int64  `parquet:"start_deadline_at,optional,delta,timestamp(millisecond)"`
}

// lineOf is what an object holds of a row.
func lineOf(r *row, logID string, partition int) line {
	e, o := &r.event.Entry, &r.event.Outcome
	l := line{
		EventID: r.event.ID, EventType: string(r.event.Type), EventAt: milliseconds(r.event.At), Tenant: r.event.Entry.Tenant.String(),
		JobID: e.JobID, DefinitionID: e.DefinitionID, ExecutionID: e.ExecutionID, Attempt: int64(e.Attempt), Trigger: string(e.Trigger),
		NominalAt: milliseconds(e.NominalAt), ScheduledFor: milliseconds(e.ScheduledFor), DueAt: milliseconds(e.DueAt),
		Outcome: string(o.Kind), Disposition: string(r.event.Disposition), StatusCode: int64(o.StatusCode), Error: o.Error,
		FencingToken: fenceText(o.Fence),
		TakenAt:      milliseconds(o.Timeline.Taken), PublishedAt: milliseconds(o.Timeline.Published),
		ConsumedAt: milliseconds(o.Timeline.Consumed), InvokedAt: milliseconds(o.Timeline.Invoked),
		CompletedAt: milliseconds(o.Timeline.Completed),
		TargetKind:  r.event.Target.Kind, TargetHost: r.event.Target.Host, Worker: o.Worker, RequestSize: o.RequestBytes, ResponseSize: o.ResponseBytes,
		Reason: r.event.Reason(), GaveWayTo: r.event.GaveWayTo(), StartBy: milliseconds(r.event.StartBy()), DeadlineAt: milliseconds(r.event.FinishBy()),
		LogID: logID, LogPartition: int64(partition), LogOffset: r.offset, AppendedAt: milliseconds(r.at),
	}
	if s := r.event.Skipped; s != nil {
		l.SkippedFrom, l.SkippedTo, l.SkippedCount = milliseconds(s.From), milliseconds(s.To), int64(s.Count)
	}
	if n := e.Note; n != nil {
		l.SourceID, l.OperationID, l.Occurrence, l.TZData = n.Source, n.Operation, milliseconds(n.Occurrence), n.TZData
		if offset := int64(n.UTCOffset); n.TZData != "" {
			l.UTCOffset = &offset
		}
	}
	if e.Elsewhere() != nil { // it repeats nothing for its target, and nobody has to do anything about it
		l.SourceID, l.Reason = "", ""
	}
	if by := e.By; by != nil {
		l.By, l.Role, l.RequestID, l.Source = by.Subject, by.Role, by.Request, by.Source
	}
	if c := e.Change; c != nil {
		l.Operation, l.Object, l.Version = c.Operation, c.Object, c.Version
	}
	return l
}

func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fenceText(f job.Fence) string {
	if f.Epoch == 0 {
		return ""
	}
	return f.String()
}

// codecs are the compressions by the names that a configuration has for them.
func codecs() map[string]compress.Codec {
	return map[string]compress.Codec{"zstd": zstdCodec, "snappy": &snappy.Codec{}}
}

// zstdCodec keeps its encoders for the next object.
var zstdCodec = &zstd.Codec{Level: zstd.SpeedFastest, Concurrency: 1}

const (
	// linesAtOnce is how many rows are made or read at once.
	linesAtOnce = 1024
	// pageBytes is about how large a page of a column becomes, before it is encoded.
	pageBytes = 1 << 20
)

// encode writes the rows as one Parquet object.
func encode(b *buffer, rows []row, logID, codec string) ([]byte, error) {
	var out bytes.Buffer
	w := parquet.NewGenericWriter[line](&out, parquet.Compression(codecs()[codec]), parquet.PageBufferSize(pageBytes),
		parquet.DataPageVersion(1), // which every engine reads
		parquet.CreatedBy("minutehand", "", ""))
	lines := make([]line, 0, min(len(rows), linesAtOnce))
	for len(rows) > 0 {
		n := min(len(rows), linesAtOnce)
		lines = lines[:0]
		for i := range rows[:n] {
			lines = append(lines, lineOf(&rows[i], logID, b.partition))
		}
		if err := writeLines(w, lines); err != nil {
			return nil, fmt.Errorf("parquet: %w", errors.Join(err, w.Close()))
		}
		rows = rows[n:]
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	return out.Bytes(), nil
}

// writeLines writes rows, two at a time: of more, release 0.32 of the library takes some nulls for zeros (its issue 154), wherever a run of other
// values begins as far behind a multiple of 64 rows as it is long, and nulls follow up to the next one.
func writeLines(w *parquet.GenericWriter[line], lines []line) error {
	for few := range slices.Chunk(lines, 2) {
		if _, err := w.Write(few); err != nil {
			return err
		}
	}
	return nil
}
