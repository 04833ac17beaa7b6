package schemas

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

//go:embed athena/events.sql
var archiveTable string

//go:embed athena/view.sql
var archiveView string

//go:embed athena/queries/*.sql
var archiveQueries embed.FS

// Column is one of the archive's, with its type in Athena's words: string, bigint or timestamp.
type Column struct{ Name, Type, Comment string }

var columnLine = regexp.MustCompile("(?m)^  `([a-z_]+)` ([a-z]+) COMMENT '(.*)',?$")

// ArchiveColumns returns the columns of the archive's table in their order, without those that its partitions make.
func ArchiveColumns() []Column {
	var list []Column
	for _, m := range columnLine.FindAllStringSubmatch(archiveTable, -1) {
		list = append(list, Column{Name: m[1], Type: m[2], Comment: m[3]})
	}
	return list
}

// ArchiveBegins is the first day that the tables have, as they write it.
func ArchiveBegins() string {
	return regexp.MustCompile(`'projection.dt.range' = '(\d{4}-\d{2}-\d{2}),`).FindStringSubmatch(archiveTable)[1]
}

// ArchivePartitions are the columns that follow from an object's name.
func ArchivePartitions() []string { return []string{"region", "dt", "hour"} }

// NeverCompacted is a last compacted day of an archive of which nothing is compacted.
const NeverCompacted = "2000-01-01"

// ArchiveTables returns Athena's statements that make the tables of a bucket to which regions write: of objects as they were put, and of
// compacted ones.
func ArchiveTables(bucket string, regions ...string) (raw, compacted string) {
	table := func(name, folder string) string {
		return strings.NewReplacer("{table}", name, "{folder}", folder, "{bucket}", bucket, "{regions}", strings.Join(regions, ",")).Replace(archiveTable)
	}
	return table("raw_events", "audit"), table("compacted_events", "compacted")
}

// ArchiveView returns Athena's statement that makes, or replaces, the view events: up to a day it reads compacted objects.
func ArchiveView(compacted string) string {
	return strings.ReplaceAll(archiveView, "{compacted}", compacted)
}

// Query is a named question to the archive, in SQL that Athena, Trino and SQLite understand alike.
type Query struct {
	Name string
	// Title is one line, Text the statement, in which parameters are written {from}.
	Title, Text string
}

// Query parameters: the first and the last day, and a job's id.
const (
	ParameterFrom = "from"
	ParameterTo   = "to"
	ParameterJob  = "job"
)

// Needs reports whether the statement has a parameter.
func (q Query) Needs(parameter string) bool { return strings.Contains(q.Text, "{"+parameter+"}") }

// With returns the statement with its parameters as text literals.
func (q Query) With(parameters map[string]string) string {
	text := q.Text
	for name, value := range parameters {
		text = strings.ReplaceAll(text, "{"+name+"}", "'"+strings.ReplaceAll(value, "'", "''")+"'")
	}
	return text
}

// ArchiveQueries returns the named queries, by name.
func ArchiveQueries() ([]Query, error) {
	files, err := fs.Glob(archiveQueries, "athena/queries/*.sql")
	if err != nil {
		return nil, err
	}
	var list []Query
	for _, file := range files {
		text, err := archiveQueries.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, "athena/queries/"), ".sql")
		title, _, ok := strings.Cut(strings.TrimPrefix(string(text), "-- "), "\n")
		if !ok {
			return nil, fmt.Errorf("%s does not begin with a line that says what it answers", file)
		}
		list = append(list, Query{Name: name, Title: title, Text: string(text)})
	}
	slices.SortFunc(list, func(a, b Query) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}
