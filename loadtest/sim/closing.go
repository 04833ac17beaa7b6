package sim

import (
	"errors"
	"maps"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// bucketOf is a bucket of the cold store.
type bucketOf struct {
	partition int
	minute    int64
}

// saw notes that a loader reads which rows are in the buckets of [from, to), as far as these may be closed in the run.
func (p *process) saw(partition int, from, to int64) {
	if p.kind != "bucket-loader" {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[bucketOf]time.Time{}
	}
	for m := from; m < min(to, job.Minute(now)); m++ {
		p.seen[bucketOf{partition, m}] = now
	}
}

// closes returns the check of I9 for a close that the process sends now: of a bucket everything is done. What a client's writer wrote too late,
// and after the process had last read the bucket, counts as done.
func (p *process) closes() (closing func(rows []job.PendingRow)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := maps.Clone(p.seen)
	return func(rows []job.PendingRow) {
		for _, r := range rows {
			read, ok := seen[bucketOf{r.Partition, r.Minute}]
			if !r.Done && (!ok || !p.w.cameLate(r.Locator).After(read)) {
				p.w.violate("I9", r.JobID, "a bucket was closed in which %s is not done", locatorKey(r.Locator))
			}
		}
	}
}

// puts notes which rows a client's writer adds so late that their buckets may be closed. It took longer than half of the grace by its own
// clock, so it writes them again, into the current minute, before it answers.
func (w *world) puts(p *process, entries []job.Entry) {
	if p.kind != "job-api" {
		return
	}
	for i := range entries {
		e := &entries[i]
		open := time.Since(job.MinuteStart(e.Minute+1)) < jobstore.ClosesAfter
		if open || p.clock.Since(e.WrittenAt) <= jobapi.DefaultConfig().Grace/2 {
			continue
		}
		if _, err := w.cold.Row(w.base, e.Locator); errors.Is(err, jobstore.ErrNotFound) {
			w.addedLate(e.Locator)
		}
	}
}

func (w *world) addedLate(l job.Locator) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == nil {
		w.late = map[job.Locator]time.Time{}
	}
	w.late[l] = time.Now()
}

// cameLate returns when a client's writer added a row too late; zero if none did.
func (w *world) cameLate(l job.Locator) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.late[l]
}
