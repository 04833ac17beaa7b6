package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/process"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// audited is what minutehand audit --archive says.
type audited struct {
	Jobs        int            `json:"jobs"`
	Occurrences int            `json:"occurrences"`
	States      map[string]int `json:"states"`
	Unknown     []struct {
		JobID     string    `json:"job_id"`
		NominalAt time.Time `json:"nominal_at"`
	} `json:"unknown"`
	Archive struct {
		Events      int `json:"events"`
		Missing     int `json:"missing"`
		Differences []struct {
			Missing   string    `json:"missing"`
			JobID     string    `json:"job_id"`
			NominalAt time.Time `json:"nominal_at"`
			Reason    string    `json:"reason"`
		} `json:"differences"`
	} `json:"archive"`
}

// instantOf names an instant of a job.
func instantOf(jobID string, at time.Time) string {
	return jobID + " " + at.UTC().Format(time.RFC3339Nano)
}

// A job row, an entry, a history row and an archive object are removed by hand. minutehand audit names what is gone, and nothing else.
func TestAuditNamesExactlyWhatWasRemovedByHand(t *testing.T) {
	t.Parallel()
	n, lasts := sized(40, 2500), sized(12*time.Second, 410*time.Second)
	p, sink := newProcess(t), process.NewSink(t)
	sink.Set("/flaky", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Minutehand-Attempt") == "1" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	p.Start()
	began := time.Now()
	ids := p.Register(n, func(i int) map[string]any {
		path := "/hook"
		if i%20 == 0 {
			path = "/flaky"
		}
		return map[string]any{
			"name": fmt.Sprint("audited ", i), "type": "interval", "every": "1s", "target": map[string]any{"kind": "http_webhook", "url": sink.URL + path},
			"retry_policy": map[string]any{"max_attempts": 2, "backoff": "fixed", "base_delay": "1s", "jitter": 0},
		}
	})
	process.WaitFor(t, lasts, "some were called", func() bool { return sink.Called() == n })
	api(t, p, http.MethodPost, "/jobs/"+ids[5]+"/pause", nil, http.StatusOK)
	p.Stop() // which begins new objects
	p.Start()
	if *full { // else the objects are small enough
		p.Stop()
		p.Start()
	}
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
	a := runAudit(t, p, began, ended)

	unknown := []string{}
	for _, u := range a.Unknown {
		unknown = append(unknown, instantOf(u.JobID, u.NominalAt))
	}
	// By the history alone it is told only when it cannot be on its way any more.
	if want := sized([]string{}, []string{instantOf(recordOf, record)}); !slices.Equal(unknown, want) {
		t.Errorf("nothing is on record of %v, want only %v", unknown, want)
	}
	found := map[string][]string{}
	for _, d := range a.Archive.Differences {
		what := d.JobID
		if !d.NominalAt.IsZero() {
			what = instantOf(d.JobID, d.NominalAt)
		}
		found[d.Missing] = append(found[d.Missing], what)
	}
	objects := found["object"]
	delete(found, "object")
	want := map[string][]string{"job": {rowOf}, "history": {instantOf(recordOf, record)}, "archive": nil}
	for what, at := range gone {
		if !at.Before(began) && at.Before(ended) {
			want["archive"] = append(want["archive"], what)
		}
	}
	for _, of := range []map[string][]string{want, found} {
		for _, list := range of {
			slices.Sort(list)
		}
	}
	if !maps.EqualFunc(found, want, slices.Equal) || len(objects) != 1 || a.Archive.Missing != len(a.Archive.Differences) {
		t.Errorf("the audit found %v and %d holes between objects, %d in all; want %v and one hole", found, len(objects), a.Archive.Missing, want)
	}
	t.Logf("%d jobs, %d instants (%v), %d events; the object had %d", a.Jobs, a.Occurrences, a.States, a.Archive.Events, len(gone))
	if *full { // it looks through all jobs ten minutes after it has
		process.WaitFor(t, 15*time.Minute, "the schedule goes on whose entry is gone", func() bool {
			return p.Metrics().Of(t, "minutehand_bucket_loader_mended_schedules_total") == 1
		})
		t.Logf("the entry of %s was mended %s after the start", entry, time.Since(p.StartedAt).Round(time.Second))
	}
}

// runAudit runs the command, which must find something, and logs how long that took and how much memory.
func runAudit(t *testing.T, p *process.Process, from, to time.Time) (a audited) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary.path, "audit", "--archive", "--data", p.Dir, "-o", "json",
		"--from", from.Format(time.RFC3339Nano), "--to", to.Format(time.RFC3339Nano))
	cmd.Env = append(os.Environ(), "MINUTEHAND_SERVER="+p.URL)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	began := time.Now()
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 1 || json.Unmarshal(out.Bytes(), &a) != nil {
		t.Fatalf("minutehand audit ended with %d (%v): %s", code, err, said.String())
	}
	t.Logf("it took %s and %d MiB: %s", time.Since(began).Round(10*time.Millisecond), cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10, said.String())
	return a
}

// removeObject removes an object of the archive behind another one of its log partition, which tells of many occurrences, and not of some jobs.
// It returns the instants of schedules of which it told.
func removeObject(t *testing.T, dir string, not ...string) (gone map[string]time.Time) {
	t.Helper()
	a, err := embedded.OpenArchive(filepath.Join(dir, "archive"))
	if err != nil {
		t.Fatal(err)
	}
	names, err := a.List(t.Context(), "audit/")
	if err != nil {
		t.Fatal(err)
	}
	chosen := ""
	for _, name := range names {
		o, err := a.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		of, fits := map[string]time.Time{}, !strings.HasSuffix(name, "-00000000000000000000.parquet")
		err = auditwriter.Scan(o, []string{"event_type", "trigger", "job_id", "nominal_at", "skipped_from", "skipped_to"}, func(v []any) error {
			kind, _ := v[0].(string)
			trigger, _ := v[1].(string)
			id, _ := v[2].(string)
			at, _ := v[3].(time.Time)
			first, _ := v[4].(time.Time)
			last, _ := v[5].(time.Time)
			fits = fits && !slices.Contains(not, id)
			switch {
			case kind == string(job.EventAttempt) && trigger == string(job.TriggerSchedule):
				of[instantOf(id, at)] = at
			case kind == string(job.EventSkipped):
				for at := first; !at.After(last); at = at.Add(time.Second) {
					of[instantOf(id, at)] = at
				}
			}
			return nil
		})
		if err := errors.Join(err, o.Close()); err != nil {
			t.Fatal(err)
		}
		if fits && len(of) > len(gone) && len(of) < 900 { // all of them are listed
			chosen, gone = name, of
		}
	}
	if chosen == "" {
		t.Fatalf("none of %d objects can be removed", len(names))
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
