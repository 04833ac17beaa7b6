package embedded_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/archive/archivetest"
	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/attempts/attemptstest"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/coord/coordtest"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/dispatch/dispatchtest"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/hotbucket/hotbuckettest"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/jobstore/jobstoretest"
)

const (
	partitions  = 4
	firstMinute = 31_000_000
	// bound is the bound with which the adapters that have one are opened, to show that they keep it.
	bound = 5
)

func records(t *testing.T, db *embedded.DB, bound int) attempts.Records {
	t.Helper()
	r, err := embedded.NewRecords(t.Context(), db, bound)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fileSystems returns the file systems that the suites run on.
func fileSystems(t *testing.T) map[string]func() (vfs.FS, string) {
	t.Helper()
	return map[string]func() (vfs.FS, string){
		"memory": func() (vfs.FS, string) { return vfs.NewMem(), "/data" },
		"disk":   func() (vfs.FS, string) { return vfs.Default, t.TempDir() },
	}
}

func TestConformance(t *testing.T) {
	for name, fresh := range fileSystems(t) {
		open := func(t *testing.T) *embedded.DB {
			t.Helper()
			fsys, dir := fresh()
			db, err := embedded.Open(embedded.Options{Dir: dir, FS: fsys, Partitions: partitions, SetupMinute: firstMinute})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
			return db
		}
		t.Run(name+"/jobs", func(t *testing.T) {
			jobstoretest.RunJobs(t, func(t *testing.T) jobstore.Jobs { return embedded.NewJobStore(open(t)) })
		})
		t.Run(name+"/pending", func(t *testing.T) {
			jobstoretest.RunPending(t, func(t *testing.T) jobstore.Pending { return embedded.NewPending(open(t)) })
		})
		t.Run(name+"/settings", func(t *testing.T) {
			jobstoretest.RunSettings(t, func(t *testing.T) jobstore.Settings { return embedded.NewSettings(open(t)) })
		})
		t.Run(name+"/history", func(t *testing.T) {
			jobstoretest.RunHistory(t, func(t *testing.T) (jobstore.History, jobstore.Jobs) {
				db := open(t)
				return embedded.NewHistory(db), embedded.NewJobStore(db)
			})
		})
		t.Run(name+"/log", func(t *testing.T) {
			dispatchtest.Run(t, func(t *testing.T) dispatch.Log {
				log, err := embedded.NewLog(open(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(log.Close)
				return log
			})
		})
		t.Run(name+"/records", func(t *testing.T) {
			attemptstest.Run(t, func(t *testing.T) attempts.Records {
				return records(t, open(t), 0)
			})
			attemptstest.RunBound(t, bound, func(t *testing.T) attempts.Records {
				return records(t, open(t), bound)
			})
		})
		t.Run(name+"/coordinator", func(t *testing.T) {
			coordtest.Run(t, func(t *testing.T) coord.Coordinator { return embedded.NewCoordinator(open(t)) })
		})
		t.Run(name+"/archive", func(t *testing.T) {
			archivetest.Run(t, func(t *testing.T) archive.Archive {
				fsys, dir := fresh()
				a, err := embedded.NewArchive(fsys, dir)
				if err != nil {
					t.Fatal(err)
				}
				return a
			})
		})
	}
	t.Run("hot buckets", func(t *testing.T) {
		hotbuckettest.Run(t, func(*testing.T) hotbucket.Buckets { return embedded.NewHotBuckets(incarnation(), partitions, 0) })
		bounded := func(*testing.T) hotbucket.Buckets {
			return embedded.NewHotBuckets(incarnation(), partitions, bound)
		}
		hotbuckettest.RunBound(t, bound, bounded)
		hotbuckettest.RunSharedBound(t, bound, bounded)
	})
}

func incarnation() string { return attempts.IncarnationName(attempts.NextEpoch(0, time.Now()), "test") }
