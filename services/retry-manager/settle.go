package settler

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// batch gathers what a run of events writes. marked holds its own marks that are not written yet: the settler must see
// them, or an outcome told twice in one batch would be settled twice.
type batch struct {
	entries []job.Entry
	letters []job.DeadLetter
	marks   []job.Locator
	marked  map[job.Locator]bool
}

func (b *batch) mark(l job.Locator) {
	if !b.marked[l] {
		b.marked[l] = true
		b.marks = append(b.marks, l)
	}
}

// handle carries out step 7 for one event.
func (s *Service) handle(ctx context.Context, b *batch, e *job.Event) error {
	l := e.Entry.Locator
	switch {
	case e.Type == job.EventSkipped:
		return nil // tells of occurrences that have no entry
	case e.Type == job.EventReleased || e.Type == job.EventAttempt && !failed(&e.Outcome):
		b.mark(l)
		return nil
	}
	if b.marked[l] {
		return nil
	}
	row, err := s.deps.Pending.Row(ctx, l)
	if errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Done {
		return nil // settled before
	}
	if err != nil {
		return err
	}
	if e.Type == job.EventDeferred {
		b.entries = append(b.entries, Deferred(e))
		b.mark(l)
		return nil
	}
	return s.handleFailure(ctx, b, e)
}

func failed(o *job.Outcome) bool {
	return o.Kind == job.Failed || o.Kind == job.TimedOut || o.Kind == job.WorkerLost
}

// Deferred is the entry of a deferred attempt: the same attempt, later. It carries on what was taken before, so no
// late rule applies to it and no successor follows.
func Deferred(e *job.Event) job.Entry {
	next := e.Entry
	next.DueAt, next.Chained, next.WrittenAt = e.DeferUntil, true, e.At
	return job.NewEntry(next, job.MinuteStart(e.Entry.Minute))
}

func (s *Service) handleFailure(ctx context.Context, b *batch, e *job.Event) error {
	if e.Outcome.PauseJob {
		if err := s.pause(ctx, e); err != nil {
			return err
		}
	}
	next, reason := Next(e)
	if reason == "" {
		b.entries = append(b.entries, next)
		s.metrics.retries.Inc()
	} else {
		b.letters = append(b.letters, job.DeadLetter{Event: *e, Reason: reason, At: e.Outcome.Timeline.Completed})
		s.metrics.deadLetters.Inc()
	}
	b.mark(e.Entry.Locator)
	return nil
}

// pause pauses the job whose target is gone for good, unless it was updated since.
func (s *Service) pause(ctx context.Context, e *job.Event) error {
	j, err := s.deps.Jobs.Get(ctx, e.Entry.JobID)
	if err == nil && j.Definition.ID == e.Entry.DefinitionID {
		_, err = s.change.Pause(ctx, j.ID, job.Instant(time.Now()))
	}
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil
	}
	return err
}

// Next is the entry of the attempt that follows a failed one, or the reason why there is none. It follows from the
// event alone, jitter and all.
func Next(e *job.Event) (next job.Entry, reason string) {
	if !e.Outcome.Retryable {
		return job.Entry{}, "permanent"
	}
	if e.Entry.Attempt >= e.Retry.MaxAttempts {
		return job.Entry{}, "max_attempts"
	}
	delay := max(e.Retry.Delay(e.Entry.ExecutionID, e.Entry.Attempt), e.Outcome.RetryAfter)
	due := e.Outcome.Timeline.Completed.Add(delay)
	if due.Sub(e.Entry.ScheduledFor) > e.Retry.Window {
		return job.Entry{}, "window"
	}
	next = e.Entry
	next.Attempt++
	next.DueAt, next.Chained, next.WrittenAt = job.Instant(due), false, e.Outcome.Timeline.Completed
	return job.NewEntry(next, job.MinuteStart(e.Entry.Minute)), ""
}
