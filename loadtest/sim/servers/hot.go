package servers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// Hot is the hot tier: hot buckets, leases, outcomes and stop records, which are lost together.
type Hot struct {
	name       string
	maxEntries int
	maxRecords int
	// Broken is what the simulation breaks on purpose.
	Broken struct{ AnyToken, AnyVersion, AnyDefinition, LastUpdateOnly, AnyIncarnation, SameToken, FallingEpochs bool }

	mu     sync.Mutex
	losses int
	// refused counts entries for which there was no room, evicted what was forgotten to make some.
	refused, evicted int
	epoch            int64 // of the present incarnation
	hints            []*hotbucket.Hints
	state            hotState
}

// hotState is all that the hot tier can lose.
type hotState struct {
	due       map[int]map[job.Locator]dueEntry
	epochs    map[hotbucket.Owner]int64 // by role and partition
	horizons  map[int]time.Time
	claims    map[string]job.Decision
	records   map[dedupe.Key]dedupe.Record
	ended     []dedupe.Key // oldest first
	endedAt   []time.Time
	stops     map[string]job.State
	stopped   []string // oldest first
	keptSince time.Time
	started   int64 // the last checks that were accepted
}

type dueEntry struct {
	entry *job.Entry
	// until is when an entry that is set aside is given again.
	until  time.Time
	parked bool
}

// NewHot is an empty hot tier, which holds at most so many entries, outcomes and stop records (0: any number).
func NewHot(name string, maxEntries, maxRecords int) *Hot {
	return &Hot{name: name, maxEntries: maxEntries, maxRecords: maxRecords, epoch: dedupe.NextEpoch(0, time.Now()), state: newHotState()}
}

func newHotState() hotState {
	return hotState{
		due: map[int]map[job.Locator]dueEntry{}, epochs: map[hotbucket.Owner]int64{}, horizons: map[int]time.Time{},
		claims: map[string]job.Decision{}, records: map[dedupe.Key]dedupe.Record{}, stops: map[string]job.State{},
	}
}

func (s hotState) clone() hotState {
	c := hotState{
		due: map[int]map[job.Locator]dueEntry{}, epochs: maps.Clone(s.epochs), horizons: maps.Clone(s.horizons),
		claims: maps.Clone(s.claims), records: maps.Clone(s.records), ended: slices.Clone(s.ended),
		endedAt: slices.Clone(s.endedAt), stops: maps.Clone(s.stops), stopped: slices.Clone(s.stopped), keptSince: s.keptSince, started: s.started,
	}
	for p, due := range s.due {
		c.due[p] = maps.Clone(due)
	}
	return c
}

// Bounded tells what the tier's limits did: how many entries it refused for want of room, and how many outcomes it forgot to make room.
func (h *Hot) Bounded() (refused, evicted int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused, h.evicted
}

// Widen lets the hot tier hold any number of entries from now on.
func (h *Hot) Widen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.maxEntries = 0
}

// Lose makes the hot tier forget everything. It has another incarnation afterwards.
func (h *Hot) Lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = newHotState()
	h.another()
}

func (h *Hot) another() {
	h.losses++
	h.epoch = dedupe.NextEpoch(h.epoch, time.Now())
}

// Snapshot gives a function that makes the hot tier forget everything since now, as a failover to a replica does that
// was behind. It has another incarnation afterwards.
func (h *Hot) Snapshot() (failOver func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	then := h.state.clone()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.state = then
		h.another()
	}
}

// Client is the hot tier as one process sees it: with hints of its own.
func (h *Hot) Client() *HotClient {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &HotClient{Hot: h, hints: hotbucket.NewHints()}
	h.hints = append(h.hints, c.hints)
	return c
}

// HotClient implements hotbucket.Buckets and dedupe.Records.
type HotClient struct {
	*Hot
	hints *hotbucket.Hints
}

// Hints implements hotbucket.Buckets.
func (c *HotClient) Hints() *hotbucket.Hints { return c.hints }

// Add implements hotbucket.Buckets.
func (h *Hot) Add(_ context.Context, entries []job.Entry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	byPartition := map[int][]*job.Entry{}
	bound := map[int]int{}
	var hinted []int
	for i := range entries {
		e := entries[i]
		if _, there := h.state.due[e.Partition][e.Locator]; !there {
			byPartition[e.Partition] = append(byPartition[e.Partition], &e)
		}
		if _, ok := bound[e.Partition]; !ok {
			bound[e.Partition] = h.maxEntries
		}
		if e.DueAt.After(now.Add(hotbucket.RoomWithin)) || e.DueAt.Before(now.Add(-hotbucket.RoomWithin)) {
			bound[e.Partition] = h.maxEntries * 4 / 5
		}
		if e.DueAt.Before(now.Add(hotbucket.HintWithin)) {
			hinted = append(hinted, e.Partition)
		}
	}
	var err error
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		if h.maxEntries > 0 && h.entries()+len(byPartition[p]) > bound[p] {
			err = hotbucket.ErrFull
			h.refused += len(byPartition[p])
			continue
		}
		if h.state.due[p] == nil {
			h.state.due[p] = map[job.Locator]dueEntry{}
		}
		for _, e := range byPartition[p] {
			h.state.due[p][e.Locator] = dueEntry{entry: e}
		}
	}
	for _, c := range h.hints {
		c.Add(hinted...)
	}
	return err
}

func (h *Hot) entries() (n int) {
	for _, due := range h.state.due {
		n += len(due)
	}
	return n
}

// check refuses an owner whose epoch is not the one that stands.
func (h *Hot) check(o hotbucket.Owner) error {
	if epoch, ok := h.state.epochs[tenure(o)]; !ok || epoch != o.Epoch {
		return fmt.Errorf("partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	return nil
}

func tenure(o hotbucket.Owner) hotbucket.Owner {
	return hotbucket.Owner{Role: o.Role, Partition: o.Partition}
}

// Due implements hotbucket.Buckets.
func (h *Hot) Due(_ context.Context, owners []hotbucket.Owner, ask hotbucket.Ask) ([]hotbucket.Given, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var all []hotbucket.Given
	for _, o := range owners {
		if err := h.check(o); err != nil {
			return nil, err
		}
		if ask.Again {
			h.bringBack(o.Partition)
		}
		due := h.state.due[o.Partition]
		byLane := map[uint32][]dueEntry{}
		for _, l := range slices.SortedFunc(maps.Keys(due), compareLocators) {
			d := due[l]
			of := ask.Of(o.Partition, d.entry.Lane)
			wanted := !of.Attended || !d.parked && d.entry.Attended()
			if wanted && of.Limit > 0 && !d.entry.DueAt.After(of.Until) && !d.until.After(now) {
				byLane[d.entry.Lane] = append(byLane[d.entry.Lane], d)
			}
		}
		lanes := slices.SortedFunc(maps.Keys(byLane), func(a, b uint32) int {
			return cmp.Or(byLane[a][0].entry.DueAt.Compare(byLane[b][0].entry.DueAt), cmp.Compare(a, b))
		})
		room := ask.Room()
		share := room
		if len(lanes) > 1 {
			share = max(room/2, 1)
		}
		for _, lane := range lanes {
			list := byLane[lane]
			list = list[:min(len(list), share, room, ask.Of(o.Partition, lane).Limit)]
			room -= len(list)
			for _, d := range list {
				all = append(all, hotbucket.Given{Entry: d.entry, Parked: d.parked})
				d.until, d.parked = now.Add(hotbucket.GivenFor), false
				due[d.entry.Locator] = d
			}
		}
	}
	return all, nil
}

// bringBack makes everything of a partition available again that was set aside.
func (h *Hot) bringBack(partition int) {
	for l, d := range h.state.due[partition] {
		d.until = time.Time{}
		h.state.due[partition][l] = d
	}
}

// Postpone implements hotbucket.Buckets.
func (h *Hot) Postpone(_ context.Context, o hotbucket.Owner, entries []*job.Entry, until time.Time) error {
	return h.change(o, entries, func(d *dueEntry) { d.until = until })
}

// Park implements hotbucket.Buckets.
func (h *Hot) Park(_ context.Context, o hotbucket.Owner, entries []*job.Entry) error {
	return h.change(o, entries, func(d *dueEntry) { d.until, d.parked = time.Time{}, d.entry.Attended() })
}

func (h *Hot) change(o hotbucket.Owner, entries []*job.Entry, to func(d *dueEntry)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return err
	}
	for _, e := range entries {
		if d, ok := h.state.due[o.Partition][e.Locator]; ok {
			to(&d)
			h.state.due[o.Partition][e.Locator] = d
		}
	}
	return nil
}

// Remove implements hotbucket.Buckets.
func (h *Hot) Remove(_ context.Context, entries []*job.Entry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		delete(h.state.due[e.Partition], e.Locator)
	}
	return nil
}

// Absent implements hotbucket.Buckets.
func (h *Hot) Absent(_ context.Context, entries []*job.Entry) (absent []job.Locator, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		if _, there := h.state.due[e.Partition][e.Locator]; !there {
			absent = append(absent, e.Locator)
		}
	}
	return absent, nil
}

// Claim implements hotbucket.Buckets.
func (h *Hot) Claim(_ context.Context, o hotbucket.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return nil, err
	}
	standing := make([]job.Decision, len(claims))
	for i, c := range claims {
		k := c.ExecutionID + "/" + c.DefinitionID
		if _, there := h.state.claims[k]; !there {
			h.state.claims[k] = *copyDecision(&c.Decision)
		}
		d := h.state.claims[k]
		standing[i] = *copyDecision(&d)
	}
	return standing, nil
}

// Horizon implements hotbucket.Buckets.
func (h *Hot) Horizon(_ context.Context, partition int) (time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.horizons[partition], nil
}

// SetHorizon implements hotbucket.Buckets.
func (h *Hot) SetHorizon(_ context.Context, o hotbucket.Owner, horizon time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return err
	}
	h.state.horizons[o.Partition] = horizon
	return nil
}

// SetEpoch implements hotbucket.Buckets.
func (h *Hot) SetEpoch(_ context.Context, o hotbucket.Owner) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.epochs[tenure(o)] > o.Epoch {
		return fmt.Errorf("partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	if h.state.epochs[tenure(o)] != o.Epoch && o.Role == hotbucket.RoleWorker {
		h.bringBack(o.Partition)
	}
	h.state.epochs[tenure(o)] = o.Epoch
	return nil
}

// Memory implements dedupe.Records. All parts of the tier are lost together.
func (h *Hot) Memory(context.Context, string) (dedupe.Memory, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return dedupe.Memory{Incarnation: h.incarnation(), KeptSince: h.state.keptSince}, nil
}

// Incarnations implements hotbucket.Buckets.
func (h *Hot) Incarnations(_ context.Context, partitions []int) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Repeat([]string{h.incarnation()}, len(partitions)), nil
}

func (h *Hot) incarnation() string {
	if h.Broken.AnyIncarnation {
		return h.name
	}
	return dedupe.IncarnationName(h.number(), h.name)
}

func (h *Hot) number() int64 {
	if h.Broken.FallingEpochs {
		return int64(1000 - h.losses)
	}
	return h.epoch
}
