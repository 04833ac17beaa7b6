//go:build servers

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/audited"
	"github.com/minutehand/minutehand/loadtest/fleet"
)

// A job's row, an entry and a history row are removed from Cassandra by hand, and an object of the archive from S3, while nothing runs.
// minutehand audit names what is gone, and nothing else.
func TestAuditNamesExactlyWhatWasRemovedFromTheServersByHand(t *testing.T) {
	n, lasts := sized(40, 400), sized(20*time.Second, 270*time.Second)
	f := newInstallation(t).fleet("MINUTEHAND_SCHEDULE_AUDIT_PAUSE=5s")
	began := time.Now()
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = f.oneShot(began, "/ok")
		jobs[i]["type"], jobs[i]["every"] = "interval", "1s"
		delete(jobs[i], "run_at")
	}
	ids := f.register(jobs)
	eventually(t, "the run is over", lasts+time.Minute, func() bool { return time.Since(began) > lasts && called(f, ids) == n })
	ended := time.Now().Add(-2 * time.Second) // before then all has been called
	f.must(f.StopAll())

	rowOf, recordOf, entryOf := ids[1], ids[2], ids[3]
	object, gone, err := audited.Object(t.Context(), f.ports.Archive, rowOf, recordOf)
	f.must(err)
	f.removeFromS3(object)
	record := f.removeFromCassandra(rowOf, recordOf, entryOf)
	local(t, "wipe", "redis") // which has the entry, too
	local(t, "up", "redis")
	restarted, before := time.Now(), f.sink.of(entryOf)
	f.must(f.StartAll(t.Context(), 2))
	a, err := audited.Run(t.Context(), filepath.Join("..", "..", ".bin", "minutehand"), began, ended, []string{"--s3"},
		append(f.Variables, "MINUTEHAND_SERVER=http://"+f.Member("job-api", 0).Listen))
	f.must(err)
	removed := audited.Removed{Job: rowOf, History: audited.Instant(recordOf, record), Archive: gone}
	if wrong := a.Compare(removed, began, ended); wrong != "" {
		t.Error(wrong)
	}
	for _, u := range a.Unknown {
		if at := audited.Instant(u.JobID, u.NominalAt); at != removed.History && u.JobID != entryOf {
			t.Errorf("nothing is on record of %s", at)
		}
	}
	t.Logf("%s; %d jobs, %d instants (%v), %d events; the object had %d", a.Cost, a.Jobs, a.Occurrences, a.States, a.Archive.Events, len(gone))
	eventually(t, "the schedule goes on whose entry is gone", 15*time.Minute, func() bool { return f.sink.of(entryOf) > before+3 })
	t.Logf("%s after the start the schedule had gone on whose entry was gone", time.Since(restarted).Round(time.Second))
}

// removeFromS3 removes an object of the archive.
func (f *platform) removeFromS3(name string) {
	f.t.Helper()
	o := f.config.S3
	client := awss3.New(awss3.Options{
		Region: o.Region, BaseEndpoint: &o.Endpoint, UsePathStyle: true, Credentials: credentials.NewStaticCredentialsProvider(o.AccessKey, o.SecretKey, ""),
	})
	_, err := client.DeleteObject(f.t.Context(), &awss3.DeleteObjectInput{Bucket: &o.Bucket, Key: &name})
	f.must(err)
}

// removeFromCassandra removes a job's row, all that the history has of one execution of another, and the entries of a third. It returns the instant
// of that execution.
func (f *platform) removeFromCassandra(rowOf, recordOf, entryOf string) (record time.Time) {
	f.t.Helper()
	ctx := f.t.Context()
	f.must(fleet.Administer(ctx, f.config, func(tables *gocql.Session, _ *kadm.Client, _ []string) error {
		in := f.config.Cassandra.Keyspace + "."
		if err := tables.Query("DELETE FROM "+in+"jobs WHERE job_id = ?", rowOf).ExecContext(ctx); err != nil {
			return err
		}
		if err := removeRecord(ctx, tables, in, recordOf, &record); err != nil {
			return err
		}
		return removeEntries(ctx, tables, in, entryOf)
	}))
	return record
}

// removeRecord removes what the history has of one of the executions of a job's schedule, from the middle of them.
func removeRecord(ctx context.Context, tables *gocql.Session, in, jobID string, record *time.Time) error {
	type place struct {
		week int
		ms   int64
	}
	var all []place
	var x place
	var execution string
	rows := tables.Query("SELECT week, nominal_ms, execution_id FROM "+in+"history_weeks WHERE job_id = ? ALLOW FILTERING", jobID).IterContext(ctx)
	for rows.Scan(&x.week, &x.ms, &execution) {
		if ref, err := job.ParseExecutionID(execution); err == nil && ref.NominalAt.UnixMilli() == x.ms {
			all = append(all, x)
		}
	}
	if err := rows.Close(); err != nil || len(all) < 3 {
		return fmt.Errorf("%d records of %s are there: %w", len(all), jobID, err)
	}
	x = all[len(all)/2]
	*record = time.UnixMilli(x.ms)
	return tables.Query("DELETE FROM "+in+"history_weeks WHERE job_id = ? AND week = ? AND nominal_ms = ?", jobID, x.week, x.ms).ExecContext(ctx)
}

// removeEntries removes the entries of a job.
func removeEntries(ctx context.Context, tables *gocql.Session, in, jobID string) error {
	type place struct {
		partition   int
		minute, due int64
		execution   string
		attempt     int
		definition  string
	}
	var all []place
	var x place
	rows := tables.Query("SELECT partition, minute, due_ms, execution_id, attempt, definition_id FROM " + in + "pending").IterContext(ctx)
	for rows.Scan(&x.partition, &x.minute, &x.due, &x.execution, &x.attempt, &x.definition) {
		if strings.HasPrefix(x.execution, job.ExecutionPrefix+strings.TrimPrefix(jobID, job.JobPrefix)) {
			all = append(all, x)
		}
	}
	if err := rows.Close(); err != nil || len(all) == 0 {
		return fmt.Errorf("%d entries of %s are there: %w", len(all), jobID, err)
	}
	for _, x := range all {
		err := tables.Query("DELETE FROM "+in+"pending WHERE partition = ? AND minute = ? AND due_ms = ? AND execution_id = ? AND attempt = ? AND definition_id = ?",
			x.partition, x.minute, x.due, x.execution, x.attempt, x.definition).ExecContext(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}
