package sim

import (
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/wire"
	schedulerworker "github.com/minutehand/minutehand/services/scheduler-worker"
)

// tenure is the ownership of a partition by one run of a worker.
type tenure struct {
	worker         string
	run, partition int
	epoch          int64
}

// accepted notes that the hot tier accepted an owner's read, and with it the owner's epochs.
func (w *world) accepted(p *process, owners []coord.Owner) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range owners {
		w.tenures[tenure{p.name, p.run, o.Partition, o.Epoch}] = time.Now()
		w.epochs[o.Partition] = max(w.epochs[o.Partition], o.Epoch)
	}
}

// publishes checks I3 on what a worker is about to publish: it read the partition under this epoch not long ago, or nobody
// has read it under a later one.
func (w *world) publishes(p *process, list []dispatch.Message) {
	for _, r := range list {
		f, err := wire.UnmarshalFire(r.Value)
		if err != nil {
			w.violate("wire", "", "a fire cannot be decoded: %v", err)
			continue
		}
		w.mu.Lock()
		read, present := w.tenures[tenure{p.name, p.run, f.Partition, f.Epoch}], w.epochs[f.Partition]
		w.mu.Unlock()
		ttl := schedulerworker.DefaultConfig().OwnerTTL
		ttl += time.Duration(ttl.Seconds() * float64(maxDrift)) // it counts by its own clock
		if age := time.Since(read); f.Epoch != present && age > ttl {
			w.violate("I3", f.JobID, "%s dispatches from partition %d under epoch %d, while %d has taken it over: it read it %s ago",
				p.name, f.Partition, f.Epoch, present, age)
		}
		w.tell(p.name, locatorKey(f.Locator), "publishes the fire of "+f.DueAt.Sub(w.began).String())
	}
}
