package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

const (
	// oldestAudit is how far back the archive is compared: what comes before it, the history may have forgotten.
	oldestAudit = 29 * 24 * time.Hour
	// archivedWithin is how long after it happened something may not be in the archive yet.
	archivedWithin = 2 * time.Minute
)

// archiveAudit is what was found when the archive was held against the accounts.
type archiveAudit struct {
	Objects int `json:"objects"`
	Events  int `json:"events"`
	// Newest is when the newest event of the archive happened.
	Newest time.Time `json:"newest"`
	// Missing is how many things are missing somewhere, Differences the first mostUnknown of them.
	Missing     int          `json:"missing"`
	Differences []difference `json:"differences"`
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

// compare reads the archive, and notes what is missing in it or in the accounts. If anything is, it may be on its way, or have been changed
// meanwhile: the archive is looked at again when it has what has happened until now, and the API is asked again about the first mostUnknown.
func (c *auditCmd) compare(ctx context.Context, a *audit) error {
	differ, err := c.differ(ctx, a)
	if err != nil || !differ {
		return err
	}
	if terminal(os.Stderr) {
		fmt.Fprintf(os.Stderr, "Something differs. What is on its way is in the archive within %s; then it is looked at again.\n", archivedWithin)
	}
	if err := run.Sleep(ctx, archivedWithin); err != nil {
		return err
	}
	if _, err := c.differ(ctx, a); err != nil {
		return err
	}
	asked := 0
	return a.against.Differences(ctx, func(d archivesql.Difference) error {
		if asked++; asked <= mostUnknown {
			if stands, err := c.again(ctx, &d); err != nil || !stands {
				return err
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

// errDiffer ends the search for differences at the first.
var errDiffer = errors.New("there is a difference")

// differ reads what it has not read of the archive, and reports whether anything is missing in it or in the accounts.
func (c *auditCmd) differ(ctx context.Context, a *audit) (bool, error) {
	archive, r, err := c.days(ctx, a.From.Truncate(24*time.Hour), time.Now().UTC().Truncate(24*time.Hour))
	if err != nil {
		return false, err
	}
	tell, end := progress()
	err = a.against.Read(ctx, archive, r, tell)
	end()
	if err != nil {
		return false, err
	}
	if a.against.Objects == 0 && a.Occurrences > 0 {
		return false, fmt.Errorf("the archive has no object of region %s since %s; wait for a minute if all has just begun, or name another with --region, --data or --s3", r.Region, a.From.Format(time.DateOnly))
	}
	a.Archive = &archiveAudit{Objects: a.against.Objects, Events: a.against.Events, Newest: a.against.Newest, Differences: []difference{}}
	err = a.against.Differences(ctx, func(archivesql.Difference) error { return errDiffer })
	if errors.Is(err, errDiffer) {
		return true, nil
	}
	return false, err
}

// again asks the API again about a difference, and reports whether it still is one.
func (c *auditCmd) again(ctx context.Context, d *archivesql.Difference) (stands bool, err error) {
	if d.Kind == archivesql.MissingRecords {
		return true, nil
	}
	there, err := c.ask(ctx, "/jobs/"+url.PathEscape(d.JobID), nil)
	switch {
	case err != nil:
		return false, err
	case d.Kind == archivesql.MissingJob || !there: // what was deleted meanwhile lacks nothing
		return d.Kind == archivesql.MissingJob && !there, nil
	case d.Kind == archivesql.MissingArchive:
		return true, nil
	}
	var x struct {
		Attempts []struct{} `json:"attempts"`
	}
	_, err = c.ask(ctx, "/executions/"+job.ScheduleExecutionID(d.JobID, d.NominalAt), &x)
	return len(x.Attempts) < d.Archived, err
}

// ask reads something that may not be there.
func (c *auditCmd) ask(ctx context.Context, path string, answer any) (there bool, err error) {
	err = untilFree(ctx, func() error {
		_, err := c.do(ctx, http.MethodGet, path, nil, answer)
		return err
	})
	if refused := (refusal{}); errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// table shows what is missing.
func (a *archiveAudit) table(w io.Writer) {
	fmt.Fprintf(w, "%d events in %d objects of the archive, the newest of %s\n", a.Events, a.Objects, a.Newest.Format(time.RFC3339))
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
