package archivesql_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/schemas"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

func ask(t *testing.T, dir string, r archivesql.Range, statement string) archivesql.Result {
	t.Helper()
	a, err := embedded.NewArchive(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	res, err := archivesql.Run(t.Context(), a, r, statement, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func day(text string) time.Time {
	at, _ := time.Parse(archivesql.Day, text)
	return at
}

func TestEveryNamedQueryRunsOnAnEmptyArchive(t *testing.T) {
	queries, err := schemas.ArchiveQueries()
	if err != nil || len(queries) < 10 {
		t.Fatal(len(queries), err)
	}
	r := archivesql.Range{Region: "local", From: day("2026-11-24"), To: day("2026-11-25")}
	for _, q := range queries {
		text := q.With(map[string]string{schemas.ParameterFrom: "2026-11-24", schemas.ParameterTo: "2026-11-25", schemas.ParameterJob: "job_1"})
		if strings.ContainsAny(text, "{}") {
			t.Errorf("%s has an unknown parameter", q.Name)
		}
		if res := ask(t, t.TempDir(), r, text); len(res.Columns) == 0 || len(res.Rows) != 0 {
			t.Errorf("%s: %v, %d rows", q.Name, res.Columns, len(res.Rows))
		}
	}
}

func TestStatementThatChangesSomethingIsRefused(t *testing.T) {
	a, err := embedded.NewArchive(nil, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out.db")
	for _, statement := range []string{"DELETE FROM events", "ATTACH '" + out + "' AS x; CREATE TABLE x.t (a)", "CREATE TABLE t (a)", "VACUUM INTO '" + out + "'"} {
		_, err := archivesql.Run(t.Context(), a, archivesql.Range{Region: "r", From: day("2026-11-24"), To: day("2026-11-24")}, statement, nil)
		if err == nil {
			t.Errorf("%s was carried out", statement)
		}
	}
	if found, _ := filepath.Glob(out); len(found) > 0 {
		t.Error("a statement made a file")
	}
}

func TestRangeThatMakesNoSenseIsRefused(t *testing.T) {
	for _, r := range []archivesql.Range{
		{Region: "", From: day("2026-11-24"), To: day("2026-11-24")},
		{Region: "a/b", From: day("2026-11-24"), To: day("2026-11-24")},
		{Region: "a", From: day("2026-11-24"), To: day("2026-11-23")},
		{Region: "a", From: day("1999-01-01"), To: day("2026-11-23")},
	} {
		if _, err := archivesql.Run(context.Background(), nil, r, "SELECT 1 FROM events", nil); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
}

func TestPartitionsOfAnObjectFollowFromItsName(t *testing.T) {
	name := "audit/region=eu/dt=2026-11-24/hour=07/log-00001-00000000000000000000.parquet"
	got := []string{}
	for _, p := range schemas.ArchivePartitions() {
		got = append(got, archivesql.PartitionOf(name, p))
	}
	if !slices.Equal(got, []string{"eu", "2026-11-24", "07"}) || archivesql.PartitionOf("x.parquet", "dt") != "" {
		t.Error(got)
	}
}
