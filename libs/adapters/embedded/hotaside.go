package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// Postpone implements hotbucket.Buckets.
func (h *HotBuckets) Postpone(_ context.Context, o coord.Owner, entries []*job.Entry, until time.Time) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(o); err != nil {
		return err
	}
	for _, e := range entries {
		if own, ok := p.remove(e); ok {
			p.setAside(own, until)
		}
	}
	return nil
}

// Recall implements hotbucket.Buckets.
func (h *HotBuckets) Recall(_ context.Context, entries []*job.Entry) error {
	for _, e := range entries {
		p := &h.partitions[e.Partition]
		p.mu.Lock()
		if own, ok := p.remove(e); ok {
			p.insert(own)
		}
		p.mu.Unlock()
		h.hints.Add(e.Partition)
	}
	return nil
}

// Park implements hotbucket.Buckets.
func (h *HotBuckets) Park(_ context.Context, o coord.Owner, entries []*job.Entry) error {
	p := &h.partitions[o.Partition]
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(o); err != nil {
		return err
	}
	for _, e := range entries {
		if own, ok := p.remove(e); ok {
			p.waiting.ReplaceOrInsert(own)
			p.refresh(own.Lane)
		}
	}
	return nil
}

// check refuses an owner whose epoch is not the current one.
func (p *hotPartition) check(o coord.Owner) error {
	if epoch, ok := p.epoch[o.Role]; !ok || epoch != o.Epoch {
		return fmt.Errorf("embedded: partition %d: %w", o.Partition, hotbucket.ErrStaleEpoch)
	}
	return nil
}
