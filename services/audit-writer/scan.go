package auditwriter

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/minutehand/minutehand/libs/archive"
)

// Scan calls each for every row of an object, in order, with the values of the columns that are named: text, int64, time.Time, or nil
// for null. A column that the object does not have is null in every row. values must not be kept. Rows are read a thousand at a time,
// so that memory does not grow with the object, and of the object only the pages of these columns.
func Scan(o archive.Object, columns []string, each func(values []any) error) error {
	f, err := parquet.OpenFile(o, o.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(readBytes))
	if err != nil {
		return err
	}
	chosen := parquet.Group{}
	for _, name := range columns {
		if leaf, ok := f.Schema().Lookup(name); ok {
			chosen[name] = leaf.Node
		}
	}
	if len(chosen) == 0 { // its rows count all the same
		fields := f.Schema().Fields()
		if len(fields) == 0 {
			return errors.New("it has no columns")
		}
		chosen[fields[0].Name()] = fields[0]
	}
	schema := parquet.NewSchema("chosen", chosen)
	conversion, err := parquet.Convert(schema, f.Schema())
	if err != nil {
		return err
	}
	place := slices.Repeat([]int{-1}, len(schema.Columns())) // of a column of the schema, among those that were asked for
	instant := make([]bool, len(columns))
	for i, name := range columns {
		if leaf, ok := schema.Lookup(name); ok {
			place[leaf.ColumnIndex] = i
			if logical := leaf.Node.Type().LogicalType(); logical != nil {
				_, instant[i] = logical.Value.(*format.TimestampType)
			}
		}
	}
	for _, group := range f.RowGroups() {
		if err := scanGroup(parquet.ConvertRowGroup(group, conversion), place, instant, each); err != nil {
			return err
		}
	}
	return nil
}

func scanGroup(group parquet.RowGroup, place []int, instant []bool, each func(values []any) error) (err error) {
	rows := group.Rows()
	defer func() { err = errors.Join(err, rows.Close()) }()
	read := make([]parquet.Row, valuesAtOnce)
	values := make([]any, len(instant))
	for {
		n, err := rows.ReadRows(read)
		for _, row := range read[:n] {
			clear(values)
			for _, v := range row {
				i := place[v.Column()]
				switch {
				case v.IsNull() || i < 0:
				case instant[i]:
					values[i] = time.UnixMilli(v.Int64()).UTC()
				case v.Kind() == parquet.Int64:
					values[i] = v.Int64()
				case v.Kind() == parquet.ByteArray:
					values[i] = string(v.ByteArray())
				default:
					return fmt.Errorf("a column has values of kind %s", v.Kind())
				}
			}
			if err := each(values); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
