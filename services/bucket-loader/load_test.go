package bucketloader

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/embedded"
	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// fires does to entries what happens at their instant.
func (l *loading) fires(t *testing.T, locators ...job.Locator) {
	t.Helper()
	for _, at := range locators {
		if err := l.deps.Hot.Remove(t.Context(), []*job.Entry{{Locator: at}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.deps.Pending.MarkDone(t.Context(), locators); err != nil {
		t.Fatal(err)
	}
}

func (l *loading) isHot(t *testing.T, at job.Locator) bool {
	t.Helper()
	absent, err := l.deps.Hot.Absent(t.Context(), []*job.Entry{{Locator: at}})
	if err != nil {
		t.Fatal(err)
	}
	return len(absent) == 0
}

// run runs rounds until an instant.
func (l *loading) run(t *testing.T, until time.Time) {
	t.Helper()
	for time.Now().Before(until) {
		time.Sleep(min(l.cfg.Tick, time.Until(until)))
		l.round(t.Context())
	}
}

// Entries far ahead that find no room become hot before they are due, once those due before them have left.
func TestWhatFoundNoRoomIsHotAtItsInstant(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const partitions = maxTurns * perTurn
		l := newLoading(t, partitions)
		l.deps.Hot = embedded.NewHotBuckets("an incarnation", partitions, 5)
		began := time.Now()
		var entries []job.Locator
		for n := range 12 {
			entries = append(entries, l.put(t, maxTurns-1, n, began.Add(time.Duration(10+n)*time.Minute)))
		}
		l.run(t, began.Add(time.Minute))
		hot := 0
		for _, e := range entries {
			if l.isHot(t, e) {
				hot++
			}
		}
		if hot != 4 { // a fifth of the room is for what is near
			t.Errorf("%d of %d entries are hot in a tier for five", hot, len(entries))
		}
		for n, e := range entries {
			l.run(t, e.DueAt)
			if !l.isHot(t, e) {
				t.Errorf("entry %d is not hot at its instant", n)
			}
			l.fires(t, e)
		}
	})
}

// Sweeps of partitions whose entries all wait in hot buckets pause. What a full hot tier refused meanwhile comes back soon after those have left,
// however slow the store was until then.
func TestWhatFoundNoRoomComesBackSoonAfterOthersLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const partitions = 64
		l := newLoading(t, partitions)
		l.cfg.MaxCandidates = 1 // so a sweep finds minShare
		l.cold.took = time.Second
		var waiting, refused []job.Locator
		for p := range partitions {
			for n := range minShare + minShare/2 {
				waiting = append(waiting, l.put(t, p, p*1000+n, time.Now()))
			}
		}
		for _, at := range waiting {
			if err := l.deps.Hot.Add(t.Context(), []job.Entry{{Locator: at}}); err != nil {
				t.Fatal(err)
			}
		}
		l.run(t, time.Now().Add(time.Second))
		for p := range partitions {
			refused = append(refused, l.put(t, p, p*1000+999, time.Now()))
		}
		l.run(t, time.Now().Add(10*time.Minute))
		l.cold.took = 0
		l.fires(t, waiting...)
		l.run(t, time.Now().Add(quietMost+l.cfg.CloseSweepAfter+2*l.cfg.PutBackWait))
		for p, at := range refused {
			if !l.isHot(t, at) {
				t.Errorf("the entry of partition %d did not come back", p)
			}
		}
	})
}

// A minute's entries of all partitions are not read in one second, least of all in that at which most is due.
func TestPartitionsTakeTurnsWithinAMinute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const partitions = maxTurns * perTurn
		l := newLoading(t, partitions)
		l.run(t, time.Now().Truncate(time.Minute).Add(15*time.Minute))
		var seconds [60]int64
		total := int64(0)
		for range 10 * len(seconds) {
			before, at := l.cold.reads.Load(), time.Now().Second()
			l.run(t, time.Now().Add(time.Second))
			seconds[at] += l.cold.reads.Load() - before
			total += l.cold.reads.Load() - before
		}
		if most := slices.Max(seconds[:]); most == 0 || most > total/8 {
			t.Errorf("of %d reads in ten minutes %d were in one second of a minute: %d", total, most, seconds)
		}
		near := int64(0)
		for _, n := range seconds[44:52] {
			near += n
		}
		if want := int64(10 * 2 * partitions); near < want {
			t.Errorf("of %d reads %d were 15 to 7 seconds before a minute, want %d: %d", total, near, want, seconds)
		}
		if first := seconds[59] + seconds[0] + seconds[1]; first > total/16 { // a round follows the second in which it is counted
			t.Errorf("of %d reads in ten minutes %d were when a minute began: %d", total, first, seconds)
		}
	})
}

// promised is a hot tier and a cold store of one partition; it notes reads of minutes that no published horizon covers.
type promised struct {
	hotbucket.Buckets
	jobstore.Pending
	horizon time.Time
	early   []int64
	reads   int
}

func (p *promised) SetHorizon(ctx context.Context, o coord.Owner, horizon time.Time) error {
	p.horizon = horizon
	return p.Buckets.SetHorizon(ctx, o, horizon)
}

func (p *promised) reading(minute int64) {
	p.reads++
	if !job.MinuteStart(minute).Before(p.horizon) {
		p.early = append(p.early, minute)
	}
}

func (p *promised) FirstOpen(ctx context.Context, partition int, from, to int64) (int64, bool, error) {
	if to > job.Minute(time.Now()) {
		p.reading(to - 1)
	}
	return p.Pending.FirstOpen(ctx, partition, from, to)
}

func (p *promised) Scan(ctx context.Context, partition int, minute int64, after *job.Locator, limit int) ([]job.PendingRow, error) {
	if minute > job.Minute(time.Now()) {
		p.reading(minute)
	}
	return p.Pending.Scan(ctx, partition, minute, after, limit)
}

// A writer that reads the old horizon leaves its entry to the loader. So the entry must be written before the loader reads.
func TestHorizonIsPublishedBeforeWhatItCoversIsRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		p := &promised{Buckets: l.deps.Hot, Pending: l.deps.Pending}
		l.deps.Hot, l.deps.Pending = p, p
		l.run(t, time.Now().Add(10*time.Minute))
		if len(p.early) > 0 || p.reads == 0 {
			t.Errorf("of %d reads ahead these minutes were read before the horizon: %d", p.reads, p.early)
		}
	})
}

// Nobody reads a closed bucket any more.
func TestBucketsCloseInOrderAndOnlyWhenAllIsDone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		began := time.Now()
		minute := job.Minute(began)
		first := l.put(t, 0, 1, began.Add(10*time.Second))
		second := l.put(t, 0, 2, began.Add(70*time.Second))
		closed := func(want int64, why string) {
			t.Helper()
			low, err := l.deps.Pending.LowWater(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if low != want {
				t.Errorf("%s: closed up to minute %d, want %d", why, low-minute, want-minute)
			}
		}
		l.run(t, second.DueAt)
		l.fires(t, second)
		l.run(t, began.Add(20*time.Minute))
		closed(minute, "the first entry is open")
		if rows, err := l.deps.Pending.Scan(t.Context(), 0, minute+1, nil, 10); err != nil || len(rows) != 1 {
			t.Errorf("%d rows are left in the bucket behind, %v", len(rows), err)
		}
		l.fires(t, first)
		l.run(t, time.Now().Add(2*time.Minute))
		now := job.Minute(time.Now().Add(-l.cfg.CloseAfter))
		if low, err := l.deps.Pending.LowWater(t.Context(), 0); err != nil || low < now-1 || low > now {
			t.Errorf("all is done: closed up to %d, %v; five minutes ago was %d", low-minute, err, now-minute)
		}
	})
}

func TestBucketThatWasSeenAllDoneStaysOpenForWhatIsWrittenLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLoading(t, 1)
		began := time.Now()
		minute := job.Minute(began)
		l.run(t, began.Add(time.Second))
		l.fires(t, l.put(t, 0, 1, began.Add(2*time.Second)))
		l.run(t, began.Add(l.cfg.CloseAfter+30*time.Second)) // swept, and seen all done
		late := l.put(t, 0, 2, began.Add(3*time.Second))
		l.run(t, began.Add(20*time.Minute))
		if low, err := l.deps.Pending.LowWater(t.Context(), 0); err != nil || low > minute {
			t.Errorf("closed up to minute %d, with an entry in the first, %v", low-minute, err)
		}
		if !l.isHot(t, late) {
			t.Error("the late entry did not come back")
		}
	})
}
