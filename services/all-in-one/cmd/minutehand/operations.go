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
)

// operationsCmd are the commands about operations.
type operationsCmd struct {
	List   operationListCmd   `cmd:"" default:"withargs" help:"Show the operations, newest first."`
	Get    operationGetCmd    `cmd:"" help:"Show how far an operation is."`
	Pause  operationPauseCmd  `cmd:"" help:"Let an operation hand out nothing more for now."`
	Resume operationResumeCmd `cmd:"" help:"Let an operation go on, or give it another rate."`
	Cancel operationCancelCmd `cmd:"" help:"End an operation."`
}

// Help implements kong.HelpProvider.
func (operationsCmd) Help() string {
	return `Work on many executions or jobs: what minutehand jobs backfill, minutehand jobs replay, minutehand dead-letters redrive --all and minutehand
tzdata apply begin.

  minutehand operations                 the same as operations list
  minutehand operations get OPERATION`
}

type operationListCmd struct{ client }

// Help implements kong.HelpProvider.
func (operationListCmd) Help() string {
	return `Up to 50: all that have not ended, and the latest of those that have.

  minutehand operations list
  minutehand operations list -o json`
}

// Run implements the command.
func (c *operationListCmd) Run(ctx context.Context) error {
	var list struct {
		Items []map[string]any `json:"items"`
	}
	if _, err := c.do(ctx, http.MethodGet, "/operations", nil, &list); err != nil {
		return err
	}
	return c.print(list, func(w io.Writer) { operationTable(w, list.Items) })
}

// operationRef is a command about one operation.
type operationRef struct {
	client
	Operation string `arg:"" help:"The operation's id (op_…)."`
}

func (c *operationRef) path(tail string) string {
	return "/operations/" + url.PathEscape(c.Operation) + tail
}

// change makes a request that answers with the operation, and prints it.
func (c *operationRef) change(ctx context.Context, tail string, body any) error {
	var o map[string]any
	if _, err := c.do(ctx, http.MethodPost, c.path(tail), body, &o); err != nil {
		return err
	}
	return c.printOperation(o)
}

func (c *output) printOperation(o map[string]any) error {
	return c.print(o, func(w io.Writer) { operationTable(w, []map[string]any{o}) })
}

type (
	operationGetCmd struct {
		operationRef
		watched
	}
	operationPauseCmd  struct{ operationRef }
	operationResumeCmd struct {
		operationRef
		Rate *int `help:"How many executions a second, at most 1000; without it, as many as before." placeholder:"N"`
	}
	operationCancelCmd struct{ operationRef }
)

// Help implements kong.HelpProvider.
func (operationGetCmd) Help() string {
	return `It is done when everything was handed out, or all jobs are planned. What became of executions is shown by minutehand executions JOB.

  minutehand operations get OPERATION
  minutehand operations get OPERATION -o json`
}

// Run implements the command.
func (c *operationGetCmd) Run(ctx context.Context) error {
	return c.show(ctx, func(ctx context.Context) (any, error) {
		var o map[string]any
		_, err := c.do(ctx, http.MethodGet, c.path(""), nil, &o)
		return o, err
	}, func(o any) error { return c.printOperation(o.(map[string]any)) })
}

// Help implements kong.HelpProvider.
func (operationPauseCmd) Help() string {
	return `What was handed out is executed: that is what is due within the next three seconds.

  minutehand operations pause OPERATION`
}

// Run implements the command.
func (c *operationPauseCmd) Run(ctx context.Context) error { return c.change(ctx, "/pause", nil) }

// Help implements kong.HelpProvider.
func (operationResumeCmd) Help() string {
	return `It goes on where it was. An operation that runs is given the rate.

  minutehand operations resume OPERATION
  minutehand operations resume OPERATION --rate 100`
}

// Run implements the command.
func (c *operationResumeCmd) Run(ctx context.Context) error {
	body := map[string]any{}
	if c.Rate != nil {
		body["rate_per_second"] = *c.Rate
	}
	return c.change(ctx, "/resume", body)
}

// Help implements kong.HelpProvider.
func (operationCancelCmd) Help() string {
	return `What was handed out is executed: that is what is due within the next three seconds. Nothing brings the operation back.

  minutehand operations cancel OPERATION`
}

// Run implements the command.
func (c *operationCancelCmd) Run(ctx context.Context) error { return c.change(ctx, "/cancel", nil) }

// operationTable shows for each operation how far it is.
func operationTable(w io.Writer, items []map[string]any) {
	t := newTable(w, "OPERATION", "TYPE", "JOB", status("STATUS"), "HANDED OUT", "A SECOND", "FROM", "TO", "BEGAN")
	for _, o := range items {
		done := fmt.Sprint(o["handed_out"])
		if total, ok := o["total"]; ok {
			done += fmt.Sprint(" of ", total)
		}
		t.row(o["operation_id"], o["type"], orNone(o["job_id"]), status(fmt.Sprint(o["status"])), done, o["rate_per_second"], o["from"], o["to"], when(o["created_at"]))
	}
	t.end()
	for _, o := range items {
		if reason := o["reason"]; reason != nil {
			fmt.Fprintf(w, "%v failed: %v\n", o["operation_id"], reason)
		}
	}
}

// ranged is a command that begins an operation on a range of a job.
type ranged struct {
	jobRef
	From           string `required:"" help:"The first instant of the range." placeholder:"RFC3339"`
	To             string `help:"Where the range ends; that instant does not belong to it. Without it, now." placeholder:"RFC3339"`
	Rate           int    `default:"10" help:"How many executions a second, at most 1000." placeholder:"N"`
	IdempotencyKey string `help:"Begin at most one operation under this key, however often the command is repeated. Needs --to." placeholder:"KEY"`
}

// begin asks for an operation, and returns the answer.
func (c *ranged) begin(ctx context.Context, tail string, body map[string]any) (answer map[string]any, err error) {
	if c.To == "" && c.IdempotencyKey != "" {
		return nil, usageError{errors.New("give --to with --idempotency-key: without it, another try is about another range")}
	}
	if c.To == "" {
		c.To = time.Now().Add(-clockSlack).UTC().Format(time.RFC3339Nano)
	}
	body["from"], body["to"], body["rate_per_second"] = c.From, c.To, c.Rate
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	_, err = c.do(ctx, http.MethodPost, c.path(tail), body, &answer, headers...)
	return answer, err
}

// clockSlack is by how much the clock of this machine may be ahead of the API's.
const clockSlack = 2 * time.Second

type backfillCmd struct {
	ranged
	Order  string `default:"oldest_first" enum:"oldest_first,newest_first" help:"oldest_first or newest_first." placeholder:"ORDER"`
	DryRun bool   `help:"Only say how many executions it would be, and how long it would take."`
}

// Help implements kong.HelpProvider.
func (backfillCmd) Help() string {
	return `One execution for each instant that the schedule names in the range, also if the job did not exist then, or was called. The target
gets the instant as Minutehand-Scheduled-For.

  minutehand jobs backfill JOB --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --dry-run
  minutehand jobs backfill JOB --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --rate 50
  minutehand jobs backfill JOB --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --order newest_first --idempotency-key outage-1`
}

// Run implements the command.
func (c *backfillCmd) Run(ctx context.Context) error {
	answer, err := c.begin(ctx, "/backfill", map[string]any{"order": c.Order, "dry_run": c.DryRun})
	if err != nil {
		return err
	}
	if !c.DryRun {
		return c.printOperation(answer)
	}
	return c.print(answer, func(w io.Writer) {
		fmt.Fprintf(w, "%v executions, from %v to %v, within %v\n", answer["total"], answer["first"], answer["last"], answer["takes"])
	})
}

type replayCmd struct {
	ranged
	State  []string          `default:"succeeded,dead" enum:"succeeded,dead,cancelled" help:"Those that ended so: succeeded, dead or cancelled." placeholder:"STATE"`
	URL    string            `name:"url" help:"Call this instead of the job's target, with its method and body and none of its headers. Nothing else comes of it." placeholder:"URL"`
	Header map[string]string `help:"Header of the calls to --url." placeholder:"NAME=VALUE"`
}

// Help implements kong.HelpProvider.
func (replayCmd) Help() string {
	return `One execution for each that was due in the range and ended so, the newest first, under the job's present definition. The target gets
the instant of what is repeated as Minutehand-Scheduled-For. minutehand executions replay repeats a single one.

  minutehand jobs replay JOB --from 2026-01-01T00:00:00Z --state dead
  minutehand jobs replay JOB --from 2026-01-01T00:00:00Z --url https://staging.example/hook --header X-Incident=7
  minutehand jobs replay JOB --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --rate 50 --idempotency-key incident-7`
}

// Run implements the command.
func (c *replayCmd) Run(ctx context.Context) error {
	body := map[string]any{"states": c.State}
	switch {
	case c.URL != "":
		target := map[string]any{"kind": job.TargetWebhook, "url": c.URL}
		if len(c.Header) > 0 {
			target["headers"] = c.Header
		}
		body["target"] = target
	case len(c.Header) > 0:
		return usageError{errors.New("--header goes with --url: the job's own target has the headers of the job")}
	}
	answer, err := c.begin(ctx, "/replay", body)
	if err != nil {
		return err
	}
	return c.printOperation(answer)
}

type executionReplayCmd struct {
	client
	Execution      string `arg:"" help:"The execution's id (exe_…)."`
	IdempotencyKey string `help:"Repeat it at most once under this key." placeholder:"KEY"`
}

// Help implements kong.HelpProvider.
func (executionReplayCmd) Help() string {
	return `One more execution, now, under the job's present definition; prints its id. The target gets the instant of what is repeated as
Minutehand-Scheduled-For. minutehand jobs replay repeats what was executed in a range.

  minutehand executions replay EXECUTION
  minutehand executions replay EXECUTION --idempotency-key incident-8`
}

// Run implements the command.
func (c *executionReplayCmd) Run(ctx context.Context) error {
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	var x map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/executions/"+url.PathEscape(c.Execution)+"/replay", nil, &x, headers...); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { fmt.Fprintln(w, x["execution_id"]) })
}
