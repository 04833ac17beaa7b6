package job_test

import (
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

func TestIdempotencyKeysFollowTheTemplate(t *testing.T) {
	at := time.Date(2026, 3, 2, 9, 0, 0, 0, time.FixedZone("", 3600))
	e := job.Entry{JobID: "job_1", NominalAt: at, Locator: job.Locator{ExecutionID: "exe_1"}}
	fine := e
	fine.NominalAt = at.Add(250 * time.Millisecond)
	for _, c := range []struct {
		template string
		entry    job.Entry
		want     string
	}{
		{"", e, "exe_1"},
		{"weekly-standup-{run_at}", e, "weekly-standup-2026-03-02T08:00:00Z"},
		{"{run_at}", fine, "2026-03-02T08:00:00.25Z"},
		{"{job_id}/{execution_id}/{execution_id}", e, "job_1/exe_1/exe_1"},
	} {
		target := job.Target{KeyTemplate: c.template}
		if key := target.IdempotencyKey(&c.entry); key != c.want {
			t.Errorf("%q makes %q, want %q", c.template, key, c.want)
		}
	}
}

func TestTemplatesThatGiveTwoExecutionsOneKeyAreRefused(t *testing.T) {
	for _, c := range []struct {
		template, fault string
		kind            job.ScheduleType
	}{
		{"a-{run_at}", "", job.ScheduleCron},
		{"{execution_id}", "", job.ScheduleInterval},
		{"once", "", job.ScheduleOneShot},
		{"always-the-same", "needs {run_at}", job.ScheduleCron},
		{"{job_id}", "needs {run_at}", job.ScheduleInterval},
		{"{run_at}-{minute}", "knows {run_at}", job.ScheduleCron},
		{"{run_at", "knows {run_at}", job.ScheduleCron},
		{"}{run_at}", "knows {run_at}", job.ScheduleCron},
		{"{{run_at}}", "knows {run_at}", job.ScheduleCron},
		{"a b {run_at}", "visible ASCII", job.ScheduleCron},
		{"a\r\nX: y{run_at}", "visible ASCII", job.ScheduleCron},
		{"é{run_at}", "visible ASCII", job.ScheduleCron},
		{"{run_at}" + strings.Repeat("x", job.MaxKeyTemplate), "at most 200", job.ScheduleCron},
	} {
		err := job.CheckKeyTemplate(c.template, c.kind)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q for a %s: %v, want %q", c.template, c.kind, err, c.fault)
		}
	}
}
