package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
)

// executionsCmd are the commands about executions.
type executionsCmd struct {
	List   executionListCmd   `cmd:"" default:"withargs" help:"Show what became of a job's occurrences, newest first."`
	Get    executionGetCmd    `cmd:"" help:"Show an execution."`
	Cancel executionCancelCmd `cmd:"" help:"Cancel an execution: no attempt of it begins after this returns."`
}

// Help implements kong.HelpProvider.
func (executionsCmd) Help() string {
	return `An execution is an occurrence of a job that came due, or was triggered, with all its attempts.

  minutehand executions JOB         the same as executions list JOB
  minutehand executions get EXECUTION`
}

type executionListCmd struct {
	paged
	Job   string `arg:"" help:"The job's id (job_…)."`
	State string `help:"Only executions in this state: succeeded, retrying, dead, cancelled or skipped." placeholder:"STATE"`
	From  string `help:"Only those that were due at this instant or later." placeholder:"RFC3339"`
	To    string `help:"Only those that were due before this instant." placeholder:"RFC3339"`
}

// Help implements kong.HelpProvider.
func (executionListCmd) Help() string {
	return `For each execution: when it was due, in which state it is, and how long after it was due it was taken from its bucket,
published, consumed, invoked and completed.

  minutehand executions list JOB
  minutehand executions list JOB --limit 1 -o json
  minutehand executions list JOB --state dead --from 2030-01-01T00:00:00Z`
}

// Run implements the command. An execution's id is taken as well: either is at hand after a look at the logs.
func (c *executionListCmd) Run(ctx context.Context) error {
	if strings.HasPrefix(c.Job, "exe_") {
		return (&executionGetCmd{client: c.client, Execution: c.Job}).Run(ctx)
	}
	path := "/jobs/" + url.PathEscape(c.Job) + "/executions"
	return c.list(ctx, path, executionTable, "state", c.State, "from", c.From, "to", c.To)
}

type executionGetCmd struct {
	client
	Execution string `arg:"" help:"The execution's id (exe_…)."`
}

// Help implements kong.HelpProvider.
func (executionGetCmd) Help() string {
	return `The table shows its last attempt; JSON shows all, with what the target answered.

  minutehand executions get EXECUTION
  minutehand executions get EXECUTION -o json`
}

// Run implements the command.
func (c *executionGetCmd) Run(ctx context.Context) error {
	var x map[string]any
	if _, err := c.do(ctx, http.MethodGet, "/executions/"+url.PathEscape(c.Execution), nil, &x); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { executionTable(w, []map[string]any{x}) })
}

type executionCancelCmd struct {
	client
	Execution string `arg:"" help:"The execution's id (exe_…)."`
}

// Help implements kong.HelpProvider.
func (executionCancelCmd) Help() string {
	return `An attempt that runs is interrupted within a second. The job goes on; only this execution ends. One that has ended
already stays as it is.

  minutehand executions cancel EXECUTION`
}

// Run implements the command.
func (c *executionCancelCmd) Run(ctx context.Context) error {
	var x map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/executions/"+url.PathEscape(c.Execution)+"/cancel", nil, &x); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { executionTable(w, []map[string]any{x}) })
}

// executionTable shows for each execution when it was due, and what happened how long after that.
func executionTable(w io.Writer, items []map[string]any) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "EXECUTION\tSCHEDULED FOR\tSTATE\tATTEMPTS\tLATENESS\tTAKEN\tPUBLISHED\tCONSUMED\tINVOKED\tCOMPLETED\tLAST")
	for _, x := range items {
		attempts, _ := x["attempts"].([]any)
		last := ""
		if len(attempts) > 0 {
			a, _ := attempts[len(attempts)-1].(map[string]any)
			last = fmt.Sprint(a["outcome"])
			if code := a["status_code"]; code != nil {
				last += fmt.Sprintf(" %v", code)
			}
			if e := a["error"]; e != nil {
				last += fmt.Sprintf(" (%v)", e)
			}
		}
		late := "-"
		if ms, ok := x["lateness_ms"].(float64); ok {
			late = fmt.Sprintf("%.0f ms", ms)
		}
		fmt.Fprintf(t, "%v\t%s\t%v\t%d\t%s", x["execution_id"], when(x["scheduled_for"]), x["state"], len(attempts), late)
		timeline, _ := x["timeline"].(map[string]any)
		for _, step := range []string{"taken", "published", "consumed", "invoked", "completed"} {
			fmt.Fprintf(t, "\t%s", since(timeline, step))
		}
		fmt.Fprintf(t, "\t%s\n", shown(last))
	}
	_ = t.Flush()
}
