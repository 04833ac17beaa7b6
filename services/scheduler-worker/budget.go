package schedulerworker

import (
	"math"
	"sync"
	"time"
)

const (
	// heavyWeight is the size from which a definition is heavy, in bytes. Heavy entries are read and published a few at a
	// time, alongside the others, and leave a quarter of the budget to them: a few large bodies must not hold up many small
	// ones.
	heavyWeight = 16 << 10
	// batchBytes bounds the heavy entries that are read, or published, at once, in bytes; a single entry always passes.
	batchBytes = 1 << 20
	// heavyAhead is how long before its instant a heavy entry is read: all of the lookahead would take memory from what is due.
	heavyAhead = 500 * time.Millisecond
	// taskOverhead is roughly what a prepared entry takes in memory besides its definition, in bytes.
	taskOverhead = 1024
	// unreportedBytes bounds the heavy entries published in a lane on which no executor has reported, in bytes.
	unreportedBytes = 16 << 20
)

// class says how an entry is treated by its weight: each class has its own queue and bound on work in flight.
type class int

const (
	light class = iota
	heavy
	classes
)

func (t *task) class() class {
	if t.entry.Weight > heavyWeight {
		return heavy
	}
	return light
}

// bytes returns roughly what the task takes in memory once its job row was read.
func (t *task) bytes() int64 { return int64(t.entry.Weight) + taskOverhead }

// budget bounds the memory for job rows that all shards of a worker have read: from before the read until the entry's fire
// is durable or the entry is let go. An entry for which there is no room waits, and takes a few hundred bytes.
type budget struct {
	limit int64

	mu   sync.Mutex
	used int64
	// starved channels are told when there is room again.
	starved map[chan struct{}]bool
}

func newBudget(limit int64) *budget { return &budget{limit: limit, starved: map[chan struct{}]bool{}} }

// reserve takes room for a prefix of the tasks, and returns its length. If the budget has no room for the rest, again is
// told once it has. A task larger than the whole budget passes when nothing else has any.
func (b *budget) reserve(tasks []*task, of class, again chan struct{}) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit, batch := b.limit, int64(math.MaxInt64)
	if of == heavy {
		limit, batch = b.limit/4*3, batchBytes
	}
	taken := int64(0)
	for _, t := range tasks {
		size := t.bytes()
		if n > 0 && taken+size > batch {
			return n
		}
		if b.used > 0 && b.used+size > limit {
			b.starved[again] = true
			return n
		}
		b.used += size
		taken += size
		t.reserved = size
		n++
	}
	return n
}

// release gives back what a task reserved.
func (b *budget) release(t *task) {
	if t.reserved == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= t.reserved
	t.reserved = 0
	for c := range b.starved {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	clear(b.starved)
}
