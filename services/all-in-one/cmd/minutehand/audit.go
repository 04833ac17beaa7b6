package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/minutehand/minutehand/services/audit-writer/archivesql"
)

type auditCmd struct {
	client
	archivePlace
	Jobs    []string `arg:"" optional:"" name:"job" help:"Only these jobs: ids (job_…), or key: and a key; by default all of the tenant."`
	From    string   `help:"Only instants from this one on; by default those of the last 24 hours." placeholder:"RFC3339"`
	To      string   `help:"Only instants before this one, and before now; by default until five minutes ago." placeholder:"RFC3339"`
	Archive bool     `help:"Hold the accounts against the archive, too, which --data or --s3 names."`
}

// Help implements kong.HelpProvider.
func (auditCmd) Help() string {
	return `Reads the account of every job, and lists each instant that a schedule named and of which nothing is on record: neither that it was called, nor
that it was skipped and why, nor that it waits. Exits with 1 if there is one. It takes a request for each 500 instants, and no memory to speak of.
An instant that is lost is listed from some six minutes after it on; until then it is shown as about to be on record. That each schedule has its
next entry, the bucket-loader sees to.

With --archive it also lists what the history or the archive has and the other has not, jobs of which only the archive tells, and records that are
missing between two objects. It reads all of the archive since --from, which may be 29 days ago, needs about 300 bytes of disk for an instant, and
looks again two minutes later where anything differs.

  minutehand audit
  minutehand audit -o json
  minutehand audit --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z
  minutehand audit --archive
  minutehand audit JOB`
}

const (
	// auditAfter is how long after its instant an occurrence is expected to be on record, or to wait.
	auditAfter = 5 * time.Minute
	// mostUnknown bounds the instants that an audit lists.
	mostUnknown = 1000
)

// audit is what an audit found.
type audit struct {
	From        time.Time      `json:"from"`
	To          time.Time      `json:"to"`
	Jobs        int            `json:"jobs"`
	Occurrences int            `json:"occurrences"`
	States      map[string]int `json:"states"`
	// Unknown are the instants of which nothing is on record, the first mostUnknown of them.
	Unknown []unknown `json:"unknown"`
	// Archive is what was found in the archive; nil if it was not asked for.
	Archive *archiveAudit `json:"archive,omitempty"`

	against *archivesql.Account
}

type unknown struct {
	JobID     any `json:"job_id"`
	NominalAt any `json:"nominal_at"`
	Reason    any `json:"reason"`
}

// Run implements the command.
func (c *auditCmd) Run(ctx context.Context) error {
	now := time.Now().UTC()
	a := audit{States: map[string]int{}, Unknown: []unknown{}}
	var err error
	if a.From, err = instantOf("--from", c.From, now.Add(-24*time.Hour)); err != nil {
		return err
	}
	if a.To, err = instantOf("--to", c.To, now.Add(-auditAfter)); err != nil {
		return err
	}
	a.From, a.To = a.From.Truncate(time.Millisecond), earliest(a.To, now).Truncate(time.Millisecond)
	if !a.From.Before(a.To) {
		return usageError{errors.New("--from is not before --to, and before now")}
	}
	if c.Archive {
		if a.against, err = c.against(ctx, &a); err != nil {
			return err
		}
		defer a.against.Close() //nolint:errcheck // it is temporary
	}
	tell, end := a.progress()
	err = c.each(ctx, func(id string) error { return c.read(ctx, id, &a, tell) })
	end()
	if err == nil && c.Archive {
		err = c.compare(ctx, &a)
	}
	if err != nil {
		return err
	}
	if err := c.print(&a, func(w io.Writer) { auditTable(w, &a) }); err != nil {
		return err
	}
	return a.verdict()
}

// verdict returns what is wrong.
func (a *audit) verdict() error {
	unknown, missing := a.States["unknown"], 0
	if a.Archive != nil {
		missing = a.Archive.Missing
	}
	switch {
	case unknown > 0 && missing > 0:
		return fmt.Errorf("nothing is on record of %d instants, and history and archive differ in %d things", unknown, missing)
	case unknown > 0:
		return fmt.Errorf("nothing is on record of %d instants", unknown)
	case missing > 0:
		return fmt.Errorf("history and archive differ in %d things", missing)
	}
	return nil
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// instantOf parses the value of a flag.
func instantOf(flag, text string, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, usageError{fmt.Errorf("%s is not an instant; write it as 2026-11-24T09:00:00Z", flag)}
	}
	return at.UTC(), nil
}

// each calls do with each job that is audited.
func (c *auditCmd) each(ctx context.Context, do func(id string) error) error {
	for _, named := range c.Jobs {
		var j struct {
			ID string `json:"job_id"`
		}
		if _, err := c.do(ctx, http.MethodGet, "/jobs/"+url.PathEscape(named), nil, &j); err != nil {
			return err
		}
		if err := do(j.ID); err != nil {
			return err
		}
	}
	if len(c.Jobs) > 0 {
		return nil
	}
	return c.pages(ctx, "/jobs", url.Values{}, func(j map[string]any) error {
		err := do(fmt.Sprint(j["job_id"]))
		if refused := (refusal{}); errors.As(err, &refused) && refused.code == http.StatusNotFound {
			return nil // it was deleted meanwhile
		}
		return err
	})
}

// read adds the account of a job.
func (c *auditCmd) read(ctx context.Context, id string, a *audit, tell func()) error {
	query := url.Values{"from": {a.From.Format(time.RFC3339Nano)}, "to": {a.To.Format(time.RFC3339Nano)}}
	err := c.pages(ctx, "/jobs/"+url.PathEscape(id)+"/occurrences", query, func(o map[string]any) error {
		if a.against != nil {
			if err := a.hold(ctx, id, o); err != nil {
				return err
			}
		}
		a.Occurrences++
		a.States[fmt.Sprint(o["state"])]++
		if o["state"] == "unknown" && len(a.Unknown) < mostUnknown {
			a.Unknown = append(a.Unknown, unknown{id, o["nominal_at"], o["reason"]})
		}
		tell()
		return nil
	})
	if err == nil && a.against != nil {
		err = a.against.Job(ctx, id)
	}
	if err == nil {
		a.Jobs++
	}
	return err
}

// progress shows on a terminal how far the audit is.
func (a *audit) progress() (tell, end func()) {
	if !terminal(os.Stderr) {
		return func() {}, func() {}
	}
	next := time.Now().Add(progressAfter)
	return func() {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressAfter / 4)
			fmt.Fprintf(os.Stderr, "\r\x1b[K%d jobs, %d instants", a.Jobs, a.Occurrences)
		}
	}, func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

// auditTable shows what is unknown, and counts the rest.
func auditTable(w io.Writer, a *audit) {
	if len(a.Unknown) > 0 {
		t := newTable(w, "JOB", "INSTANT", "REASON")
		for _, u := range a.Unknown {
			t.row(u.JobID, u.NominalAt, u.Reason)
		}
		t.end()
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d jobs, %d instants from %s to %s\n", a.Jobs, a.Occurrences, a.From.Format(time.RFC3339), a.To.Format(time.RFC3339))
	for _, state := range slices.Sorted(maps.Keys(a.States)) {
		fmt.Fprintf(w, "  %s: %d\n", shown(state), a.States[state])
	}
	if a.Archive != nil {
		a.Archive.table(w)
	}
}
