package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// Hot is the hot tier, with a server for each partition.
type Hot struct {
	Broken Broken

	parts []*part

	mu    sync.Mutex
	hints []*hotbucket.Hints
	bells []*pools.Bell
}

// Broken says what the simulation breaks on purpose.
type Broken struct {
	AnyToken, AnyVersion, AnyIncarnation, SameToken, FallingEpochs, AloneHolds bool
}

// part is the server of a partition, and the server it replaced while that still answers some clients.
type part struct {
	*server

	mu       sync.Mutex
	replaced *server
	until    time.Time
	lagging  func(client string) bool // whether a client has not learnt of the new server yet
}

// NewHot returns an empty hot tier whose partitions hold at most this many entries, outcomes and stop records (0: any
// number).
func NewHot(name string, partitions, maxEntries, maxRecords int) *Hot {
	h := &Hot{}
	for n := range partitions {
		h.parts = append(h.parts, &part{server: &server{
			name: fmt.Sprintf("%s/%d", name, n), maxEntries: maxEntries, maxRecords: maxRecords, broken: &h.Broken,
			epoch: attempts.NextEpoch(0, time.Now()), state: newHotState(),
		}})
	}
	return h
}

// Bounded returns what the tier's limits did: how many entries it refused for lack of room, and how many outcomes it
// evicted.
func (h *Hot) Bounded() (refused, evicted int) {
	for _, p := range h.parts {
		r, e := p.bounded()
		refused, evicted = refused+r, evicted+e
	}
	return refused, evicted
}

// Widen lets the hot tier hold any number of entries from now on.
func (h *Hot) Widen() {
	for _, p := range h.parts {
		p.widen()
	}
}

// Lose makes the servers of partitions forget everything.
func (h *Hot) Lose(partitions ...int) {
	for _, n := range partitions {
		h.parts[n].lose()
	}
}

// Forget removes an entry everywhere.
func (h *Hot) Forget(l job.Locator) {
	p := h.parts[l.Partition]
	p.remove(l)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.replaced != nil {
		p.replaced.remove(l)
	}
}

// Replicate returns a function that promotes the replicas of partitions, which have what their servers hold now. For a
// while afterwards, a server that was replaced goes on with the clients that lag.
func (h *Hot) Replicate(partitions ...int) (promote func(for_ time.Duration, lagging func(client string) bool)) {
	replicas := make([]hotState, len(partitions))
	for i, n := range partitions {
		replicas[i] = h.parts[n].snapshot()
	}
	return func(d time.Duration, lagging func(client string) bool) {
		for i, n := range partitions {
			h.parts[n].failOver(replicas[i], d, lagging)
		}
	}
}

func (p *part) failOver(replica hotState, d time.Duration, lagging func(client string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaced, p.until, p.lagging = p.promote(replica), time.Now().Add(d), lagging
}

// of returns the server that answers a client.
func (p *part) of(client string) *server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.replaced != nil && time.Now().Before(p.until) && p.lagging(client) {
		return p.replaced
	}
	return p.server
}

// Replaced reports whether a fence is from a server that had been replaced by then.
func (h *Hot) Replaced(executionID string, f job.Fence) bool {
	s := h.parts[h.partitionOf(executionID)].server
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.Epoch != s.number()
}

// partitionOf returns the partition of an execution's job.
func (h *Hot) partitionOf(executionID string) int {
	ref, err := job.ParseExecutionID(executionID)
	if err != nil { // the id was made up
		return bucket.Partition(executionID, len(h.parts))
	}
	return bucket.Partition(ref.JobID, len(h.parts))
}

// Client is the hot tier as one process sees it: with hints of its own.
func (h *Hot) Client(name string) *HotClient {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &HotClient{tier: h, name: name, hints: hotbucket.NewHints(), bell: pools.NewBell()}
	h.hints, h.bells = append(h.hints, c.hints), append(h.bells, c.bell)
	return c
}

// HotClient implements hotbucket.Buckets and attempts.Records; see also [HotClient.Pools].
type HotClient struct {
	tier  *Hot
	name  string
	hints *hotbucket.Hints
	bell  *pools.Bell
}

func (c *HotClient) at(partition int) *server { return c.tier.parts[partition].of(c.name) }

// Hints implements hotbucket.Buckets.
func (c *HotClient) Hints() *hotbucket.Hints { return c.hints }

// Add implements hotbucket.Buckets.
func (c *HotClient) Add(_ context.Context, entries []job.Entry) error {
	now := time.Now()
	byPartition := map[int][]job.Entry{}
	var partitions, hinted []int
	for _, e := range entries {
		if byPartition[e.Partition] == nil {
			partitions = append(partitions, e.Partition)
		}
		byPartition[e.Partition] = append(byPartition[e.Partition], e)
		if hotbucket.Hurries(&e, now) {
			hinted = append(hinted, e.Partition)
		}
	}
	slices.Sort(partitions)
	var err error
	for _, p := range partitions {
		err = errors.Join(err, c.at(p).add(byPartition[p], now))
	}
	c.tier.mu.Lock()
	defer c.tier.mu.Unlock()
	for _, h := range c.tier.hints {
		h.Add(hinted...)
	}
	return err
}

// Due implements hotbucket.Buckets.
func (c *HotClient) Due(
	_ context.Context, owners []coord.Owner, ask hotbucket.Ask,
) (all []hotbucket.Given, next []time.Time, err error) {
	now := time.Now()
	next = make([]time.Time, len(owners))
	for i, o := range owners {
		var given []hotbucket.Given
		if given, next[i], err = c.at(o.Partition).dueFor(o, ask, now); err != nil {
			return nil, nil, err
		}
		all = append(all, given...)
	}
	return all, next, nil
}

// Postpone implements hotbucket.Buckets.
func (c *HotClient) Postpone(_ context.Context, o coord.Owner, entries []*job.Entry, until time.Time) error {
	return c.at(o.Partition).change(o, entries, func(d *dueEntry) { d.until = until })
}

// Recall implements hotbucket.Buckets.
func (c *HotClient) Recall(_ context.Context, entries []*job.Entry) error {
	for _, e := range entries {
		c.at(e.Partition).recall(e.Locator)
	}
	c.tier.mu.Lock()
	defer c.tier.mu.Unlock()
	for _, h := range c.tier.hints {
		for _, e := range entries {
			h.Add(e.Partition)
		}
	}
	return nil
}

// Park implements hotbucket.Buckets.
func (c *HotClient) Park(_ context.Context, o coord.Owner, entries []*job.Entry) error {
	return c.at(o.Partition).change(o, entries, func(d *dueEntry) { d.until, d.parked = time.Time{}, d.entry.Attended() })
}

// Remove implements hotbucket.Buckets.
func (c *HotClient) Remove(_ context.Context, entries []*job.Entry) error {
	for _, e := range entries {
		c.at(e.Partition).remove(e.Locator)
	}
	return nil
}

// Absent implements hotbucket.Buckets.
func (c *HotClient) Absent(_ context.Context, entries []*job.Entry) (absent []job.Locator, err error) {
	for _, e := range entries {
		if c.at(e.Partition).absent(e.Locator) {
			absent = append(absent, e.Locator)
		}
	}
	return absent, nil
}

// Claim implements hotbucket.Buckets.
func (c *HotClient) Claim(_ context.Context, o coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
	return c.at(o.Partition).claim(o, claims)
}

// Claimed implements hotbucket.Buckets.
func (c *HotClient) Claimed(_ context.Context, partition int, claim hotbucket.Claim) (*job.Decision, error) {
	return c.at(partition).claimed(claim), nil
}

// Horizons implements hotbucket.Buckets.
func (c *HotClient) Horizons(_ context.Context, partitions []int) ([]time.Time, error) {
	horizons := make([]time.Time, len(partitions))
	for i, p := range partitions {
		horizons[i] = c.at(p).horizon()
	}
	return horizons, nil
}

// SetHorizon implements hotbucket.Buckets.
func (c *HotClient) SetHorizon(_ context.Context, o coord.Owner, horizon time.Time) error {
	return c.at(o.Partition).setHorizon(o, horizon)
}

// SetEpoch implements hotbucket.Buckets.
func (c *HotClient) SetEpoch(_ context.Context, o coord.Owner) error {
	return c.at(o.Partition).setEpoch(o)
}

// Incarnations implements hotbucket.Buckets.
func (c *HotClient) Incarnations(_ context.Context, partitions []int) ([]string, error) {
	names := make([]string, len(partitions))
	for i, p := range partitions {
		names[i] = c.at(p).memory().Incarnation
	}
	return names, nil
}
