package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// batchSize is how many jobs one request creates.
const batchSize = 1000

type batchCmd struct {
	client
	File string `arg:"" help:"Jobs, one JSON object after the other; '-' for standard input."`
	Key  string `name:"idempotency-key" help:"Create each of them at most once under this key." placeholder:"KEY"`
}

// Help implements kong.HelpProvider.
func (batchCmd) Help() string {
	return `What is wrong with one job concerns that one alone: it is told, and the others are created. With a key, the same command
can be run again after a failure.

  minutehand jobs batch jobs.json
  minutehand jobs batch jobs.json --idempotency-key import-1 -o json     the results in full`
}

type batchResult struct {
	Status  int             `json:"status"`
	Job     map[string]any  `json:"job,omitempty"`
	Problem json.RawMessage `json:"problem,omitempty"`
}

// Run implements the command.
func (c *batchCmd) Run(ctx context.Context) error {
	text, err := readFile(c.File)
	if err != nil {
		return usageError{fmt.Errorf("cannot read %s: %w", c.File, cause(err))}
	}
	var results []batchResult
	d := json.NewDecoder(bytes.NewReader(text))
	for part := 1; d.More(); part++ {
		var jobs []json.RawMessage
		for len(jobs) < batchSize && d.More() {
			var j json.RawMessage
			if err := d.Decode(&j); err != nil {
				return usageError{fmt.Errorf("%s is not a row of JSON objects: %w", c.File, err)}
			}
			jobs = append(jobs, j)
		}
		var headers []string
		if c.Key != "" {
			headers = []string{"Idempotency-Key", fmt.Sprintf("%s-%d", c.Key, part)}
		}
		var answer struct {
			Results []batchResult `json:"results"`
		}
		if _, err := c.do(ctx, http.MethodPost, "/jobs:batch", map[string]any{"jobs": jobs}, &answer, headers...); err != nil {
			return fmt.Errorf("after %d jobs: %w", len(results), err)
		}
		results = append(results, answer.Results...)
	}
	return c.tell(results)
}

// tell shows the results; it fails if a job was refused.
func (c *batchCmd) tell(results []batchResult) error {
	var wrong []error
	for i, r := range results {
		if r.Status >= http.StatusBadRequest {
			wrong = append(wrong, fmt.Errorf("job %d: %w", i+1, complain(r.Problem, http.StatusText(r.Status))))
		}
	}
	err := c.print(map[string]any{"results": results}, func(w io.Writer) {
		fmt.Fprintf(w, "%d jobs created, %d refused\n", len(results)-len(wrong), len(wrong))
	})
	return errors.Join(append(wrong, err)...)
}
