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

// ArchivePartitions are the columns that follow from an object's name.
func ArchivePartitions() []string { return []string{"region", "dt", "hour"} }

// ArchiveTable returns Athena's statement that makes the table of a bucket to which regions write.
func ArchiveTable(bucket string, regions ...string) string {
	return strings.NewReplacer("{bucket}", bucket, "{regions}", strings.Join(regions, ",")).Replace(archiveTable)
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
