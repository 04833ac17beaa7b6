package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

type pauseDispatchCmd struct {
	client
	Label string `help:"Hold only the jobs with this label: NAME=VALUE, or NAME for any value." placeholder:"LABEL"`
}

// Help implements kong.HelpProvider.
func (pauseDispatchCmd) Help() string {
	return `Within two seconds, and over restarts, nothing that is held is dispatched; what was dispatched before carries on.
Nothing is lost: what is due meanwhile waits, and follows its missed-run policy when it is let go.

  minutehand pause-dispatch --label team=payments
  minutehand pause-dispatch`
}

// Run implements the command.
func (c *pauseDispatchCmd) Run(ctx context.Context) error { return c.hold(ctx, "pause", c.Label) }

type resumeDispatchCmd struct {
	client
	Label string `help:"Let go only the jobs with this label, as it was held." placeholder:"LABEL"`
}

// Help implements kong.HelpProvider.
func (resumeDispatchCmd) Help() string {
	return `What is late by more than its catch-up window follows its missed-run policy: it is skipped, fired once, or made up for.

  minutehand resume-dispatch --label team=payments
  minutehand resume-dispatch`
}

// Run implements the command.
func (c *resumeDispatchCmd) Run(ctx context.Context) error { return c.hold(ctx, "resume", c.Label) }

// hold changes what is held, and shows what is held now.
func (c *client) hold(ctx context.Context, verb, label string) error {
	body := map[string]any{}
	if label != "" {
		body["label"] = label
	}
	var answer struct {
		Paused bool     `json:"paused"`
		Labels []string `json:"paused_labels"`
	}
	if _, err := c.do(ctx, http.MethodPost, "/dispatch/"+verb, body, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		switch {
		case answer.Paused:
			fmt.Fprintln(w, "Everything is held.")
		case len(answer.Labels) > 0:
			fmt.Fprintln(w, "Held: jobs with", strings.Join(answer.Labels, " or "))
		default:
			fmt.Fprintln(w, "Nothing is held.")
		}
	})
}
