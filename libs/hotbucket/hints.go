package hotbucket

import (
	"maps"
	"slices"
	"sync"
)

// Hints collects the partitions in which entries that are due soon may have been added. A partition counts once until it is taken.
type Hints struct {
	mu         sync.Mutex
	partitions map[int]bool
	ready      chan struct{}
}

// NewHints returns hints without any partition.
func NewHints() *Hints { return &Hints{partitions: map[int]bool{}, ready: make(chan struct{}, 1)} }

// Add adds partitions.
func (h *Hints) Add(partitions ...int) {
	if len(partitions) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range partitions {
		h.partitions[p] = true
	}
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

// Ready receives when there is something to take.
func (h *Hints) Ready() <-chan struct{} { return h.ready }

// Take returns the partitions, in order, and forgets them.
func (h *Hints) Take() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken := slices.Sorted(maps.Keys(h.partitions))
	clear(h.partitions)
	return taken
}
