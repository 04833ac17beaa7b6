package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func TestWhatHasEndedIsKeptForItsTimeAndNoLonger(t *testing.T) {
	ctx := t.Context()
	w, err := openWorld(vfs.NewMem(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	now := job.Instant(time.Now())
	oneShot := job.Definition{ID: "def_1", Schedule: job.Schedule{Type: job.ScheduleOneShot, RunAt: now}}
	recurring := job.Definition{ID: "def_1", Schedule: job.Schedule{Type: job.ScheduleCron, CronExpr: "@daily"}}
	rows := map[string]struct {
		row  job.Job
		kept bool
	}{
		"job_ended":     {job.Job{Status: job.StatusActive, Definition: oneShot}, false},
		"job_cancelled": {job.Job{Status: job.StatusCancelled, Definition: oneShot}, false},
		"job_paused":    {job.Job{Status: job.StatusPaused, Definition: oneShot}, true},
		"job_recurring": {job.Job{Status: job.StatusActive, Definition: recurring}, true},
		"job_deleted":   {job.Job{Status: job.StatusCancelled, Deleted: true, Definition: recurring}, false},
		"job_changed":   {job.Job{Status: job.StatusActive, Definition: oneShot}, true}, // below
	}
	for id, c := range rows {
		c.row.ID, c.row.Tenant, c.row.Version, c.row.UpdatedAt = id, job.DefaultTenant, 1, now
		if err := w.jobs.Create(ctx, c.row, false); err != nil {
			t.Fatal(err)
		}
	}
	changed := rows["job_changed"].row
	changed.ID, changed.Tenant, changed.Version, changed.UpdatedAt = "job_changed", job.DefaultTenant, 2, now.Add(time.Hour)
	if err := errors.Join(
		w.jobs.Replace(ctx, changed), w.jobs.PutDefinition(ctx, "job_recurring", job.Definition{ID: "def_0"}),
	); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: "first", AcceptedAt: now}); err != nil {
		t.Fatal(err)
	}
	present := func() (n int) {
		page, _, err := w.jobs.List(ctx, job.DefaultTenant, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(page)
	}

	if err := w.jobs.expire(ctx, now.Add(jobstore.KeyTTL-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if standing, _, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: "other", AcceptedAt: now}); err != nil ||
		standing.ID != "first" || present() != len(rows) {
		t.Errorf("before its time something is gone: %v, %v, %d jobs", standing, err, present())
	}
	if err := w.jobs.expire(ctx, now.Add(jobstore.HistoryTTL+time.Minute)); err != nil {
		t.Fatal(err)
	}
	for id, c := range rows {
		if _, err := w.jobs.Get(ctx, id); errors.Is(err, jobstore.ErrNotFound) == c.kept {
			t.Errorf("%s: %v", id, err)
		}
	}
	if n := present(); n != 3 {
		t.Errorf("%d jobs are listed, want 3", n)
	}
	if _, _, err := w.jobs.Definition(ctx, "job_recurring", "def_0"); !errors.Is(err, jobstore.ErrNotFound) {
		t.Errorf("the superseded definition: %v", err)
	}
	if _, won, err := w.jobs.ClaimKey(ctx, job.DefaultTenant, "key", jobstore.Claim{ID: "other", AcceptedAt: now}); err != nil || !won {
		t.Errorf("the claim still stands: %v", err)
	}
}
