package auditwriter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/minutehand/minutehand/libs/archive"
)

// Archived is the archive's account of one event: its id and its place in the log.
type Archived struct {
	EventID   string
	LogID     string
	Partition int64
	Offset    int64
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
		rows, err := readObject(ctx, o)
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

// logIDOf returns the log id in an object's name: the part before the partition and the offset.
func logIDOf(name string) string {
	name = path.Base(name)
	for range 2 {
		if i := strings.LastIndexByte(name, '-'); i >= 0 {
			name = name[:i]
		}
	}
	return name
}

// readObject reads the events of an object, but not their contents.
func readObject(ctx context.Context, o archive.Object) ([]Archived, error) {
	r, err := file.NewParquetReader(io.NewSectionReader(o, 0, o.Size()))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	reader, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	var columns, groups []int
	for _, name := range []string{"event_id", "log_partition", "log_offset"} {
		columns = append(columns, r.MetaData().Schema.ColumnIndexByName(name))
	}
	for g := range r.NumRowGroups() {
		groups = append(groups, g)
	}
	table, err := reader.ReadRowGroups(ctx, columns, groups)
	if err != nil {
		return nil, err
	}
	defer table.Release()
	rows := make([]Archived, table.NumRows())
	for i := range int(table.NumCols()) {
		n := 0
		for _, chunk := range table.Column(i).Data().Chunks() {
			for k := range chunk.Len() {
				switch table.Schema().Field(i).Name {
				case "event_id":
					rows[n].EventID = chunk.(*array.String).Value(k)
				case "log_partition":
					rows[n].Partition = chunk.(*array.Int64).Value(k)
				case "log_offset":
					rows[n].Offset = chunk.(*array.Int64).Value(k)
				}
				n++
			}
		}
	}
	return rows, nil
}
