package archivesql_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

// told is as much of a row as accounts are held against.
type told struct {
	EventType string `parquet:"event_type,optional"`
	Tenant    string `parquet:"tenant_id,optional"`
	JobID     string `parquet:"job_id,optional"`
	Attempt   int64  `parquet:"attempt"`
	Trigger   string `parquet:"trigger,optional"`
	Nominal   int64  `parquet:"nominal_at,optional,timestamp(millisecond)"`
	First     int64  `parquet:"skipped_from,optional,timestamp(millisecond)"`
	Last      int64  `parquet:"skipped_to,optional,timestamp(millisecond)"`
	Operation string `parquet:"operation,optional"`
	Outcome   string `parquet:"outcome,optional"`
	Offset    int64  `parquet:"log_offset"`
}

func TestAccountAndArchiveNameWhatTheOtherHasNot(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	from := day("2026-11-24").Add(9 * time.Hour)
	at := func(minute int) time.Time { return from.Add(time.Duration(minute) * time.Minute) }
	attempt := func(tenant, job string, minute int, n int64) told {
		return told{EventType: "attempt", Tenant: tenant, JobID: job, Attempt: n, Trigger: "schedule", Nominal: at(minute).UnixMilli()}
	}
	change := func(tenant, job, operation string) told {
		return told{EventType: "change", Tenant: tenant, JobID: job, Trigger: "change", Operation: operation}
	}
	refused := attempt("default", "job_long_gone", 0, 1)
	refused.Outcome = "cancelled"
	again := attempt("default", "job_a", 0, 1)
	again.Trigger = "manual" // a trigger at the same instant is no occurrence
	objects := map[string][]told{
		"log-00000-00000000000000000000": {
			change("default", "job_a", "createJob"), attempt("default", "job_a", 0, 1), attempt("default", "job_a", 0, 1), again,
			attempt("default", "job_a", 1, 1), attempt("default", "job_a", 1, 2), attempt("default", "job_a", 2, 1), attempt("default", "job_a", -1, 1),
			attempt("default", "job_a", 60, 1),
			{EventType: "skipped", Tenant: "default", JobID: "job_a", First: at(4).UnixMilli(), Last: at(6).UnixMilli()},
		},
		"log-00000-00000000000000000012": { // two records are missing before it
			refused, // of a job that was deleted before
			change("default", "job_lost", "createJobs"), attempt("default", "job_lost", 0, 1),
			change("default", "job_gone", "createJob"), attempt("default", "job_gone", 0, 1), change("default", "job_gone", "deleteJob"),
			change("7", "job_other", "createJob"), attempt("7", "job_other", 0, 1),
			change("default", job.SettingsOf(job.DefaultTenant), "putConnection"), // of no job
			attempt("default", "job_a", 8, 1), attempt("default", "job_a", 12, 1), attempt("default", "job_a", 13, 2),
		},
	}
	dir := t.TempDir()
	for name, rows := range objects {
		first := int64(name[len(name)-1]-'0') + 10*int64(name[len(name)-2]-'0')
		for i := range rows {
			rows[i].Offset = first + int64(i)
		}
		write(t, filepath.Join(dir, "audit/region=local/dt=2026-11-24/hour=09", name+".parquet"), rows)
	}
	compare := func(b *archivesql.Account) (got []archivesql.Difference) {
		t.Helper()
		defer b.Close() //nolint:errcheck // it is temporary
		for _, o := range []archivesql.Told{
			{NominalAt: at(0), State: "succeeded", Attempts: 1},
			{NominalAt: at(1), State: "dead", Attempts: 1},      // the second attempt is missing
			{NominalAt: at(2), State: "unknown"},                // all of it is missing
			{NominalAt: at(3), State: "succeeded", Attempts: 2}, // the archive has nothing
			{NominalAt: at(4), State: "skipped"},
			{NominalAt: at(6), State: "skipped"},
			{NominalAt: at(7), State: "skipped"}, // no run has it
			{NominalAt: at(9), State: "pending"},
			{NominalAt: at(12), State: "pending"},
			{NominalAt: at(10), State: "unknown"},
			{NominalAt: at(11), State: "retrying", Attempts: 1},
			{NominalAt: at(13), State: "retrying", Attempts: 1}, // the second attempt came after that, and the first is missing
		} {
			o.JobID = "job_a"
			if err := b.Add(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		a, err := embedded.NewArchive(nil, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Job(t.Context(), "job_a"); err != nil {
			t.Fatal(err)
		}
		if err := b.Read(t.Context(), a, archivesql.Range{Region: "local", From: day("2026-11-24"), To: day("2026-11-24")}, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Differences(t.Context(), func(d archivesql.Difference) error { got = append(got, d); return nil }); err != nil {
			t.Fatal(err)
		}
		if b.Objects != 2 || b.Events != 22 {
			t.Errorf("%d events in %d objects", b.Events, b.Objects)
		}
		return got
	}
	missing := archivesql.Difference{
		Kind:   archivesql.MissingRecords,
		Reason: "Records 10 to 11 of partition 0 are missing before audit/region=local/dt=2026-11-24/hour=09/log-00000-00000000000000000012.parquet.",
	}
	of := func(kind archivesql.DifferenceKind, minute, told, archived int, reason string) archivesql.Difference {
		return archivesql.Difference{Kind: kind, JobID: "job_a", NominalAt: at(minute), Told: told, Archived: archived, Reason: reason}
	}
	instants := []archivesql.Difference{
		of(archivesql.MissingHistory, 1, 1, 2, "The archive has 2 attempts, the history 1."),
		of(archivesql.MissingHistory, 2, 0, 1, "The archive has 1 attempt, the history 0."),
		of(archivesql.MissingArchive, 3, 2, 0, "The history has 2 attempts, the archive 0."),
		of(archivesql.MissingArchive, 7, 0, 0, "The history tells that it was skipped with others, the archive does not."),
		of(archivesql.MissingHistory, 8, 0, 1, "The archive has 1 attempt, the history 0."),
		of(archivesql.MissingArchive, 11, 1, 0, "The history has 1 attempt, the archive 0."),
		of(archivesql.MissingHistory, 12, 0, 1, "The archive has 1 attempt, the history 0."),
		of(archivesql.MissingArchive, 13, 2, 1, "The history has 2 attempts, the archive 1."),
	}
	lost := archivesql.Difference{Kind: archivesql.MissingJob, JobID: "job_lost", Reason: "The archive tells of this job, which nobody deleted, and there is no such job."}
	for name, tenant := range map[string]string{"a tenant that is named": "default", "the tenant of what is told": ""} {
		b, err := archivesql.NewAccount(t.Context(), from, at(60))
		if err != nil {
			t.Fatal(err)
		}
		b.Tenant = tenant
		if got, want := compare(b), append(slices.Clone(instants), lost, missing); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	b, err := archivesql.NewAccount(t.Context(), from, at(60))
	if err != nil {
		t.Fatal(err)
	}
	b.Only = true
	if got, want := compare(b), append(slices.Clone(instants), missing); !slices.Equal(got, want) {
		t.Errorf("some jobs: %+v, want %+v", got, want)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "minutehand-audit-*")); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// write writes an object.
func write(t *testing.T, name string, rows []told) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := parquet.WriteFile(name, rows); err != nil {
		t.Fatal(err)
	}
}
