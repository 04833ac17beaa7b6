//go:build servers

package cassandra_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/job"
)

// nodetool runs Cassandra's own tool.
func nodetool(t *testing.T, args ...string) string {
	t.Helper()
	// A JVM takes seconds to start, and a compaction takes longer.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../../../infra/local/local", append([]string{"nodetool", "1"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nodetool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

var liveSpace = regexp.MustCompile(`Space used \(live\): (\d+)`)

// sizeOf returns the size of a table on disk once everything is flushed and compacted.
func sizeOf(t *testing.T, keyspace, table string) int {
	t.Helper()
	nodetool(t, "flush", keyspace, table)
	nodetool(t, "compact", keyspace, table)
	size, err := strconv.Atoi(liveSpace.FindStringSubmatch(nodetool(t, "tablestats", keyspace+"."+table))[1])
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// oneShots returns how many jobs are fired and closed; MINUTEHAND_TEST_ONE_SHOTS overrides it.
func oneShots(t *testing.T) int {
	t.Helper()
	text := os.Getenv("MINUTEHAND_TEST_ONE_SHOTS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var tombstones = regexp.MustCompile(`and (\d+) tombstone cells`)

// TestClosedBucketsGiveTheirDiskBack: entries of several hours, marked done and closed, each step in its own tables on disk.
func TestClosedBucketsGiveTheirDiskBack(t *testing.T) {
	const partitions, hours, standing = 4, 3, 3000
	s, keyspace := openNamed(t)
	session := sessionIn(t, keyspace)
	if err := session.Query("ALTER TABLE pending WITH gc_grace_seconds = 1").ExecContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := job.Instant(time.Now().Truncate(time.Minute))
	if err := s.SetUp(t.Context(), partitions, job.Minute(now)); err != nil {
		t.Fatal(err)
	}
	pending := cassandra.NewPending(s)
	// put writes entries, evenly over the minutes from an instant on.
	put := func(from time.Time, minutes, n int) []job.Locator {
		t.Helper()
		locators := make([]job.Locator, 0, n)
		batch := make([]job.Entry, 0, 1000)
		for i := range n {
			due := from.Add(time.Duration(i/partitions*minutes/(n/partitions+1)) * time.Minute)
			id := fmt.Sprintf("job_%026d", i)
			e := job.NewEntry(job.Entry{
				Locator: job.Locator{
					Partition: i % partitions, DueAt: due, ExecutionID: job.ScheduleExecutionID(id, due), Attempt: 1,
					DefinitionID: "def_01M7ZJW5E6D77SAJPXRZ65CMZZ",
				},
				JobID: id, Trigger: job.TriggerSchedule, NominalAt: due, ScheduledFor: due, Ordinal: 1, WrittenAt: now,
			}, now)
			locators = append(locators, e.Locator)
			if batch = append(batch, e); len(batch) == cap(batch) || i+1 == n {
				if err := pending.Put(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				batch = batch[:0]
			}
		}
		return locators
	}
	// met counts the tombstones that a read meets of a bucket that stays open.
	open := now.Add(hours*time.Hour + time.Minute)
	met := func() int {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; {
			var text bytes.Buffer
			q := session.Query("SELECT * FROM pending WHERE partition = ? AND minute = ? LIMIT 500", 0, job.Minute(open))
			if err := q.Trace(gocql.NewTraceWriter(session, &text)).ExecContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			if m := tombstones.FindStringSubmatch(text.String()); m != nil {
				n, _ := strconv.Atoi(m[1])
				return n
			}
			if time.Now().After(deadline) {
				t.Fatalf("the trace is not there:\n%s", text.String())
			}
		}
	}

	put(open, 60, standing)
	before, metBefore := sizeOf(t, keyspace, "pending"), met()
	fired := put(now, hours*60, oneShots(t))
	nodetool(t, "flush", keyspace, "pending")
	if err := pending.MarkDone(t.Context(), fired); err != nil {
		t.Fatal(err)
	}
	nodetool(t, "flush", keyspace, "pending")
	full := liveSpace.FindStringSubmatch(nodetool(t, "tablestats", keyspace+".pending"))[1]
	for p := range partitions {
		if err := pending.Close(t.Context(), p, job.Minute(now.Add(hours*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Second) // gc_grace
	after, metAfter := sizeOf(t, keyspace, "pending"), met()
	t.Logf("%d entries stand in %d bytes; with %d that were fired and marked it was %s bytes, and is %d when their buckets are closed",
		standing, before, len(fired), full, after)
	if after > before+before/10 {
		t.Errorf("the table takes %d bytes, before it was %d", after, before)
	}
	if metAfter > metBefore {
		t.Errorf("a read of an open bucket meets %d tombstones, at the start it was %d", metAfter, metBefore)
	}
}

func TestListingGoesThroughTheDaysOfATenant(t *testing.T) {
	jobs := cassandra.NewJobStore(open(t))
	now := job.Instant(time.Now())
	var want []string
	for day := range 40 {
		for n := range day % 4 { // including days without any
			at := now.Add(-time.Duration(day)*24*time.Hour - time.Duration(n)*time.Millisecond)
			id := job.JobPrefix + ulid.MustNew(uint64(at.UnixMilli()), ulid.DefaultEntropy()).String()
			j := job.Job{
				ID: id, Tenant: 7, Status: job.StatusActive, Version: 1, UpdatedAt: now,
				Definition: job.Definition{ID: "def_1", Schedule: job.Schedule{Type: job.ScheduleOneShot, RunAt: now.Add(time.Hour)}},
			}
			if day%5 == 0 {
				j.Definition.Schedule = job.Schedule{Type: job.ScheduleCron, CronExpr: "@daily"}
			}
			if err := jobs.Create(t.Context(), j, n == 0); err != nil {
				t.Fatal(err)
			}
			want = append(want, id)
		}
	}
	var got []string
	for cursor := ""; ; {
		page, next, err := jobs.List(t.Context(), 7, cursor, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page {
			got = append(got, j.ID)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("listed %d jobs, want %d:\n%s\n%s", len(got), len(want), got, want)
	}
}
