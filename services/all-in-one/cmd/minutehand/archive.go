package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/adapters/s3"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/schemas"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

type archiveCmd struct {
	Queries archiveQueriesCmd `cmd:"" help:"List the named queries."`
	Query   archiveQueryCmd   `cmd:"" help:"Answer a named query, or a statement of your own, from the archive."`
	Verify  archiveVerifyCmd  `cmd:"" help:"Read every object, and say what is missing or damaged."`
	Compact archiveCompactCmd `cmd:"" help:"Merge the small objects of days that are over into few."`
	Export  archiveExportCmd  `cmd:"" help:"Write the events to standard output, as CSV or JSON."`
}

// Help implements kong.HelpProvider.
func (archiveCmd) Help() string {
	return `The archive keeps every event for good, as Parquet objects. Athena answers the same queries (schemas/athena); these commands need nothing
but the objects.

  minutehand archive query account`
}

// archivePlace says where the archive is.
type archivePlace struct {
	Data   string    `default:".data" env:"MINUTEHAND_DATA" help:"Folder of one process; its archive is read, also while it runs." placeholder:"DIR"`
	S3     bool      `name:"s3" help:"Read the bucket that the --s3-… flags name."`
	Bucket s3.Access `embed:"" prefix:"s3-" envprefix:"MINUTEHAND_S3_"`
	Region string    `help:"Region in the objects' names; by default the bucket's, or local." placeholder:"NAME"`
}

// archiveSource says where the archive is and which days of it are read.
type archiveSource struct {
	archivePlace
	From string `help:"First day, in UTC; by default a week ago." placeholder:"YYYY-MM-DD"`
	To   string `help:"Last day, in UTC; by default today." placeholder:"YYYY-MM-DD"`
}

// open returns the archive and the range.
func (s *archiveSource) open(ctx context.Context) (archive.Archive, archivesql.Range, error) {
	now := time.Now().UTC()
	from, err := dayOf("--from", s.From, now.AddDate(0, 0, -7))
	if err != nil {
		return nil, archivesql.Range{}, err
	}
	to, err := dayOf("--to", s.To, now)
	if err != nil {
		return nil, archivesql.Range{}, err
	}
	return s.days(ctx, from, to)
}

// days returns the archive and the range of two days.
func (s *archivePlace) days(ctx context.Context, from, to time.Time) (archive.Archive, archivesql.Range, error) {
	r := archivesql.Range{Region: s.Region, From: from, To: to}
	if r.Region == "" {
		r.Region = "local"
		if s.S3 {
			r.Region = s.Bucket.Region
		}
	}
	if err := r.Validate(); err != nil {
		return nil, r, usageError{err}
	}
	if s.S3 {
		a, err := s.Bucket.Connect(ctx, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, r, usageError{err}
		}
		return a, r, a.Check(ctx)
	}
	a, err := embedded.OpenArchive(filepath.Join(s.Data, "archive"))
	if err != nil {
		return nil, r, usageError{fmt.Errorf("there is no archive in %s: %w; name the process's folder with --data, or a bucket with --s3", s.Data, cause(err))}
	}
	return a, r, nil
}

func dayOf(flag, text string, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise.Truncate(24 * time.Hour), nil
	}
	at, err := time.Parse(archivesql.Day, text)
	if err != nil {
		return at, usageError{fmt.Errorf("%s is not a day; write it as 2026-11-24", flag)}
	}
	return at, nil
}

// progress shows on a terminal how far the reading of objects is.
func progress() (tell func(done, all int), end func()) {
	if !terminal(os.Stderr) {
		return nil, func() {}
	}
	next := time.Now().Add(progressAfter)
	return func(done, all int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressAfter / 4)
			fmt.Fprintf(os.Stderr, "\r\x1b[K%d of %d objects", done, all)
		}
	}, func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

type archiveQueriesCmd struct {
	Name string `arg:"" optional:"" help:"Print the statement of this one."`
}

// Help implements kong.HelpProvider.
func (archiveQueriesCmd) Help() string {
	return `With a name, prints its statement, to be changed and given to archive query --sql.

  minutehand archive queries
  minutehand archive queries lateness`
}

// Run implements the command.
func (c *archiveQueriesCmd) Run() error {
	queries, err := schemas.ArchiveQueries()
	if err != nil {
		return err
	}
	if c.Name == "" {
		t := newTable(os.Stdout, "QUERY", "WHAT IT ANSWERS")
		for _, q := range queries {
			t.row(q.Name, q.Title)
		}
		t.end()
		return nil
	}
	q, err := queryOf(queries, c.Name)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(q.Text)
	return err
}

func queryOf(queries []schemas.Query, name string) (schemas.Query, error) {
	i := slices.IndexFunc(queries, func(q schemas.Query) bool { return q.Name == name })
	if i >= 0 {
		return queries[i], nil
	}
	var names []string
	for _, q := range queries {
		names = append(names, q.Name)
	}
	return schemas.Query{}, usageError{fmt.Errorf("there is no query %s; there are %s", name, strings.Join(names, ", "))}
}

type archiveQueryCmd struct {
	archiveSource
	Name   string `arg:"" optional:"" help:"One of minutehand archive queries."`
	SQL    string `name:"sql" help:"A statement about the table events, in place of a name." placeholder:"STATEMENT"`
	Job    string `help:"The job's id, for the query job." placeholder:"JOB"`
	Output string `short:"o" default:"table" enum:"table,csv,json" placeholder:"FORM" help:"A table for people, CSV or JSON for scripts."`
}

// Help implements kong.HelpProvider.
func (archiveQueryCmd) Help() string {
	return `Instants are in UTC. An event is in the archive about a minute after it happened.

  minutehand archive query account
  minutehand archive query job --job JOB -o csv
  minutehand archive query --sql "SELECT target_host, count(*) AS events FROM events GROUP BY 1"`
}

// Run implements the command.
func (c *archiveQueryCmd) Run(ctx context.Context) error {
	statement := c.SQL
	if (c.Name == "") == (statement == "") {
		return usageError{errors.New("give the name of a query or --sql, and not both; minutehand archive queries lists the names")}
	}
	a, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	if c.Name != "" {
		queries, err := schemas.ArchiveQueries()
		if err != nil {
			return err
		}
		q, err := queryOf(queries, c.Name)
		if err != nil {
			return err
		}
		if q.Needs(schemas.ParameterJob) != (c.Job != "") {
			return usageError{errors.New("--job goes with the query job, and that needs it")}
		}
		statement = q.With(map[string]string{
			schemas.ParameterFrom: r.From.Format(archivesql.Day), schemas.ParameterTo: r.To.Format(archivesql.Day), schemas.ParameterJob: c.Job,
		})
	}
	tell, end := progress()
	res, err := archivesql.Run(ctx, a, r, statement, tell)
	end()
	if err != nil {
		return err
	}
	return c.write(os.Stdout, res)
}

func (c *archiveQueryCmd) write(w io.Writer, res archivesql.Result) error {
	switch c.Output {
	case "csv":
		return writeCSV(w, res.Columns, func(yield func([]any) error) error {
			for _, row := range res.Rows {
				if err := yield(row); err != nil {
					return err
				}
			}
			return nil
		})
	case "json":
		list := make([]map[string]any, len(res.Rows))
		for i, row := range res.Rows {
			list[i] = map[string]any{}
			for k, name := range res.Columns {
				list[i][name] = row[k]
			}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	header := make([]any, len(res.Columns))
	for i, name := range res.Columns {
		header[i] = strings.ToUpper(name)
	}
	t := newTable(w, header...)
	for _, row := range res.Rows {
		for i, v := range row {
			if v == nil {
				row[i] = "-"
			}
		}
		t.row(row...)
	}
	t.end()
	fmt.Fprintf(w, "\n%d rows, from %d events in %d objects\n", len(res.Rows), res.Events, res.Objects)
	return nil
}

// writeCSV writes rows as they come; null is empty. A text that a spreadsheet would take for a formula gets an apostrophe before it.
func writeCSV(w io.Writer, columns []string, each func(yield func([]any) error) error) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return err
	}
	cells := make([]string, len(columns))
	err := each(func(row []any) error {
		for i, v := range row {
			switch x := v.(type) {
			case nil:
				cells[i] = ""
			case time.Time:
				cells[i] = x.Format(time.RFC3339Nano)
			case string:
				cells[i] = x
				if x != "" && strings.ContainsAny(x[:1], "=+-@\t\r") {
					cells[i] = "'" + x
				}
			default:
				cells[i] = fmt.Sprint(v)
			}
		}
		return out.Write(cells)
	})
	out.Flush()
	return errors.Join(err, out.Error())
}

type archiveVerifyCmd struct{ archiveSource }

// Help implements kong.HelpProvider.
func (archiveVerifyCmd) Help() string {
	return `Exits with 1 if an object cannot be read or is not what its name says, if a record is there twice, or if records between two objects of
a log partition are missing.

  minutehand archive verify`
}

// Run implements the command.
func (c *archiveVerifyCmd) Run(ctx context.Context) error {
	a, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	tell, end := progress()
	report, err := archivesql.Verify(ctx, a, r, tell)
	end()
	if err != nil {
		return err
	}
	for _, fault := range report.Faults {
		fmt.Println(shown(fault))
	}
	fmt.Printf("%d objects with %d events; %d of these were published twice, across a crash\n", report.Objects, report.Events, report.Repeated)
	if report.Compacted > 0 {
		fmt.Printf("%d compacted objects, held against those that they were made of\n", report.Compacted)
	}
	if n := len(report.Faults); n > 0 {
		return fmt.Errorf("the archive has %d faults", n)
	}
	return nil
}

type archiveCompactCmd struct{ archiveSource }

// Help implements kong.HelpProvider.
func (archiveCompactCmd) Help() string {
	return `Each day gets a few large objects beside its small ones, which stay. It may be stopped and run again, or run twice at once: each event is in
one compacted object. A day is compacted fifteen days after its end at the earliest; without --from and --to, every day of which that can be said.
These commands read compacted days from there at once. Athena does when the view events is replaced: by the Terraform variable
archive_compacted_until, whose value is said at the end. It has one value for all regions: the least that they say.

  minutehand archive compact`
}

// Run implements the command.
func (c *archiveCompactCmd) Run(ctx context.Context) error {
	now := time.Now().UTC()
	last := now.Add(-auditwriter.SettledAfter).Truncate(24*time.Hour).AddDate(0, 0, -1)
	if c.From == "" {
		c.From = schemas.ArchiveBegins()
	}
	if c.To == "" {
		c.To = last.Format(archivesql.Day)
	}
	a, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	for day := r.From; !day.After(r.To); day = day.AddDate(0, 0, 1) {
		tell, end := progress()
		done, err := auditwriter.Compact(ctx, a, r.Region, day, now, tell)
		end()
		if errors.Is(err, auditwriter.ErrNotSettled) {
			return usageError{fmt.Errorf("%s: %w", day.Format(archivesql.Day), err)}
		}
		if err != nil {
			return fmt.Errorf("%s: %w; run it again to go on", day.Format(archivesql.Day), err)
		}
		if done.Small > 0 {
			fmt.Printf("%s: %d objects in %d, with %d events\n", day.Format(archivesql.Day), done.Small, done.Objects, done.Events)
		}
		for _, name := range done.Late {
			fmt.Printf("%s came after its day was compacted; it is read beside it here, and not by Athena\n", shown(name))
		}
	}
	first, err := dayOf("the first day", schemas.ArchiveBegins(), time.Time{})
	if err != nil {
		return err
	}
	until, err := auditwriter.CompactedUntil(ctx, a, r.Region, first, r.To)
	if err == nil && !until.IsZero() {
		fmt.Printf("archive_compacted_until = %q\n", until.Format(archivesql.Day))
	}
	return err
}

type archiveExportCmd struct {
	archiveSource
	Output string `short:"o" default:"csv" enum:"csv,json" placeholder:"FORM" help:"CSV, or an object of JSON in each line."`
}

// Help implements kong.HelpProvider.
func (archiveExportCmd) Help() string {
	return `Every event of the range with every column, object by object: memory does not grow with the range.

  minutehand archive export
  minutehand archive export -o json`
}

// Run implements the command.
func (c *archiveExportCmd) Run(ctx context.Context) error {
	a, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	names, err := r.Objects(ctx, a)
	if err != nil {
		return err
	}
	var columns []string
	for _, column := range schemas.ArchiveColumns() {
		columns = append(columns, column.Name)
	}
	scan := func(yield func([]any) error) error {
		for _, name := range names {
			o, err := a.Open(ctx, name)
			if err != nil {
				return err
			}
			if err := errors.Join(auditwriter.Scan(o, columns, yield), o.Close()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	if c.Output == "csv" {
		return errors.Join(writeCSV(out, columns, scan), out.Flush())
	}
	e := json.NewEncoder(out)
	return errors.Join(scan(func(row []any) error {
		event := map[string]any{}
		for i, v := range row {
			if v != nil {
				event[columns[i]] = v
			}
		}
		return e.Encode(event)
	}), out.Flush())
}
