package executor

import (
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// window tracks the consumed fires that are not committed. Fires complete in any order; offsets are committed in order, up
// to the first that is not done.
type window struct {
	mu         sync.Mutex
	partitions map[int]*span
	opened     int
}

type span struct {
	// offsets were consumed and are not committed yet, ascending, from head on.
	offsets []int64
	head    int
	done    map[int64]bool
	// low is the next offset that may be committed.
	low int64
}

func newWindow() *window { return &window{partitions: map[int]*span{}} }

func (w *window) open(partition int, offset int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.partitions[partition]
	if !ok {
		s = &span{done: map[int64]bool{}, low: offset}
		w.partitions[partition] = s
	}
	s.offsets = append(s.offsets, offset)
	w.opened++
}

func (w *window) done(partition int, offset int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.partitions[partition]
	s.done[offset] = true
	for s.head < len(s.offsets) && s.done[s.offsets[s.head]] {
		delete(s.done, s.offsets[s.head])
		s.low = s.offsets[s.head] + 1
		s.head++
		w.opened--
	}
	if s.head > 1024 && s.head > len(s.offsets)/2 {
		s.offsets = append([]int64(nil), s.offsets[s.head:]...)
		s.head = 0
	}
}

// committable returns, per partition, the offset below which everything is done.
func (w *window) committable() map[int]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	low := make(map[int]int64, len(w.partitions))
	for p, s := range w.partitions {
		low[p] = s.low
	}
	return low
}

func (w *window) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

// target is what the record says of the fire's target.
func (w *task) target() job.TargetRef {
	if w.fire.Target.Connection+w.fire.Target.Pool != "" {
		return w.fire.Target.Ref()
	}
	return job.TargetRef{Kind: w.fire.Target.Kind, Host: w.host}
}

// done marks the fire as complete.
func (w *task) done() { w.window.done(w.partition, w.offset) }

func newTask(in *window, m dispatch.Message, at time.Time) (*task, error) {
	fire, err := wire.FireOf(&m)
	if err != nil {
		return nil, err
	}
	return &task{
		fire: fire, window: in, partition: m.Partition, offset: m.Offset, host: fire.Target.Place(fire.Tenant),
		bytes: int64(len(m.Value)) + taskOverhead, consumedAt: at,
		incarnation: fire.Incarnation, knownSince: fire.TakenAt,
	}, nil
}
