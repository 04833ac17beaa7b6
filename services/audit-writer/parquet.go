package auditwriter

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/minutehand/minutehand/libs/job"
)

// column is one column of the archive: its name, its type and where its value comes from. A zero instant and an empty text
// are stored as null.
type column struct {
	name    string
	text    func(r *row) string
	number  func(r *row) int64
	instant func(r *row) time.Time
	// dictionary marks texts with few distinct values; other texts are ids with long common beginnings.
	dictionary bool
}

// columns is the layout of an object. schemas/athena declares the same names in the same order.
func columns(logID string, partition int) []column {
	e := func(r *row) *job.Entry { return &r.event.Entry }
	o := func(r *row) *job.Outcome { return &r.event.Outcome }
	return []column{
		{name: "event_id", text: func(r *row) string { return r.event.ID }},
		{name: "event_type", text: func(r *row) string { return string(r.event.Type) }, dictionary: true},
		{name: "event_at", instant: func(r *row) time.Time { return r.event.At }},
		{name: "tenant_id", text: func(r *row) string { return r.event.TenantID }, dictionary: true},
		{name: "job_id", text: func(r *row) string { return e(r).JobID }},
		{name: "definition_id", text: func(r *row) string { return e(r).DefinitionID }},
		{name: "execution_id", text: func(r *row) string { return e(r).ExecutionID }},
		{name: "attempt", number: func(r *row) int64 { return int64(e(r).Attempt) }},
		{name: "trigger", text: func(r *row) string { return string(e(r).Trigger) }, dictionary: true},
		{name: "nominal_at", instant: func(r *row) time.Time { return e(r).NominalAt }},
		{name: "scheduled_for", instant: func(r *row) time.Time { return e(r).ScheduledFor }},
		{name: "due_at", instant: func(r *row) time.Time { return e(r).DueAt }},
		{name: "outcome", text: func(r *row) string { return string(o(r).Kind) }, dictionary: true},
		{name: "disposition", text: func(r *row) string { return string(r.event.Disposition) }, dictionary: true},
		{name: "status_code", number: func(r *row) int64 { return int64(o(r).StatusCode) }},
		{name: "error", text: func(r *row) string { return o(r).Error }, dictionary: true},
		{name: "fencing_token", text: func(r *row) string { return fenceText(o(r).Fence) }, dictionary: true},
		{name: "taken_at", instant: func(r *row) time.Time { return o(r).Timeline.Taken }},
		{name: "published_at", instant: func(r *row) time.Time { return o(r).Timeline.Published }},
		{name: "consumed_at", instant: func(r *row) time.Time { return o(r).Timeline.Consumed }},
		{name: "invoked_at", instant: func(r *row) time.Time { return o(r).Timeline.Invoked }},
		{name: "completed_at", instant: func(r *row) time.Time { return o(r).Timeline.Completed }},
		{name: "skipped_from", instant: func(r *row) time.Time { return skipped(r).From }},
		{name: "skipped_to", instant: func(r *row) time.Time { return skipped(r).To }},
		{name: "skipped_count", number: func(r *row) int64 { return int64(skipped(r).Count) }},
		{name: "log_id", text: func(*row) string { return logID }, dictionary: true},
		{name: "log_partition", number: func(*row) int64 { return int64(partition) }},
		{name: "log_offset", number: func(r *row) int64 { return r.offset }},
		{name: "appended_at", instant: func(r *row) time.Time { return r.at }},
	}
}

func fenceText(f job.Fence) string {
	if f.Epoch == 0 {
		return ""
	}
	return f.String()
}

func skipped(r *row) job.SkippedRange {
	if r.event.Skipped == nil {
		return job.SkippedRange{}
	}
	return *r.event.Skipped
}

func timestamp() arrow.DataType {
	return &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}
}

// codecs returns the compressions by their configured names.
func codecs() map[string]compress.Compression {
	return map[string]compress.Compression{"zstd": compress.Codecs.Zstd, "snappy": compress.Codecs.Snappy}
}

// encode writes the rows as one Parquet object.
func encode(b *buffer, rows []row, logID, codec string) ([]byte, error) {
	cols := columns(logID, b.partition)
	fields := make([]arrow.Field, len(cols))
	props := []parquet.WriterProperty{
		parquet.WithCompression(codecs()[codec]), parquet.WithCompressionLevel(1),
		parquet.WithDictionaryDefault(false), parquet.WithVersion(parquet.V2_LATEST),
	}
	for i, c := range cols {
		fields[i] = arrow.Field{Name: c.name, Nullable: true, Type: arrow.BinaryTypes.String}
		switch {
		case c.dictionary:
			props = append(props, parquet.WithDictionaryFor(c.name, true))
		case c.text != nil:
			props = append(props, parquet.WithEncodingFor(c.name, parquet.Encodings.DeltaByteArray))
		case c.number != nil:
			fields[i].Type = arrow.PrimitiveTypes.Int64
			props = append(props, parquet.WithEncodingFor(c.name, parquet.Encodings.DeltaBinaryPacked))
		default:
			fields[i].Type = timestamp()
			props = append(props, parquet.WithEncodingFor(c.name, parquet.Encodings.DeltaBinaryPacked))
		}
	}
	schema := arrow.NewSchema(fields, nil)
	arrays := make([]arrow.Array, len(cols))
	for i, c := range cols {
		arrays[i] = c.build(rows)
		defer arrays[i].Release()
	}
	record := array.NewRecordBatch(schema, arrays, int64(len(rows)))
	defer record.Release()

	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	if err := errors.Join(w.Write(record), w.Close()); err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	return out.Bytes(), nil
}

func (c *column) build(rows []row) arrow.Array {
	switch {
	case c.text != nil:
		b := array.NewStringBuilder(memory.DefaultAllocator)
		defer b.Release()
		for i := range rows {
			if v := c.text(&rows[i]); v != "" {
				b.Append(v)
			} else {
				b.AppendNull()
			}
		}
		return b.NewArray()
	case c.number != nil:
		b := array.NewInt64Builder(memory.DefaultAllocator)
		defer b.Release()
		for i := range rows {
			b.Append(c.number(&rows[i]))
		}
		return b.NewArray()
	}
	b := array.NewTimestampBuilder(memory.DefaultAllocator, timestamp().(*arrow.TimestampType))
	defer b.Release()
	for i := range rows {
		if v := c.instant(&rows[i]); !v.IsZero() {
			b.Append(arrow.Timestamp(v.UnixMilli()))
		} else {
			b.AppendNull()
		}
	}
	return b.NewArray()
}
