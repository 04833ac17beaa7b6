package writes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// floor returns the instant in whose bucket a try writes a new job's first entry, unless that is due later. Tries soon
// after the job was accepted write the same row; a later try may find that row's bucket closed, or the entry dropped.
func (ws *Writes) floor(acceptedAt time.Time) time.Time {
	if ws.tookTooLong(acceptedAt) {
		return job.Instant(ws.deps.Clock.Now())
	}
	return acceptedAt
}

// firstEntry returns a new job's first entry. It names the entry it repeats if the previous try wrote into another
// instant's bucket.
func (ws *Writes) firstEntry(l *occurrence.Series, partition int, floor, before time.Time) (job.Entry, bool) {
	e, ok := l.First(partition, job.Instant(ws.deps.Clock.Now()))
	e = job.NewEntry(e, floor)
	if m := job.Minute(job.Later(e.DueAt, before)); m != e.Minute {
		e.Repeats = m
	}
	return e, ok
}

// creation returns the entry by which the creation of a job becomes known, for a try that writes into an instant's bucket. Its id
// follows from the job's, so that every try tells of the same change.
func (ws *Writes) creation(r *edge.Request, j *job.Job, floor, written time.Time) job.Entry {
	l := job.ChangeLocator(bucket.Partition(j.ID, ws.cfg.Partitions), j.ID, job.CreationRef(j.ID).ID)
	e := job.NewChange(l, j.ID, j.Tenant, job.Change{Operation: r.Operation, Version: 1}, r.Author())
	e.WrittenAt = written
	return job.NewEntry(e, floor)
}

// tellCreation makes sure that the creation of a job which has begun becomes known. Its entry, which is due at once, may have been dropped
// by a worker that found no row, while the job's first entry was not due yet.
func (ws *Writes) tellCreation(ctx context.Context, r *edge.Request, j *job.Job) error {
	now := job.Instant(ws.deps.Clock.Now())
	e := ws.creation(r, j, now, now)
	events, err := ws.deps.History.Execution(ctx, e.ExecutionID)
	if err != nil {
		return fmt.Errorf("read history of change %s: %w", e.ExecutionID, err)
	}
	if len(events) > 0 {
		return nil
	}
	return ws.putAgain(ctx, e)
}

// putAgain makes an entry durable in a bucket that cannot have closed, and hot.
func (ws *Writes) putAgain(ctx context.Context, e job.Entry) error {
	if err := ws.deps.Pending.Put(ctx, []job.Entry{e}); err != nil {
		return fmt.Errorf("put entry of change %s: %w", e.ExecutionID, err)
	}
	e, err := ws.revive(ctx, e)
	if err == nil {
		ws.Near(ctx, []job.Entry{e})
	}
	return err
}

// repeat returns the entry in the bucket of at.
func repeat(e job.Entry, at time.Time) job.Entry {
	again := job.NewEntry(e, at)
	if again.Repeats == 0 && again.Minute != e.Minute {
		again.Repeats = e.Minute
	}
	return again
}

// revive makes sure, after its job's row was written, that an entry exists which is not done and will not be dropped. An
// earlier entry of the same key may have been dropped meanwhile, and a done one stays done. An entry whose grace is over
// may be dropped at any time, by a worker that looked for the row before it was there. Then the entry is written into the
// next minute. (If it is done because it fired, or fires after all, the second fire meets the outcome of the first.)
func (ws *Writes) revive(ctx context.Context, e job.Entry) (job.Entry, error) {
	for {
		row, err := ws.deps.Pending.Row(ctx, e.Locator)
		inGrace := ws.deps.Clock.Since(row.WrittenAt) < ws.cfg.Grace-clock.MaxDifference
		if err == nil && !row.Done && inGrace {
			return e, nil
		}
		if err != nil && !errors.Is(err, jobstore.ErrNotFound) {
			return e, fmt.Errorf("read entry of execution %s: %w", e.ExecutionID, err)
		}
		e.WrittenAt = job.Instant(ws.deps.Clock.Now())
		e = repeat(e, job.MinuteStart(max(e.Minute, job.Minute(e.WrittenAt))+1))
		if err := ws.deps.Pending.Put(ctx, []job.Entry{e}); err != nil {
			return e, fmt.Errorf("put entry of execution %s: %w", e.ExecutionID, err)
		}
	}
}

// reviveAll is revive for several entries. One that tells of a change and is done was dropped if nothing of it is in the history.
func (ws *Writes) reviveAll(ctx context.Context, entries []job.Entry) error {
	for i := range entries {
		e := &entries[i]
		if e.Change != nil {
			events, err := ws.deps.History.Execution(ctx, e.ExecutionID)
			if err != nil {
				return fmt.Errorf("read history of change %s: %w", e.ExecutionID, err)
			}
			if len(events) > 0 {
				continue
			}
		}
		var err error
		if *e, err = ws.revive(ctx, *e); err != nil {
			return err
		}
	}
	return nil
}

// putAll makes entries that follow from an API write durable, and hot.
func (ws *Writes) putAll(ctx context.Context, r *edge.Request, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	by := r.Author()
	for {
		began := job.Instant(ws.deps.Clock.Now())
		for i := range entries {
			entries[i].WrittenAt, entries[i].Trace, entries[i].By = began, trace.Of(ctx), &by
			entries[i] = job.NewEntry(entries[i], began)
		}
		if err := ws.deps.Pending.Put(ctx, entries); err != nil {
			return fmt.Errorf("put entries of %d executions, first %s: %w", len(entries), entries[0].ExecutionID, err)
		}
		if !ws.tookTooLong(began) {
			ws.Near(ctx, entries)
			return nil
		}
	}
}

// tookTooLong reports whether half of the grace has passed since an instant, so that an entry written then may be dropped
// before its row exists.
func (ws *Writes) tookTooLong(began time.Time) bool {
	return ws.deps.Clock.Since(began) > ws.cfg.Grace/2
}
