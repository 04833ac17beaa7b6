package embedded

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/job"
)

// A stampede of calls that end soon must not write and delete a mark for each.
func TestOnlyStartsOfAttemptsThatGoOnAreWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem()
		db, records := openRecords(t, fsys)
		holder := attempts.Holder{Name: "executor-0", Start: 1, DefinitionID: "def_1"}
		entry := func(id string) *job.Entry {
			return &job.Entry{Locator: job.Locator{ExecutionID: id, Attempt: 1, DefinitionID: "def_1", DueAt: time.Now().Add(time.Hour)}, JobID: "job_1"}
		}
		key := func(id string) attempts.Key { return attempts.Key{ExecutionID: id, Attempt: 1} }
		begin := func(id string) {
			t.Helper()
			check := attempts.Check{Entry: entry(id), Incarnation: db.Incarnation()}
			if _, ok, err := records.Begin(t.Context(), key(id), holder, time.Now().Add(time.Minute), check, time.Now()); err != nil || !ok {
				t.Fatalf("begin %s: %t, %v", id, ok, err)
			}
		}
		end := func(id string) {
			t.Helper()
			ends := []attempts.Completion{{Key: key(id), Token: job.Token{Counter: 1, Start: 1}, Outcome: &job.Outcome{Kind: job.OutcomeSucceeded}}}
			if _, err := records.Finish(t.Context(), ends, time.Now()); err != nil {
				t.Fatalf("finish %s: %v", id, err)
			}
		}
		written := func(want ...string) {
			t.Helper()
			synctest.Wait()
			found := map[string]bool{}
			prefix := []byte{tableStarted}
			err := db.scan(t.Context(), prefix, after(prefix), func(k, v []byte) (bool, error) {
				key, _, err := decodeStarted(k, v)
				found[key.ExecutionID] = true
				return true, err
			})
			if got := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(got, want) {
				t.Errorf("after %s: starts of %v are written, %v; want %v", time.Since(records.openedAt), got, err, want)
			}
		}
		time.Sleep(time.Millisecond) // the process knows of everything since it was opened
		begin("ends soon")
		begin("goes on")
		time.Sleep(startsAfter - time.Millisecond)
		begin("begins late and ends soon")
		begin("begins late and goes on")
		end("ends soon")
		time.Sleep(2 * time.Millisecond) // the first flush leaves what has just begun alone
		written()
		end("begins late and ends soon")
		time.Sleep(startsAfter)
		written("begins late and goes on", "goes on")
		end("goes on")
		written("begins late and goes on")
		begin("begins last")
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db, records = openRecords(t, fsys)
		defer func() { _ = db.Close() }()
		holder.Start = 2
		written("begins last", "begins late and goes on")
		for _, id := range []string{"begins last", "begins late and goes on"} {
			rec, ok, err := records.Acquire(t.Context(), key(id), holder, time.Now(), time.Now().Add(time.Minute))
			if err != nil || !ok || rec.Takeovers != 1 {
				t.Errorf("%s: the next process takes over %t, %d times, %v", id, ok, rec.Takeovers, err)
			}
		}
	})
}

// Otherwise the next process would end the attempt for an entry that nobody was called for.
func TestReleaseOutlivesTheProcessWithTheDefinitionThatRan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem()
		db, records := openRecords(t, fsys)
		key := attempts.Key{ExecutionID: "one", Attempt: 1}
		run := func(definition string, start int64, called bool) {
			t.Helper()
			rec, _, err := records.Acquire(t.Context(), key, attempts.Holder{Name: definition, Start: start, DefinitionID: definition}, time.Now(), time.Now().Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			e := &job.Entry{Locator: job.Locator{ExecutionID: "one", Attempt: 1, DefinitionID: definition}, JobID: "job_1"}
			if _, stop, err := records.Start(t.Context(), key, rec.Token, attempts.Check{Entry: e, Incarnation: db.Incarnation()}); err != nil || stop != nil {
				t.Fatal(stop, err)
			}
			if called {
				rec.Running, rec.DefinitionID = true, definition
			}
			if err := records.Release(t.Context(), key, rec.Token, rec.Running, rec.DefinitionID); err != nil {
				t.Fatal(err)
			}
		}
		run("def_2", 1, true)
		run("def_1", 2, false)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db, records = openRecords(t, fsys)
		defer func() { _ = db.Close() }()
		found, err := records.Lookup(t.Context(), []attempts.Key{key})
		if err != nil || !found[0].Running || found[0].DefinitionID != "def_2" {
			t.Errorf("the next process finds %+v, %v; want it begun for def_2", found, err)
		}
	})
}

func openRecords(t *testing.T, fsys vfs.FS) (*DB, *Records) {
	t.Helper()
	db, err := Open(Options{Dir: "/data", FS: fsys, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	records, err := NewRecords(t.Context(), db, 0)
	if err != nil {
		t.Fatal(err)
	}
	return db, records
}
