package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

func openLog(t testing.TB, fsys vfs.FS) (*DB, *Log) {
	t.Helper()
	db, err := Open(Options{Dir: "/data", FS: fsys, Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	log, err := NewLog(db)
	if err != nil {
		t.Fatal(err)
	}
	return db, log
}

func publishFires(ctx context.Context, log *Log, n, bytesEach int) error {
	fires := make([]dispatch.Message, n)
	for i := range fires {
		fires[i] = dispatch.Message{Key: "k", Value: bytes.Repeat([]byte{'v'}, bytesEach)}
	}
	return log.Publish(ctx, dispatch.TopicFires, fires)
}

func TestFiresEndWithTheirProcessAndItsLog(t *testing.T) {
	fsys := vfs.NewMem()
	var ids []string
	for range 2 {
		db, log := openLog(t, fsys)
		c, err := log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
		if err != nil {
			t.Fatal(err)
		}
		if err := publishFires(t.Context(), log, 3, 10); err != nil {
			t.Fatal(err)
		}
		messages, err := c.Poll(t.Context(), 10)
		if err != nil || len(messages) != 3 || messages[0].Offset != 0 {
			t.Fatalf("%v, %v; want the three fires of this process", messages, err)
		}
		ids = append(ids, c.LogID())
		log.Close()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if ids[0] == ids[1] {
		t.Error("the second process goes on with the log of the first")
	}
}

// A loader puts back what is not done once the executors have committed an end that it noted: neither what waits to be read nor what is
// under way may count as committed.
func TestPositionOfFiresIsPassedWhenTheyAreCommitted(t *testing.T) {
	db, log := openLog(t, vfs.NewMem())
	defer func() { log.Close(); _ = db.Close() }()
	passed := func() bool {
		end, err := log.End(t.Context(), dispatch.TopicFires)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := log.Committed(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
		if err != nil {
			t.Fatal(err)
		}
		return committed.Passed(end)
	}
	if err := publishFires(t.Context(), log, 2, 10); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []bool{false, false, true} { // an executor that does not finish leaves them to the next
		c, err := log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := c.Poll(t.Context(), 10)
		if err != nil || len(messages) != 2 || passed() {
			t.Fatalf("%d messages, %v; passed before anything was done: %v", len(messages), err, passed())
		}
		if commit {
			err = c.Commit(t.Context(), map[int]int64{messages[0].Partition: messages[1].Offset + 1})
		}
		if err = errors.Join(err, c.Close()); err != nil || passed() != commit {
			t.Errorf("committed %v: %v, passed %v", commit, err, passed())
		}
	}
}

// Otherwise a one-shot that was called, and is taken again later than its catch-up window, would be skipped as missed.
func TestNextProcessKnowsWhatWasPublishedAndNotDone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		fsys := vfs.NewCrashableMem()
		fire := func(n int) *job.Fire {
			return &job.Fire{Entry: job.Entry{Locator: job.Locator{ExecutionID: fmt.Sprint("exe_", n), Attempt: 1, DefinitionID: "def_1"}, JobID: "job_1"}}
		}
		db, log := openLog(t, fsys)
		c, err := log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			batch := []dispatch.Message{wire.FireMessage(fire(2 * n)), wire.FireMessage(fire(2*n + 1))}
			if err := log.Publish(t.Context(), dispatch.TopicFires, batch); err != nil {
				t.Fatal(err)
			}
		}
		messages, err := c.Poll(t.Context(), 10)
		if err != nil || len(messages) != 6 {
			t.Fatal(len(messages), err)
		}
		if err := c.Commit(t.Context(), map[int]int64{messages[2].Partition: messages[2].Offset}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * notedWithin) // nothing else syncs
		left := fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
		log.Close()
		_ = db.Close()
		for range 2 { // as long as nobody has done them
			db, log = openLog(t, left)
			records, err := NewRecords(t.Context(), db, 0)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 6 {
				found, err := records.Lookup(t.Context(), []attempts.Key{attempts.KeyOf(&fire(n).Entry)})
				if published := n >= 2; err != nil || found[0].Of("def_1") != published || found[0].Running {
					t.Errorf("attempt %d: %+v, %v; want one that was published and not begun: %v", n, found[0], err, published)
				}
			}
			log.Close()
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		db, log = openLog(t, left)
		defer func() { log.Close(); _ = db.Close() }()
		records, err := NewRecords(t.Context(), db, 0)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		rec, held, err := records.Acquire(t.Context(), attempts.KeyOf(&fire(2).Entry), attempts.Holder{Name: "executor", DefinitionID: "def_1", Start: 7}, now, now.Add(time.Minute))
		if err != nil || !held || rec.Takeovers != 0 || rec.Token.Counter != 1 {
			t.Errorf("%+v, held %v, %v; want the first lease: nobody died of it", rec, held, err)
		}
	})
}

func TestFiresThatWereReadTakeNoMoreThanTheirShareOfMemory(t *testing.T) {
	db, log := openLog(t, vfs.NewMem())
	defer func() { log.Close(); _ = db.Close() }()
	c, err := log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 { // ten times as many bytes as are kept
		if err := publishFires(t.Context(), log, 4, 100<<10); err != nil {
			t.Fatal(err)
		}
		for read := 0; read < 4; {
			messages, err := c.Poll(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			read += len(messages)
		}
	}
	fires := log.topics[dispatch.TopicFires]
	for p := range fires.tail {
		if l := &fires.tail[p]; l.bytes > tailBytes || l.unread != 0 {
			t.Errorf("partition %d holds %d bytes, %d of them unread", p, l.bytes, l.unread)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err = log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor); err != nil {
		t.Fatal(err)
	}
	if messages, err := c.Poll(t.Context(), 10); err != nil || len(messages) == 0 || messages[0].Offset == 0 {
		t.Errorf("the next executor gets %d, %v; want what is left", len(messages), err)
	}
}

func TestPublishOfFiresWaitsUntilOthersAreRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		db, log := openLog(t, vfs.NewMem())
		c, err := log.Subscribe(t.Context(), dispatch.TopicFires, dispatch.GroupExecutor)
		if err != nil {
			t.Fatal(err)
		}
		const large = 100 << 10
		if err := publishFires(t.Context(), log, tailBytes/large, large); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := publishFires(ctx, log, 1, 10); err == nil {
			t.Error("a fire was accepted beside more than is kept in memory")
		}
		cancel()
		published := make(chan error, 1)
		go func() { published <- publishFires(t.Context(), log, 1, 10) }()
		synctest.Wait()
		if len(published) > 0 {
			t.Errorf("the publish did not wait: %v", <-published)
		}
		read := 0
		for read < tailBytes/large {
			messages, err := c.Poll(t.Context(), 1000)
			if err != nil {
				t.Fatal(err)
			}
			read += len(messages)
		}
		if err := <-published; err != nil {
			t.Error(err)
		}
		log.Close()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
