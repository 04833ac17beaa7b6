package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// world is everything durable, opened on one file system.
type world struct {
	fs      vfs.FS
	db      *DB
	jobs    *JobStore
	pending *Pending
	history *History
	log     *Log
	coord   *Coordinator
	archive *Archive
}

func openWorld(fsys vfs.FS, withoutSync bool) (*world, error) {
	db, err := Open(Options{Dir: "/data/store", FS: fsys, Partitions: 4, SetupMinute: 100, withoutSync: withoutSync})
	if err != nil {
		return nil, err
	}
	log, err := NewLog(db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	files, err := NewArchive(fsys, "/data/archive")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &world{fsys, db, NewJobStore(db), NewPending(db), NewHistory(db), log, NewCoordinator(db), files}, nil
}

func (w *world) close() error {
	w.log.Close()
	return w.db.Close()
}

// kept is something that is written and, once acknowledged, must stay for good. Each is written to a store of its own, as the last
// thing before the crash, because a later synced write would carry an earlier one along.
type kept struct {
	what string
	// prepare writes what has to be there before; write is acknowledged last.
	prepare, write func(ctx context.Context, w *world) error
	// check returns an error when what was written is not there.
	check func(ctx context.Context, w *world) error
}

var (
	keptJob   = job.Job{ID: crashJob, Tenant: job.DefaultTenant, Version: 1, Status: job.StatusActive}
	keptNext  = job.Job{ID: crashJob, Tenant: job.DefaultTenant, Version: 2, Status: job.StatusCancelled}
	keptClaim = jobstore.Claim{ID: crashJob, AcceptedAt: crashDay}
	keptEvent = job.Event{ID: "event", Type: job.EventAttempt, Entry: crashEntry(1)}
)

func nothing(context.Context, *world) error { return nil }

func want(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("it is not as it was acknowledged")
	}
	return err
}

func createKept(ctx context.Context, w *world) error { return w.jobs.Create(ctx, keptJob, true) }

func claimKept(ctx context.Context, w *world) error {
	_, _, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", keptClaim)
	return err
}

func putKept(ctx context.Context, w *world) error {
	return w.pending.Put(ctx, []job.Entry{crashEntry(1)})
}

func entryKept(ctx context.Context, w *world) error {
	_, err := w.pending.Row(ctx, crashEntry(1).Locator)
	return err
}

func publishKept(ctx context.Context, w *world) error {
	return w.log.Publish(ctx, dispatch.TopicEvents, []dispatch.Message{{Key: crashJob, Value: []byte("kept")}})
}

// everythingKept returns one of each kind of acknowledged write.
func everythingKept() []kept {
	return []kept{
		{"a created job", nothing, createKept, func(ctx context.Context, w *world) error {
			j, err := w.jobs.Get(ctx, crashJob)
			return want(j.Version == 1, err)
		}},
		{"a job's listing", nothing, createKept, func(ctx context.Context, w *world) error {
			page, _, err := w.jobs.List(ctx, job.DefaultTenant, "", 10)
			return want(len(page) == 1, err)
		}},
		{"a replaced job", createKept, func(ctx context.Context, w *world) error {
			return w.jobs.Replace(ctx, keptNext)
		}, func(ctx context.Context, w *world) error {
			j, err := w.jobs.Get(ctx, crashJob)
			return want(j.Version == 2 && j.Status == job.StatusCancelled, err)
		}},
		{"a superseded definition", nothing, func(ctx context.Context, w *world) error {
			return w.jobs.PutDefinition(ctx, crashJob, job.Definition{ID: "def_1"})
		}, func(ctx context.Context, w *world) error {
			_, _, err := w.jobs.Definition(ctx, crashJob, "def_1")
			return err
		}},
		{"a claim", nothing, claimKept, func(ctx context.Context, w *world) error {
			standing, won, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: "other", AcceptedAt: crashDay})
			return want(!won && standing.ID == crashJob, err)
		}},
		{"a claim's answer", claimKept, func(ctx context.Context, w *world) error {
			return w.jobs.FinishKey(ctx, job.DefaultTenant, "key", jobstore.Answer{Status: 201})
		}, func(ctx context.Context, w *world) error {
			standing, _, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", keptClaim)
			return want(standing.Answer != nil && standing.Answer.Status == 201, err)
		}},
		{"an entry", nothing, putKept, entryKept},
		{"an entry whose job row follows", nothing, func(ctx context.Context, w *world) error {
			return errors.Join(w.pending.Put(jobstore.RowFollows(ctx), []job.Entry{crashEntry(1)}), createKept(ctx, w))
		}, entryKept},
		{"an entry whose job row is there already", createKept, func(ctx context.Context, w *world) error {
			err := w.pending.Put(jobstore.RowFollows(ctx), []job.Entry{crashEntry(1)})
			return errors.Join(err, w.jobs.Create(ctx, keptJob, false))
		}, entryKept},
		{"an entry whose job row is that of another try", createKept, func(ctx context.Context, w *world) error {
			err := w.pending.Put(jobstore.RowFollows(ctx), []job.Entry{crashEntry(1)})
			if err == nil {
				if err = createKept(ctx, w); errors.Is(err, jobstore.ErrExists) {
					err = nil
				}
			}
			return err
		}, entryKept},
		{"an entry of a batch whose job rows are there already", createKept, func(ctx context.Context, w *world) error {
			err := w.pending.Put(jobstore.RowFollows(ctx), []job.Entry{crashEntry(1)})
			return errors.Join(err, w.jobs.CreateMany(ctx, []job.Job{keptJob}))
		}, entryKept},
		{"a done mark", putKept, func(ctx context.Context, w *world) error {
			return w.pending.MarkDone(ctx, []job.Locator{crashEntry(1).Locator})
		}, func(ctx context.Context, w *world) error {
			row, err := w.pending.Row(ctx, crashEntry(1).Locator)
			return want(row.Done, err)
		}},
		{"a decision", putKept, func(ctx context.Context, w *world) error {
			return w.pending.Decide(ctx, crashEntry(1).Locator, job.Decision{Fire: true, NextOrdinal: 7})
		}, func(ctx context.Context, w *world) error {
			row, err := w.pending.Row(ctx, crashEntry(1).Locator)
			return want(row.Decision != nil && row.Decision.NextOrdinal == 7, err)
		}},
		{"a dead letter", nothing, func(ctx context.Context, w *world) error {
			return w.history.PutDeadLetter(ctx, job.DeadLetter{Event: keptEvent})
		}, func(ctx context.Context, w *world) error {
			letters, _, err := w.history.DeadLetters(ctx, job.DefaultTenant, "", 10)
			return want(len(letters) == 1, err)
		}},
		{"a record of the log", nothing, publishKept, func(ctx context.Context, w *world) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			c, err := w.log.Subscribe(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
			if err != nil {
				return err
			}
			messages, err := c.Poll(ctx, 10)
			return want(len(messages) == 1 && string(messages[0].Value) == "kept", err)
		}},
		keptNumber(), keptLogID(),
	}
}

// keptNumber draws a number, which must never be drawn again.
func keptNumber() kept {
	var drawn int64
	return kept{"a start number", nothing, func(ctx context.Context, w *world) (err error) {
		drawn, err = w.coord.StartNumber(ctx)
		return err
	}, func(ctx context.Context, w *world) error {
		n, err := w.coord.StartNumber(ctx)
		if err != nil || n <= drawn {
			return want(false, err)
		}
		ctx, leave := context.WithCancel(ctx)
		defer leave()
		owned, err := w.coord.Join(ctx, coord.RoleWorker)
		if err != nil {
			return err
		}
		return want((<-owned)[0].Epoch > n, nil)
	}}
}

// keptLogID reads the log id, under which positions may be noted from then on.
func keptLogID() kept {
	var id string
	return kept{"the log id", nothing, func(ctx context.Context, w *world) error {
		end, err := w.log.End(ctx, dispatch.TopicEvents)
		id = end.LogID
		return err
	}, func(ctx context.Context, w *world) error {
		end, err := w.log.End(ctx, dispatch.TopicEvents)
		return want(end.LogID == id, err)
	}}
}

// survives writes k, ends the process by stop, and returns what is wrong with what is left of it.
func survives(ctx context.Context, k kept, withoutSync bool, stop func(*world) (vfs.FS, error)) error {
	w, err := openWorld(vfs.NewCrashableMem(), withoutSync)
	if err != nil {
		return err
	}
	if err := errors.Join(k.prepare(ctx, w), k.write(ctx, w)); err != nil {
		return err
	}
	left, err := stop(w)
	if err != nil {
		return err
	}
	again, err := openWorld(left, withoutSync)
	if err != nil {
		return err
	}
	return errors.Join(k.check(ctx, again), again.close())
}

// powerLoss leaves exactly what was synced; closed is the end of a process that stops in order.
func powerLoss(w *world) (vfs.FS, error) {
	left := w.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
	return left, w.close()
}

func closed(w *world) (vfs.FS, error) { return w.fs, w.close() }

// lostBy returns which of everything did not survive.
func lostBy(ctx context.Context, withoutSync bool, stop func(*world) (vfs.FS, error)) (lost []string) {
	for _, k := range everythingKept() {
		if err := survives(ctx, k, withoutSync, stop); err != nil {
			lost = append(lost, fmt.Sprintf("%s: %v", k.what, err))
		}
	}
	return lost
}

func TestEachAcknowledgedWriteSurvivesOnItsOwn(t *testing.T) {
	for name, stop := range map[string]func(*world) (vfs.FS, error){"power loss": powerLoss, "clean close": closed} {
		for _, lost := range lostBy(t.Context(), false, stop) {
			t.Errorf("after a %s: %s", name, lost)
		}
	}
}

func TestWithoutSyncEachAcknowledgedWriteIsReportedLost(t *testing.T) {
	lost := lostBy(t.Context(), true, powerLoss)
	for _, k := range everythingKept() {
		if !slices.ContainsFunc(lost, func(l string) bool { return strings.HasPrefix(l, k.what+": ") }) {
			t.Errorf("%s survived without a sync, so its check would not notice one that is missing", k.what)
		}
	}
	if lost := lostBy(t.Context(), true, closed); len(lost) > 0 {
		t.Errorf("a clean close lost %s", strings.Join(lost, ", "))
	}
}

func TestABucketAndItsLowWaterMarkAreLostOnlyTogether(t *testing.T) {
	ctx := t.Context()
	for name, stop := range map[string]func(*world) (vfs.FS, error){"power loss": powerLoss, "clean close": closed} {
		w, err := openWorld(vfs.NewCrashableMem(), false)
		if err != nil {
			t.Fatal(err)
		}
		e := crashEntry(1)
		if err := errors.Join(putKept(ctx, w), w.pending.Close(ctx, e.Partition, e.Minute+1)); err != nil {
			t.Fatal(err)
		}
		left, err := stop(w)
		if err != nil {
			t.Fatal(err)
		}
		again, err := openWorld(left, false)
		if err != nil {
			t.Fatal(err)
		}
		low, lowErr := again.pending.LowWater(ctx, e.Partition)
		_, rowErr := again.pending.Row(ctx, e.Locator)
		if moved, gone := low == e.Minute+1, errors.Is(rowErr, jobstore.ErrNotFound); lowErr != nil || moved != gone {
			t.Errorf("after a %s the mark is %d, %v, and the row's error %v", name, low, lowErr, rowErr)
		}
		if err := again.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnArchivedObjectSurvivesPowerLossWhole(t *testing.T) {
	ctx := t.Context()
	fsys := vfs.NewCrashableMem()
	a, err := NewArchive(fsys, "/data/archive")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		name := fmt.Sprintf("audit/dt=2030-01-02/hour=%02d/object-%d", i/2, i)
		if err := a.PutIfAbsent(ctx, name, []byte("whole")); err != nil {
			t.Fatal(err)
		}
		left := fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
		after, err := NewArchive(left, "/data/archive")
		if err != nil {
			t.Fatal(err)
		}
		o, err := after.Open(ctx, name)
		if err != nil || o.Size() != int64(len("whole")) {
			t.Errorf("%s is gone or cut short: %v", name, err)
		}
		if err := after.PutIfAbsent(ctx, name, []byte("other")); !errors.Is(err, archive.ErrExists) {
			t.Errorf("%s could be replaced: %v", name, err)
		}
	}
}
