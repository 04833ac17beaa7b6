package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
)

// overdue starts minutehand on a store with n entries that were due an hour ago, half of them to fire and half to skip. It
// prints how soon it is ready, how fast it catches up, and the most memory that it used.
func overdue(ctx context.Context, binary, target string, n int) error {
	dir, err := os.MkdirTemp("", "minutehand-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := fillOverdue(ctx, dir, target, n); err != nil {
		return err
	}
	if err := (&process{client: http.DefaultClient}).reset(ctx, target); err != nil {
		return err
	}
	began := time.Now()
	p, err := start(ctx, binary, dir)
	if err != nil {
		return err
	}
	ready := time.Since(began)
	err = p.catchUp(ctx, target, n)
	took := time.Since(began)
	peak, peakErr := p.peak()
	if err := errors.Join(err, peakErr, p.stop()); err != nil {
		return err
	}
	fmt.Printf("\nWith %d entries overdue: ready after %.2g s, caught up after %.3g s (%.4g entries/s), at most %d MiB resident.\n",
		n, ready.Seconds(), took.Seconds(), float64(n)/took.Seconds(), peak>>20)
	return nil
}

// catchUp waits until every entry was decided and every entry to fire was called.
func (p *process) catchUp(ctx context.Context, target string, n int) error {
	fire, skip := `minutehand_scheduler_worker_late_decisions_total{decision="fire"}`,
		`minutehand_scheduler_worker_late_decisions_total{decision="skip"}`
	for deadline := time.Now().Add(30 * time.Minute); ; time.Sleep(time.Second) {
		m, err := p.metrics(ctx)
		if err != nil {
			return err
		}
		t, err := p.tally(ctx, target, false)
		if err != nil {
			return err
		}
		if m[fire]+m[skip] >= float64(n) && t.Count >= n/2 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%.0f fired and %.0f skipped of %d, %d called", m[fire], m[skip], n, t.Count)
		}
	}
}

// peak returns the most memory that the process had resident, in bytes.
func (p *process) peak() (int64, error) { return peakOf(p.cmd.Process.Pid) }

func peakOf(pid int) (int64, error) { return memoryOf(pid, "VmHWM") }

// memoryOf returns what a process' status says of its memory, in bytes: VmRSS for what is resident, VmHWM for the most that was.
func memoryOf(pid int, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), name+":")
	var kb int64
	_, err = fmt.Sscanf(rest, "%d kB", &kb)
	return kb << 10, err
}

// fillOverdue writes the jobs and their entries into a new store, as if they had been accepted long ago.
func fillOverdue(ctx context.Context, dir, target string, n int) error {
	at := job.Instant(time.Now().Add(-time.Hour))
	accepted := at.Add(-time.Hour)
	db, err := embedded.Open(embedded.Options{Dir: filepath.Join(dir, "store"), SetupMinute: job.Minute(accepted)})
	if err != nil {
		return err
	}
	jobs, pending := embedded.NewJobStore(db), embedded.NewPending(db)
	for i := 0; i < n && err == nil; i += 1000 {
		rows, entries := oneShots(1000, target+"/hook", accepted, at)
		for k := range rows {
			if k%2 == 1 {
				rows[k].Definition.MissedRun = job.MissedSkip
			}
		}
		err = errors.Join(pending.Put(ctx, entries), jobs.CreateMany(ctx, rows))
	}
	return errors.Join(err, db.Close())
}

// oneShots returns n jobs, accepted at one instant and due at another, and their entries.
func oneShots(n int, url string, accepted, at time.Time) ([]job.Job, []job.Entry) {
	jobs, entries := make([]job.Job, n), make([]job.Entry, n)
	for i := range jobs {
		id := ulid.Make().String()
		jobs[i] = job.Job{
			ID: job.JobPrefix + id, Tenant: job.DefaultTenant, Name: "bench", Status: job.StatusActive, Version: 1, CreatedAt: accepted,
			UpdatedAt: accepted,
			Definition: job.Definition{
				ID: job.DefinitionPrefix + id, EffectiveAt: accepted, FirstOrdinal: 1, Retry: job.DefaultRetryPolicy(),
				Schedule:  job.Schedule{Type: job.ScheduleOneShot, RunAt: at},
				Target:    job.Target{Kind: job.TargetWebhook, URL: url, Method: "POST", Timeout: job.DefaultTimeout},
				MissedRun: job.MissedFireOnce, CatchUpWindow: job.DefaultCatchUpWindow,
			},
		}
		entries[i] = job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: bucket.Partition(jobs[i].ID, bucket.DefaultPartitions), DueAt: at, Attempt: 1,
				ExecutionID: job.ScheduleExecutionID(jobs[i].ID, at), DefinitionID: jobs[i].Definition.ID,
			},
			JobID: jobs[i].ID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: 1, WrittenAt: accepted,
		}, accepted)
	}
	return jobs, entries
}
