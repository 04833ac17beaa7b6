package hotbucket

import (
	"maps"
	"slices"
	"sync"
)

// Hints gathers in which partitions entries may have been added that are due soon. What was told and not taken yet counts once.
type Hints struct {
	mu         sync.Mutex
	partitions map[int]bool
	ready      chan struct{}
}

// NewHints makes them.
func NewHints() *Hints { return &Hints{partitions: map[int]bool{}, ready: make(chan struct{}, 1)} }

// Add tells of partitions.
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

// Take gives the partitions, in order, and forgets them.
func (h *Hints) Take() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken := slices.Sorted(maps.Keys(h.partitions))
	clear(h.partitions)
	return taken
}
