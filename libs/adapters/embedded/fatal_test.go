package embedded

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
)

var errDiskFull = errors.New("the disk is full")

func createJob(ctx context.Context, db *DB) error {
	j := job.Job{ID: job.JobPrefix + ulid.Make().String(), Tenant: job.DefaultTenant, Version: 1, Status: job.StatusActive}
	return NewJobStore(db).Create(ctx, j, true)
}

func TestWriteThatTheDiskRefusesIsFatalAndNeverAnswered(t *testing.T) {
	entry := crashEntry(1)
	writes := map[string]func(ctx context.Context, db *DB, log *Log) error{
		"job":     func(ctx context.Context, db *DB, _ *Log) error { return createJob(ctx, db) },
		"entries": func(ctx context.Context, db *DB, _ *Log) error { return NewPending(db).Put(ctx, []job.Entry{entry}) },
		"events": func(ctx context.Context, _ *DB, log *Log) error {
			return log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: "k", Value: []byte("v")}})
		},
		"dead letter": func(ctx context.Context, db *DB, _ *Log) error {
			return NewHistory(db).PutDeadLetter(ctx, job.DeadLetter{Event: job.Event{Entry: entry}})
		},
		"start number": func(ctx context.Context, db *DB, _ *Log) error {
			_, err := NewCoordinator(db).StartNumber(ctx)
			return err
		},
		"sync": func(_ context.Context, db *DB, _ *Log) error { return db.sync() },
	}
	for _, refused := range [][]errorfs.OpKind{{errorfs.OpFileWrite}, {errorfs.OpFileSync, errorfs.OpFileSyncData}} {
		for name, write := range writes {
			var full atomic.Bool
			fsys := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if full.Load() && slices.Contains(refused, op.Kind) {
					return errDiskFull
				}
				return nil
			}))
			fatal, answers := make(chan error, 10), make(chan error, 10)
			db, err := Open(Options{Dir: "/data", FS: fsys, Partitions: 4, Fatal: func(err error) {
				fatal <- err
				runtime.Goexit() // as near to the end of the process as a test gets
			}})
			if err != nil {
				t.Fatal(err)
			}
			log, err := NewLog(db)
			if err != nil {
				t.Fatal(err)
			}
			full.Store(true)
			for range 2 { // the second one finds the write-ahead log broken
				go func() { answers <- write(t.Context(), db, log) }()
				select {
				case err := <-fatal:
					if !errors.Is(err, errDiskFull) {
						t.Errorf("%s, refused %v: the cause is %v, want %v", name, refused, err, errDiskFull)
					}
				case err := <-answers:
					t.Errorf("%s, refused %v: answered %v, want the end of the process", name, refused, err)
				case <-time.After(10 * time.Second):
					t.Fatalf("%s, refused %v: neither answered nor ended", name, refused)
				}
				if name == "events" {
					break // the goroutine that appends has ended
				}
			}
		}
	}
}

func TestSerialReadOfARowWaitsUntilItIsDurable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		release := make(chan struct{})
		fsys := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if slow.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
				<-release
			}
			return nil
		}))
		db, err := Open(Options{Dir: "/data", FS: fsys, Partitions: 4})
		if err != nil {
			t.Fatal(err)
		}
		jobs := NewJobStore(db)
		j := job.Job{ID: crashJob, Tenant: job.DefaultTenant, Version: 1, Status: job.StatusActive}
		if err := jobs.Create(t.Context(), j, true); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		j.Version, j.Status = 2, job.StatusPaused
		written, read := make(chan error, 1), make(chan job.Job, 1)
		go func() { written <- jobs.Replace(t.Context(), j) }()
		synctest.Wait()
		if seen, err := jobs.Get(t.Context(), j.ID); err != nil || seen.Version != 2 {
			t.Fatalf("a plain read gives version %d, %v; the test wants it to see what is not durable yet", seen.Version, err)
		}
		go func() {
			seen, err := jobs.GetSerial(t.Context(), j.ID)
			if err != nil {
				t.Error(err)
			}
			read <- seen
		}()
		synctest.Wait()
		if len(written) != 0 || len(read) != 0 {
			t.Errorf("before the fsync %d writes and %d serial reads were answered, want 0", len(written), len(read))
		}
		slow.Store(false)
		close(release)
		if err := <-written; err != nil {
			t.Error(err)
		}
		if seen := <-read; seen.Version != 2 {
			t.Errorf("the serial read gives version %d, want 2", seen.Version)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}
