package archivesql_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

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

// event is as much of a row as the queries below look at.
type event struct {
	EventID     string `parquet:"event_id,optional"`
	EventType   string `parquet:"event_type,optional"`
	Tenant      string `parquet:"tenant_id,optional"`
	JobID       string `parquet:"job_id,optional"`
	ExecutionID string `parquet:"execution_id,optional"`
	Attempt     int64  `parquet:"attempt"`
	Trigger     string `parquet:"trigger,optional"`
	Outcome     string `parquet:"outcome,optional"`
	Disposition string `parquet:"disposition,optional"`
	Error       string `parquet:"error,optional"`
	Token       string `parquet:"fencing_token,optional"`
	Worker      string `parquet:"worker,optional"`
	Host        string `parquet:"target_host,optional"`
	Reason      string `parquet:"reason,optional"`
	Nominal     int64  `parquet:"nominal_at,optional,timestamp(millisecond)"`
	Scheduled   int64  `parquet:"scheduled_for,optional,timestamp(millisecond)"`
	StartBy     int64  `parquet:"start_deadline_at,optional,timestamp(millisecond)"`
	FinishBy    int64  `parquet:"deadline_at,optional,timestamp(millisecond)"`
	Completed   int64  `parquet:"completed_at,optional,timestamp(millisecond)"`
	First       int64  `parquet:"skipped_from,optional,timestamp(millisecond)"`
	Count       int64  `parquet:"skipped_count"`
	Invoked     int64  `parquet:"invoked_at,optional,timestamp(millisecond)"`
	LogID       string `parquet:"log_id,optional"`
	Partition   int64  `parquet:"log_partition"`
	Offset      int64  `parquet:"log_offset"`
	Appended    int64  `parquet:"appended_at,optional,timestamp(millisecond)"`
}

// What only a crash leaves behind: an event that was published twice, by two executors of which only one made the call; an attempt that
// was called twice; and a record that the archive does not have.
func TestQueriesSeeWhatACrashLeavesBehind(t *testing.T) {
	dir, at := t.TempDir(), day("2026-11-24").Add(7*time.Hour)
	call := func(offset int64, id, execution, token, worker string) event {
		said := "the target answered 503"
		if worker == "" { // it only found the outcome, of which no more is kept
			said = "not kept"
		}
		return event{
			Error:   said,
			EventID: id, EventType: "attempt", Tenant: "default", JobID: "job_1", ExecutionID: execution, Attempt: 1, Trigger: "schedule", Outcome: "failed",
			Disposition: "fired", Token: token, Worker: worker, Host: "a:80", Invoked: at.UnixMilli() + offset, LogID: "log-1", Offset: offset, Appended: at.UnixMilli(),
		}
	}
	put := func(first int64, events ...event) {
		t.Helper()
		name := filepath.Join(dir, "audit", "region=local", "dt=2026-11-24", "hour=07", fmt.Sprintf("log-1-00000-%020d.parquet", first))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := parquet.NewGenericWriter[event](f)
		_, err = w.Write(events)
		// Two row groups, as a large object has.
		if err := errors.Join(err, w.Flush()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	put(0, call(0, "e1", "exe_1", "t1", "one"), call(1, "e1", "exe_1", "t1", ""), call(2, "e2", "exe_2", "t2", "one"))
	put(4, call(4, "e3", "exe_2", "t3", "two")) // record 3 is missing
	r := archivesql.Range{Region: "local", From: day("2026-11-24"), To: day("2026-11-24")}
	queries, err := schemas.ArchiveQueries()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"duplicates": "default job_1 exe_2 1 2",
		"gaps":       "log-1 0 3 3",
		"failures":   "a:80 failed <nil> the target answered 503 3 2 1", // three calls of two executions, whatever was published twice
		"cost":       "default <nil> a:80 2 3",
		"account":    "2026-11-24 default fired 2",
	} {
		i := slices.IndexFunc(queries, func(q schemas.Query) bool { return q.Name == name })
		res := ask(t, dir, r, queries[i].With(map[string]string{schemas.ParameterFrom: "2026-11-24", schemas.ParameterTo: "2026-11-24"}))
		if len(res.Rows) != 1 || !strings.HasPrefix(strings.Trim(fmt.Sprint(res.Rows[0]), "[]"), want) {
			t.Errorf("%s: %v, want %s", name, res.Rows, want)
		}
	}
	// None of the columns that this names is in these objects: an earlier release did not know it.
	if res := ask(t, dir, r, "SELECT tzdata_version, count(*) FROM events GROUP BY 1"); fmt.Sprint(res.Rows) != "[[<nil> 4]]" {
		t.Errorf("a column that is not there reads as %v", res.Rows)
	}
	a, err := embedded.OpenArchive(dir)
	if err != nil {
		t.Fatal(err)
	}
	report, err := archivesql.Verify(t.Context(), a, r, nil)
	if err != nil || report.Events != 4 || report.Repeated != 1 || len(report.Faults) != 1 || !strings.Contains(report.Faults[0], "records 3 to 3 of partition 0 are missing") {
		t.Errorf("%+v, %v", report, err)
	}
}

// putEvents writes an object of one hour.
func putEvents(t *testing.T, dir string, events []event) {
	t.Helper()
	name := filepath.Join(dir, "audit", "region=local", "dt=2026-11-24", "hour=07", "log-1-00000-00000000000000000000.parquet")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := parquet.WriteFile(name, events); err != nil {
		t.Fatal(err)
	}
}

// rowsOf returns the rows of a named query on an archive of one day, as text without what they have in common.
func rowsOf(t *testing.T, dir, name string) (rows []string) {
	t.Helper()
	queries, err := schemas.ArchiveQueries()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(queries, func(q schemas.Query) bool { return q.Name == name })
	text := queries[i].With(map[string]string{schemas.ParameterFrom: "2026-11-24", schemas.ParameterTo: "2026-11-24"})
	for _, row := range ask(t, dir, archivesql.Range{Region: "local", From: day("2026-11-24"), To: day("2026-11-24")}, text).Rows {
		rows = append(rows, strings.ReplaceAll(strings.Trim(fmt.Sprint(row), "[]"), "2026-11-24 07:", ""))
	}
	return rows
}

// attemptAt is an attempt of an occurrence that was due at seven and a minute, and of which one deadline is ten seconds after that, another a minute.
func attemptAt(execution string, attempt, began, ended int64, outcome, reason string) event {
	due := day("2026-11-24").Add(7*time.Hour + time.Minute).UnixMilli()
	return event{
		EventID: fmt.Sprint(execution, attempt), EventType: "attempt", Tenant: "default", JobID: "job_1", ExecutionID: execution, Attempt: attempt,
		Trigger: "schedule", Outcome: outcome, Reason: reason, Disposition: "fired", Nominal: due, Scheduled: due, Invoked: due + began, Completed: due + ended,
		StartBy: due + 10_000, FinishBy: due + 60_000, Appended: due + 600_000,
	}
}

func TestOccurrenceMissesItsDeadlineWhereItBeganOrSucceededTooLate(t *testing.T) {
	skipped, free := attemptAt("skipped", 1, 0, 99_000, "skipped", ""), attemptAt("free", 1, 0, 99_000, "succeeded", "")
	skipped.Disposition, free.StartBy, free.FinishBy = "skipped_overlap", 0, 0
	ahead := attemptAt("ahead", 1, 0, 1000, "failed", "")
	ahead.FinishBy = ahead.Appended + 1
	lost := attemptAt("lost", 1, 0, 1000, "worker_lost", "")
	lost.Invoked = 0 // it took its lease, and nobody knows more
	dir := t.TempDir()
	putEvents(t, dir, []event{
		attemptAt("a-good", 1, 10_000, 60_000, "succeeded", ""),
		attemptAt("b-late", 1, 10_001, 60_000, "succeeded", ""),
		attemptAt("c-slow", 1, 0, 20_000, "failed", ""), attemptAt("c-slow", 2, 30_000, 60_001, "succeeded", ""),
		attemptAt("d-dead", 1, 0, 1000, "failed", "permanent"), attemptAt("d-dead", 1, 0, 1000, "failed", "permanent"), // published twice
		attemptAt("e-cancelled", 1, 0, 1000, "failed", ""), attemptAt("e-cancelled", 2, 2000, 2000, "cancelled", "cancelled"),
		attemptAt("f-retried", 2, 30_000, 50_000, "succeeded", ""), // the first attempt was the day before
		skipped, free, ahead, lost, attemptAt("lost", 2, 20_000, 30_000, "succeeded", ""),
	})
	want := []string{
		"default job_1 b-late 01:00.000 start_within 01:10.000 01:10.001 1 1",
		"default job_1 c-slow 01:00.000 finish_within 02:00.000 02:00.001 1 2",
		"default job_1 d-dead 01:00.000 finish_within 02:00.000 <nil> <nil> 1",
	}
	if got := rowsOf(t, dir, "deadlines"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPlanCountsEachOccurrenceInItsHourByWhatCameOfIt(t *testing.T) {
	lost := attemptAt("e-open", 1, 0, 1000, "failed", "")
	skipped, cancelled := attemptAt("f-skipped", 1, 0, 0, "skipped", "overlap"), attemptAt("g-cancelled", 1, 0, 0, "cancelled", "cancelled")
	skipped.Disposition, cancelled.Disposition = "skipped_overlap", "cancelled"
	earlier := attemptAt("h-earlier", 1, 0, 5000, "succeeded", "")
	earlier.Nominal -= 3_600_000
	manual := attemptAt("i-manual", 1, 0, 1, "succeeded", "")
	manual.Trigger = "manual"
	stopped := attemptAt("j-stopped", 1, 0, 9, "cancelled", "cancelled") // in its call
	ended := event{EventID: "ended", EventType: "skipped", Tenant: "default", JobID: "job_1", Disposition: "cancelled", First: lost.Nominal, Count: 5}
	run := event{EventID: "run", EventType: "skipped", Tenant: "default", JobID: "job_1", Disposition: "skipped_paused", First: lost.Nominal, Count: 40}
	dir := t.TempDir()
	putEvents(t, dir, []event{
		attemptAt("a-good", 1, 0, 10, "succeeded", ""), attemptAt("b-good", 1, 0, 20, "succeeded", ""),
		attemptAt("c-later", 1, 0, 20, "failed", ""), attemptAt("c-later", 2, 30, 900, "succeeded", ""),
		attemptAt("d-dead", 1, 0, 1000, "failed", ""), attemptAt("d-dead", 2, 0, 1000, "failed", "max_attempts"),
		lost, skipped, cancelled, earlier, manual, run, run, stopped, ended,
	})
	want := []string{"default 2026-11-24 06:00:00.000 1 1 0 0 0 0 0 5000 5000", "default 00:00.000 53 2 1 1 1 41 7 20 900"}
	if got := rowsOf(t, dir, "plan"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
