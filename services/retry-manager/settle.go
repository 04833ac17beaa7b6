package retrymanager

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// batch gathers what a run of events writes. marked holds the batch's own marks that are not written yet: the settler must
// see them, or an outcome published twice in one batch would be settled twice.
type batch struct {
	entries []job.Entry
	letters []job.DeadLetter
	marks   []job.Locator
	marked  map[job.Locator]bool
	// ended are the marks without an outcome behind them: any later event of the batch finds a row that is done, as it would
	// in the next batch.
	ended map[job.Locator]bool
	// deferred are rows whose attempts are due again in another row; rows holds both as the batch leaves them.
	deferred []job.Locator
	rows     map[job.Locator]job.PendingRow
	// queues are the jobs of attempts that have ended and for which others may wait.
	queues map[string]bool
	// paused are the executions because of which their jobs are paused.
	paused map[string]bool
	// endings are the ends of executions that others may follow.
	endings []ending
}

func (b *batch) mark(l job.Locator) {
	if !b.marked[l] {
		b.marked[l] = true
		b.marks = append(b.marks, l)
	}
}

// onlyMarks reports whether an event does no more than end its entry.
func onlyMarks(e *job.Event) bool {
	return !follows(e) && e.Type != job.EventDeferred && (e.Type != job.EventAttempt || !e.Outcome.Failed())
}

// follows reports whether an event is a success that others may follow.
func follows(e *job.Event) bool {
	return e.Entry.Followed && e.Type == job.EventAttempt && e.Outcome.Kind == job.OutcomeSucceeded
}

// handle carries out step 7 of services/README.md for one event.
func (s *Service) handle(ctx context.Context, b *batch, e *job.Event) error {
	l := e.Entry.Locator
	switch {
	case e.Type == job.EventSkipped:
		return nil // reports occurrences that have no entry
	case e.Type == job.EventReleased:
		if !b.marked[l] {
			b.ended[l] = true
		}
		b.mark(l)
		return nil
	case follows(e):
		row, known := b.rows[l]
		s.end(b, e, !known || row.Done)
		b.mark(l)
		return nil
	case e.Type == job.EventChange, e.Type == job.EventAttempt && !e.Outcome.Failed():
		b.mark(l)
		return nil
	}
	row, err := s.standing(ctx, b, e)
	if err != nil || row == nil {
		return err
	}
	if row.Locator != l {
		moved := *e
		moved.Entry = row.Entry
		moved.Entry.Followed = e.Entry.Followed // the row was written before it was known
		e = &moved
	}
	switch {
	case e.Type == job.EventDeferred && row.Done:
		return nil // settled before
	case e.Type == job.EventDeferred:
		later := Deferred(e)
		b.entries = append(b.entries, later)
		row.Done, row.DeferredTo = true, later.DueAt
		b.deferred = append(b.deferred, l)
		b.rows[l], b.rows[later.Locator] = *row, job.PendingRow{Entry: later}
		return nil
	case row.Done:
		return s.handleOvertaken(ctx, b, e)
	}
	return s.handleFailure(ctx, b, e)
}

// handleOvertaken handles a failure whose row is done. As a rule it was settled before. But an executor may have stalled
// while it called the target, the hot tier may have forgotten that call, and an update or another executor may have ended
// the entry meanwhile. Or an executor that was told to stop stalled before it said so, and another took its lease. Then no
// follow-up is on record: what was invoked in vain is a dead letter.
//
// An attempt may also end twice, first as lost, and once more after the hot tier forgot that. What follows it was written for the first end,
// which the history has, unless it is behind. A dead letter is of the end that completed first, of those that the history has: a later instant would
// take it out of what was to be redriven.
func (s *Service) handleOvertaken(ctx context.Context, b *batch, e *job.Event) error {
	told, err := s.deps.History.Execution(ctx, e.Entry.ExecutionID)
	if err != nil {
		return err
	}
	ends, first := []*job.Event{e}, e
	for i := range told {
		if told[i].Type == job.EventAttempt && (told[i].Entry.Attempt > e.Entry.Attempt || !told[i].Outcome.Failed()) {
			return nil
		}
		if told[i].Type == job.EventAttempt && told[i].Entry.Attempt == e.Entry.Attempt && told[i].ID != e.ID {
			ends = append(ends, &told[i])
			if told[i].Outcome.Timeline.Completed.Before(first.Outcome.Timeline.Completed) {
				first = &told[i]
			}
		}
	}
	_, reason := first.Next()
	for _, end := range ends {
		next, never := end.Next()
		if never != "" {
			continue
		}
		if _, err := s.deps.Pending.Row(ctx, next.Locator); !errors.Is(err, jobstore.ErrNotFound) {
			return err
		}
	}
	if reason == "" {
		reason = "overtaken"
	}
	s.giveUp(b, first, reason)
	s.end(b, e, true)
	return nil
}

// readRows reads, many at once, the rows of a batch's events that need theirs.
func (s *Service) readRows(ctx context.Context, b *batch, events []*job.Event) error {
	asked := map[job.Locator]job.Entry{}
	var locators []job.Locator
	for _, e := range events {
		_, known := asked[e.Entry.Locator]
		if !known && !onlyMarks(e) {
			asked[e.Entry.Locator] = e.Entry
			locators = append(locators, e.Entry.Locator)
		}
	}
	for chunk := range slices.Chunk(locators, jobstore.MaxGetMany) {
		rows, err := s.deps.Pending.Rows(ctx, chunk)
		if err != nil {
			return err
		}
		for _, l := range chunk {
			row, found := rows[l]
			if !found {
				row = job.PendingRow{Entry: asked[l], Done: true}
			}
			b.rows[l] = row
		}
	}
	return nil
}

// standing returns the row that stands for the event's attempt. It is a done row if there is none, and nil if this batch
// marks it because of an outcome.
//
// If two executors had an attempt, one may have deferred it while the other's failed. Then the deferred one's row is
// settled. Otherwise nobody would settle it: by the time it is due the hot tier may have forgotten the outcome, and an
// update made it outdated.
func (s *Service) standing(ctx context.Context, b *batch, e *job.Event) (*job.PendingRow, error) {
	entry := e.Entry
	for range maxDeferrals {
		if b.ended[entry.Locator] {
			return &job.PendingRow{Entry: entry, Done: true}, nil
		}
		if b.marked[entry.Locator] {
			return nil, nil
		}
		row, known := b.rows[entry.Locator]
		if !known {
			var err error
			row, err = s.deps.Pending.Row(ctx, entry.Locator)
			if errors.Is(err, jobstore.ErrNotFound) {
				row = job.PendingRow{Entry: entry, Done: true}
			} else if err != nil {
				return nil, err
			}
		}
		if !row.Done || e.Type == job.EventDeferred || row.DeferredTo.IsZero() {
			return &row, nil
		}
		entry = deferred(row.Entry, row.DeferredTo)
	}
	return nil, nil
}

// maxDeferrals bounds how far an attempt is followed from row to row.
const maxDeferrals = 1000

// Deferred returns the entry of a deferred attempt: the same attempt, later. It continues what was taken before, so no late
// rule applies to it and no successor follows.
func Deferred(e *job.Event) job.Entry {
	next := deferred(e.Entry, e.DeferUntil)
	next.WrittenAt = e.At
	return next
}

// giveUp makes an execution a dead letter, unless it was a replay that went elsewhere: to redrive that would be to call the job's target.
func (s *Service) giveUp(b *batch, e *job.Event, reason string) {
	if e.Entry.Elsewhere() == nil {
		b.letters = append(b.letters, job.DeadLetter{Event: *e, Reason: reason, At: e.Outcome.Timeline.Completed})
		s.metrics.gaveUp(e.Target.Host)
	}
}

func deferred(e job.Entry, until time.Time) job.Entry {
	e.DueAt, e.Chained = until, true
	return job.NewEntry(e, job.MinuteStart(e.Minute))
}

func (s *Service) handleFailure(ctx context.Context, b *batch, e *job.Event) error {
	if e.Outcome.PauseJob && e.Entry.Elsewhere() == nil { // an executor of the release before says so also of what went elsewhere
		paused, err := s.pause(ctx, e)
		if err != nil {
			return err
		}
		if paused {
			b.paused[e.Entry.ExecutionID] = true
		}
	}
	next, reason := e.Next()
	if reason == "" {
		b.entries = append(b.entries, next)
		s.metrics.retries.Inc()
	} else {
		s.giveUp(b, e, reason)
		s.end(b, e, false)
	}
	b.mark(e.Entry.Locator)
	return nil
}

// pause pauses a job whose target is gone for good, unless the job was updated since. It reports whether the job is paused.
func (s *Service) pause(ctx context.Context, e *job.Event) (paused bool, err error) {
	j, err := s.deps.Jobs.Get(ctx, e.Entry.JobID)
	if err == nil && j.Definition.ID == e.Entry.DefinitionID {
		paused = true
		var changed jobchange.Changed
		if changed, err = s.change.Pause(ctx, j.Tenant, j.ID, job.Author{Subject: "retry-manager", Role: job.SystemRole}); err == nil {
			err = s.addNear(ctx, changed.Entries)
		}
	}
	if errors.Is(err, jobstore.ErrNotFound) || errors.Is(err, jobchange.ErrCancelled) {
		return false, nil
	}
	return paused, err
}
