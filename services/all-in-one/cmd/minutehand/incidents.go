package main

import (
	"context"
	"io"
)

type incidentsCmd struct {
	paged
	Open bool   `help:"Only those that have not ended."`
	Job  string `help:"Only those of this job: its id (job_…), or key: and its key." placeholder:"JOB"`
}

// Help implements kong.HelpProvider.
func (incidentsCmd) Help() string {
	return `A job with deadlines (minutehand jobs create --start-within 30s --finish-within 10m) is held against them by a watchdog.
An incident begins with the first occurrence that misses one, and ends with the first that meets it.

  minutehand incidents
  minutehand incidents --open -o wide      with the reason
  minutehand incidents --job JOB -o json`
}

// Run implements the command.
func (c *incidentsCmd) Run(ctx context.Context) error {
	only := ""
	if c.Open {
		only = "open"
	}
	return c.list(ctx, "incidents", "/incidents", func(w io.Writer, items []map[string]any, wide bool) {
		header := []any{status("STATUS"), "JOB", "NAME", "DEADLINE", "CAUSE", "MISSED", "SINCE", "OWNER"}
		if wide {
			header = append(header, "INCIDENT", "REASON", "CLOSED")
		}
		t := newTable(w, header...)
		for _, i := range items {
			deadline, _ := i["deadline"].(string)
			within, _ := i["within"].(string)
			s, _ := i["status"].(string)
			cells := []any{status(s), i["job_id"], i["job_name"], deadline + " " + within, i["cause"], i["missed"], when(i["first_at"]), orNone(i["owner"])}
			if wide {
				cells = append(cells, i["incident_id"], i["reason"], orNone(i["closed"]))
			}
			t.row(cells...)
		}
		t.end()
	}, "status", only, "job_id", c.Job)
}
