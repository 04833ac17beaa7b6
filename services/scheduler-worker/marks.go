package schedulerworker

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

const (
	// markBefore is how long before the end of its catch-up window a waiting entry is marked: longer than a mark may take.
	markBefore = 10 * time.Second
	// maxMarks bounds the entries that a shard will mark later, markBatch how many it marks at a time.
	maxMarks, markBatch = 50_000, 64
)

// mark says when a parked entry is marked on its row.
type mark struct {
	at      time.Time
	locator job.Locator
}

// markQueue is a heap ordered by instant.
type markQueue []mark

func (q markQueue) Len() int           { return len(q) }
func (q markQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q markQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *markQueue) Push(x any) { *q = append(*q, x.(mark)) }

// Pop implements heap.Interface.
func (q *markQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// markLater remembers a parked entry, to mark it if it waits long.
func (sh *shard) markLater(t *task) {
	if t.markAt.IsZero() {
		return
	}
	if _, known := sh.marks[t.entry.Locator]; !known {
		heap.Push(&sh.markQueue, mark{t.markAt, t.entry.Locator})
	}
	sh.marks[t.entry.Locator] = t.markAt
}

// markDue marks entries that have waited for nearly their catch-up window: it writes on their rows that they fire all the
// same.
func (sh *shard) markDue(ctx context.Context) {
	now := sh.s.deps.Clock.Now()
	if sh.marking || now.Before(sh.nextMark) || sh.lapsed() {
		return
	}
	var due []job.Locator
	for len(sh.markQueue) > 0 && len(due) < markBatch && !sh.markQueue[0].at.After(now) {
		m := heap.Pop(&sh.markQueue).(mark)
		if _, waits := sh.marks[m.locator]; waits { // otherwise it was published, or has another owner now
			due = append(due, m.locator)
		}
	}
	if len(due) == 0 {
		return
	}
	sh.marking = true
	go func() {
		errs := make([]error, len(due))
		var writes sync.WaitGroup
		for i, l := range due {
			writes.Go(func() { errs[i] = sh.s.deps.Pending.Decide(ctx, l, job.Decision{Fire: true}) })
		}
		writes.Wait()
		sh.back <- func() {
			sh.marking = false
			failed := 0
			for i, l := range due {
				if errs[i] == nil {
					delete(sh.marks, l)
					continue
				}
				failed++
				heap.Push(&sh.markQueue, mark{now, l})
			}
			if failed > 0 && ctx.Err() == nil {
				sh.nextMark = sh.s.deps.Clock.Now().Add(time.Second)
				sh.s.deps.Logger.Warn("cannot mark entries that wait for their target", "entries", failed, "error", errors.Join(errs...))
			}
		}
	}()
}
