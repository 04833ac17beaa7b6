package servers

import (
	"context"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
)

// Acquire implements dedupe.Records.
func (h *Hot) Acquire(
	_ context.Context, k dedupe.Key, holder dedupe.Holder, now, lapsesAt time.Time,
) (dedupe.Record, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := h.state.records[k]
	if rec.Exists && rec.Outcome == nil && !rec.Released && rec.Holder == holder.Name && rec.Token.Start == holder.Start {
		rec.LapsesAt = job.Later(rec.LapsesAt, lapsesAt)
		h.state.records[k] = rec
		return rec, true, nil
	}
	if rec.Outcome != nil || rec.Alive(now) {
		return rec, false, nil
	}
	if rec.Exists && !rec.Released {
		rec.Takeovers++
	}
	rec.Exists, rec.Released = true, false
	rec.Holder, rec.LapsesAt = holder.Name, lapsesAt
	if !rec.Running {
		rec.DefinitionID = holder.DefinitionID
	}
	rec.Token = job.Token{Counter: rec.Token.Counter + 1, Start: holder.Start}
	if h.Broken.SameToken {
		rec.Token = job.Token{Counter: 1}
	}
	h.state.records[k] = rec
	return rec, true, nil
}

// Start implements dedupe.Records.
func (h *Hot) Start(_ context.Context, k dedupe.Key, t job.Token, c dedupe.Check) (job.Verdict, job.Fence, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Incarnation != h.incarnation() {
		return 0, job.Fence{}, dedupe.ErrIncarnation
	}
	rec, ok := h.state.records[k]
	if !ok || rec.Token != t || rec.Released || rec.Outcome != nil {
		return 0, job.Fence{}, dedupe.ErrFenced
	}
	e := c.Entry
	if stop, ok := h.state.stops[e.JobID]; ok {
		v := stop.Judge(e, c.EndsAt)
		if h.Broken.LastUpdateOnly && v == job.Superseded || h.Broken.AnyDefinition && (v == job.Superseded || v == job.Outdated) {
			v = job.Proceed
		}
		if v == job.Proceed && stop.Stops(e.ExecutionID) {
			v = job.StoppedByCancel
		}
		if v != job.Proceed {
			return v, job.Fence{}, nil
		}
	}
	rec.Running, rec.DefinitionID = true, e.DefinitionID
	h.state.records[k] = rec
	h.state.started++
	fence := job.Fence{Epoch: h.number(), Counter: h.state.started, Start: t.Start}
	if h.Broken.SameToken {
		fence.Counter = 0
	}
	return job.Proceed, fence, nil
}

// Renew implements dedupe.Records.
func (h *Hot) Renew(_ context.Context, leases []dedupe.Lease, lapsesAt time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range leases {
		rec, ok := h.state.records[l.Key]
		if !ok {
			rec = dedupe.Record{
				Exists: true, Holder: l.Holder.Name, DefinitionID: l.Holder.DefinitionID, Token: l.Token, Running: l.MayHaveBegun || l.Begun,
			}
		}
		if rec.Token != l.Token || rec.Outcome != nil {
			continue
		}
		if l.Begun && !rec.Running {
			rec.Running, rec.DefinitionID = true, l.Holder.DefinitionID
		}
		rec.LapsesAt = job.Later(rec.LapsesAt, lapsesAt)
		h.state.records[l.Key] = rec
	}
	return nil
}

// Release implements dedupe.Records.
func (h *Hot) Release(_ context.Context, k dedupe.Key, t job.Token, called bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec, ok := h.state.records[k]
	if !ok || rec.Token != t || rec.Outcome != nil || rec.Released {
		return nil
	}
	rec.Released, rec.Running = true, rec.Running && called
	if !rec.Running {
		rec.Exists = false // token and takeovers stay counted
	}
	h.state.records[k] = rec
	return nil
}

// Finish implements dedupe.Records.
func (h *Hot) Finish(_ context.Context, ends []dedupe.End, now time.Time) ([]dedupe.Ended, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := make([]dedupe.Ended, len(ends))
	for i, e := range ends {
		rec, ok := h.state.records[e.Key]
		if !ok {
			rec.Token = e.Token
		}
		if h.Broken.AnyToken || rec.Outcome == nil && (rec.Token == e.Token || !rec.Alive(now)) {
			h.end(e.Key, &rec, e.Outcome, now)
			ended[i].Stored = true
		}
		ended[i].Record = rec
	}
	h.evict()
	return ended, nil
}

// Refuse implements dedupe.Records.
func (h *Hot) Refuse(_ context.Context, k dedupe.Key, o job.Outcome, now time.Time) (dedupe.Record, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := h.state.records[k]
	if rec.Outcome != nil || rec.Running || rec.Exists && !rec.Released {
		return rec, false, nil
	}
	h.end(k, &rec, &o, now)
	h.evict()
	return rec, true, nil
}

func (h *Hot) end(k dedupe.Key, rec *dedupe.Record, o *job.Outcome, now time.Time) {
	own := *o
	rec.Exists, rec.Outcome = true, &own
	h.state.records[k] = *rec
	h.state.ended = append(h.state.ended, k)
	h.state.endedAt = append(h.state.endedAt, now)
}

// evict keeps the bound.
func (h *Hot) evict() {
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

// Lookup implements dedupe.Records.
func (h *Hot) Lookup(_ context.Context, keys []dedupe.Key) ([]dedupe.Record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	records := make([]dedupe.Record, len(keys))
	for i, k := range keys {
		records[i] = h.state.records[k]
	}
	return records, nil
}

// SetStop implements dedupe.Records.
func (h *Hot) SetStop(_ context.Context, jobID string, s job.State) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.state.stops[jobID]; !ok || old.Version < s.Version || h.Broken.AnyVersion {
		s.StoppedExecutions = slices.Clone(s.StoppedExecutions)
		if !ok {
			h.state.stopped = append(h.state.stopped, jobID)
		}
		h.state.stops[jobID] = s
		h.evict()
	}
	return nil
}

// StopsOf implements dedupe.Records.
func (h *Hot) StopsOf(_ context.Context, jobIDs []string) (map[string]job.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	states := map[string]job.State{}
	for _, id := range jobIDs {
		if s, ok := h.state.stops[id]; ok {
			states[id] = s
		}
	}
	return states, nil
}
