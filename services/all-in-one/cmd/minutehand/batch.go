package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"
)

// batchSize is how many jobs one request creates.
const batchSize = 1000

type batchCmd struct {
	client
	File           string `arg:"" help:"Jobs as JSON, an array or one object after the other, or as YAML, a list or documents; '-' for standard input."`
	IdempotencyKey string `help:"Create each of them at most once under this key." placeholder:"KEY"`
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
	jobs, err := readObjects(c.File)
	if err != nil {
		return usageError{err}
	}
	results, err := c.createAll(ctx, jobs, c.IdempotencyKey)
	if err != nil {
		return err
	}
	return c.tell(results)
}

// createAll creates jobs in batches, each at most once under a key, if there is one.
func (c *client) createAll(ctx context.Context, jobs []map[string]any, key string) (results []batchResult, err error) {
	begun := time.Now()
	for part := range slices.Chunk(jobs, batchSize) {
		var headers []string
		if key != "" {
			headers = []string{"Idempotency-Key", fmt.Sprintf("%s-%d", key, len(results)/batchSize+1)}
		}
		var answer struct {
			Results []batchResult `json:"results"`
		}
		if _, err := c.do(ctx, http.MethodPost, "/jobs:batch", map[string]any{"jobs": part}, &answer, headers...); err != nil {
			return nil, fmt.Errorf("after %d jobs: %w", len(results), err)
		}
		results = append(results, answer.Results...)
		if time.Since(begun) > 2*time.Second {
			fmt.Fprintf(os.Stderr, "%d of %d jobs\n", len(results), len(jobs))
		}
	}
	return results, nil
}

// tell shows the results; it fails if a job was refused.
func (c *client) tell(results []batchResult) error {
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
