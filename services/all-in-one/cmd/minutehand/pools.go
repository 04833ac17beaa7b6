package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// poolsCmd are the commands about pools.
type poolsCmd struct {
	List poolListCmd `cmd:"" default:"withargs" help:"List the pools to which tasks were given lately."`
	Get  poolGetCmd  `cmd:"" help:"Show what waits and runs in a pool, and its workers."`
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
}

// Run implements the command.
func (c *poolGetCmd) Run(ctx context.Context) error {
	var p poolAnswer
	if _, err := c.do(ctx, http.MethodGet, "/pools/"+url.PathEscape(c.Name), nil, &p); err != nil {
		return err
	}
	return c.print(p, func(w io.Writer) {
		fmt.Fprintf(w, "Tasks that run: %d\n\n", p.Running)
		t := newTable(w, "HANDLER", "HIGH", "NORMAL", "LOW")
		for _, h := range p.Handlers {
			t.row(h["name"], h["high"], h["normal"], h["low"])
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
