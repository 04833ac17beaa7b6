package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
)

type scheduleCmd struct {
	Preview previewCmd `cmd:"" help:"Show the next occurrences of a cron expression."`
}

// Help implements kong.HelpProvider.
func (scheduleCmd) Help() string {
	return `Look at a schedule before a job has it.

  minutehand schedule preview '*/15 8-18 * * MON-FRI' --timezone Europe/Paris`
}

type previewCmd struct {
	client
	Expr     string `arg:"" help:"Cron expression of 5, 6 (seconds first) or 7 (years last) fields, or a macro."`
	Timezone string `help:"IANA zone." default:"UTC" placeholder:"ZONE"`
	After    string `help:"Show those after this instant; default now." placeholder:"RFC3339"`
	Count    int    `short:"n" default:"10" help:"How many." placeholder:"N"`
	Job      string `help:"The job whose H is shown." placeholder:"JOB"`
	Gap      string `enum:"next_valid,skip" default:"next_valid" placeholder:"RULE" help:"What a local time does that does not exist."`
	Fold     string `enum:"first,last,both" default:"first" placeholder:"RULE" help:"What a local time does that exists twice."`
}

// Help implements kong.HelpProvider.
func (previewCmd) Help() string {
	return `By the same code that fires, with a note where the clocks change: --gap and --fold say what happens there.

  minutehand schedule preview '0 9 * * MON' --timezone America/New_York
  minutehand schedule preview '30 2 * * *' --timezone Europe/London --after 2026-03-27T00:00:00Z -n 3
  minutehand schedule preview 'H H(1-5) * * *' --job JOB`
}

// Run implements the command.
func (c *previewCmd) Run(ctx context.Context) error {
	body := map[string]any{
		"type": "cron", "cron_expr": c.Expr, "timezone": c.Timezone, "count": c.Count,
		"dst": map[string]string{"gap": c.Gap, "fold": c.Fold},
	}
	if c.Job != "" {
		body["job_id"] = c.Job
	}
	if c.After != "" {
		body["after"] = c.After
	}
	var p struct {
		Description string           `json:"description"`
		Occurrences []map[string]any `json:"occurrences"`
	}
	if _, err := c.do(ctx, http.MethodPost, "/schedules/preview", body, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		fmt.Fprintf(w, "%s\n\n", p.Description)
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "UTC\tLOCAL\tNOTE")
		for _, o := range p.Occurrences {
			note, _ := o["note"].(string)
			fmt.Fprintf(t, "%v\t%v\t%s\n", o["scheduled_for"], o["local"], note)
		}
		_ = t.Flush()
	})
}
