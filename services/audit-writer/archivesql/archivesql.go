// Package archivesql answers questions to the archive in SQL, on one machine and with nothing beside it.
//
// It copies the rows of the days that are asked for into a temporary SQLite database, only with the columns that the statement names,
// and gives SQLite the functions of Athena that the named queries use. So one text of a query runs in both (decision 38).
package archivesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/schemas"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// Range is what part of the archive is read: a region and days, both ends included.
type Range struct {
	Region   string
	From, To time.Time
}

// Day is how a day is written in the names of objects.
const Day = "2006-01-02"

// MaxDays bounds a range.
const MaxDays = 3660

// Validate returns what is wrong with r.
func (r Range) Validate() error {
	switch days := int(r.To.Sub(r.From)/(24*time.Hour)) + 1; {
	case r.Region == "" || strings.ContainsAny(r.Region, "/="):
		return errors.New("the region must be the one in the objects' names")
	case r.To.Before(r.From):
		return errors.New("the range ends before it begins")
	case days > MaxDays:
		return fmt.Errorf("the range has %d days; ask for at most %d", days, MaxDays)
	}
	return nil
}

// Objects returns the names of the objects that hold the range, by day: compacted ones where there are.
func (r Range) Objects(ctx context.Context, a archive.Archive) ([]string, error) {
	var names []string
	for day := r.From; !day.After(r.To); day = day.AddDate(0, 0, 1) {
		of, err := auditwriter.DayObjects(ctx, a, r.Region, day)
		if err != nil {
			return nil, err
		}
		names = append(names, of...)
	}
	return names, nil
}

// Result is the answer to a statement. A value is nil, a string, an int64 or a float64; an instant is a string such as
// "2026-11-24 23:05:06.007", in UTC.
type Result struct {
	Columns []string
	Rows    [][]any
	// Objects and Events are how many were read.
	Objects, Events int
}

// MaxRows bounds a result.
const MaxRows = 1_000_000

// instantForm is how instants are kept: their order as text is their order in time, and Athena prints them so.
const instantForm = "2006-01-02 15:04:05.000"

// Run reads the range and answers a statement about the table events. progress, if not nil, is called after each object.
func Run(ctx context.Context, a archive.Archive, r Range, statement string, progress func(done, all int)) (res Result, err error) {
	if err := r.Validate(); err != nil {
		return Result{}, err
	}
	if err := register(); err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp("", "minutehand-archive-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "events.db")+"?_pragma=journal_mode(OFF)&_pragma=synchronous(OFF)&_pragma=temp_store(FILE)")
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if res.Objects, res.Events, err = load(ctx, conn, a, r, columnsOf(statement), progress); err != nil {
		return Result{}, err
	}
	// The statement may come from a person: it reads the table, and nothing else. ATTACH and VACUUM INTO would write a file.
	if _, err := sqlite.Limit(conn, lib.SQLITE_LIMIT_ATTACHED, 0); err != nil {
		return Result{}, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA query_only = ON"); err != nil {
		return Result{}, err
	}
	return res, res.ask(ctx, conn, statement)
}

func (res *Result) ask(ctx context.Context, db *sql.Conn, statement string) (err error) {
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return fmt.Errorf("the statement: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if res.Columns, err = rows.Columns(); err != nil {
		return err
	}
	for rows.Next() {
		if len(res.Rows) == MaxRows {
			return fmt.Errorf("the answer has more than %d rows: ask for fewer days, or add a LIMIT", MaxRows)
		}
		row := make([]any, len(res.Columns))
		into := make([]any, len(row))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		res.Rows = append(res.Rows, row)
	}
	return rows.Err()
}

var word = regexp.MustCompile(`[a-z_]+`)

// columnsOf returns the columns that a statement may name; all of them if it has a star that is not a count's.
func columnsOf(statement string) []schemas.Column {
	all := schemas.ArchiveColumns()
	if strings.Contains(strings.ReplaceAll(statement, "(*)", ""), "*") {
		return all
	}
	named := word.FindAllString(strings.ToLower(statement), -1)
	all = slices.DeleteFunc(all, func(c schemas.Column) bool { return !slices.Contains(named, c.Name) })
	if len(all) == 0 { // a statement that only counts
		all = schemas.ArchiveColumns()[:1]
	}
	return all
}

// load makes the table events and fills it.
func load(ctx context.Context, db *sql.Conn, a archive.Archive, r Range, columns []schemas.Column, progress func(done, all int)) (objects, events int, err error) {
	names, err := r.Objects(ctx, a)
	if err != nil {
		return 0, 0, err
	}
	var wanted, declared, marks []string
	for _, c := range columns {
		wanted = append(wanted, c.Name)
		declared, marks = append(declared, `"`+c.Name+`"`), append(marks, "?")
	}
	for _, p := range schemas.ArchivePartitions() {
		declared, marks = append(declared, `"`+p+`"`), append(marks, "?")
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE events ("+strings.Join(declared, ", ")+")"); err != nil {
		return 0, 0, err
	}
	insert := "INSERT INTO events VALUES (" + strings.Join(marks, ", ") + ")"
	for i, name := range names {
		n, err := loadObject(ctx, db, a, name, wanted, insert)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
		events += n
		if progress != nil {
			progress(i+1, len(names))
		}
	}
	return len(names), events, nil
}

func loadObject(ctx context.Context, db *sql.Conn, a archive.Archive, name string, columns []string, insert string) (n int, err error) {
	o, err := a.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	add, err := tx.PrepareContext(ctx, insert)
	if err != nil {
		return 0, err
	}
	values := make([]any, len(columns), len(columns)+len(schemas.ArchivePartitions()))
	for _, p := range schemas.ArchivePartitions() {
		values = append(values, PartitionOf(name, p))
	}
	err = auditwriter.Scan(o, columns, func(row []any) error {
		n++
		for i, v := range row {
			if at, ok := v.(time.Time); ok {
				v = at.Format(instantForm)
			}
			values[i] = v
		}
		_, err := add.ExecContext(ctx, values...)
		return err
	})
	if err := errors.Join(err, add.Close()); err != nil {
		return 0, err
	}
	return n, tx.Commit()
}

// PartitionOf returns the value of a partition column in an object's name, "" if that has none.
func PartitionOf(name, partition string) string {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if value, ok := strings.CutPrefix(path.Base(dir), partition+"="); ok {
			return value
		}
	}
	return ""
}
