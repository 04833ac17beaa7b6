package writes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// bucketsAtOnce is how many buckets are read again at the same time, bucketPage how many rows of one are read at once.
	bucketsAtOnce, bucketPage = 16, 500
)

// bucketOf is a partition's bucket of a minute.
type bucketOf struct {
	partition int
	minute    int64
}

// behind holds the buckets with entries for whose write-through there was no room. However many entries there are, the buckets are no more
// than the partitions times the minutes of nearSwept, and two.
type behind struct {
	mu      sync.Mutex
	buckets map[bucketOf]bool
	// some is told when there are some.
	some chan struct{}
}

func (b *behind) add(entries []job.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buckets == nil {
		b.buckets = map[bucketOf]bool{}
	}
	for i := range entries {
		b.buckets[bucketOf{entries[i].Partition, entries[i].Minute}] = true
	}
	select {
	case b.some <- struct{}{}:
	default:
	}
}

// take returns all buckets, the earliest first, and forgets them.
func (b *behind) take() []bucketOf {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.SortedFunc(maps.Keys(b.buckets), func(x, y bucketOf) int {
		return cmp.Or(cmp.Compare(x.minute, y.minute), cmp.Compare(x.partition, y.partition))
	})
	b.buckets = nil
	return all
}

// catchUp reads buckets again, and adds what is still ahead of the clock to the hot tier. It waits for the servers. The error is ctx's.
func (ws *Writes) catchUp(ctx context.Context, buckets []bucketOf) error {
	return run.Each(len(buckets), bucketsAtOnce, func(i int) error {
		var after *job.Locator
		for {
			var rows []job.PendingRow
			err := run.Retry(ctx, ws.deps.Logger, "read a bucket again", func(ctx context.Context) (err error) {
				rows, err = ws.deps.Pending.Scan(ctx, buckets[i].partition, buckets[i].minute, after, bucketPage)
				return err
			})
			if err != nil {
				return err
			}
			if err := ws.throughAgain(ctx, rows); err != nil || len(rows) < bucketPage {
				return err
			}
			after = &rows[len(rows)-1].Locator
		}
	})
}

// throughAgain adds rows to the hot tier, except for those that are past due: they may have been dispatched, and return by the loader's
// put-back, if they were not.
func (ws *Writes) throughAgain(ctx context.Context, rows []job.PendingRow) error {
	return run.Retry(ctx, ws.deps.Logger, "write entries through", func(ctx context.Context) error {
		var ahead []job.Entry
		now := ws.deps.Clock.Now()
		for i := range rows {
			if !rows[i].Done && rows[i].DueAt.After(now) {
				ahead = append(ahead, rows[i].Entry)
			}
		}
		err := ws.addNear(ctx, ahead)
		if errors.Is(err, hotbucket.ErrFull) {
			return nil // the loader adds them when there is room
		}
		return err
	})
}
