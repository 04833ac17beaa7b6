package bulk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
)

// errGone: the definition under which an operation executes is no longer kept.
var errGone = errors.New("the definition is no longer kept")

// errSchedule: the schedule cannot be read.
var errSchedule = errors.New("the schedule cannot be read")

// definition returns the definition under which an operation executes a job, and the job's row.
func (r *Runner) definition(ctx context.Context, jobID, id string) (j job.Job, d *job.Definition, err error) {
	if j, err = r.Jobs.Get(ctx, jobID); err != nil {
		return j, nil, err
	}
	if j.Definition.ID == id {
		return j, &j.Definition, nil
	}
	superseded, _, err := r.Jobs.Definition(ctx, jobID, id)
	if errors.Is(err, jobstore.ErrNotFound) {
		err = errGone
	}
	return j, &superseded, err
}

// definitions returns those of the first n executions of what is noted: one for all, but for a redrive.
func (r *Runner) definitions(ctx context.Context, o *operations.Operation, n int) (map[string]*job.Definition, error) {
	var ids []string
	of := map[string]string{} // the job
	for n := range n {
		if jobID, id := executes(o, n); of[id] == "" {
			ids, of[id] = append(ids, id), jobID
		}
	}
	read := make([]*job.Definition, len(ids))
	err := run.Each(len(ids), lookups, func(n int) error {
		_, d, err := r.definition(ctx, of[ids[n]], ids[n])
		if errors.Is(err, jobstore.ErrNotFound) || errors.Is(err, errGone) {
			d, err = &job.Definition{}, nil // a worker drops them
		}
		read[n] = d
		return err
	})
	definitions := map[string]*job.Definition{}
	for n := range ids {
		definitions[ids[n]] = read[n]
	}
	return definitions, err
}

// entries returns the first n entries of what is noted of an operation. They follow from that alone, but for their marks and their zone.
func (r *Runner) entries(ctx context.Context, t job.Tenant, o *operations.Operation, n int) ([]job.Entry, error) {
	c := o.Chunk
	definitions, err := r.definitions(ctx, o, n)
	if err != nil {
		return nil, fmt.Errorf("read the job: %w", err)
	}
	request := o.ID[len(job.OperationPrefix):]
	entries := make([]job.Entry, n)
	for n := range entries {
		jobID, definitionID := executes(o, n)
		at, due := time.UnixMilli(c.At[n]).UTC(), c.Due(n)
		e := job.Entry{
			Locator: job.Locator{Partition: bucket.Partition(jobID, r.Partitions), DueAt: due, Attempt: 1, DefinitionID: definitionID},
			// Its place in the history is where the operation was asked for, and not where the occurrence was, which may be years ago.
			JobID: jobID, Tenant: t, NominalAt: job.ULIDTime(request), ScheduledFor: due, WrittenAt: c.NotedAt,
			By: &o.By, Note: &job.Note{Operation: o.ID, Occurrence: at, Elsewhere: o.Elsewhere},
		}
		switch o.Type {
		case operations.TypeBackfill:
			e.Trigger, e.ExecutionID = job.TriggerBackfill, job.BackfillExecutionID(jobID, o.ID, at)
		case operations.TypeReplay:
			e.Trigger, e.Note.Source = job.TriggerReplay, c.Sources[n]
			e.ExecutionID = job.ReplayExecutionID(jobID, request, c.Sources[n])
		case operations.TypeRedrive:
			e.Trigger, e.Note.Source = job.TriggerRedrive, c.Sources[n]
			e.ExecutionID = job.RedriveExecutionID(jobID, request, c.Sources[n])
		}
		definitions[definitionID].Mark(&e)
		schedule.Localize(&e, &definitions[definitionID].Schedule)
		entries[n] = job.NewEntry(e, c.NotedAt)
	}
	return entries, nil
}

// next takes what is due next of a running operation, and ends the operation if nothing is left of it. It reports whether it did either.
func (r *Runner) next(ctx context.Context, t job.Tenant, o *operations.Operation, book *operations.Book) (changed bool, err error) {
	now := job.Instant(r.Clock.Now())
	if o.DueAt.After(now.Add(r.Ahead)) {
		return false, nil
	}
	c := operations.Chunk{NotedAt: now, DueAt: job.Later(o.DueAt, now), Rate: o.Rate}
	if o.Type == operations.TypeRedrive {
		before := o.Cursor
		left, err := r.again(ctx, t, o, book, &c, now.Add(r.Ahead))
		if err != nil {
			return false, err
		}
		return took(o, &c, left, o.Read || o.Cursor != before), nil
	}
	j, d, err := r.definition(ctx, o.JobID, o.DefinitionID)
	switch {
	case errors.Is(err, jobstore.ErrNotFound) || err == nil && j.Deleted:
		o.End(operations.StatusFailed, "the job was deleted", now)
		return true, nil
	case errors.Is(err, errGone):
		o.End(operations.StatusFailed, "the definition of the job with which it began is no longer kept", now)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read the job: %w", err)
	case j.Status == job.StatusCancelled:
		o.End(operations.StatusFailed, "the job was cancelled", now)
		return true, nil
	}
	last, left := jobstore.Cursor{NominalAt: o.Last, ExecutionID: o.LastExecution}, false
	if o.Type == operations.TypeReplay {
		left, err = r.repeat(ctx, o, &j, &c, now.Add(r.Ahead))
	} else {
		left, err = fill(o, d, &c, now.Add(r.Ahead))
	}
	if errors.Is(err, errSchedule) {
		o.End(operations.StatusFailed, "its schedule cannot be read by this release, or by its time zone data", now)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return took(o, &c, left, last != jobstore.Cursor{NominalAt: o.Last, ExecutionID: o.LastExecution}), nil
}

// took notes what was taken for an operation, or that nothing is left. It reports whether that is to be noted: further, whether the operation was
// looked through any further.
func took(o *operations.Operation, c *operations.Chunk, left, further bool) bool {
	switch {
	case len(c.At) > 0:
		o.Chunk, o.DueAt = c, c.Due(len(c.At))
	case !left:
		o.End(operations.StatusDone, "", c.NotedAt)
	case !further:
		return false
	}
	o.UpdatedAt = c.NotedAt
	return true
}

// fill takes the next instants of a backfill that are due until then, at most [operations.MaxChunk]. left is false if there is no other.
func fill(o *operations.Operation, d *job.Definition, c *operations.Chunk, until time.Time) (left bool, err error) {
	plan, err := schedule.Compile(d.Schedule, o.JobID)
	if err != nil {
		return false, errSchedule
	}
	for len(c.At) < operations.MaxChunk && !c.Due(len(c.At)).After(until) {
		at, ok := following(plan, o)
		if !ok {
			return false, nil
		}
		c.At, o.Last = append(c.At, at.UnixMilli()), at
	}
	return true, nil
}

// following returns the instant of a backfill that follows the last one.
func following(plan *schedule.Plan, o *operations.Operation) (at time.Time, ok bool) {
	switch {
	case o.Order == operations.NewestFirst && o.Last.IsZero():
		at, ok = plan.Prev(o.To)
	case o.Order == operations.NewestFirst:
		at, ok = plan.Prev(o.Last)
	case o.Last.IsZero():
		at, ok = plan.First(o.From)
	default:
		at, ok = plan.Next(o.Last)
	}
	return at, ok && !at.Before(o.From) && at.Before(o.To)
}
