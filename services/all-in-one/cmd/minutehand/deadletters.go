package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// deadLettersCmd are the commands about dead letters.
type deadLettersCmd struct {
	List    deadLetterListCmd `cmd:"" default:"withargs" help:"Show executions that were given up, newest day first."`
	Redrive redriveCmd        `cmd:"" help:"Execute again what was given up, at a steady rate."`
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
  minutehand dead-letters list -o wide     with what the target answered last
  minutehand dead-letters list --limit 500 -o json`
}

// Run implements the command.
func (c *deadLetterListCmd) Run(ctx context.Context) error {
	return c.list(ctx, "dead letters", "/dead-letters", func(w io.Writer, items []map[string]any, wide bool) {
		header := []any{"EXECUTION", "JOB", "GIVEN UP", "REASON", "ATTEMPTS"}
		if wide {
			header = append(header, "ANSWER", "ERROR", "REDRIVEN BY")
		}
		t := newTable(w, header...)
		for _, d := range items {
			cells := []any{d["execution_id"], d["job_id"], when(d["at"]), d["reason"], d["attempts"]}
			if last, _ := d["last_attempt"].(map[string]any); wide {
				cells = append(cells, orNone(last["status_code"]), orNone(last["error"]), orNone(d["redriven_by"]))
			}
			t.row(cells...)
		}
		t.end()
	})
}

type redriveCmd struct {
	client
	Job            string `help:"Only those of this job." placeholder:"JOB"`
	Reason         string `help:"Only those given up for this reason: permanent, max_attempts, window or overtaken." placeholder:"REASON"`
	From           string `help:"Only those given up at this instant or later." placeholder:"RFC3339"`
	To             string `help:"Only those given up before this instant." placeholder:"RFC3339"`
	Rate           int    `default:"10" help:"How many a second." placeholder:"N"`
	Limit          int    `help:"How many at most; 1000 if it is not given." placeholder:"N"`
	All            bool   `help:"All of them, as an operation that goes on after the answer: see minutehand operations."`
	IdempotencyKey string `help:"Redrive at most once under this key." placeholder:"KEY"`
}

// Help implements kong.HelpProvider.
func (redriveCmd) Help() string {
	return `Each dead letter is redriven once, as a new execution under its job's present definition: mend the target first, with
an update of the job. With --all it is an operation, which can be paused, given another rate and cancelled, and takes what has been given
up by now.

  minutehand dead-letters redrive --reason permanent --rate 5
  minutehand dead-letters redrive --reason max_attempts --all --rate 50
  minutehand dead-letters redrive --job JOB --from 2020-01-01T00:00:00Z
  minutehand dead-letters redrive --limit 100 --idempotency-key monday -o json`
}

// Run implements the command.
func (c *redriveCmd) Run(ctx context.Context) error {
	filter := map[string]string{}
	for name, value := range map[string]string{"job_id": c.Job, "reason": c.Reason, "from": c.From, "to": c.To} {
		if value != "" {
			filter[name] = value
		}
	}
	var headers []string
	if c.IdempotencyKey != "" {
		headers = []string{"Idempotency-Key", c.IdempotencyKey}
	}
	var answer struct {
		Redriven   int              `json:"redriven"`
		More       bool             `json:"more"`
		Executions []map[string]any `json:"executions"`
	}
	body := map[string]any{"filter": filter, "rate_per_second": c.Rate}
	if c.All {
		if c.Limit != 0 {
			return usageError{errors.New("give --limit or --all")}
		}
		var o map[string]any
		if _, err := c.do(ctx, http.MethodPost, "/dead-letters:redrive-all", body, &o, headers...); err != nil {
			return err
		}
		return c.printOperation(o)
	}
	if c.Limit != 0 {
		body["limit"] = c.Limit
	}
	if _, err := c.do(ctx, http.MethodPost, "/dead-letters:redrive", body, &answer, headers...); err != nil {
		return err
	}
	return c.print(answer, func(w io.Writer) {
		t := newTable(w, "EXECUTION", "JOB", "DUE", "TAKES THE PLACE OF")
		for _, x := range answer.Executions {
			t.row(x["execution_id"], x["job_id"], when(x["due_at"]), x["source_execution_id"])
		}
		t.end()
		if answer.More {
			fmt.Fprintln(w, "There may be more; run it again, or with --all.")
		}
	})
}
