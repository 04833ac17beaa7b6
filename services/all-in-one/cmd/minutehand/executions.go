package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// executionsCmd are the commands about executions.
type executionsCmd struct {
	List   executionListCmd   `cmd:"" default:"withargs" help:"Show what became of a job's occurrences, newest first."`
	Get    executionGetCmd    `cmd:"" help:"Show an execution."`
	Cancel executionCancelCmd `cmd:"" help:"Cancel an execution: no attempt of it begins after this returns."`
	Replay executionReplayCmd `cmd:"" help:"Execute once more, now, what an execution did."`
}

// Help implements kong.HelpProvider.
func (executionsCmd) Help() string {
	return `An execution is an occurrence of a job that came due, or what somebody asked for, with all its attempts.

  minutehand executions JOB         the same as executions list JOB
  minutehand executions get EXECUTION`
}

type executionListCmd struct {
	paged
	Job   string `arg:"" help:"The job's id (job_…), or key: and its key."`
	State string `help:"Only executions in this state: succeeded, retrying, dead, cancelled or skipped." placeholder:"STATE"`
	From  string `help:"Only those that were due at this instant or later." placeholder:"RFC3339"`
	To    string `help:"Only those that were due before this instant." placeholder:"RFC3339"`
}

// Help implements kong.HelpProvider.
func (executionListCmd) Help() string {
	return `For each execution: when it was due, in which state it is, how late it was called, and how its last attempt ended. The wide
table says how long after it was due it was taken from its bucket, published, consumed, invoked and completed.

  minutehand executions list JOB
  minutehand executions list JOB -o wide
  minutehand executions list JOB --limit 1 -o json
  minutehand executions list JOB --state dead --from 2030-01-01T00:00:00Z`
}

// Run implements the command. An execution's id is taken as well: either is at hand after a look at the logs.
func (c *executionListCmd) Run(ctx context.Context) error {
	if strings.HasPrefix(c.Job, "exe_") {
		return (&executionGetCmd{client: c.client, watched: c.watched, Execution: c.Job}).Run(ctx)
	}
	path := "/jobs/" + url.PathEscape(c.Job) + "/executions"
	return c.list(ctx, "executions", path, executionTable, "state", c.State, "from", c.From, "to", c.To)
}

type executionGetCmd struct {
	client
	watched
	Execution string `arg:"" help:"The execution's id (exe_…)."`
}

// Help implements kong.HelpProvider.
func (executionGetCmd) Help() string {
	return `With each of its attempts; JSON shows what the target answered, too.

  minutehand executions get EXECUTION
  minutehand executions get EXECUTION -o json`
}

// Run implements the command.
func (c *executionGetCmd) Run(ctx context.Context) error {
	return c.show(ctx, func(ctx context.Context) (any, error) {
		var x map[string]any
		_, err := c.do(ctx, http.MethodGet, "/executions/"+url.PathEscape(c.Execution), nil, &x)
		return x, err
	}, func(answer any) error { return c.printExecution(answer.(map[string]any)) })
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
	return c.printExecution(x)
}

// printExecution prints an execution with its attempts.
func (c *output) printExecution(x map[string]any) error {
	return c.print(x, func(w io.Writer) {
		executionTable(w, []map[string]any{x}, c.wide())
		attempts, _ := x["attempts"].([]any)
		if len(attempts) == 0 {
			return
		}
		fmt.Fprintln(w)
		t := newTable(w, "ATTEMPT", status("OUTCOME"), "ANSWER", "STARTED", "TOOK", "ERROR")
		for _, attempt := range attempts {
			a, _ := attempt.(map[string]any)
			t.row(a["number"], status(fmt.Sprint(a["outcome"])), orNone(a["status_code"]), when(a["started_at"]), milliseconds(a["duration_ms"]), orNone(a["error"]))
		}
		t.end()
	})
}

func orNone(v any) any {
	if v == nil || v == "" {
		return "-"
	}
	return v
}

func milliseconds(v any) string {
	if ms, ok := v.(float64); ok {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return "-"
}

// executionTable shows for each execution when it was due, and what became of it; if wide, what happened how long after that.
func executionTable(w io.Writer, items []map[string]any, wide bool) {
	header := []any{"EXECUTION", "SCHEDULED FOR", status("STATE"), "ATTEMPTS", "LATENESS", "LAST ATTEMPT"}
	steps := []string{"taken", "published", "consumed", "invoked", "completed"}
	if wide {
		for _, step := range steps {
			header = append(header, strings.ToUpper(step))
		}
	}
	t := newTable(w, header...)
	for _, x := range items {
		attempts, _ := x["attempts"].([]any)
		last := "-"
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
		cells := []any{
			x["execution_id"], when(x["scheduled_for"]), status(fmt.Sprint(x["state"])), len(attempts), milliseconds(x["lateness_ms"]), last,
		}
		if timeline, _ := x["timeline"].(map[string]any); wide {
			for _, step := range steps {
				cells = append(cells, since(timeline, step))
			}
		}
		t.row(cells...)
	}
	t.end()
}
