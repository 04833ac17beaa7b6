package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// jobsCmd are the commands about jobs. One more is a struct with Help and Run, and a line here.
type jobsCmd struct {
	Create   createCmd   `cmd:"" help:"Create a job."`
	Get      getCmd      `cmd:"" help:"Show a job."`
	Update   updateCmd   `cmd:"" help:"Change some of a job's definition."`
	Edit     editCmd     `cmd:"" help:"Change a job's definition in an editor."`
	Batch    batchCmd    `cmd:"" help:"Create many jobs at once."`
	List     listCmd     `cmd:"" help:"List jobs, newest first."`
	Pause    pauseCmd    `cmd:"" help:"Pause a job: no occurrence begins after this returns."`
	Resume   resumeCmd   `cmd:"" help:"Resume a paused job."`
	Cancel   cancelCmd   `cmd:"" help:"Cancel a job for good: no attempt begins after this returns."`
	Trigger  trigCmd     `cmd:"" help:"Execute a job once, now."`
	Backfill backfillCmd `cmd:"" help:"Execute a job for each instant of its schedule in a range that is past."`
	Replay   replayCmd   `cmd:"" help:"Execute again what a job executed in a range."`
	Delete   deleteCmd   `cmd:"" help:"Cancel a job and hide it."`
}

// Help implements kong.HelpProvider.
func (jobsCmd) Help() string {
	return `A job is a target and a schedule: once, by cron, or at an interval. Its id is in the answer to create, and in list.

  minutehand jobs create --name hello --delay 10s --url http://127.0.0.1:9000/hook
  minutehand jobs list
  minutehand jobs get JOB`
}

type createCmd struct {
	client
	jobFlags
	Key            string `help:"Key of your own, which no other job has; key:KEY then stands for the job's id." placeholder:"KEY"`
	IdempotencyKey string `help:"Create at most one job under this key, however often the command is repeated." placeholder:"KEY"`
}

// Help implements kong.HelpProvider.
func (createCmd) Help() string {
	return `A simple job is made of flags: a name, a URL, and when (or a topic or queue in place of the URL: see minutehand connections; or a pool: see minutehand pools). The whole of a job is written as JSON or YAML, as /openapi.json
describes it:

    name: report
    type: cron
    cron_expr: 0 9 * * MON
    timezone: Europe/Berlin
    target: {kind: http_webhook, url: 'https://example.com/report', body: {report: weekly}}
    retry_policy: {max_attempts: 5, base_delay: 10s}

What was answered with an id is durable, and will fire. Lengths of time are written 90s, 15m or 24h.

  minutehand jobs create --name hello --delay 10s --url http://127.0.0.1:9000/hook
  minutehand jobs create --name report --cron '0 9 * * MON' --timezone Europe/Berlin --url https://example.com/report
  minutehand jobs create --name poll --every 15m --url https://example.com/poll --max-attempts 3 --label team=payments
  minutehand jobs create --name once --delay 1h --url https://example.com --idempotency-key once-1
  minutehand jobs create --name nightly --key nightly --cron '0 3 * * *' --url https://example.com/nightly     then: minutehand jobs pause key:nightly
  minutehand jobs create --name tidy --after key:nightly=success --url https://example.com/tidy
  minutehand jobs create -f job.yaml
  minutehand jobs create --name x --run-at 2030-01-01T00:00:00Z --url https://example.com -o yaml     the answer in full`
}

// Run implements the command.
func (c *createCmd) Run(ctx context.Context) error {
	body, err := c.job()
	if err != nil {
		return usageError{err}
	}
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	var j map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/jobs", body, &j, headers...); err != nil {
		return err
	}
	list, _ := j["warnings"].([]any)
	for _, x := range list {
		w, _ := x.(map[string]any)
		fmt.Fprintf(os.Stderr, "warning: %v\n", w["message"])
	}
	return c.printJob(j)
}

// printJob prints a job as a row of a table, or in full.
func (c *output) printJob(j map[string]any) error {
	return c.print(j, func(w io.Writer) { jobTable(w, []map[string]any{j}, c.wide()) })
}

func (c *createCmd) job() (map[string]any, error) {
	body := map[string]any{"target": map[string]any{"kind": "http_webhook"}}
	if c.File != "" {
		var err error
		if body, err = readObject(c.File); err != nil {
			return nil, err
		}
	}
	if err := c.apply(body); err != nil {
		return nil, err
	}
	set(body, "key", c.Key)
	if c.File == "" && (c.Name == "" || c.URL+c.Kafka+c.SQS+c.Pool == "" || body["type"] == nil) {
		return nil, errors.New("give --name, one of --url, --kafka, --sqs and --pool, and one of --delay, --run-at, --cron and --every; or the whole job with -f")
	}
	return body, nil
}

// jobRef is a command about one job.
type jobRef struct {
	client
	Job string `arg:"" help:"The job's id (job_…), or key: and its key."`
}

func (c *jobRef) path(tail string) string { return "/jobs/" + url.PathEscape(c.Job) + tail }

// show makes a request that answers with the job, and prints it.
func (c *jobRef) show(ctx context.Context, method, tail string) error {
	var j map[string]any
	if _, err := c.do(ctx, method, c.path(tail), nil, &j); err != nil {
		return err
	}
	return c.printJob(j)
}

type (
	getCmd struct {
		jobRef
		watched
	}
	pauseCmd  struct{ jobRef }
	resumeCmd struct{ jobRef }
	cancelCmd struct{ jobRef }
	deleteCmd struct{ jobRef }
	trigCmd   struct {
		jobRef
		IdempotencyKey string `help:"Execute at most once under this key." placeholder:"KEY"`
	}
)

// Help implements kong.HelpProvider.
func (getCmd) Help() string {
	return `The definition with every default filled in, as YAML, or as JSON with -o json.

  minutehand jobs get JOB
  minutehand jobs get JOB -o wide     one row of a table`
}

// Run implements the command: the definition in full, unless one row of a table is asked for.
func (c *getCmd) Run(ctx context.Context) error {
	if c.Output == "table" {
		c.Output = "yaml"
	}
	return c.watched.show(ctx, func(ctx context.Context) (any, error) {
		var j map[string]any
		_, err := c.do(ctx, http.MethodGet, c.path(""), nil, &j)
		return j, err
	}, func(j any) error { return c.printJob(j.(map[string]any)) })
}

// Help implements kong.HelpProvider.
func (pauseCmd) Help() string {
	return `Retries and triggered executions carry on. What falls due until the job is resumed follows its missed_run_policy then.

  minutehand jobs pause JOB`
}

// Run implements the command.
func (c *pauseCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/pause") }

// Help implements kong.HelpProvider.
func (resumeCmd) Help() string {
	return `What was due meanwhile follows the job's missed_run_policy. A job that is not paused stays as it is.

  minutehand jobs resume JOB`
}

// Run implements the command.
func (c *resumeCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/resume") }

// Help implements kong.HelpProvider.
func (cancelCmd) Help() string {
	return `Retries included. Nothing brings the job back; it stays in the list, and its executions on record.

  minutehand jobs cancel JOB`
}

// Run implements the command.
func (c *cancelCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/cancel") }

// Help implements kong.HelpProvider.
func (deleteCmd) Help() string {
	return `Like cancel, and the job is gone from the list. Deleting it again is no mistake, by its id; its
key may be another job's by then.

  minutehand jobs delete JOB`
}

// Run implements the command.
func (c *deleteCmd) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, c.path(""), nil, nil)
	return err
}

// Help implements kong.HelpProvider.
func (trigCmd) Help() string {
	return `One more execution, beside those of the schedule; prints its id. With a key, the same key triggers it once however often
the command is repeated.

  minutehand jobs trigger JOB
  minutehand jobs trigger JOB --idempotency-key release-7`
}

// Run implements the command.
func (c *trigCmd) Run(ctx context.Context) error {
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	var x map[string]any
	if _, err := c.do(ctx, http.MethodPost, c.path("/trigger"), nil, &x, headers...); err != nil {
		return err
	}
	return c.print(x, func(w io.Writer) { fmt.Fprintln(w, x["execution_id"]) })
}

// paged is a list command.
type paged struct {
	client
	watched
	Limit  int    `default:"50" help:"Items at most." placeholder:"N"`
	Cursor string `help:"Go on from here: the next_cursor of the page before." placeholder:"CURSOR"`
}

type pageAnswer struct {
	Items      []map[string]any `json:"items"`
	NextCursor *string          `json:"next_cursor"`
}

// list shows a page of what, such as "jobs"; filters are names and values of query parameters, and those without a value are left out.
func (c *paged) list(
	ctx context.Context, what, path string, table func(w io.Writer, items []map[string]any, wide bool), filters ...string,
) error {
	query := url.Values{"limit": {fmt.Sprint(c.Limit)}}
	var filtered []string
	for i := 0; i+1 < len(filters); i += 2 {
		if filters[i+1] != "" {
			query.Set(filters[i], filters[i+1])
			filtered = append(filtered, filters[i]+" "+filters[i+1])
		}
	}
	if c.Cursor != "" {
		query.Set("cursor", c.Cursor)
	}
	return c.show(ctx, func(ctx context.Context) (any, error) {
		var p pageAnswer
		_, err := c.do(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &p)
		return &p, err
	}, func(answer any) error {
		p := answer.(*pageAnswer)
		return c.print(p, func(w io.Writer) {
			table(w, p.Items, c.wide())
			if len(filtered) > 0 {
				fmt.Fprintf(w, "\nonly %s with %s\n", what, strings.Join(filtered, " and "))
			}
			if held := c.held(ctx); held != "" {
				fmt.Fprintf(w, "\n%s; minutehand resume-dispatch lets go\n", held)
			}
			if p.NextCursor != nil {
				fmt.Fprintf(w, "\nmore with --cursor %s\n", *p.NextCursor)
			}
		})
	})
}

type listCmd struct {
	paged
	Status string `help:"Only jobs in this status: active, paused, completed or cancelled." placeholder:"STATUS"`
	Label  string `help:"Only jobs with this label: NAME=VALUE, or NAME for any value." placeholder:"LABEL"`
}

// Help implements kong.HelpProvider.
func (listCmd) Help() string {
	return `A page at a time; the last line says how to see the next one.

  minutehand jobs list
  minutehand jobs list --status active --label team=payments
  minutehand jobs list -o wide            with schedule, target, labels and policies
  minutehand jobs list --limit 500 -o json`
}

// Run implements the command.
func (c *listCmd) Run(ctx context.Context) error {
	return c.list(ctx, "jobs", "/jobs", jobTable, "status", c.Status, "label", c.Label)
}

func jobTable(w io.Writer, jobs []map[string]any, wide bool) {
	header := []any{"JOB", "NAME", "TYPE", status("STATUS"), "NEXT RUN", "LAST FIRED"}
	if wide {
		header = append(header, "KEY", "SCHEDULE", "TARGET", "LABELS", "ATTEMPTS", "MISSED RUNS", "CHANGED")
	}
	t := newTable(w, header...)
	for _, j := range jobs {
		cells := []any{j["job_id"], j["name"], j["type"], status(fmt.Sprint(j["status"])), when(j["next_run_at"]), when(j["last_fired_at"])}
		if wide {
			target, _ := j["target"].(map[string]any)
			retry, _ := j["retry_policy"].(map[string]any)
			labels, _ := j["labels"].(map[string]any)
			key, _ := j["key"].(string)
			cells = append(cells, key, planned(j), sendsTo(target), pairs(labels), retry["max_attempts"], j["missed_run_policy"], when(j["updated_at"]))
		}
		t.row(cells...)
	}
	t.end()
}

// sendsTo says in a word where a target is.
func sendsTo(target map[string]any) string {
	switch target["kind"] {
	case "kafka":
		return fmt.Sprintf("kafka:%v/%v", target["connection"], target["topic"])
	case "sqs":
		return fmt.Sprintf("sqs:%v/%v", target["connection"], target["queue"])
	}
	if target["kind"] == "pool" {
		return fmt.Sprintf("pool:%v/%v", target["pool"], target["handler"])
	}
	return shown(target["url"])
}

// planned is when a job is due, in a few words.
func planned(j map[string]any) string {
	switch {
	case j["cron_expr"] != nil && j["timezone"] != nil:
		return fmt.Sprintf("%v %v", j["cron_expr"], j["timezone"])
	case j["cron_expr"] != nil:
		return fmt.Sprint(j["cron_expr"])
	case j["every"] != nil:
		return fmt.Sprintf("every %v", j["every"])
	}
	return when(j["run_at"])
}
