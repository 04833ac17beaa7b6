package main

import (
	"cmp"
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

// holding is what is held.
type holding struct {
	Paused bool     `json:"paused"`
	Labels []string `json:"paused_labels"`
}

// String says what is held; "" if nothing is.
func (h *holding) String() string {
	switch {
	case h.Paused:
		return "everything is held"
	case len(h.Labels) > 0:
		return "held: jobs with " + strings.Join(h.Labels, " or ")
	}
	return ""
}

// held says what is held now; "" if nothing is, or it cannot be told.
func (c *client) held(ctx context.Context) string {
	var answer holding
	_, _ = c.do(ctx, http.MethodGet, "/dispatch", nil, &answer)
	return answer.String()
}

// hold changes what is held, and shows what is held now.
func (c *client) hold(ctx context.Context, verb, label string) error {
	body := map[string]any{}
	if label != "" {
		body["label"] = label
	}
	var answer holding
	if _, err := c.do(ctx, http.MethodPost, "/dispatch/"+verb, body, &answer); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		fmt.Fprintln(w, cmp.Or(answer.String(), "nothing is held"))
	})
}
