package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/minutehand/minutehand/libs/schedule"
)

type jobsCmd struct {
	Create  createCmd `cmd:"" help:"Create a job."`
	Get     getCmd    `cmd:"" help:"Show a job."`
	List    listCmd   `cmd:"" help:"List jobs, newest first."`
	Pause   pauseCmd  `cmd:"" help:"Pause a job: no occurrence begins after this returns."`
	Resume  resumeCmd `cmd:"" help:"Resume a paused job."`
	Cancel  cancelCmd `cmd:"" help:"Cancel a job for good: no attempt begins after this returns."`
	Trigger trigCmd   `cmd:"" help:"Execute a job once, now."`
	Delete  deleteCmd `cmd:"" help:"Cancel a job and hide it."`
}

type createCmd struct {
	client
	File     string            `short:"f" help:"JSON of the job, '-' for standard input; the flags below are for simple ones." placeholder:"FILE"`
	Name     string            `help:"Name of the job."`
	Delay    string            `help:"Fire once, this long from now." placeholder:"30s"`
	RunAt    string            `help:"Fire once, at this instant." placeholder:"RFC3339"`
	Cron     string            `help:"Fire by this cron expression." placeholder:"EXPR"`
	Timezone string            `help:"IANA zone of the cron expression." placeholder:"ZONE"`
	Every    string            `help:"Fire at this interval." placeholder:"15m"`
	URL      string            `name:"url" help:"Webhook to call."`
	Method   string            `help:"Method of the call." default:"POST"`
	Body     string            `help:"JSON body of the call." placeholder:"JSON"`
	Header   map[string]string `help:"Header of the call." placeholder:"NAME=VALUE"`
	Key      string            `name:"idempotency-key" help:"Create at most one job under this key."`
}

// Help implements kong.HelpProvider.
func (createCmd) Help() string {
	return `  minutehand jobs create --name hello --delay 10s --url http://127.0.0.1:9000/hook
  minutehand jobs create --name report --cron '0 9 * * MON' --timezone Europe/Berlin --url https://example.com/report
  minutehand jobs create -f job.json`
}

// Run implements the command.
func (c *createCmd) Run(ctx context.Context) error {
	body, err := c.job()
	if err != nil {
		return usageError{err}
	}
	var headers []string
	if c.Key != "" {
		headers = []string{"Idempotency-Key", c.Key}
	}
	var j map[string]any
	if _, err := c.do(ctx, http.MethodPost, "/jobs", body, &j, headers...); err != nil {
		return err
	}
	return c.print(j, func(w io.Writer) { jobTable(w, []map[string]any{j}) })
}

func (c *createCmd) job() (map[string]any, error) {
	if c.File != "" {
		text, err := readFile(c.File)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", c.File, cause(err))
		}
		var body map[string]any
		if err := json.Unmarshal(text, &body); err != nil {
			return nil, fmt.Errorf("%s is not a JSON object: %w", c.File, err)
		}
		return body, nil
	}
	target := map[string]any{"kind": "http_webhook", "url": c.URL, "method": c.Method}
	body := map[string]any{"name": c.Name, "target": target}
	given := 0
	for _, s := range []struct{ value, kind, member string }{
		{c.Delay, "one_shot", "delay"}, {c.RunAt, "one_shot", "run_at"}, {c.Cron, "cron", "cron_expr"}, {c.Every, "interval", "every"},
	} {
		if s.value != "" {
			given++
			body["type"], body[s.member] = s.kind, s.value
		}
	}
	if given != 1 || c.Name == "" || c.URL == "" {
		return nil, errors.New("give --name, --url and one of --delay, --run-at, --cron and --every; or the whole job with -f")
	}
	if c.Timezone != "" {
		body["timezone"] = c.Timezone
	}
	if len(c.Header) > 0 {
		target["headers"] = c.Header
	}
	if c.Body != "" {
		if !json.Valid([]byte(c.Body)) {
			return nil, errors.New("--body is not JSON")
		}
		target["body"] = json.RawMessage(c.Body)
	}
	return body, nil
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// jobRef is a command about one job.
type jobRef struct {
	client
	Job string `arg:"" help:"The job's id (job_…)."`
}

func (c *jobRef) path(tail string) string { return "/jobs/" + url.PathEscape(c.Job) + tail }

// show makes a request that answers with the job, and prints it.
func (c *jobRef) show(ctx context.Context, method, tail string) error {
	var j map[string]any
	if _, err := c.do(ctx, method, c.path(tail), nil, &j); err != nil {
		return err
	}
	return c.print(j, func(w io.Writer) { jobTable(w, []map[string]any{j}) })
}

type (
	getCmd    struct{ jobRef }
	pauseCmd  struct{ jobRef }
	resumeCmd struct{ jobRef }
	cancelCmd struct{ jobRef }
	deleteCmd struct{ jobRef }
	trigCmd   struct {
		jobRef
		Key string `name:"idempotency-key" help:"Execute at most once under this key."`
	}
)

// Run implements the command: the definition in full, which has no table.
func (c *getCmd) Run(ctx context.Context) error {
	c.Output = "json"
	return c.show(ctx, http.MethodGet, "")
}

// Run implements the command.
func (c *pauseCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/pause") }

// Run implements the command.
func (c *resumeCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/resume") }

// Run implements the command.
func (c *cancelCmd) Run(ctx context.Context) error { return c.show(ctx, http.MethodPost, "/cancel") }

// Run implements the command.
func (c *deleteCmd) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, c.path(""), nil, nil)
	return err
}

// Run implements the command.
func (c *trigCmd) Run(ctx context.Context) error {
	var headers []string
	if c.Key != "" {
		headers = []string{"Idempotency-Key", c.Key}
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
	Limit  int    `default:"50" help:"Items at most."`
	Cursor string `help:"next_cursor of the page before."`
}

type pageAnswer struct {
	Items      []map[string]any `json:"items"`
	NextCursor *string          `json:"next_cursor"`
}

func (c *paged) list(ctx context.Context, path string, table func(w io.Writer, items []map[string]any)) error {
	query := url.Values{"limit": {fmt.Sprint(c.Limit)}}
	if c.Cursor != "" {
		query.Set("cursor", c.Cursor)
	}
	var p pageAnswer
	if _, err := c.do(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		table(w, p.Items)
		if p.NextCursor != nil {
			fmt.Fprintf(w, "\nmore with --cursor %s\n", *p.NextCursor)
		}
	})
}

type listCmd struct{ paged }

// Run implements the command.
func (c *listCmd) Run(ctx context.Context) error { return c.list(ctx, "/jobs", jobTable) }

func jobTable(w io.Writer, jobs []map[string]any) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tNAME\tTYPE\tSTATUS\tNEXT RUN\tLAST FIRED")
	for _, j := range jobs {
		fmt.Fprintf(t, "%v\t%v\t%v\t%v\t%s\t%s\n", j["job_id"], j["name"], j["type"], j["status"], when(j["next_run_at"]),
			when(j["last_fired_at"]))
	}
	_ = t.Flush()
}

type executionsCmd struct {
	paged
	Job string `arg:"" help:"The job's id (job_…), or an execution's (exe_…)."`
}

// Run implements the command.
func (c *executionsCmd) Run(ctx context.Context) error {
	if !strings.HasPrefix(c.Job, "exe_") {
		return c.list(ctx, "/jobs/"+url.PathEscape(c.Job)+"/executions", executionTable)
	}
	var x map[string]any
	if _, err := c.do(ctx, http.MethodGet, "/executions/"+url.PathEscape(c.Job), nil, &x); err != nil {
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
		fmt.Fprintf(t, "\t%s\n", last)
	}
	_ = t.Flush()
}

type deadLettersCmd struct{ paged }

// Run implements the command.
func (c *deadLettersCmd) Run(ctx context.Context) error {
	return c.list(ctx, "/dead-letters", func(w io.Writer, items []map[string]any) {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "EXECUTION\tJOB\tGIVEN UP\tREASON\tATTEMPTS")
		for _, d := range items {
			fmt.Fprintf(t, "%v\t%v\t%s\t%v\t%v\n", d["execution_id"], d["job_id"], when(d["at"]), d["reason"], d["attempts"])
		}
		_ = t.Flush()
	})
}

type scheduleCmd struct {
	Preview previewCmd `cmd:"" help:"Show the next occurrences of a cron expression."`
}

type previewCmd struct {
	client
	Expr     string `arg:"" help:"Cron expression of 5, 6 (seconds first) or 7 (years last) fields, or a macro."`
	Timezone string `help:"IANA zone." default:"UTC"`
	After    string `help:"Show those after this instant; default now." placeholder:"RFC3339"`
	Count    int    `short:"n" default:"10" help:"How many."`
	Gap      string `enum:"next_valid,skip" default:"next_valid" help:"What a local time does that does not exist."`
	Fold     string `enum:"first,last,both" default:"first" help:"What a local time does that exists twice."`
}

// Help implements kong.HelpProvider.
func (previewCmd) Help() string {
	return `  minutehand schedule preview '0 9 * * MON' --timezone America/New_York
  minutehand schedule preview '30 2 * * *' --timezone Europe/London --after 2026-03-27T00:00:00Z -n 3`
}

// Run implements the command.
func (c *previewCmd) Run(ctx context.Context) error {
	body := map[string]any{
		"type": "cron", "cron_expr": c.Expr, "timezone": c.Timezone, "count": c.Count,
		"dst": map[string]string{"gap": c.Gap, "fold": c.Fold},
	}
	if c.After != "" {
		body["after"] = c.After
	}
	var p struct {
		Occurrences []map[string]any `json:"occurrences"`
	}
	if _, err := c.do(ctx, http.MethodPost, "/schedules/preview", body, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "UTC\tLOCAL\tNOTE")
		for _, o := range p.Occurrences {
			note, _ := o["note"].(string)
			fmt.Fprintf(t, "%v\t%v\t%s\n", o["scheduled_for"], o["local"], note)
		}
		_ = t.Flush()
	})
}

type versionCmd struct{}

// Run implements the command.
func (versionCmd) Run() error {
	fmt.Printf("minutehand %s, %s %s/%s, time zones %s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		schedule.TZDataVersion())
	return nil
}
