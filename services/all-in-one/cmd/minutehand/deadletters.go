package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
)

// deadLettersCmd are the commands about dead letters.
type deadLettersCmd struct {
	List deadLetterListCmd `cmd:"" default:"withargs" help:"Show executions that were given up, newest day first."`
}

// Help implements kong.HelpProvider.
func (deadLettersCmd) Help() string {
	return `An execution whose last attempt failed, or that no attempt could help, is given up and becomes a dead letter.

  minutehand dead-letters           the same as dead-letters list`
}

type deadLetterListCmd struct{ paged }

// Help implements kong.HelpProvider.
func (deadLetterListCmd) Help() string {
	return `With the reason, and the number of attempts that were made.

  minutehand dead-letters list
  minutehand dead-letters list --limit 500 -o json`
}

// Run implements the command.
func (c *deadLetterListCmd) Run(ctx context.Context) error {
	return c.list(ctx, "/dead-letters", func(w io.Writer, items []map[string]any) {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintln(t, "EXECUTION\tJOB\tGIVEN UP\tREASON\tATTEMPTS")
		for _, d := range items {
			fmt.Fprintf(t, "%v\t%v\t%s\t%v\t%v\n", d["execution_id"], d["job_id"], when(d["at"]), d["reason"], d["attempts"])
		}
		_ = t.Flush()
	})
}
