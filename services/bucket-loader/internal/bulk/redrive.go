package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// lettersRead is how many dead letters are read at once at most, and so how many are redriven with one note.
	lettersRead = 100
	// mostPages is how many pages of them are read in a turn in which none is to be redriven.
	mostPages = 10
)

// again takes the next dead letters of a redrive, those of a page at most: no more than are due until then, since others may redrive a letter that
// is noted and not marked yet. left is false if there is no other.
func (r *Runner) again(ctx context.Context, t job.Tenant, o *operations.Operation, c *operations.Chunk, until time.Time) (left bool, err error) {
	limit := min(lettersRead, 1+int(until.Sub(c.DueAt)*time.Duration(c.Rate)/time.Second))
	jobs := map[string]*job.Job{} // nil for those that are not executed any more
	for range mostPages {
		page, next, err := r.History.DeadLetters(ctx, t, o.Cursor, limit)
		if err != nil {
			return false, fmt.Errorf("read dead letters: %w", err)
		}
		for n := range page {
			d := &page[n]
			source := &d.Event.Entry
			if d.RedrivenBy != "" || d.At.Before(o.From) || !d.At.Before(o.To) || o.JobID != "" && source.JobID != o.JobID ||
				o.GivenUpFor != "" && d.Reason != o.GivenUpFor {
				continue
			}
			j, known := jobs[source.JobID]
			if !known {
				if j, err = r.executed(ctx, t, source.JobID); err != nil {
					return false, err
				}
				jobs[source.JobID] = j
			}
			if j == nil {
				continue
			}
			c.At, c.Sources = append(c.At, source.Occurrence().UnixMilli()), append(c.Sources, source.ExecutionID)
			c.Definitions = append(c.Definitions, j.Definition.ID)
		}
		if o.Cursor = next; next == "" || len(c.At) > 0 {
			return next != "", nil
		}
	}
	return true, nil
}

// executed returns a job of a tenant; nil if it is gone or cancelled, so that nothing of it is executed.
func (r *Runner) executed(ctx context.Context, t job.Tenant, id string) (*job.Job, error) {
	j, err := r.Jobs.Get(ctx, id)
	switch {
	case errors.Is(err, jobstore.ErrNotFound) || err == nil && (j.Deleted || j.Status == job.StatusCancelled || j.Tenant != t):
		return nil, nil //nolint:nilnil // none is no error
	case err != nil:
		return nil, fmt.Errorf("read job %s: %w", id, err)
	}
	return &j, nil
}

// executes returns of which job the n-th execution of the noted part is, and under which definition.
func executes(o *operations.Operation, n int) (jobID, definitionID string) {
	if o.Type != operations.TypeRedrive {
		return o.JobID, o.DefinitionID
	}
	of, _ := job.ParseExecutionID(o.Chunk.Sources[n]) // the ids of dead letters are ids of executions
	return of.JobID, o.Chunk.Definitions[n]
}

// mark marks the dead letters for which there are entries now: all but the rest. A crash before the end of it leaves the part noted, so the same
// letters get the same marks.
func (r *Runner) mark(ctx context.Context, entries []job.Entry, rest *operations.Chunk) error {
	err := run.Each(len(entries), lookups, func(n int) error {
		e := &entries[n]
		if slices.Contains(rest.Sources, e.Note.Source) {
			return nil
		}
		of, err := job.ParseExecutionID(e.Note.Source)
		if err != nil {
			return err
		}
		source := job.Entry{Locator: job.Locator{ExecutionID: e.Note.Source}, JobID: of.JobID, Tenant: e.Tenant, NominalAt: of.NominalAt}
		return r.History.MarkRedriven(ctx, job.DeadLetter{Event: job.Event{Entry: source}}, e.ExecutionID)
	})
	if err != nil {
		return fmt.Errorf("mark dead letters as redriven: %w", err)
	}
	return nil
}
