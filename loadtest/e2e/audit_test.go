package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/audited"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
)

// A job row, an entry, a history row and an archive object are removed by hand. minutehand audit names what is gone, and nothing else.
func TestAuditNamesExactlyWhatWasRemovedByHand(t *testing.T) {
	t.Parallel()
	few, rest, lasts := 40, sized(0, 2460), sized(12*time.Second, 410*time.Second)
	p, sink := newProcess(t), process.NewSink(t)
	sink.Set("/flaky", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Minutehand-Attempt") == "1" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	register := func(n int) []string {
		return p.Register(n, func(i int) map[string]any {
			path := "/hook"
			if i%20 == 0 {
				path = "/flaky"
			}
			return map[string]any{
				"name": fmt.Sprint("audited ", i), "type": "interval", "every": "1s", "target": map[string]any{"kind": "http_webhook", "url": sink.URL + path},
				"retry_policy": map[string]any{"max_attempts": 2, "backoff": "fixed", "base_delay": "1s", "jitter": 0},
			}
		})
	}
	p.Start()
	began := time.Now()
	ids := register(few)
	process.WaitFor(t, lasts, "some were called", func() bool { return sink.Called() == few })
	api(t, p, http.MethodPost, "/jobs/"+ids[5]+"/pause", nil, http.StatusOK)
	// A stop ends all objects. Those of the few jobs between the two are small, and lie behind others: one of them can be removed.
	p.Stop()
	p.Start()
	again := sink.Count("/hook")
	process.WaitFor(t, lasts, "some were called again", func() bool { return sink.Count("/hook") >= again+few })
	p.Stop()
	p.Start()
	register(rest)
	process.WaitFor(t, lasts+time.Minute, "the run is over", func() bool { return time.Since(began) > lasts })
	api(t, p, http.MethodPost, "/jobs/"+ids[5]+"/resume", nil, http.StatusOK)
	resumed := time.Now()
	process.WaitFor(t, time.Minute, "the resume is over", func() bool { return time.Since(resumed) > 2*time.Second })
	p.Stop()
	ended := time.Now()

	rowOf, recordOf, entryOf := ids[1], ids[2], ids[3]
	gone := removeObject(t, p.Dir, rowOf, recordOf)
	record, entry := removeRows(t, p.Dir, rowOf, recordOf, entryOf)
	p.Start()
	settled := sized(p.StartedAt, record.Add(7*time.Minute))
	process.WaitFor(t, 8*time.Minute, "nothing can be on its way any more", func() bool { return time.Now().After(settled) })
	a, err := audited.Run(t.Context(), binary.path, began, ended, []string{"--data", p.Dir}, []string{"MINUTEHAND_SERVER=" + p.URL})
	if err != nil {
		t.Fatal(err)
	}

	unknown := []string{}
	for _, u := range a.Unknown {
		unknown = append(unknown, audited.Instant(u.JobID, u.NominalAt))
	}
	// By the history alone it is told only when it cannot be on its way any more.
	lost := audited.Instant(recordOf, record)
	if want := sized([]string{}, []string{lost}); !slices.Equal(unknown, want) {
		t.Errorf("nothing is on record of %v, want only %v", unknown, want)
	}
	if wrong := a.Compare(audited.Removed{Job: rowOf, History: lost, Archive: gone}, began, ended); wrong != "" {
		t.Error(wrong)
	}
	t.Logf("%s; %d jobs, %d instants (%v), %d events; the object had %d", a.Cost, a.Jobs, a.Occurrences, a.States, a.Archive.Events, len(gone))
	if *full { // it looks through all jobs ten minutes after it has
		process.WaitFor(t, 15*time.Minute, "the schedule goes on whose entry is gone", func() bool {
			return p.Metrics().Of(t, "minutehand_bucket_loader_mended_schedules_total") == 1
		})
		t.Logf("the entry of %s was mended %s after the start", entry, time.Since(p.StartedAt).Round(time.Second))
	}
}

// removeObject removes an object of the archive behind another one of its log partition, which tells of many occurrences, and not of some jobs.
// It returns the instants of schedules of which it told.
func removeObject(t *testing.T, dir string, not ...string) map[string]time.Time {
	t.Helper()
	a, err := embedded.OpenArchive(filepath.Join(dir, "archive"))
	if err != nil {
		t.Fatal(err)
	}
	chosen, gone, err := audited.Object(t.Context(), a, not...)
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	err = filepath.WalkDir(filepath.Join(dir, "archive"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == filepath.Base(chosen) {
			removed++
			err = os.Remove(path)
		}
		return err
	})
	if err != nil || removed != 1 {
		t.Fatalf("%d objects are named %s: %v", removed, chosen, err)
	}
	return gone
}

// removeRows removes a job's row, all that the history has of one execution of another, and the entry of a third, from the store of a stopped
// process. It returns the instant of that execution, and what the entry was.
func removeRows(t *testing.T, dir, rowOf, recordOf, entryOf string) (record time.Time, entry string) {
	t.Helper()
	db, err := pebble.Open(filepath.Join(dir, "store"), &pebble.Options{Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var remove, records [][]byte
	execution := job.ExecutionPrefix + strings.TrimPrefix(entryOf, job.JobPrefix)
	for it.First(); it.Valid(); it.Next() {
		switch k := it.Key(); {
		case string(k) == "j"+rowOf:
			remove = append(remove, slices.Clone(k))
		case k[0] == 'h' && bytes.Contains(k, []byte(job.ExecutionPrefix+strings.TrimPrefix(recordOf, job.JobPrefix))):
			records = append(records, slices.Clone(k))
		case k[0] == 'p' && bytes.Contains(k, []byte(execution)):
			remove, entry = append(remove, slices.Clone(k)), execution
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if len(records) < 3 || len(remove) < 2 {
		t.Fatalf("%d records and %d other rows were found", len(records), len(remove))
	}
	middle := records[len(records)/2]
	at := bytes.Index(middle, []byte(job.ExecutionPrefix))
	id, _, _ := strings.Cut(string(middle[at:]), "\x00")
	ref, err := job.ParseExecutionID(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range append(remove, middle) {
		if err := db.Delete(k, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	return ref.NominalAt, entry
}

// quiet is a log of the store that nobody reads.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
