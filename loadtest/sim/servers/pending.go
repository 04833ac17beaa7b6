package servers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// compareLocators orders the rows of a bucket.
func compareLocators(a, b job.Locator) int {
	return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.ExecutionID, b.ExecutionID), cmp.Compare(a.Attempt, b.Attempt),
		cmp.Compare(a.DefinitionID, b.DefinitionID))
}

func (m *minute) find(l job.Locator) (int, bool) {
	return slices.BinarySearchFunc(m.rows, l, func(r job.PendingRow, l job.Locator) int { return compareLocators(r.Locator, l) })
}

// row returns the row at l, nil if there is none.
func (c *Cold) row(l job.Locator) *job.PendingRow {
	if m := c.buckets[l.Partition][l.Minute]; m != nil {
		if i, found := m.find(l); found {
			return &m.rows[i]
		}
	}
	return nil
}

// Put implements jobstore.Pending.
func (c *Cold) Put(_ context.Context, entries []job.Entry) error { return c.PutAt(time.Now(), entries) }

// PutAt is a Put sent at an instant: a bucket that was closed since then stays as it is, because the delete is newer.
func (c *Cold) PutAt(sent time.Time, entries []job.Entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if e.Repeats != 0 {
			c.repeated[e.JobID] = Repeat{At: time.Now(), NominalAt: e.NominalAt}
		}
		if closed, ok := c.closed[[2]int64{int64(e.Partition), e.Minute}]; ok && !sent.After(closed) || c.buried[e.Locator] {
			continue
		}
		m := c.buckets[e.Partition][e.Minute]
		if m == nil {
			m = &minute{}
			c.buckets[e.Partition][e.Minute] = m
		}
		if i, found := m.find(e.Locator); !found {
			m.rows = slices.Insert(m.rows, i, job.PendingRow{Entry: e})
		}
	}
	return nil
}

// MarkDone implements jobstore.Pending.
func (c *Cold) MarkDone(_ context.Context, locators []job.Locator) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range locators {
		if row := c.row(l); row != nil && l.Minute >= c.low[l.Partition] {
			row.Done = true
		}
	}
	return nil
}

// Defer implements jobstore.Pending.
func (c *Cold) Defer(_ context.Context, l job.Locator, to time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if row := c.row(l); row != nil && l.Minute >= c.low[l.Partition] {
		row.Done, row.DeferredTo = true, job.Instant(to)
	}
	return nil
}

// Decide implements jobstore.Pending.
func (c *Cold) Decide(_ context.Context, l job.Locator, d job.Decision) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if row := c.row(l); row != nil {
		row.Decision = copyDecision(&d)
	}
	return nil
}

func copyDecision(d *job.Decision) *job.Decision {
	if d == nil {
		return nil
	}
	own := *d
	if d.Skipped != nil {
		r := *d.Skipped
		own.Skipped = &r
	}
	return &own
}

func copyRow(r *job.PendingRow) job.PendingRow {
	own := *r
	own.Decision = copyDecision(r.Decision)
	return own
}

// Row implements jobstore.Pending.
func (c *Cold) Row(_ context.Context, l job.Locator) (job.PendingRow, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if row := c.row(l); row != nil {
		return copyRow(row), nil
	}
	return job.PendingRow{}, jobstore.ErrNotFound
}

// Rows implements jobstore.Pending.
func (c *Cold) Rows(_ context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := map[job.Locator]job.PendingRow{}
	for _, l := range locators {
		if row := c.row(l); row != nil {
			rows[l] = copyRow(row)
		}
	}
	return rows, nil
}

// Scan implements jobstore.Pending.
func (c *Cold) Scan(
	_ context.Context, partition int, min int64, after *job.Locator, limit int,
) (rows []job.PendingRow, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.buckets[partition][min]
	if m == nil {
		return nil, nil
	}
	from := 0
	if after != nil {
		i, found := m.find(*after)
		if from = i; found {
			from++
		}
	}
	for i := from; i < len(m.rows) && len(rows) < limit; i++ {
		rows = append(rows, copyRow(&m.rows[i]))
	}
	return rows, nil
}

// Heads implements jobstore.Pending.
func (c *Cold) Heads(_ context.Context, partition int, from, to int64, limit int) (rows []job.PendingRow, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m := from; m < to; m++ {
		b := c.buckets[partition][m]
		for i := 0; b != nil && i < min(len(b.rows), limit); i++ {
			rows = append(rows, copyRow(&b.rows[i]))
		}
	}
	return rows, nil
}

// FirstOpen implements jobstore.Pending.
func (c *Cold) FirstOpen(_ context.Context, partition int, from, to int64) (first int64, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m, b := range c.buckets[partition] {
		if m >= from && m < to && len(b.rows) > 0 && (!ok || m < first) {
			first, ok = m, true
		}
	}
	return first, ok, nil
}

// LowWater implements jobstore.Pending.
func (c *Cold) LowWater(_ context.Context, partition int) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if partition < 0 || partition >= len(c.low) {
		return 0, jobstore.ErrNoProgress
	}
	return c.low[partition], nil
}

// Close implements jobstore.Pending.
func (c *Cold) Close(_ context.Context, partition int, min int64) error {
	return c.CloseAnd(partition, min, func([]job.PendingRow) {})
}

// CloseAnd is a Close that shows the rows of each bucket before it is deleted.
func (c *Cold) CloseAnd(partition int, min int64, closing func(rows []job.PendingRow)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m, b := range c.buckets[partition] {
		if m >= c.low[partition] && m < min {
			closing(b.rows)
			delete(c.buckets[partition], m)
			c.closed[[2]int64{int64(partition), m}] = time.Now()
		}
	}
	c.low[partition] = max(c.low[partition], min)
	return nil
}

// LoseEntry removes the row from which the schedule of a job goes on, unless it may be in a worker's hands. If it is buried, nothing is written
// there any more, as where a deletion counts for more than any put.
func (c *Cold) LoseEntry(jobID string, bury bool) (l job.Locator, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heads := 0
	for _, buckets := range c.buckets {
		for _, m := range buckets {
			for i := range m.rows {
				if r := &m.rows[i]; r.JobID == jobID && r.FirstOfSchedule() && !r.Chained && !r.Done {
					l = r.Locator
					heads++
				}
			}
		}
	}
	if heads != 1 || time.Until(l.DueAt) < 5*time.Second {
		return l, false
	}
	m := c.buckets[l.Partition][l.Minute]
	m.rows = slices.DeleteFunc(m.rows, func(r job.PendingRow) bool { return r.Locator == l })
	if bury {
		c.buried[l] = true
	}
	return l, true
}

// Open returns every row that exists.
func (c *Cold) Open() (rows []job.PendingRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, buckets := range c.buckets {
		for _, m := range slices.Sorted(maps.Keys(buckets)) {
			if m < c.low[p] {
				continue // written by a process that stalled until the bucket was closed; nobody reads it
			}
			for i := range buckets[m].rows {
				rows = append(rows, copyRow(&buckets[m].rows[i]))
			}
		}
	}
	return rows
}
