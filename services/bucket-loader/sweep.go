package bucketloader

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// candidate is an entry that is past due, not done, not in its hot bucket and without a live lease. Once noted, it has the
// ends of the logs that were read after that was seen.
type candidate struct {
	entry job.Entry
	noted bool
	// events is the end that the settlers must pass: then every outcome that was published is marked.
	events dispatch.Position
	// fires is the end that the executors must pass, unless until comes first: then every fire that was published was met.
	fires dispatch.Position
	until time.Time
}

// closingSweep looks for candidates in all buckets whose minute has passed long enough ago. A sweep that found more than
// its share goes on as soon as half of that has been dispatched. So any number of overdue entries drains at the workers'
// pace, in bounded memory. It does not wait for entries that stay in their hot bucket for as long as a sweep waits (an
// operator holds them): they must not keep others from being put back.
func (s *Service) closingSweep(ctx context.Context, p *partition, now time.Time) error {
	if p.resume != nil {
		hot, err := s.stillHot(ctx, p.back)
		if err != nil {
			return err
		}
		if len(hot) < len(p.back) || p.backAt.IsZero() {
			p.back, p.backAt = hot, now
		}
		if now.Sub(p.backAt) >= s.cfg.CloseSweepAfter {
			p.back = nil
		}
		if len(p.candidates)+len(p.back) > s.share()/2 {
			return nil
		}
	}
	p.sweepAt = now.Add(s.cfg.CloseSweepAfter)
	return s.sweep(ctx, p, now, job.Minute(now.Add(-s.cfg.CloseSweepAfter)))
}

func (s *Service) stillHot(ctx context.Context, entries []*job.Entry) (hot []*job.Entry, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	gone, err := s.absent(ctx, entries)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !gone[e.Locator] {
			hot = append(hot, e)
		}
	}
	return hot, nil
}

// absent returns which of the entries are not in their hot buckets.
func (s *Service) absent(ctx context.Context, entries []*job.Entry) (map[job.Locator]bool, error) {
	absent, err := s.deps.Hot.Absent(ctx, entries)
	gone := make(map[job.Locator]bool, len(absent))
	for _, l := range absent {
		gone[l] = true
	}
	return gone, err
}

// quietShare is how long sweeps that found nothing missing pause, as a multiple of the time that they took, and quietMost how long a turn of all
// partitions takes at most: on a busy machine sweeps take long.
const (
	quietShare = 20
	quietMost  = time.Minute
)

// sweeping is a sweep of a partition in progress.
type sweeping struct {
	p   *partition
	now time.Time
	// from is where the last sweep reached its share, nil after that and if it found all; resume is where this one reaches
	// it.
	from, resume *job.Locator
	// waiting are candidates already; room is how many others there is room for.
	waiting map[job.Locator]bool
	room    int
	found   []job.Entry
}

// sweep reads the open buckets below end that are not known to be all done. It starts where the last sweep reached its
// share, or else at the first. A candidate that waits already is not noted twice.
func (s *Service) sweep(ctx context.Context, p *partition, now time.Time, end int64) error {
	began := s.deps.Clock.Now()
	if now.After(p.emptyUntil) {
		p.empty, p.emptyUntil = nil, now.Add(emptyFor)
	}
	maps.DeleteFunc(p.allDone, func(m int64, _ time.Time) bool { return m < s.lastFinal(now) }) // which counts no more
	w := &sweeping{p: p, now: now, from: p.resume, waiting: make(map[job.Locator]bool, len(p.candidates)), room: s.share() - len(p.candidates)}
	for _, c := range p.candidates {
		w.waiting[c.entry.Locator] = true
	}
	minute := p.low
	if w.from != nil {
		minute = w.from.Minute
	} else {
		p.oldestDue = time.Time{}
	}
	for ; w.resume == nil; minute++ {
		if minute = s.passDone(p, minute, now); minute >= end {
			break
		}
		asked := minute
		ok := true
		if minute+1 < end { // otherwise there is one bucket to read, which shows whether it is empty
			var err error
			minute, ok, err = s.firstOpen(ctx, p, asked, end)
			if err != nil {
				return err
			}
		}
		if !ok {
			minute = end
		}
		p.sawEmpty(asked, minute, s.lastFinal(now), now)
		if !ok {
			break
		}
		if err := s.sweepBucket(ctx, w, minute); err != nil {
			return err
		}
	}
	before := len(p.candidates)
	if err := s.note(ctx, p, w.found, now); err != nil {
		return err // the next sweep finds these entries again
	}
	p.found += len(w.found)
	s.endSweep(w, len(p.candidates)-before, s.deps.Clock.Since(began))
	return nil
}

// sweepBucket reads a bucket, unless it is known to be all done, and notes whether it is.
func (s *Service) sweepBucket(ctx context.Context, w *sweeping, minute int64) error {
	p, final := w.p, s.lastFinal(w.now)
	if w.from != nil && minute != w.from.Minute {
		w.from = nil
	}
	if p.isDone(minute, final) {
		return nil
	}
	done := w.from == nil
	err := s.pages(ctx, p, minute, w.from, func(rows []job.PendingRow) (more bool, err error) {
		for i := range rows {
			done = done && rows[i].Done
			if more = w.take(&rows[i]); !more {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	w.from = nil
	switch {
	case !done || w.resume != nil || !job.MinuteStart(minute+1).Before(w.now):
	case minute < final:
		p.done.add(minute, minute+1)
		delete(p.allDone, minute)
	default:
		p.allDone[minute] = w.now
	}
	return nil
}

// take notes a row that is past due and not done, and reports whether there is room for more.
func (w *sweeping) take(r *job.PendingRow) (more bool) {
	if r.Done || r.DueAt.After(w.now) {
		return true
	}
	if !r.InLine() && !r.Task && (w.p.oldestDue.IsZero() || r.DueAt.Before(w.p.oldestDue)) { // what waits in line or for a worker is not overdue
		w.p.oldestDue = r.DueAt
	}
	if w.waiting[r.Locator] {
		return true
	}
	if w.found = append(w.found, r.Entry); len(w.found) < w.room {
		return true
	}
	last := r.Locator
	w.resume = &last
	return false
}

// endSweep sets when the next sweep begins, from how long this one took and how many missing entries it found.
func (s *Service) endSweep(w *sweeping, missing int, took time.Duration) {
	p := w.p
	switch p.resume = w.resume; {
	case w.resume != nil && missing == 0:
		// All of them wait for their targets. There may be a million such entries, and the cost of a fire must not depend on
		// that: looking at them again takes a small part of the time, shared by all partitions.
		s.mu.Lock()
		pause := min(quietShare*took, quietMost/time.Duration(max(len(s.partitions), 1)))
		s.nextQuiet = job.Later(s.nextQuiet, w.now).Add(pause)
		p.sweepAt = s.nextQuiet
		s.mu.Unlock()
	case w.resume != nil:
		p.sweepAt = w.now
	case p.found == 0:
		p.back, p.backAt, p.passes, p.forgot = nil, time.Time{}, 0, false
	default:
		if p.forgot {
			p.passes++
		}
		p.back, p.backAt, p.found, p.forgot = nil, time.Time{}, 0, false
	}
}

// sawEmpty notes that nothing is in the buckets of [from, to): for a while, or, where a writer may still add to one, until that is over.
func (p *partition) sawEmpty(from, to, final int64, now time.Time) {
	p.empty.add(from, min(to, final))
	for m := max(from, final); m < to && !job.MinuteStart(m+1).After(now); m++ {
		p.allDone[m] = now
	}
}

// emptyFor is how long a bucket that was empty counts as empty.
const emptyFor = 10 * time.Minute

// lastFinal returns the first minute to which a client's writer may still add: writers may add until CloseAfter after a
// minute.
func (s *Service) lastFinal(now time.Time) int64 { return job.Minute(now.Add(-s.cfg.CloseAfter)) }

// passDone returns the first minute, from minute on, that must be asked for: the minutes before it need no read. A bucket
// that was seen done while a writer might still add to it is read once more after that.
func (s *Service) passDone(p *partition, minute int64, now time.Time) int64 {
	for {
		next := p.empty.end(p.done.end(minute))
		for p.isDone(next, s.lastFinal(now)) {
			next++
		}
		if next == minute {
			return minute
		}
		minute = next
	}
}

// isDone reports whether a bucket need not be read, because everything in it was seen done.
func (p *partition) isDone(minute, final int64) bool {
	_, ok := p.allDone[minute]
	return minute >= final && ok || p.done.end(minute) > minute
}

// note keeps the entries that are really missing. The next putBackAll notes the ends of the logs with them.
func (s *Service) note(ctx context.Context, p *partition, found []job.Entry, now time.Time) error {
	missing, err := s.missing(ctx, found, now)
	if err != nil {
		return err
	}
	for _, e := range missing {
		wait := s.cfg.PutBackWait << min(max(p.putBacks[e.Locator], p.passes), 6)
		p.candidates = append(p.candidates, candidate{entry: e, until: now.Add(wait)})
	}
	s.metrics.candidates.Add(float64(len(missing)))
	return nil
}

// missing returns the entries that are neither in their hot bucket nor under a live lease.
func (s *Service) missing(ctx context.Context, entries []job.Entry, now time.Time) ([]job.Entry, error) {
	var missing []job.Entry
	for len(entries) > 0 {
		n := min(len(entries), s.cfg.Page)
		page := entries[:n]
		entries = entries[n:]
		asked := make([]*job.Entry, n)
		keys := make([]attempts.Key, n)
		for i := range page {
			asked[i], keys[i] = &page[i], attempts.KeyOf(&page[i])
		}
		gone, err := s.absent(ctx, asked)
		if err != nil {
			return nil, err
		}
		records, err := s.deps.Records.Lookup(ctx, keys)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if gone[page[i].Locator] && !records[i].Alive(now) {
				missing = append(missing, page[i])
			}
		}
	}
	return missing, nil
}

// logs holds the ends of the logs, and how far the settlers and the executors have come.
type logs struct{ events, fires, settled, executed dispatch.Position }

// putBackAll notes the ends of the logs for new candidates. It puts back the candidates that have waited long enough and
// are still missing and not done. The logs are asked once for all partitions.
func (s *Service) putBackAll(ctx context.Context, parts []*partition) {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p *partition) bool { return len(p.candidates) == 0 })
	if len(parts) == 0 {
		return
	}
	l, err := s.readLogs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.deps.Logger.Warn("cannot read how far the logs are, nothing is put back", "error", err)
		}
		return
	}
	for _, p := range parts {
		for i := range p.candidates {
			if c := &p.candidates[i]; !c.noted {
				c.noted, c.events, c.fires = true, l.events, l.fires
			}
		}
	}
	s.each(ctx, parts, func(ctx context.Context, p *partition, now time.Time) error { return s.putBack(ctx, p, now, l) })
}

func (s *Service) readLogs(ctx context.Context) (l logs, err error) {
	for _, read := range []func() error{
		func() (err error) { l.events, err = s.deps.Log.End(ctx, dispatch.TopicEvents); return err },
		func() (err error) { l.fires, err = s.deps.Log.End(ctx, dispatch.TopicFires); return err },
		func() (err error) {
			l.settled, err = s.deps.Log.Committed(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
			return err
		},
		func() (err error) {
			l.executed, err = s.deps.Log.Committed(ctx, dispatch.TopicFires, dispatch.GroupExecutor)
			return err
		},
	} {
		if err := read(); err != nil {
			return l, err
		}
	}
	return l, nil
}

func (s *Service) putBack(ctx context.Context, p *partition, now time.Time, l logs) error {
	var ready []job.Entry
	var wait []candidate
	for _, c := range p.candidates {
		c.events, c.fires = c.events.Within(l.events), c.fires.Within(l.fires)
		switch {
		case c.events.LogID != l.settled.LogID || c.fires.LogID != l.executed.LogID:
			// A log was recreated: what was noted means nothing. The next sweep notes it again.
		case l.settled.Passed(c.events) && (l.executed.Passed(c.fires) || !now.Before(c.until)):
			ready = append(ready, c.entry)
		default:
			wait = append(wait, c)
		}
	}
	missing, err := s.missing(ctx, ready, now)
	if err != nil {
		return err
	}
	var back []job.Entry
	for page := range slices.Chunk(missing, jobstore.MaxGetMany) {
		rows, err := s.deps.Pending.Rows(ctx, locatorsOf(page))
		if err != nil {
			return err
		}
		for i := range page {
			if row, found := rows[page[i].Locator]; found && !row.Done {
				back = append(back, page[i])
			}
		}
	}
	added, err := s.addBack(ctx, p, back)
	if err != nil {
		return err
	}
	s.metrics.putBack.Add(float64(added))
	s.mu.Lock()
	s.putBackTotal += added
	s.mu.Unlock()
	if added < len(back) {
		// The hot tier is full: the rest stays until there is room.
		left := make(map[job.Locator]bool, len(back)-added)
		for _, e := range back[added:] {
			left[e.Locator] = true
		}
		for _, c := range p.candidates {
			if left[c.entry.Locator] {
				wait = append(wait, c)
			}
		}
	}
	s.metrics.candidates.Sub(float64(len(p.candidates) - len(wait)))
	p.candidates = wait
	return nil
}

func locatorsOf(entries []job.Entry) []job.Locator {
	locators := make([]job.Locator, len(entries))
	for i := range entries {
		locators[i] = entries[i].Locator
	}
	return locators
}

// addBack adds entries to the hot bucket, oldest first, and returns how many found room.
func (s *Service) addBack(ctx context.Context, p *partition, back []job.Entry) (added int, err error) {
	slices.SortFunc(back, func(a, b job.Entry) int { return a.DueAt.Compare(b.DueAt) })
	for page := range slices.Chunk(back, s.cfg.Page) {
		err := s.deps.Hot.Add(ctx, page)
		if errors.Is(err, hotbucket.ErrFull) {
			return added, nil
		}
		if err != nil {
			return added, err
		}
		added += len(page)
		p.backAt = s.deps.Clock.Now()
		if len(p.putBacks) >= 2*s.share() {
			clear(p.putBacks) // passes replaces them
			p.forgot = true
		}
		for i := range page {
			p.putBacks[page[i].Locator]++
			if p.resume != nil {
				p.back = append(p.back, &page[i])
			}
		}
	}
	return added, nil
}
