package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

var crashDay = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

const crashJob = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"

func crashEntry(i int) job.Entry {
	at := crashDay.Add(time.Duration(i) * time.Second)
	return job.NewEntry(job.Entry{
		Locator: job.Locator{
			Partition: i % 4, DueAt: at, ExecutionID: job.ScheduleExecutionID(crashJob, at), Attempt: 1,
			DefinitionID: "def_01HZZZZZZZZZZZZZZZZZZZZZZZ",
		},
		JobID: crashJob, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: i,
	}, at)
}

// acknowledge writes one of everything, and returns once all of it was acknowledged.
func acknowledge(ctx context.Context, db *DB, fsys vfs.FS) error {
	jobs, pending, history := NewJobStore(db), NewPending(db), NewHistory(db)
	log, err := NewLog(db)
	if err != nil {
		return err
	}
	defer log.Close()
	files, err := NewArchive(fsys, "/data/archive")
	if err != nil {
		return err
	}
	j := job.Job{ID: crashJob, Tenant: job.DefaultTenant, Version: 1, Status: job.StatusActive}
	j2 := j
	j2.Version, j2.Status = 2, job.StatusPaused
	event := job.Event{ID: "event", Type: job.EventAttempt, Entry: crashEntry(1)}
	events, err := log.Subscribe(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
	if err != nil {
		return err
	}
	_, _, claimErr := jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: crashJob, AcceptedAt: crashDay})
	return errors.Join(
		claimErr,
		jobs.Create(ctx, j, true), jobs.Replace(ctx, j2), jobs.PutDefinition(ctx, crashJob, job.Definition{ID: "def_1"}),
		pending.Put(ctx, []job.Entry{crashEntry(1), crashEntry(2)}),
		pending.Decide(ctx, crashEntry(2).Locator, job.Decision{Fire: true}),
		pending.MarkDone(ctx, []job.Locator{crashEntry(1).Locator}),
		history.Record(ctx, jobstore.Unencoded(&event)), history.PutDeadLetter(ctx, job.DeadLetter{Event: event}),
		log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: crashJob, Value: []byte("first")}}),
		events.Commit(ctx, map[int]int64{0: 1, 1: 1, 2: 1, 3: 1}),
		files.PutIfAbsent(ctx, "audit/hour=03/object", []byte("whole")),
		log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: crashJob, Value: []byte("last")}}),
	)
}

// losses returns what of it is missing.
func losses(ctx context.Context, db *DB, fsys vfs.FS) []string {
	var lost []string
	expect := func(what string, ok bool, err error) {
		if !ok || err != nil {
			lost = append(lost, fmt.Sprintf("%s (%v)", what, err))
		}
	}
	jobs, pending, history := NewJobStore(db), NewPending(db), NewHistory(db)
	row, err := jobs.Get(ctx, crashJob)
	expect("job row", row.Version == 2 && row.Status == job.StatusPaused, err)
	_, _, err = jobs.Definition(ctx, crashJob, "def_1")
	expect("definition", true, err)
	claim, won, err := jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: "other", AcceptedAt: crashDay})
	expect("claim", !won && claim.ID == crashJob, err)
	first, err := pending.Row(ctx, crashEntry(1).Locator)
	expect("done mark", first.Done, err)
	second, err := pending.Row(ctx, crashEntry(2).Locator)
	expect("decision", second.Decision != nil && !second.Done, err)
	events, err := history.Execution(ctx, crashEntry(1).ExecutionID)
	expect("history", len(events) == 1, err)
	letters, _, err := history.DeadLetters(ctx, job.DefaultTenant, "", 10)
	expect("dead letter", len(letters) == 1, err)
	log, err := NewLog(db)
	expect("log", err == nil, err)
	if err == nil {
		defer log.Close()
		expect("records of the log", logHolds(ctx, log, "last"), nil)
		committed, err := log.Committed(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
		expect("committed position", committed.Offsets[0] == 1, err)
	}
	files, err := NewArchive(fsys, "/data/archive")
	expect("archive", err == nil, err)
	if err == nil {
		o, err := files.Open(ctx, "audit/hour=03/object")
		expect("archive object", err == nil && o.Size() == int64(len("whole")), err)
	}
	return lost
}

func logHolds(ctx context.Context, log *Log, value string) bool {
	c, err := log.Subscribe(ctx, dispatch.TopicEvents, dispatch.GroupSettle) // behind what was committed
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	messages, err := c.Poll(ctx, 10)
	return err == nil && len(messages) == 1 && string(messages[0].Value) == value
}

// losePower writes, cuts the power without closing anything, and reopens what is left.
func losePower(t *testing.T, withoutSync bool) []string {
	t.Helper()
	ctx := t.Context()
	fsys := vfs.NewCrashableMem()
	db, err := Open(Options{Dir: "/data/store", FS: fsys, Partitions: 4, withoutSync: withoutSync})
	if err != nil {
		t.Fatal(err)
	}
	if err := acknowledge(ctx, db, fsys); err != nil {
		t.Fatal(err)
	}
	left := fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(Options{Dir: "/data/store", FS: left})
	if err != nil {
		return []string{"the store: " + err.Error()}
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	return losses(ctx, again, left)
}

func TestWhatWasAcknowledgedSurvivesTheLossOfPower(t *testing.T) {
	for _, l := range losePower(t, false) {
		t.Error("lost:", l)
	}
}

func TestTheSuiteNoticesWhenSyncIsSwitchedOff(t *testing.T) {
	lost := losePower(t, true)
	if len(lost) < 5 {
		t.Errorf("without sync only this was lost: %s", strings.Join(lost, ", "))
	}
}

func TestASecondProcessAndAForeignFormatAreRefused(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Options{Dir: dir, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second open gave %v", err)
	}
	b := db.pebble.NewBatch()
	if err := errors.Join(setNumber(b, metaKey("format"), 99), b.Commit(db.write), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrFormat) {
		t.Errorf("a foreign format gave %v", err)
	}
}

func TestAnotherPartitionCountIsRefused(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Options{Dir: dir, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir, Partitions: 8}); !errors.Is(err, jobstore.ErrPartitions) {
		t.Errorf("another count gave %v", err)
	}
}

func TestTakeoversAreCountedOverRestarts(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	entry := crashEntry(0)
	entry.DueAt = time.Now().Add(-time.Hour)
	key := attempts.KeyOf(&entry)
	var last job.Token
	for start := range 4 {
		db, err := Open(Options{Dir: dir, Partitions: 4})
		if err != nil {
			t.Fatal(err)
		}
		records, err := NewRecords(ctx, db, 0)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		rec, held, err := records.Acquire(ctx, key, attempts.Holder{Name: "x", Start: int64(start)}, now, now.Add(time.Minute))
		if err != nil || !held || rec.Takeovers != start {
			t.Fatalf("start %d: record %+v, held %v, %v", start, rec, held, err)
		}
		if !last.Less(rec.Token) {
			t.Errorf("token %s does not exceed %s", rec.Token, last)
		}
		last = rec.Token
		if _, stop, err := records.Start(ctx, key, rec.Token, attempts.Check{Entry: &entry, Incarnation: db.Incarnation()}); err != nil || stop != nil {
			t.Fatalf("start %d: stop record %+v, %v", start, stop, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheLogGoesOnAfterEverythingInItWasTruncated(t *testing.T) {
	ctx := t.Context()
	fsys := vfs.NewMem()
	publish := func(log *Log) {
		if err := log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: "k", Value: []byte("v")}}); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 3 {
		db, err := Open(Options{Dir: "/data", FS: fsys, Partitions: 4})
		if err != nil {
			t.Fatal(err)
		}
		log, err := NewLog(db)
		if err != nil {
			t.Fatal(err)
		}
		c, err := log.Subscribe(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
		if err != nil {
			t.Fatal(err)
		}
		publish(log)
		messages, err := c.Poll(ctx, 10)
		if err != nil || len(messages) != 1 || messages[0].Offset != int64(2*round) {
			t.Fatalf("round %d: %v, %v", round, messages, err)
		}
		publish(log)
		if err := log.truncate(log.topics[dispatch.TopicEvents]); err != nil {
			t.Fatal(err)
		}
		messages, err = c.Poll(ctx, 10) // not committed, so not truncated
		if err != nil || len(messages) != 1 {
			t.Fatalf("round %d: %v, %v", round, messages, err)
		}
		for _, group := range groupsOf(dispatch.TopicEvents) {
			c, err := log.Subscribe(ctx, dispatch.TopicEvents, group)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Commit(ctx, map[int]int64{messages[0].Partition: messages[0].Offset + 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.truncate(log.topics[dispatch.TopicEvents]); err != nil {
			t.Fatal(err)
		}
		log.Close()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnArchiveObjectIsThereWholeOrNotAtAll(t *testing.T) {
	ctx := t.Context()
	fsys := vfs.NewCrashableMem()
	a, err := NewArchive(fsys, "/archive")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.PutIfAbsent(ctx, "audit/x", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := a.PutIfAbsent(ctx, "audit/x", []byte("another")); !errors.Is(err, archive.ErrExists) {
		t.Errorf("a second put gave %v", err)
	}
	// A process that died in the middle of a put leaves only a temporary file, which the next process drops.
	f, err := fsys.Create("/archive/.partial/audit_y", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("ha")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := NewArchive(fsys, "/archive")
	if err != nil {
		t.Fatal(err)
	}
	names, err := again.List(ctx, "")
	if err != nil || len(names) != 1 || names[0] != "audit/x" {
		t.Errorf("the archive lists %v, %v", names, err)
	}
}
