package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
)

type occurrencesCmd struct {
	paged
	Job  string `arg:"" help:"The job's id (job_…), or key: and its key."`
	From string `help:"Only instants from this one on." placeholder:"RFC3339"`
	To   string `help:"Only instants before this one; now by default. Those ahead are shown as planned." placeholder:"RFC3339"`
}

// Help implements kong.HelpProvider.
func (occurrencesCmd) Help() string {
	return `The account of a job: each instant that its schedule names, newest first, with what became of it and why. What was skipped
is shown instant by instant, and "unknown" marks one of which nothing is on record.

  minutehand occurrences JOB
  minutehand occurrences JOB --limit 5 -o json
  minutehand occurrences JOB --from 2030-01-01T00:00:00Z --to 2030-01-02T00:00:00Z`
}

// Run implements the command.
func (c *occurrencesCmd) Run(ctx context.Context) error {
	path := "/jobs/" + url.PathEscape(c.Job) + "/occurrences"
	return c.list(ctx, "occurrences", path, occurrenceTable, "from", c.From, "to", c.To)
}

// occurrenceTable shows what became of each occurrence; if wide, with its execution.
func occurrenceTable(w io.Writer, items []map[string]any, wide bool) {
	header := []any{"SCHEDULED FOR", status("STATE"), "ATTEMPTS", "LATENESS", "REASON"}
	if wide {
		header = append(header, "LOCAL TIME", "EXECUTION", "DEFINITION")
	}
	t := newTable(w, header...)
	for _, o := range items {
		cells := []any{when(o["scheduled_for"]), status(fmt.Sprint(o["state"])), orNone(o["attempts"]), milliseconds(o["lateness_ms"]), o["reason"]}
		if wide {
			cells = append(cells, orNone(o["local"]), orNone(o["execution_id"]), orNone(o["definition_id"]))
		}
		t.row(cells...)
	}
	t.end()
}
