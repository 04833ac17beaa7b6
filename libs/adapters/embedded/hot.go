package embedded

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// DefaultMaxHotEntries bounds the entries of all hot buckets; about 350 bytes each.
	DefaultMaxHotEntries = 300_000
	// claimsKept is how long a claim is kept, maxClaims how many are kept at most; the oldest go first.
	claimsKept = time.Hour
	maxClaims  = 200_000
)

// HotBuckets is the hot tier in this process. It starts empty, under a new incarnation.
type HotBuckets struct {
	incarnation string
	maxEntries  int64
	entries     atomic.Int64
	hints       chan struct{}
	partitions  []hotPartition
	claims      *expiring[string, job.Decision]
}

var _ hotbucket.Buckets = (*HotBuckets)(nil)

type hotPartition struct {
	mu  sync.Mutex
	due *btree.BTreeG[*job.Entry]
	// postponed are kept apart from due until their instants; until finds them by locator.
	postponed *btree.BTreeG[postponedEntry]
	until     map[job.Locator]time.Time
	epoch     map[hotbucket.Role]int64
	horizon   time.Time
}

type postponedEntry struct {
	until time.Time
	entry *job.Entry
}

func postponedBefore(a, b postponedEntry) bool {
	if !a.until.Equal(b.until) {
		return a.until.Before(b.until)
	}
	return dueBefore(a.entry, b.entry)
}

// NewHotBuckets returns an empty hot tier; maxEntries 0 means DefaultMaxHotEntries.
func NewHotBuckets(incarnation string, partitions int, maxEntries int64) *HotBuckets {
	if maxEntries == 0 {
		maxEntries = DefaultMaxHotEntries
	}
	h := &HotBuckets{
		incarnation: incarnation, maxEntries: maxEntries, hints: make(chan struct{}, 1),
		partitions: make([]hotPartition, partitions), claims: newExpiring[string, job.Decision](claimsKept, maxClaims),
	}
	for i := range h.partitions {
		h.partitions[i].due = btree.NewG(32, dueBefore)
		h.partitions[i].postponed = btree.NewG(32, postponedBefore)
		h.partitions[i].until = map[job.Locator]time.Time{}
		h.partitions[i].epoch = map[hotbucket.Role]int64{}
	}
	return h
}

// dueBefore orders by due instant, then by the rest of the occurrence.
func dueBefore(a, b *job.Entry) bool {
	if !a.DueAt.Equal(b.DueAt) {
		return a.DueAt.Before(b.DueAt)
	}
	if a.ExecutionID != b.ExecutionID {
		return a.ExecutionID < b.ExecutionID
	}
	if a.Attempt != b.Attempt {
		return a.Attempt < b.Attempt
	}
	return a.DefinitionID < b.DefinitionID
}

// Add implements hotbucket.Buckets. A partition that finds no room does not keep the others' entries out.
func (h *HotBuckets) Add(_ context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	now := time.Now()
	soon, hinted := now.Add(hotbucket.HintWithin), false
	near, long := now.Add(hotbucket.RoomWithin), now.Add(-hotbucket.RoomWithin)
	byPartition := map[int]*addition{}
	for i := range entries {
		e := &entries[i]
		a, ok := byPartition[e.Partition]
		if !ok {
			a = &addition{most: h.maxEntries}
			byPartition[e.Partition] = a
		}
		a.entries = append(a.entries, e)
		if e.DueAt.After(near) || e.DueAt.Before(long) {
			a.most = h.maxEntries * 4 / 5
		}
		hinted = hinted || e.DueAt.Before(soon)
	}
	full := false
	for p, a := range byPartition {
		full = !h.addTo(&h.partitions[p], a) || full
	}
	if hinted {
		select {
		case h.hints <- struct{}{}:
		default:
		}
	}
	if full {
		return fmt.Errorf("embedded: %w", hotbucket.ErrFull)
	}
	return nil
}

// addition is what one Add brings to one partition, and how many entries there may be in all afterwards.
type addition struct {
	entries []*job.Entry
	most    int64
}

// addTo adds all of a partition's entries, or none when the bound would be passed; ok tells which.
func (h *HotBuckets) addTo(p *hotPartition, a *addition) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var added []*job.Entry
	for _, e := range a.entries {
		if p.has(e.Locator) {
			continue
		}
		own := *e
		p.due.ReplaceOrInsert(&own)
		added = append(added, &own)
	}
	if n := int64(len(added)); n == 0 || h.entries.Add(n) <= a.most {
		return true
	}
	h.entries.Add(-int64(len(added)))
	for _, e := range added {
		p.due.Delete(e)
	}
	return false
}

// Due implements hotbucket.Buckets.
func (h *HotBuckets) Due(
	_ context.Context, owners []hotbucket.Owner, until time.Time, limit int,
) ([]*job.Entry, error) {
	var due []*job.Entry
	for _, o := range owners {
		p := &h.partitions[o.Partition]
		p.mu.Lock()
		if err := p.check(o); err != nil {
			p.mu.Unlock()
			return nil, err
		}
		p.bringBack(time.Now())
		p.due.Ascend(func(e *job.Entry) bool {
			if e.DueAt.After(until) || len(due) >= limit {
				return false
			}
			due = append(due, e)
			return true
		})
		p.mu.Unlock()
	}
	return due, nil
}

// bringBack ends the postponement of those whose instant has come.
func (p *hotPartition) bringBack(now time.Time) {
	for {
		first, ok := p.postponed.Min()
		if !ok || first.until.After(now) {
			return
		}
		p.postponed.DeleteMin()
		delete(p.until, first.entry.Locator)
		p.due.ReplaceOrInsert(first.entry)
	}
}

func (p *hotPartition) has(l job.Locator) bool {
	_, postponed := p.until[l]
	return postponed || p.due.Has(&job.Entry{Locator: l})
}

// remove takes an entry out, wherever it is.
func (p *hotPartition) remove(l job.Locator) (ok bool) {
	if until, postponed := p.until[l]; postponed {
		delete(p.until, l)
		_, ok = p.postponed.Delete(postponedEntry{until, &job.Entry{Locator: l}})
		return ok
	}
	_, ok = p.due.Delete(&job.Entry{Locator: l})
	return ok
}

// Postpone implements hotbucket.Buckets.
func (h *HotBuckets) Postpone(_ context.Context, o hotbucket.Owner, locators []job.Locator, until time.Time) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(o); err != nil {
		return err
	}
	for _, l := range locators {
		if e, ok := p.due.Delete(&job.Entry{Locator: l}); ok {
			p.postponed.ReplaceOrInsert(postponedEntry{until, e})
			p.until[l] = until
		}
	}
	return nil
}

// check refuses an owner whose epoch is not the one that stands.
func (p *hotPartition) check(o hotbucket.Owner) error {
	if epoch, ok := p.epoch[o.Role]; !ok || epoch != o.Epoch {
		return fmt.Errorf("embedded: partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	return nil
}

// Remove implements hotbucket.Buckets.
func (h *HotBuckets) Remove(_ context.Context, locators []job.Locator) error {
	for _, l := range locators {
		p := &h.partitions[l.Partition]
		p.mu.Lock()
		if p.remove(l) {
			h.entries.Add(-1)
		}
		p.mu.Unlock()
	}
	return nil
}

// Absent implements hotbucket.Buckets.
func (h *HotBuckets) Absent(_ context.Context, locators []job.Locator) ([]job.Locator, error) {
	var absent []job.Locator
	for _, l := range locators {
		p := &h.partitions[l.Partition]
		p.mu.Lock()
		if !p.has(l) {
			absent = append(absent, l)
		}
		p.mu.Unlock()
	}
	return absent, nil
}

// Hints implements hotbucket.Buckets.
func (h *HotBuckets) Hints() <-chan struct{} { return h.hints }

// Claim implements hotbucket.Buckets.
func (h *HotBuckets) Claim(_ context.Context, o hotbucket.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(o); err != nil {
		return nil, err
	}
	now := time.Now()
	standing := make([]job.Decision, len(claims))
	for i, c := range claims {
		standing[i] = h.claims.getOrAdd(now, c.ExecutionID+"/"+c.DefinitionID, c.Decision)
	}
	return standing, nil
}

// Horizon implements hotbucket.Buckets.
func (h *HotBuckets) Horizon(_ context.Context, partition int) (time.Time, error) {
	p := &h.partitions[partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.horizon, nil
}

// SetHorizon implements hotbucket.Buckets.
func (h *HotBuckets) SetHorizon(_ context.Context, o hotbucket.Owner, horizon time.Time) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(o); err != nil {
		return err
	}
	p.horizon = horizon
	return nil
}

// SetEpoch implements hotbucket.Buckets.
func (h *HotBuckets) SetEpoch(_ context.Context, o hotbucket.Owner) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch[o.Role] > o.Epoch {
		return fmt.Errorf("embedded: partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	p.epoch[o.Role] = o.Epoch
	return nil
}

// Incarnations implements hotbucket.Buckets. All partitions are lost together.
func (h *HotBuckets) Incarnations(_ context.Context, partitions []int) ([]string, error) {
	return slices.Repeat([]string{h.incarnation}, len(partitions)), nil
}

// Entries is how many entries all hot buckets hold.
func (h *HotBuckets) Entries() int64 { return h.entries.Load() }
