package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// lettersRead is how many dead letters are read at once, and so how many are redriven with one note at most.
	lettersRead = 100
	// mostPages is how many pages of them are read in a turn in which none is to be redriven.
	mostPages = 10
)

// again takes the next dead letters of a redrive, of one page, and no more than are due until then: others may redrive a letter that is noted and
// not marked yet. left is false if there is no other. What was redriven is left out. What another operation of the tenant has noted is waited for: that
// one marks it within seconds, or gives it up. An operation marks the letters of a part before it notes that the part is done.
func (r *Runner) again(
	ctx context.Context, t job.Tenant, o *operations.Operation, book *operations.Book, c *operations.Chunk, until time.Time,
) (left bool, err error) {
	limit := min(lettersRead, 1+int(until.Sub(c.DueAt)*time.Duration(c.Rate)/time.Second))
	for range mostPages {
		if o.Read {
			return false, nil
		}
		page, next, err := r.History.DeadLetters(ctx, t, o.Cursor, lettersRead)
		if err != nil {
			return false, fmt.Errorf("read dead letters: %w", err)
		}
		upTo := heldBack(o, book, page)
		if upTo == 0 && len(page) > 0 {
			return true, nil
		}
		taken, err := r.wanted(ctx, t, o, page[:upTo])
		if err != nil {
			return false, err
		}
		if len(taken) > limit {
			taken = taken[:limit]
			upTo = taken[limit-1].at + 1
		}
		if upTo < len(page) {
			if _, next, err = r.History.DeadLetters(ctx, t, o.Cursor, upTo); err != nil {
				return false, fmt.Errorf("read dead letters: %w", err)
			}
		}
		c.Cursor, o.Cursor, o.Read = o.Cursor, next, next == ""
		for _, x := range taken {
			source := &page[x.at].Event.Entry
			c.At, c.Sources = append(c.At, source.Occurrence().UnixMilli()), append(c.Sources, source.ExecutionID)
			c.Definitions = append(c.Definitions, x.definitionID)
		}
		if len(taken) > 0 {
			return true, nil
		}
	}
	return true, nil
}

// wantedLetter is a dead letter of a page that is to be redriven, and the definition of its job.
type wantedLetter struct {
	at           int
	definitionID string
}

// matches reports whether a dead letter is one of those that a redrive is about, and was not redriven. What it has executed itself is none, although
// it was given up so soon that a clock may say that it was before the request.
func matches(o *operations.Operation, d *job.DeadLetter) bool {
	to := o.To
	if !to.Before(o.CreatedAt) { // what was listed when it was asked for may have been given up by a clock that is ahead
		to = to.Add(clock.MaxDifference)
	}
	source := &d.Event.Entry
	return d.RedrivenBy == "" && !d.At.Before(o.From) && d.At.Before(to) && (o.JobID == "" || source.JobID == o.JobID) &&
		(o.GivenUpFor == "" || d.Reason == o.GivenUpFor) && (source.Note == nil || source.Note.Operation != o.ID)
}

// heldBack returns where in a page the first dead letter is that a redrive is about and that another operation has noted; the length if none is.
func heldBack(o *operations.Operation, book *operations.Book, page []job.DeadLetter) int {
	noted := map[string]bool{}
	for n := range book.Operations {
		if c := book.Operations[n].Chunk; c != nil && book.Operations[n].Type == operations.TypeRedrive {
			for _, source := range c.Sources {
				noted[source] = true
			}
		}
	}
	for n := range page {
		if noted[page[n].Event.Entry.ExecutionID] && matches(o, &page[n]) {
			return n
		}
	}
	return len(page)
}

// wanted returns those of a page that are to be redriven.
func (r *Runner) wanted(ctx context.Context, t job.Tenant, o *operations.Operation, page []job.DeadLetter) ([]wantedLetter, error) {
	var list []wantedLetter
	var ids []string
	at := map[string]int{} // in ids, from 1
	for n := range page {
		if !matches(o, &page[n]) {
			continue
		}
		if id := page[n].Event.Entry.JobID; at[id] == 0 {
			ids = append(ids, id)
			at[id] = len(ids)
		}
		list = append(list, wantedLetter{at: n})
	}
	definitions := make([]string, len(ids))
	err := run.Each(len(ids), lookups, func(n int) (err error) {
		definitions[n], err = r.executed(ctx, t, ids[n])
		return err
	})
	kept := list[:0]
	for _, x := range list {
		if x.definitionID = definitions[at[page[x.at].Event.Entry.JobID]-1]; x.definitionID != "" {
			kept = append(kept, x)
		}
	}
	return kept, err
}

// executed returns the definition of a job of a tenant; "" if the job is gone or cancelled, so that nothing of it is executed.
func (r *Runner) executed(ctx context.Context, t job.Tenant, id string) (string, error) {
	j, err := r.Jobs.Get(ctx, id)
	switch {
	case errors.Is(err, jobstore.ErrNotFound) || err == nil && (j.Deleted || j.Status == job.StatusCancelled || j.Tenant != t):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read job %s: %w", id, err)
	}
	return j.Definition.ID, nil
}

// whole reports whether nothing is missing in what is noted of an operation: a process of a release that does not know redrives leaves out what it
// does not know when it notes other operations of the tenant.
func whole(o *operations.Operation) bool {
	if o.Type != operations.TypeRedrive || o.Chunk == nil {
		return true
	}
	return len(o.Chunk.Sources) == len(o.Chunk.At) && len(o.Chunk.Definitions) == len(o.Chunk.At)
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
