package sim

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/wire"
)

// loss is a loss of partitions of the hot tier.
type loss struct {
	at         time.Time
	partitions []int
}

func (w *world) lost(f Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses = append(w.losses, loss{time.Now(), f.partitions()})
}

// lostFor reports whether the part of the hot tier that holds a job's state was lost between two instants.
func (w *world) lostFor(jobID string, from, to time.Time) bool {
	p := bucket.Partition(jobID, partitions)
	return slices.ContainsFunc(w.losses, func(l loss) bool { return l.at.After(from) && l.at.Before(to) && slices.Contains(l.partitions, p) })
}

// lostOf notes the events that a topic held and lost before they were read.
func (w *world) lostOf(topic string, records map[string][]dispatch.Message) {
	if topic == dispatch.TopicEvents {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lostToHistory = append(w.lostToHistory, decode(records[dispatch.GroupHistory])...)
		w.lostToArchive = append(w.lostToArchive, decode(records[dispatch.GroupArchive])...)
		w.lostToSettle = append(w.lostToSettle, decode(records[dispatch.GroupSettle])...)
	}
}

func decode(messages []dispatch.Message) (events []job.Event) {
	for _, m := range messages {
		if e, err := wire.UnmarshalEvent(m.Value); err == nil {
			events = append(events, e)
		}
	}
	return events
}

// poolLost reports whether the part of the hot tier that holds the pool was lost between two instants. The caller holds mu.
func (w *world) poolLost(from, to time.Time) bool {
	p := w.hot.PartitionOf(pools.Pool{Tenant: job.DefaultTenant, Name: poolName})
	return slices.ContainsFunc(w.losses, func(l loss) bool { return l.at.After(from) && l.at.Before(to) && slices.Contains(l.partitions, p) })
}
