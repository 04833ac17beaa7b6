package main

import (
	"context"
	"errors"
	"io"
	"net/url"
)

type changesCmd struct {
	listed
	Job          string `arg:"" optional:"" help:"The job's id (job_…), or key: and its key; without, what was done to the tenant's keys and holds."`
	Installation bool   `help:"What was done to tenants, to the installation's keys and to its hold."`
}

// Help implements kong.HelpProvider.
func (changesCmd) Help() string {
	return `Every change names its principal, role, request and address. The list goes back 30 days; the archive keeps everything.

  minutehand changes JOB
  minutehand changes
  minutehand changes --installation -o json`
}

// Run implements the command.
func (c *changesCmd) Run(ctx context.Context) error {
	path, query := "/changes", url.Values{}
	switch {
	case c.Job != "" && c.Installation:
		return usageError{errors.New("a job belongs to a tenant: leave out either the job or --installation")}
	case c.Job != "":
		path = "/jobs/" + url.PathEscape(c.Job) + "/changes"
	case c.Installation:
		query.Set("installation", "true")
	}
	return c.list(ctx, path, query, func(w io.Writer, items []map[string]any) {
		t := newTable(w, "AT", "OPERATION", "BY", "ROLE", "FROM", "OBJECT")
		for _, x := range items {
			t.row(when(x["at"]), x["operation"], x["by"], x["role"], orNone(x["source"]), orNone(x["object"]))
		}
		t.end()
	})
}
