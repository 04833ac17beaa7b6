package embedded

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// DefaultMaxHotEntries bounds the entries of all hot buckets; about 350 bytes each.
	DefaultMaxHotEntries = 300_000
	// claimsKept is how long a claim is kept, maxClaims how many are kept at most; the oldest are evicted first.
	claimsKept = time.Hour
	maxClaims  = 200_000
)

// HotBuckets is the hot tier in this process. It starts empty, under a new incarnation.
type HotBuckets struct {
	incarnation string
	maxEntries  int64
	entries     atomic.Int64
	hints       *hotbucket.Hints
	partitions  []hotPartition
	claims      *expiring[string, job.Decision]
}

var _ hotbucket.Buckets = (*HotBuckets)(nil)

type hotPartition struct {
	mu sync.Mutex
	// waiting holds the entries that may be returned, attended those that need attention first. Both are ordered by lane.
	waiting, attended *btree.BTreeG[*job.Entry]
	// lanes orders the lanes of both by their first due instant; first finds a lane in it.
	lanes *btree.BTreeG[hotLane]
	first map[uint32]time.Time
	// aside holds entries set aside until their instants; until finds them by locator.
	aside   *btree.BTreeG[asideEntry]
	until   map[job.Locator]time.Time
	epoch   map[coord.Role]int64
	horizon time.Time
}

// hotLane is a lane and when its first entry is due.
type hotLane struct {
	due  time.Time
	lane uint32
}

func laneBefore(a, b hotLane) bool {
	if !a.due.Equal(b.due) {
		return a.due.Before(b.due)
	}
	return a.lane < b.lane
}

type asideEntry struct {
	until time.Time
	entry *job.Entry
}

func asideBefore(a, b asideEntry) bool {
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
		incarnation: incarnation, maxEntries: maxEntries, hints: hotbucket.NewHints(),
		partitions: make([]hotPartition, partitions), claims: newExpiring[string, job.Decision](claimsKept, maxClaims),
	}
	for i := range h.partitions {
		p := &h.partitions[i]
		p.waiting, p.attended = btree.NewG(32, dueBefore), btree.NewG(32, dueBefore)
		p.lanes, p.first = btree.NewG(32, laneBefore), map[uint32]time.Time{}
		p.aside, p.until = btree.NewG(32, asideBefore), map[job.Locator]time.Time{}
		p.epoch = map[coord.Role]int64{}
	}
	return h
}

// dueBefore orders by lane, then by due instant, then by the rest of the occurrence.
func dueBefore(a, b *job.Entry) bool {
	if a.Lane != b.Lane {
		return a.Lane < b.Lane
	}
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

// Add implements hotbucket.Buckets. A partition without room does not keep the entries of others out.
func (h *HotBuckets) Add(_ context.Context, entries []job.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	now := time.Now()
	var hinted []int
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
		if !a.hinted && hotbucket.Hurries(e, now) {
			a.hinted = true
			hinted = append(hinted, e.Partition)
		}
	}
	full := false
	for p, a := range byPartition {
		full = !h.addTo(&h.partitions[p], a) || full
	}
	h.hints.Add(hinted...)
	if full {
		return fmt.Errorf("embedded: %w", hotbucket.ErrFull)
	}
	return nil
}

// addition is what one Add brings to one partition, and how many entries there may be in total afterwards.
type addition struct {
	entries []*job.Entry
	most    int64
	hinted  bool
}

// addTo adds all of a partition's entries, or none if they would exceed the bound; ok reports which.
func (h *HotBuckets) addTo(p *hotPartition, a *addition) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var added []*job.Entry
	for _, e := range a.entries {
		if p.has(e) {
			continue
		}
		own := ownEntry(e)
		p.insert(own)
		added = append(added, own)
	}
	if n := int64(len(added)); n == 0 || h.entries.Add(n) <= a.most {
		return true
	}
	h.entries.Add(-int64(len(added)))
	for _, e := range added {
		p.remove(e)
	}
	return false
}

// ownEntry returns a copy with one string behind all its names: a million entries wait here, and the garbage collector visits each
// of their strings every time.
func ownEntry(e *job.Entry) *job.Entry {
	own := *e
	names := []*string{&own.ExecutionID, &own.DefinitionID, &own.JobID, &own.Trace}
	all := own.ExecutionID + own.DefinitionID + own.JobID + own.Trace
	for _, name := range names {
		*name, all = all[:len(*name)], all[len(*name):]
	}
	return &own
}

// Due implements hotbucket.Buckets.
func (h *HotBuckets) Due(
	_ context.Context, owners []coord.Owner, ask hotbucket.Ask,
) (given []hotbucket.Given, next []time.Time, err error) {
	next = make([]time.Time, len(owners))
	last := ask.PerLane.Until
	for _, l := range ask.Lanes {
		last = job.Later(last, l.Until)
	}
	for i, o := range owners {
		p := &h.partitions[o.Partition]
		p.mu.Lock()
		if err := p.check(o); err != nil {
			p.mu.Unlock()
			return nil, nil, err
		}
		now := time.Now()
		if ask.Again {
			p.bringAllBack()
		} else {
			p.bringBack(now)
		}
		given = p.give(given, o.Partition, &ask, last, now.Add(hotbucket.GivenFor))
		next[i] = p.nextRead()
		p.mu.Unlock()
	}
	return given, next, nil
}

// nextRead returns when there is something to give if nothing is added.
func (p *hotPartition) nextRead() (at time.Time) {
	if lane, ok := p.lanes.Min(); ok {
		at = lane.due
	}
	if first, ok := p.aside.Min(); ok && (at.IsZero() || first.until.Before(at)) {
		at = first.until
	}
	return at
}

// give appends the entries that an ask asks for from a partition, and sets them aside.
func (p *hotPartition) give(
	given []hotbucket.Given, partition int, ask *hotbucket.Ask, last, until time.Time,
) []hotbucket.Given {
	var lanes []uint32
	p.lanes.Ascend(func(l hotLane) bool {
		if l.due.After(last) {
			return false
		}
		if of := ask.Of(partition, l.lane); of.Limit > 0 && !l.due.After(of.Until) {
			lanes = append(lanes, l.lane)
		}
		return true
	})
	room := ask.Room()
	share := room
	if len(lanes) > 1 {
		share = max(room/2, 1) // so that no lane takes all of a read
	}
	for _, lane := range lanes {
		if room == 0 {
			break
		}
		of := ask.Of(partition, lane)
		of.Limit = min(of.Limit, share, room)
		began := len(given)
		given = p.next(given, lane, of)
		room -= len(given) - began
		for _, g := range given[began:] {
			p.waiting.Delete(g.Entry)
			p.attended.Delete(g.Entry)
			p.setAside(g.Entry, until)
		}
		p.refresh(lane)
	}
	return given
}

// next appends the first entries of a lane.
func (p *hotPartition) next(given []hotbucket.Given, lane uint32, of hotbucket.LaneAsk) []hotbucket.Given {
	ahead := func(tree *btree.BTreeG[*job.Entry]) (list []*job.Entry) {
		tree.AscendGreaterOrEqual(&job.Entry{Lane: lane}, func(e *job.Entry) bool {
			if e.Lane != lane || e.DueAt.After(of.Until) || len(list) == of.Limit {
				return false
			}
			list = append(list, e)
			return true
		})
		return list
	}
	attended := ahead(p.attended)
	var waiting []*job.Entry
	if !of.Attended {
		waiting = ahead(p.waiting)
	}
	for n := 0; n < of.Limit && len(attended)+len(waiting) > 0; n++ {
		from := &waiting
		if len(waiting) == 0 || len(attended) > 0 && dueBefore(attended[0], waiting[0]) {
			from = &attended
		}
		e := (*from)[0]
		*from = (*from)[1:]
		given = append(given, hotbucket.Given{Entry: e, Parked: from == &waiting && e.Attended()})
	}
	return given
}

// insert puts an entry where Due may find it.
func (p *hotPartition) insert(e *job.Entry) {
	if e.Attended() {
		p.attended.ReplaceOrInsert(e)
	} else {
		p.waiting.ReplaceOrInsert(e)
	}
	if first, ok := p.first[e.Lane]; !ok || e.DueAt.Before(first) {
		p.refresh(e.Lane)
	}
}

// refresh notes the first due instant of a lane.
func (p *hotPartition) refresh(lane uint32) {
	var first *job.Entry
	for _, tree := range []*btree.BTreeG[*job.Entry]{p.waiting, p.attended} {
		tree.AscendGreaterOrEqual(&job.Entry{Lane: lane}, func(e *job.Entry) bool {
			if e.Lane == lane && (first == nil || e.DueAt.Before(first.DueAt)) {
				first = e
			}
			return false
		})
	}
	was, known := p.first[lane]
	if first != nil && known && was.Equal(first.DueAt) {
		return
	}
	if known {
		p.lanes.Delete(hotLane{was, lane})
		delete(p.first, lane)
	}
	if first != nil {
		p.lanes.ReplaceOrInsert(hotLane{first.DueAt, lane})
		p.first[lane] = first.DueAt
	}
}

func (p *hotPartition) setAside(e *job.Entry, until time.Time) {
	p.aside.ReplaceOrInsert(asideEntry{until, e})
	p.until[e.Locator] = until
}

// bringBack makes entries available again whose instant has come.
func (p *hotPartition) bringBack(now time.Time) {
	for {
		first, ok := p.aside.Min()
		if !ok || first.until.After(now) {
			return
		}
		p.aside.DeleteMin()
		delete(p.until, first.entry.Locator)
		p.insert(first.entry)
	}
}

func (p *hotPartition) bringAllBack() {
	p.aside.Ascend(func(a asideEntry) bool {
		p.insert(a.entry)
		return true
	})
	p.aside.Clear(false)
	clear(p.until)
}

func (p *hotPartition) has(e *job.Entry) bool {
	_, aside := p.until[e.Locator]
	return aside || p.waiting.Has(e) || p.attended.Has(e)
}

// remove removes an entry, wherever it is, and returns it.
func (p *hotPartition) remove(e *job.Entry) (*job.Entry, bool) {
	if until, aside := p.until[e.Locator]; aside {
		delete(p.until, e.Locator)
		was, ok := p.aside.Delete(asideEntry{until, e})
		return was.entry, ok
	}
	was, ok := p.waiting.Delete(e)
	if !ok {
		was, ok = p.attended.Delete(e)
	}
	if ok {
		p.refresh(e.Lane)
	}
	return was, ok
}

// Remove implements hotbucket.Buckets.
func (h *HotBuckets) Remove(_ context.Context, entries []*job.Entry) error {
	for _, e := range entries {
		p := &h.partitions[e.Partition]
		p.mu.Lock()
		if _, ok := p.remove(e); ok {
			h.entries.Add(-1)
		}
		p.mu.Unlock()
	}
	return nil
}

// Absent implements hotbucket.Buckets.
func (h *HotBuckets) Absent(_ context.Context, entries []*job.Entry) ([]job.Locator, error) {
	var absent []job.Locator
	for _, e := range entries {
		p := &h.partitions[e.Partition]
		p.mu.Lock()
		if !p.has(e) {
			absent = append(absent, e.Locator)
		}
		p.mu.Unlock()
	}
	return absent, nil
}
