package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// poolsCmd are the commands about pools.
type poolsCmd struct {
	List poolListCmd `cmd:"" default:"withargs" help:"List the pools to which tasks were given lately."`
	Get  poolGetCmd  `cmd:"" help:"Show what waits and runs in a pool, and its workers."`
	Set  poolSetCmd  `cmd:"" help:"Set limits of a pool, and where the logs of its workers are."`
}

// Help implements kong.HelpProvider.
func (poolsCmd) Help() string {
	return `Workers of a pool fetch tasks from the API, so that nobody needs to reach them. A pool is there once a job names it.

  minutehand pools            the same as pools list`
}

type poolListCmd struct{ client }

// Help implements kong.HelpProvider.
func (poolListCmd) Help() string {
	return `In the order of their names.

  minutehand pools list`
}

// Run implements the command.
func (c *poolListCmd) Run(ctx context.Context) error {
	var p pageAnswer
	if _, err := c.do(ctx, http.MethodGet, "/pools", nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		t := newTable(w, "NAME")
		for _, x := range p.Items {
			t.row(x["name"])
		}
		t.end()
	})
}

type poolGetCmd struct {
	client
	Name string `arg:"" help:"The pool."`
}

// Help implements kong.HelpProvider.
func (poolGetCmd) Help() string {
	return `Tasks wait by handler and priority. A worker is shown for ten minutes after it was seen last.

  minutehand jobs create --name report --delay 10m --pool reports/generate --body '{"month":"2030-01"}'
  minutehand pools get reports`
}

// poolAnswer is a pool as the API shows it.
type poolAnswer struct {
	Name     string           `json:"name"`
	Running  int              `json:"running"`
	Handlers []map[string]any `json:"handlers"`
	Workers  []map[string]any `json:"workers"`
	Settings *poolSettings    `json:"settings,omitempty"`
}

// poolSettings are what is set for a pool.
type poolSettings struct {
	MaxRunning *int           `json:"max_running,omitempty"`
	Handlers   []handlerLimit `json:"handlers,omitempty"`
	LogsURL    string         `json:"logs_url,omitempty"`
}

type handlerLimit struct {
	Name       string `json:"name"`
	MaxRunning int    `json:"max_running"`
}

// limit returns the limit of a handler as it is shown.
func (s *poolSettings) limit(handler any) string {
	if s != nil {
		for _, h := range s.Handlers {
			if h.Name == handler {
				return strconv.Itoa(h.MaxRunning)
			}
		}
	}
	return ""
}

// Run implements the command.
func (c *poolGetCmd) Run(ctx context.Context) error {
	var p poolAnswer
	if _, err := c.do(ctx, http.MethodGet, "/pools/"+url.PathEscape(c.Name), nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		fmt.Fprintf(w, "Tasks that run: %d", p.Running)
		if p.Settings != nil && p.Settings.MaxRunning != nil {
			fmt.Fprintf(w, ", of %d that may", *p.Settings.MaxRunning)
		}
		fmt.Fprint(w, "\n\n")
		t := newTable(w, "HANDLER", "HIGH", "NORMAL", "LOW", "RUNNING", "LIMIT")
		for _, h := range p.Handlers {
			t.row(h["name"], h["high"], h["normal"], h["low"], h["running"], p.Settings.limit(h["name"]))
		}
		t.end()
		fmt.Fprintln(w)
		t = newTable(w, "WORKER", "VERSION", "HANDLERS", "RUNNING", "SEEN")
		for _, x := range p.Workers {
			handlers, _ := x["handlers"].([]any)
			version, _ := x["version"].(string)
			t.row(x["name"], version, strings.Trim(fmt.Sprint(handlers), "[]"), x["running"], when(x["seen_at"]))
		}
		t.end()
	})
}

type poolSetCmd struct {
	client
	Name       string         `arg:"" help:"The pool."`
	MaxRunning *int           `help:"How many of its tasks workers have at once at most; with 0 none is handed out." placeholder:"N"`
	Handler    map[string]int `help:"The same for a handler; may be repeated." placeholder:"NAME=N"`
	LogsURL    string         `name:"logs-url" help:"Where the logs of a worker are; {pool}, {worker}, {job_id}, {execution_id} and {attempt} are replaced." placeholder:"URL"`
}

// Help implements kong.HelpProvider.
func (poolSetCmd) Help() string {
	return `What is not given is not set from then on. Limits hold ten seconds later, and take no task from a worker.

  minutehand pools set reports --max-running 20 --handler generate=5
  minutehand pools set reports --logs-url 'https://logs.example.com/{worker}?execution={execution_id}'
  minutehand pools set reports`
}

// Run implements the command.
func (c *poolSetCmd) Run(ctx context.Context) error {
	s := poolSettings{MaxRunning: c.MaxRunning, LogsURL: c.LogsURL}
	for name, most := range c.Handler {
		s.Handlers = append(s.Handlers, handlerLimit{name, most})
	}
	slices.SortFunc(s.Handlers, func(a, b handlerLimit) int { return strings.Compare(a.Name, b.Name) })
	var answer poolSettings
	if _, err := c.do(ctx, http.MethodPut, "/pools/"+url.PathEscape(c.Name), s, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		t := newTable(w, "POOL", "LIMIT", "LOGS")
		t.row(c.Name, limitOf(answer.MaxRunning), answer.LogsURL)
		for _, h := range answer.Handlers {
			t.row(c.Name+"/"+h.Name, h.MaxRunning, "")
		}
		t.end()
	})
}

func limitOf(n *int) string {
	if n == nil {
		return "none"
	}
	return strconv.Itoa(*n)
}
