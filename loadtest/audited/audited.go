// Package audited is what tests of minutehand audit --archive share: they remove things by hand and compare what it finds.
package audited

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/archive"
	"github.com/minutehand/minutehand/libs/job"
	auditwriter "github.com/minutehand/minutehand/services/audit-writer"
)

// Report is what the command says.
type Report struct {
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
	// Cost says how long it took, and how much memory.
	Cost string `json:"-"`
}

// Instant names an instant of a job.
func Instant(jobID string, at time.Time) string {
	return jobID + " " + at.UTC().Format(time.RFC3339Nano)
}

// Run runs the command over a range with further arguments and variables. It fails unless the command finds something.
func Run(ctx context.Context, binary string, from, to time.Time, args, variables []string) (r Report, err error) {
	cmd := exec.CommandContext(ctx, binary, append([]string{ //nolint:gosec // a binary of this project
		"audit", "--archive", "-o", "json", "--from", from.Format(time.RFC3339Nano), "--to", to.Format(time.RFC3339Nano),
	}, args...)...)
	cmd.Env = append(os.Environ(), variables...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	began, peak := time.Now(), ""
	if err := cmd.Start(); err != nil {
		return r, err
	}
	ended := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for tick := time.Tick(100 * time.Millisecond); ; {
			select {
			case <-tick:
				// What wait4 tells is at least the size of who has started it.
				if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)); err == nil {
					if m := peakOf.FindSubmatch(text); m != nil {
						peak = string(m[1])
					}
				}
			case <-ended:
				return
			}
		}
	})
	_ = cmd.Wait() // its exit code says it
	close(ended)
	looking.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || json.Unmarshal(out.Bytes(), &r) != nil {
		return r, fmt.Errorf("minutehand audit ended with %d: %s", code, said.String())
	}
	r.Cost = fmt.Sprintf("it took %s and %s of memory", time.Since(began).Round(10*time.Millisecond), peak)
	return r, nil
}

var peakOf = regexp.MustCompile(`VmHWM:\s*(\d+ kB)`)

// Object returns an object of an archive that lies behind another one of its log partition, tells of many occurrences of schedules, 900 at most, and
// not of some jobs; and the instants of which it tells. Jobs are due each second.
func Object(ctx context.Context, a archive.Archive, not ...string) (chosen string, gone map[string]time.Time, err error) {
	names, err := a.List(ctx, "audit/")
	if err != nil {
		return "", nil, err
	}
	for _, name := range names {
		o, err := a.Open(ctx, name)
		if err != nil {
			return "", nil, err
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
				of[Instant(id, at)] = at
			case kind == string(job.EventSkipped):
				for at := first; !at.After(last); at = at.Add(time.Second) {
					of[Instant(id, at)] = at
				}
			}
			return nil
		})
		if err := errors.Join(err, o.Close()); err != nil {
			return "", nil, err
		}
		if fits && len(of) > len(gone) && len(of) < 900 { // all of them are listed
			chosen, gone = name, of
		}
	}
	if chosen == "" {
		return "", nil, fmt.Errorf("none of %d objects can be removed", len(names))
	}
	return chosen, gone, nil
}

// Removed is what was removed by hand.
type Removed struct {
	// Job is the job whose row is gone, History the occurrence of which the history has nothing, Archive the instants of which an object told.
	Job, History string
	Archive      map[string]time.Time
}

// Compare returns what is wrong with a report on a range: it is to name what was removed, and a hole in the archive, and nothing else; "" for nothing.
func (r *Report) Compare(x Removed, from, to time.Time) string {
	found := map[string][]string{}
	for _, d := range r.Archive.Differences {
		what := d.JobID
		if !d.NominalAt.IsZero() {
			what = Instant(d.JobID, d.NominalAt)
		}
		found[d.Missing] = append(found[d.Missing], what)
	}
	objects := found["object"]
	delete(found, "object")
	want := map[string][]string{"job": {x.Job}, "history": {x.History}, "archive": nil}
	for what, at := range x.Archive {
		if !at.Before(from) && at.Before(to) {
			want["archive"] = append(want["archive"], what)
		}
	}
	for _, of := range []map[string][]string{want, found} {
		for _, list := range of {
			slices.Sort(list)
		}
	}
	if maps.EqualFunc(found, want, slices.Equal) && len(objects) == 1 && r.Archive.Missing == len(r.Archive.Differences) {
		return ""
	}
	return fmt.Sprintf("the audit found %v and %d holes between objects, %d in all; want %v and one hole", found, len(objects), r.Archive.Missing, want)
}
