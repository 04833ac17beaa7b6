package embedded

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// Claim implements hotbucket.Buckets.
func (h *HotBuckets) Claim(_ context.Context, o coord.Owner, claims []hotbucket.Claim) ([]job.Decision, error) {
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

// Claimed implements hotbucket.Buckets.
func (h *HotBuckets) Claimed(_ context.Context, _ int, c hotbucket.Claim) (*job.Decision, error) {
	if d, ok := h.claims.get(c.ExecutionID + "/" + c.DefinitionID); ok {
		return &d, nil
	}
	return nil, nil
}

// Horizons implements hotbucket.Buckets.
func (h *HotBuckets) Horizons(_ context.Context, partitions []int) ([]time.Time, error) {
	horizons := make([]time.Time, len(partitions))
	for i, n := range partitions {
		p := &h.partitions[n]
		p.mu.Lock()
		horizons[i] = p.horizon
		p.mu.Unlock()
	}
	return horizons, nil
}

// SetHorizon implements hotbucket.Buckets.
func (h *HotBuckets) SetHorizon(_ context.Context, o coord.Owner, horizon time.Time) error {
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
func (h *HotBuckets) SetEpoch(_ context.Context, o coord.Owner) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch[o.Role] > o.Epoch {
		return fmt.Errorf("embedded: partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	if p.epoch[o.Role] != o.Epoch && o.Role == coord.RoleWorker {
		p.bringAllBack() // what the previous owner was given
	}
	p.epoch[o.Role] = o.Epoch
	return nil
}

// Incarnations implements hotbucket.Buckets. All partitions are lost together.
func (h *HotBuckets) Incarnations(_ context.Context, partitions []int) ([]string, error) {
	return slices.Repeat([]string{h.incarnation}, len(partitions)), nil
}

// Entries returns the number of entries in all hot buckets.
func (h *HotBuckets) Entries() int64 { return h.entries.Load() }

// Hints implements hotbucket.Buckets.
func (h *HotBuckets) Hints() *hotbucket.Hints { return h.hints }
