package auditwriter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/archive"
)

// Archived is what the archive says of one event: its id and its place in the log; of a change, also which one it was.
type Archived struct {
	EventID   string
	LogID     string
	Partition int64
	Offset    int64
	// Operation is "" for an event that is no change.
	JobID, Operation, Object, RequestID string
	Version                             int64
}

// ReadArchive reads the events of all objects. It is for accounts of small archives: the demo, tests, drills.
func ReadArchive(ctx context.Context, a archive.Archive) ([]Archived, error) {
	names, err := a.List(ctx, "audit/")
	if err != nil {
		return nil, err
	}
	var all []Archived
	for _, name := range names {
		o, err := a.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		rows, err := readObject(o)
		if err := errors.Join(err, o.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for i := range rows {
			rows[i].LogID = logIDOf(name)
		}
		all = append(all, rows...)
	}
	return all, nil
}

// logIDOf is the log id in an object's name: what stands before the partition and the offset.
func logIDOf(name string) string {
	name = path.Base(name)
	for range 2 {
		if i := strings.LastIndexByte(name, '-'); i >= 0 {
			name = name[:i]
		}
	}
	return name
}

// readObject reads the events of an object, without what is told of them.
func readObject(o archive.Object) ([]Archived, error) {
	f, err := parquet.OpenFile(o, o.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true),
		parquet.ReadBufferSize(readBytes))
	if err != nil {
		return nil, err
	}
	rows := make([]Archived, f.NumRows())
	for _, column := range []struct {
		name string
		set  func(a *Archived, v parquet.Value)
		// since marks a column that objects of earlier releases may lack.
		since bool
	}{
		{"event_id", func(a *Archived, v parquet.Value) { a.EventID = v.Clone().String() }, false},
		{"log_partition", func(a *Archived, v parquet.Value) { a.Partition = v.Int64() }, false},
		{"log_offset", func(a *Archived, v parquet.Value) { a.Offset = v.Int64() }, false},
		{"job_id", func(a *Archived, v parquet.Value) { a.JobID = v.Clone().String() }, true},
		{"operation", func(a *Archived, v parquet.Value) { a.Operation = v.Clone().String() }, true},
		{"object", func(a *Archived, v parquet.Value) { a.Object = v.Clone().String() }, true},
		{"request_id", func(a *Archived, v parquet.Value) { a.RequestID = v.Clone().String() }, true},
		{"version", func(a *Archived, v parquet.Value) { a.Version = v.Int64() }, true},
	} {
		leaf, ok := f.Schema().Lookup(column.name)
		if !ok && column.since {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("there is no column %s", column.name)
		}
		rest := rows
		for _, group := range f.RowGroups() {
			n, err := readColumn(group.ColumnChunks()[leaf.ColumnIndex], rest, column.set)
			if err != nil {
				return nil, fmt.Errorf("column %s: %w", column.name, err)
			}
			rest = rest[n:]
		}
		if len(rest) > 0 {
			return nil, fmt.Errorf("column %s: %w", column.name, io.ErrUnexpectedEOF)
		}
	}
	return rows, nil
}

const (
	// readBytes is how much of an object is read at once, because on S3 each read is a request.
	readBytes = 1 << 20
	// valuesAtOnce is how many values of a column are decoded at once.
	valuesAtOnce = 1024
)

// readColumn sets one value of each of the rows that a chunk has, and returns how many these are.
func readColumn(chunk parquet.ColumnChunk, rows []Archived, set func(a *Archived, v parquet.Value)) (n int, err error) {
	pages := chunk.Pages()
	defer pages.Close() //nolint:errcheck // it was read
	values := make([]parquet.Value, valuesAtOnce)
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		reader := page.Values()
		for err == nil {
			var read int
			read, err = reader.ReadValues(values)
			if n+read > len(rows) {
				return n, errors.New("more values than rows")
			}
			for i := range read {
				if !values[i].IsNull() {
					set(&rows[n+i], values[i])
				}
			}
			n += read
		}
		parquet.Release(page)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
	}
}
