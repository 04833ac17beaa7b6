package writes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/trace"
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
	if m := job.NewEntry(e, before).Minute; m != e.Minute {
		e.Repeats = m
	}
	return e, ok
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

// putAll makes entries that follow from an API write durable, and hot.
func (ws *Writes) putAll(ctx context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	for {
		began := job.Instant(ws.deps.Clock.Now())
		for i := range entries {
			entries[i].WrittenAt, entries[i].Trace = began, trace.Of(ctx)
			entries[i] = job.NewEntry(entries[i], began)
		}
		if err := ws.deps.Pending.Put(ctx, entries); err != nil {
			return fmt.Errorf("put entries of %d executions, first %s: %w", len(entries), entries[0].ExecutionID, err)
		}
		if !ws.tookTooLong(began) {
			ws.writeThrough(ctx, entries)
			return nil
		}
	}
}

// tookTooLong reports whether half of the grace has passed since an instant, so that an entry written then may be dropped
// before its row exists.
func (ws *Writes) tookTooLong(began time.Time) bool {
	return ws.deps.Clock.Since(began) > ws.cfg.Grace/2
}
