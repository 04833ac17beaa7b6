package servers

import (
	"context"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

func (h *server) acquire(
	k attempts.Key, holder attempts.Holder, now, lapsesAt time.Time,
) (attempts.Record, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := h.state.records[k]
	if mine, ok := rec.AcquireAgain(holder, lapsesAt); mine {
		h.state.records[k] = rec
		return rec, ok, nil
	}
	if rec.Outcome != nil || rec.Alive(now) {
		return rec, false, nil
	}
	if rec.Exists && !rec.Released {
		rec.Takeovers++
	}
	rec.Exists, rec.Released = true, false
	rec.Holder, rec.LapsesAt, rec.For, rec.ForSince = holder.Name, lapsesAt, holder.For, holder.ForSince
	if !rec.Running {
		rec.DefinitionID = holder.DefinitionID
	}
	rec.Token = job.Token{Counter: rec.Token.Counter + 1, Start: holder.Start}
	if h.broken.SameToken {
		rec.Token = job.Token{Counter: 1}
	}
	h.state.records[k] = rec
	return rec, true, nil
}

func (h *server) begin(k attempts.Key, holder attempts.Holder, lapsesAt time.Time, c attempts.Check, keptSince time.Time) (job.Fence, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, met := h.state.records[k]
	if _, stopped := h.state.stops[c.Entry.JobID]; met || stopped || c.Incarnation != h.incarnation() || !keptSince.After(h.state.keptSince) {
		return job.Fence{}, false
	}
	h.state.records[k] = attempts.Record{
		Exists: true, Holder: holder.Name, DefinitionID: c.Entry.DefinitionID, LapsesAt: lapsesAt, Running: true, Token: job.Token{Counter: 1, Start: holder.Start},
	}
	h.state.started++
	fence := job.Fence{Epoch: h.number(), Counter: h.state.started, Start: holder.Start}
	if h.broken.SameToken {
		fence.Counter = 0
	}
	return fence, true
}

func (h *server) start(k attempts.Key, t job.Token, c attempts.Check) (job.Fence, *job.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Incarnation != h.incarnation() {
		return job.Fence{}, nil, attempts.ErrIncarnation
	}
	rec, ok := h.state.records[k]
	if !ok || rec.Token != t || rec.Released || rec.Outcome != nil {
		return job.Fence{}, nil, attempts.ErrFenced
	}
	e := c.Entry
	if stop := h.state.stops[e.JobID]; stop.Version != c.StopVersion {
		return job.Fence{}, &stop, nil
	}
	rec.Running, rec.DefinitionID = true, e.DefinitionID
	h.state.records[k] = rec
	h.state.started++
	fence := job.Fence{Epoch: h.number(), Counter: h.state.started, Start: t.Start}
	if h.broken.SameToken {
		fence.Counter = 0
	}
	return fence, nil, nil
}

func (h *server) renew(l attempts.Lease, lapsesAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec, ok := h.state.records[l.Key]
	if !ok {
		rec = attempts.Record{
			Exists: true, Holder: l.Holder.Name, DefinitionID: l.Holder.DefinitionID, Token: l.Token, Running: l.MayHaveBegun || l.Begun,
		}
	}
	if rec.Token != l.Token || rec.Outcome != nil {
		return
	}
	if l.Begun && !rec.Running {
		rec.Running, rec.DefinitionID = true, l.Holder.DefinitionID
	}
	rec.LapsesAt = job.Later(rec.LapsesAt, lapsesAt)
	h.state.records[l.Key] = rec
}

func (h *server) release(k attempts.Key, t job.Token, called bool, definitionID string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec, ok := h.state.records[k]
	if !ok || rec.Token != t || rec.Outcome != nil || rec.Released {
		return nil
	}
	rec.Released, rec.Running = true, rec.Running && called
	if rec.Running {
		rec.DefinitionID = definitionID
	} else {
		rec.Exists = false // token and takeovers stay counted
	}
	h.state.records[k] = rec
	return nil
}

func (h *server) finish(e attempts.Completion, now time.Time) (ended attempts.Completed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec, ok := h.state.records[e.Key]
	if !ok {
		rec.Token = e.Token
	}
	if h.broken.AnyToken || rec.Outcome == nil && (rec.Token == e.Token || !rec.Alive(now)) {
		h.end(e.Key, &rec, e.Outcome, now)
		ended.Stored = true
	}
	ended.Record = rec
	return ended
}

func (h *server) refuse(k attempts.Key, o job.Outcome, now time.Time) (attempts.Record, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := h.state.records[k]
	if rec.Outcome != nil || rec.Running || rec.Exists && !rec.Released {
		return rec, false, nil
	}
	h.end(k, &rec, &o, now)
	return rec, true, nil
}

func (h *server) end(k attempts.Key, rec *attempts.Record, o *job.Outcome, now time.Time) {
	own := *o
	rec.Exists, rec.Outcome = true, &own
	h.state.records[k] = *rec
	h.state.ended = append(h.state.ended, k)
	h.state.endedAt = append(h.state.endedAt, now)
	h.evict()
}

// evict enforces the bound on records.
func (h *server) evict() {
	for h.maxRecords > 0 && len(h.state.ended) > h.maxRecords {
		h.evicted++
		delete(h.state.records, h.state.ended[0])
		h.state.keptSince = job.Later(h.state.keptSince, h.state.endedAt[0].Add(clock.MaxDifference+time.Millisecond))
		h.state.ended, h.state.endedAt = h.state.ended[1:], h.state.endedAt[1:]
	}
	for h.maxRecords > 0 && len(h.state.stopped) > h.maxRecords {
		delete(h.state.stops, h.state.stopped[0])
		h.state.stopped = h.state.stopped[1:]
		h.state.keptSince = job.Later(h.state.keptSince, time.Now().Add(clock.MaxDifference))
	}
}

func (h *server) record(k attempts.Key) attempts.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.records[k]
}

func (h *server) setStop(jobID string, s job.State) (holdsIn time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.state.stops[jobID]; !ok || old.Version < s.Version || h.broken.AnyVersion {
		s.StoppedExecutions = slices.Clone(s.StoppedExecutions)
		if !ok {
			h.state.stopped = append(h.state.stopped, jobID)
		}
		h.state.stops[jobID] = s
		h.evict()
	}
	if h.replaced && !h.broken.AloneHolds {
		return attempts.ReplacedFor // it no longer has a replica
	}
	return max(time.Until(h.split), 0)
}

func (h *server) stop(jobID string) (job.State, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.state.stops[jobID]
	return s, ok
}

func (c *HotClient) of(k attempts.Key) *server { return c.at(c.tier.partitionOf(k.ExecutionID)) }

func (c *HotClient) ofJob(id string) *server { return c.at(bucket.Partition(id, len(c.tier.parts))) }

// Acquire implements attempts.Records.
func (c *HotClient) Acquire(
	_ context.Context, k attempts.Key, holder attempts.Holder, now, lapsesAt time.Time,
) (attempts.Record, bool, error) {
	return c.of(k).acquire(k, holder, now, lapsesAt)
}

// Begin implements attempts.Records.
func (c *HotClient) Begin(
	_ context.Context, k attempts.Key, h attempts.Holder, lapsesAt time.Time, check attempts.Check, keptSince time.Time,
) (job.Fence, bool, error) {
	fence, ok := c.of(k).begin(k, h, lapsesAt, check, keptSince)
	return fence, ok, nil
}

// Start implements attempts.Records.
func (c *HotClient) Start(_ context.Context, k attempts.Key, t job.Token, check attempts.Check) (job.Fence, *job.State, error) {
	return c.of(k).start(k, t, check)
}

// Renew implements attempts.Records.
func (c *HotClient) Renew(_ context.Context, leases []attempts.Lease, lapsesAt time.Time) error {
	for _, l := range leases {
		c.of(l.Key).renew(l, lapsesAt)
	}
	return nil
}

// Release implements attempts.Records.
func (c *HotClient) Release(_ context.Context, k attempts.Key, t job.Token, called bool, definitionID string) error {
	return c.of(k).release(k, t, called, definitionID)
}

// Finish implements attempts.Records.
func (c *HotClient) Finish(_ context.Context, ends []attempts.Completion, now time.Time) ([]attempts.Completed, error) {
	ended := make([]attempts.Completed, len(ends))
	for i, e := range ends {
		ended[i] = c.of(e.Key).finish(e, now)
	}
	return ended, nil
}

// Refuse implements attempts.Records.
func (c *HotClient) Refuse(_ context.Context, k attempts.Key, o job.Outcome, now time.Time) (attempts.Record, bool, error) {
	return c.of(k).refuse(k, o, now)
}

// Lookup implements attempts.Records.
func (c *HotClient) Lookup(_ context.Context, keys []attempts.Key) ([]attempts.Record, error) {
	records := make([]attempts.Record, len(keys))
	for i, k := range keys {
		records[i] = c.of(k).record(k)
	}
	return records, nil
}

// Memory implements attempts.Records.
func (c *HotClient) Memory(_ context.Context, jobID string) (attempts.Memory, error) {
	return c.ofJob(jobID).memory(), nil
}

// SetStop implements attempts.Records.
func (c *HotClient) SetStop(_ context.Context, jobID string, s job.State) (holdsIn time.Duration, err error) {
	return c.ofJob(jobID).setStop(jobID, s), nil
}

// StopsOf implements attempts.Records.
func (c *HotClient) StopsOf(_ context.Context, jobIDs []string) (map[string]job.State, error) {
	states := map[string]job.State{}
	for _, id := range jobIDs {
		if s, ok := c.ofJob(id).stop(id); ok {
			states[id] = s
		}
	}
	return states, nil
}
