package servers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// server holds one partition's part of the hot tier: its hot bucket, and the leases, outcomes and stop records of its jobs.
// It loses them together.
type server struct {
	name       string
	maxEntries int
	maxRecords int
	broken     *Broken

	mu     sync.Mutex
	losses int
	// refused counts entries for which there was no room, evicted what was forgotten to make room.
	refused, evicted int
	epoch            int64 // of the current incarnation
	// split is until when a server that this one replaced may answer some clients; replaced is set if this is such a server.
	split    time.Time
	replaced bool
	state    hotState
}

// hotState is everything that a server can lose.
type hotState struct {
	due       map[job.Locator]dueEntry
	epochs    map[coord.Role]int64
	horizon   time.Time
	claims    map[string]job.Decision
	records   map[attempts.Key]attempts.Record
	ended     []attempts.Key // oldest first
	endedAt   []time.Time
	stops     map[string]job.State
	stopped   []string // oldest first
	keptSince time.Time
	started   int64 // the last checks that were accepted
	pools     map[pools.Pool]*queue
}

type dueEntry struct {
	entry *job.Entry
	// until is when an entry that is set aside is returned again.
	until  time.Time
	parked bool
}

func newHotState() hotState {
	return hotState{
		due: map[job.Locator]dueEntry{}, epochs: map[coord.Role]int64{},
		claims: map[string]job.Decision{}, records: map[attempts.Key]attempts.Record{}, stops: map[string]job.State{}, pools: map[pools.Pool]*queue{},
	}
}

func (s hotState) clone() hotState {
	s.due, s.epochs, s.claims = maps.Clone(s.due), maps.Clone(s.epochs), maps.Clone(s.claims)
	s.records, s.stops, s.pools = maps.Clone(s.records), maps.Clone(s.stops), maps.Clone(s.pools)
	for p, q := range s.pools {
		s.pools[p] = q.clone()
	}
	s.ended, s.endedAt, s.stopped = slices.Clone(s.ended), slices.Clone(s.endedAt), slices.Clone(s.stopped)
	return s
}

// lose makes the server forget everything. It then has another incarnation.
func (h *server) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = newHotState()
	h.another()
}

func (h *server) another() {
	h.losses++
	h.epoch = attempts.NextEpoch(h.epoch, time.Now())
}

// snapshot returns what a replica has.
func (h *server) snapshot() hotState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.clone()
}

// promote puts the replica with this state in the server's place, in a new incarnation, and returns the server it replaced.
func (h *server) promote(replica hotState) (replaced *server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	replaced = &server{
		name: h.name, maxEntries: h.maxEntries, maxRecords: h.maxRecords, broken: h.broken, losses: h.losses, epoch: h.epoch, split: h.split,
		replaced: true, state: h.state,
	}
	h.state, h.split = replica, time.Now().Add(attempts.ReplacedFor)
	h.another()
	return replaced
}

func (h *server) bounded() (refused, evicted int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused, h.evicted
}

func (h *server) widen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.maxEntries = 0
}

// add adds entries, or none of them if there is no room.
func (h *server) add(entries []job.Entry, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	bound := h.maxEntries
	var added []*job.Entry
	for i := range entries {
		e := entries[i]
		if _, there := h.state.due[e.Locator]; !there {
			added = append(added, &e)
		}
		if e.DueAt.After(now.Add(hotbucket.RoomWithin)) || e.DueAt.Before(now.Add(-hotbucket.RoomWithin)) {
			bound = h.maxEntries * 4 / 5
		}
	}
	if h.maxEntries > 0 && len(h.state.due)+len(added) > bound {
		h.refused += len(added)
		return hotbucket.ErrFull
	}
	for _, e := range added {
		h.state.due[e.Locator] = dueEntry{entry: e}
	}
	return nil
}

// check refuses an owner whose epoch is not the current one.
func (h *server) check(o coord.Owner) error {
	if epoch, ok := h.state.epochs[o.Role]; !ok || epoch != o.Epoch {
		return fmt.Errorf("partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	return nil
}

func (h *server) dueFor(o coord.Owner, ask hotbucket.Ask, now time.Time) (all []hotbucket.Given, next time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return nil, next, err
	}
	if ask.Again {
		h.bringBack()
	}
	byLane := map[uint32][]dueEntry{}
	for _, l := range slices.SortedFunc(maps.Keys(h.state.due), compareLocators) {
		d := h.state.due[l]
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
			h.state.due[d.entry.Locator] = d
		}
	}
	for _, d := range h.state.due {
		at := d.entry.DueAt
		if d.until.After(now) {
			at = d.until
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return all, next, nil
}

// bringBack makes available again everything that was set aside.
func (h *server) bringBack() {
	for l, d := range h.state.due {
		d.until = time.Time{}
		h.state.due[l] = d
	}
}

func (h *server) change(o coord.Owner, entries []*job.Entry, to func(d *dueEntry)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return err
	}
	for _, e := range entries {
		if d, ok := h.state.due[e.Locator]; ok {
			to(&d)
			h.state.due[e.Locator] = d
		}
	}
	return nil
}

func (h *server) recall(l job.Locator) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.state.due[l]; ok {
		d.until = time.Time{}
		h.state.due[l] = d
	}
}

func (h *server) remove(l job.Locator) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.state.due, l)
}

func (h *server) absent(l job.Locator) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, there := h.state.due[l]
	return !there
}

func (h *server) claim(o coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
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

func (h *server) claimed(c hotbucket.Claim) *job.Decision {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, there := h.state.claims[c.ExecutionID+"/"+c.DefinitionID]
	if !there {
		return nil
	}
	return copyDecision(&d)
}

func (h *server) horizon() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.horizon
}

func (h *server) setHorizon(o coord.Owner, horizon time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(o); err != nil {
		return err
	}
	h.state.horizon = horizon
	return nil
}

func (h *server) setEpoch(o coord.Owner) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.epochs[o.Role] > o.Epoch {
		return fmt.Errorf("partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	if h.state.epochs[o.Role] != o.Epoch && o.Role == coord.RoleWorker {
		h.bringBack()
	}
	h.state.epochs[o.Role] = o.Epoch
	return nil
}

func (h *server) memory() attempts.Memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return attempts.Memory{Incarnation: h.incarnation(), KeptSince: h.state.keptSince}
}

func (h *server) incarnation() string {
	if h.broken.AnyIncarnation {
		return h.name
	}
	if !h.split.IsZero() {
		return attempts.PromotedName(h.number(), h.name)
	}
	return attempts.IncarnationName(h.number(), h.name)
}

func (h *server) number() int64 {
	if h.broken.FallingEpochs {
		return int64(1000 - h.losses)
	}
	return h.epoch
}
