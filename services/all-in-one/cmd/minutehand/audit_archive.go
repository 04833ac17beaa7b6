package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

const (
	// oldestAudit is how far back the archive is compared: what comes before it, the history may have forgotten.
	oldestAudit = 29 * 24 * time.Hour
	// archivedWithin is how long after an attempt has ended it may not be in the archive yet.
	archivedWithin = 2 * time.Minute
)

// archiveAudit is what was found when the archive was held against the accounts.
type archiveAudit struct {
	Objects int `json:"objects"`
	Events  int `json:"events"`
	// Missing is how many things are missing somewhere, Differences the first mostUnknown of them.
	Missing     int          `json:"missing"`
	Differences []difference `json:"differences"`
	// Young is how many instants have an attempt that has just ended, and is in the history or in the archive, and not in both.
	Young int `json:"young"`
}

type difference struct {
	Missing   archivesql.DifferenceKind `json:"missing"`
	JobID     string                    `json:"job_id,omitempty"`
	NominalAt *time.Time                `json:"nominal_at,omitempty"`
	Reason    string                    `json:"reason"`
}

// against returns what accounts are held against.
func (c *auditCmd) against(ctx context.Context, a *audit) (*archivesql.Account, error) {
	if time.Since(a.From) > oldestAudit {
		return nil, usageError{fmt.Errorf("--archive looks back %d days at most: the history forgets what comes before", oldestAudit/(24*time.Hour))}
	}
	if _, _, err := c.days(ctx, a.From.Truncate(24*time.Hour), time.Now().UTC().Truncate(24*time.Hour)); err != nil {
		return nil, err
	}
	var who struct {
		Tenant string `json:"tenant"`
	}
	if _, err := c.do(ctx, http.MethodGet, "/whoami", nil, &who); err != nil {
		return nil, err
	}
	b, err := archivesql.NewAccount(ctx, a.From, a.To)
	if err != nil {
		return nil, err
	}
	if b.Only = len(c.Jobs) > 0; who.Tenant == job.DefaultTenant.String() {
		b.Tenant = who.Tenant
	}
	return b, nil
}

// hold adds an occurrence of an account to those that are held against the archive.
func (a *audit) hold(ctx context.Context, id string, o map[string]any) error {
	t := archivesql.Told{JobID: id, State: fmt.Sprint(o["state"])}
	var err error
	if t.NominalAt, err = time.Parse(time.RFC3339Nano, fmt.Sprint(o["nominal_at"])); err != nil {
		return fmt.Errorf("the account of job %s: %w", id, err)
	}
	n, _ := o["attempts"].(float64)
	t.Attempts = int(n)
	return a.against.Add(ctx, t)
}

// compare reads the archive, and notes what is missing in it or in the accounts. The first mostUnknown differences are looked at once more: a
// job may have been made meanwhile, and an attempt may have ended a moment ago.
func (c *auditCmd) compare(ctx context.Context, a *audit) error {
	archive, r, err := c.days(ctx, a.From.Truncate(24*time.Hour), time.Now().UTC().Truncate(24*time.Hour))
	if err != nil {
		return err
	}
	tell, end := progress()
	err = a.against.Read(ctx, archive, r, tell)
	end()
	if err != nil {
		return err
	}
	a.Archive = &archiveAudit{Objects: a.against.Objects, Events: a.against.Events, Differences: []difference{}}
	return a.against.Differences(ctx, func(d archivesql.Difference) error {
		if len(a.Archive.Differences) < mostUnknown {
			stands, young, err := c.again(ctx, &d)
			if err != nil {
				return err
			}
			if young {
				a.Archive.Young++
			}
			if !stands || young {
				return nil
			}
			shown := difference{Missing: d.Kind, JobID: d.JobID, Reason: d.Reason}
			if !d.NominalAt.IsZero() {
				shown.NominalAt = &d.NominalAt
			}
			a.Archive.Differences = append(a.Archive.Differences, shown)
		}
		a.Archive.Missing++
		return nil
	})
}

// again asks the API again about a difference. stands is false if there is none any more, young is set if its execution ended a moment ago.
func (c *auditCmd) again(ctx context.Context, d *archivesql.Difference) (stands, young bool, err error) {
	if d.Kind == archivesql.MissingRecords {
		return true, false, nil
	}
	var j struct {
		UpdatedAt time.Time `json:"updated_at"`
	}
	there, err := c.ask(ctx, "/jobs/"+url.PathEscape(d.JobID), &j)
	if d.Kind == archivesql.MissingJob || err != nil || !there { // if it is not there it was deleted meanwhile, or is told of as a job
		return d.Kind == archivesql.MissingJob && !there, false, err
	}
	var x struct {
		Attempts []struct {
			StartedAt  time.Time `json:"started_at"`
			DurationMS int64     `json:"duration_ms"`
		} `json:"attempts"`
	}
	if _, err = c.ask(ctx, "/executions/"+job.ScheduleExecutionID(d.JobID, d.NominalAt), &x); err != nil {
		return false, false, err
	}
	if d.Kind == archivesql.MissingHistory {
		return len(x.Attempts) < d.Archived, false, nil
	}
	for _, attempt := range x.Attempts {
		ended := attempt.StartedAt.Add(time.Duration(attempt.DurationMS) * time.Millisecond)
		if attempt.StartedAt.IsZero() {
			ended = j.UpdatedAt // it was cancelled, by a change of the job
		}
		young = young || time.Since(ended) < archivedWithin
	}
	return true, young, nil
}

// ask reads something that may not be there.
func (c *auditCmd) ask(ctx context.Context, path string, answer any) (there bool, err error) {
	_, err = c.do(ctx, http.MethodGet, path, nil, answer)
	if refused := (refusal{}); errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// table shows what is missing.
func (a *archiveAudit) table(w io.Writer) {
	fmt.Fprintf(w, "%d events in %d objects of the archive\n", a.Events, a.Objects)
	if a.Young > 0 {
		fmt.Fprintf(w, "  %d instants have ended a moment ago, and are on their way to the history and to the archive\n", a.Young)
	}
	if len(a.Differences) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "MISSING", "JOB", "INSTANT", "REASON")
	for _, d := range a.Differences {
		at := any("-")
		if d.NominalAt != nil {
			at = d.NominalAt.Format(time.RFC3339Nano)
		}
		t.row(d.Missing, orNone(d.JobID), at, d.Reason)
	}
	t.end()
	if more := a.Missing - len(a.Differences); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}
