package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// lookWithin is how long an answer waits for the look into the hot bucket.
	lookWithin = 250 * time.Millisecond
	// stillHotFor is how long an entry is looked for that is still in its hot bucket. Who removes it later has published it later, too.
	stillHotFor = 30 * time.Second
	// maxStillHot bounds the entries that are looked for.
	maxStillHot = 1000
)

// stillHot is an entry that was still in its hot bucket when it was to be fired again.
type stillHot struct {
	entry job.Entry
	until time.Time
}

// fireAgain lets an entry be judged and fired again: it goes back to its hot bucket. A worker may give a task back so soon that the entry is still
// there: the owner of the partition removes it half a second after its instant, or later if it stalls. What was added before would go with it, and come
// again only when it is put back, after a minute. So such an entry is added when it is gone.
//
// What this process forgets of that is put back, and what is added twice makes a second fire, which executors recognise.
func (ts *Tasks) fireAgain(ctx context.Context, e job.Entry) {
	look, cancel := context.WithTimeout(ctx, lookWithin)
	gone, err := ts.deps.Hot.Absent(look, []*job.Entry{&e})
	cancel()
	if err == nil && len(gone) > 0 || !ts.keep(stillHot{e, ts.deps.Clock.Now().Add(stillHotFor)}) {
		ts.deps.Near(ctx, []job.Entry{e})
	}
}

// keep lets an entry be looked for, if there is room.
func (ts *Tasks) keep(list ...stillHot) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.stillHot)+len(list) > maxStillHot {
		return false
	}
	ts.stillHot = append(ts.stillHot, list...)
	return true
}

// fireGone fires the entries again that are gone from their hot buckets, unless somebody has their attempts by now. It looks for the others
// again.
func (ts *Tasks) fireGone(ctx context.Context) error {
	ts.mu.Lock()
	list := ts.stillHot
	ts.stillHot = nil
	ts.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	entries, keys := make([]*job.Entry, len(list)), make([]attempts.Key, len(list))
	for i := range list {
		entries[i], keys[i] = &list[i].entry, attempts.KeyOf(&list[i].entry)
	}
	gone := map[job.Locator]bool{}
	absent, err := ts.deps.Hot.Absent(ctx, entries)
	for _, l := range absent {
		gone[l] = true
	}
	var records []attempts.Record
	if err == nil {
		records, err = ts.deps.Records.Lookup(ctx, keys)
	}
	now := ts.deps.Clock.Now()
	var again []job.Entry
	var left []stillHot
	for i, one := range list {
		switch over := !now.Before(one.until); {
		case err == nil && gone[one.entry.Locator]:
			if !records[i].Alive(now) {
				again = append(again, one.entry)
			}
		case err != nil && over: // it is not known
			again = append(again, one.entry)
		case !over:
			left = append(left, one)
		}
	}
	if !ts.keep(left...) {
		for _, one := range left {
			again = append(again, one.entry)
		}
	}
	if len(again) > 0 {
		ts.deps.Near(ctx, again)
	}
	if err != nil {
		return fmt.Errorf("look for what is to be fired again: %w", err)
	}
	return nil
}
