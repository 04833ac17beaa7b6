package servers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/wire"
)

// Record implements jobstore.History.
func (c *Cold) Record(_ context.Context, events []jobstore.Recorded) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		if c.events[e.HistoryID()] == nil {
			c.events[e.HistoryID()] = map[string]job.Event{}
		}
		c.events[e.HistoryID()][e.ID] = *e.Event
	}
	return nil
}

// Executions implements jobstore.History.
func (c *Cold) Executions(
	_ context.Context, of jobstore.Of, before jobstore.Cursor, oldest time.Time, limit int,
) ([]job.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []job.Event
	first := c.firstRun(of)
	for _, e := range c.events[of.ID] {
		at, id := e.Place()
		if jobstore.OfOneShot(&e) && !at.Equal(first) {
			continue // as where it is kept by its instant
		}
		if at.Before(oldest) || !before.Follows(at, id) {
			continue
		}
		events = append(events, e)
	}
	slices.SortFunc(events, jobstore.ByPlace)
	return events[:min(limit, len(events))], nil
}

// firstRun returns the instant of a job's first definition; zero if it is no one-shot, or not there.
func (c *Cold) firstRun(of jobstore.Of) time.Time {
	if !of.Updated {
		return of.RunsAt
	}
	for id, row := range c.definitions[of.ID] {
		if d, err := wire.UnmarshalDefinition(row); err == nil && job.FirstDefinition(of.ID, id) {
			return d.Schedule.RunAt
		}
	}
	return time.Time{}
}

// Execution implements jobstore.History.
func (c *Cold) Execution(_ context.Context, executionID string) ([]job.Event, error) {
	ref, err := job.ParseExecutionID(executionID)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []job.Event
	for _, e := range c.events[ref.HistoryID()] {
		if _, id := e.Place(); id == executionID {
			events = append(events, e)
		}
	}
	slices.SortFunc(events, jobstore.ByPlace)
	return events, nil
}

// Forget implements jobstore.History.
func (c *Cold) Forget(_ context.Context, of jobstore.Of) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.firstRun(of)
	maps.DeleteFunc(c.events[of.ID], func(_ string, e job.Event) bool { return !jobstore.OfOneShot(&e) || e.Entry.NominalAt.Equal(first) })
	return nil
}

// RemoveDeadLetters implements jobstore.History.
func (c *Cold) RemoveDeadLetters(_ context.Context, tenant job.Tenant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.letters = slices.DeleteFunc(c.letters, func(d job.DeadLetter) bool { return d.Event.Entry.Tenant == tenant })
	return nil
}

// PutDeadLetter implements jobstore.History.
func (c *Cold) PutDeadLetter(_ context.Context, d job.DeadLetter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.letter(d.Event.Entry.ExecutionID); i >= 0 {
		d.RedrivenBy = c.letters[i].RedrivenBy
		c.letters[i] = d
		return nil
	}
	c.letters = append(c.letters, d)
	slices.SortStableFunc(c.letters, func(a, b job.DeadLetter) int {
		return cmp.Or(day(b).Compare(day(a)), cmp.Compare(a.Event.Entry.ExecutionID, b.Event.Entry.ExecutionID))
	})
	return nil
}

func day(d job.DeadLetter) time.Time { return d.Event.Entry.NominalAt.Truncate(24 * time.Hour) }

func (c *Cold) letter(executionID string) int {
	return slices.IndexFunc(c.letters, func(d job.DeadLetter) bool { return d.Event.Entry.ExecutionID == executionID })
}

// MarkRedriven implements jobstore.History.
func (c *Cold) MarkRedriven(_ context.Context, d job.DeadLetter, executionID string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.letter(d.Event.Entry.ExecutionID); i >= 0 {
		c.letters[i].RedrivenBy = executionID
	}
	return nil
}

// DeadLetters implements jobstore.History. A cursor is the execution id of a page's last letter.
func (c *Cold) DeadLetters(
	_ context.Context, tenant job.Tenant, cursor string, limit int,
) (page []job.DeadLetter, next string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := 0
	if cursor != "" {
		if from = c.letter(cursor) + 1; from == 0 {
			return nil, "", jobstore.ErrNotFound
		}
	}
	for _, d := range c.letters[from:] {
		if d.Event.Entry.Tenant != tenant {
			continue
		}
		page = append(page, d)
		if len(page) == limit {
			return page, d.Event.Entry.ExecutionID, nil
		}
	}
	return page, "", nil
}
