package pools

import "sync"

// Bell wakes those who wait for tasks, the longest waiting first.
type Bell struct {
	mu      sync.Mutex
	waiting map[Pool][]*Waiter
}

// Waiter is somebody who waits for a task with one of some handlers.
type Waiter struct {
	// Rung receives once, when there may be a task.
	Rung     chan struct{}
	pool     Pool
	handlers []string
}

// NewBell returns a bell that nobody hears.
func NewBell() *Bell { return &Bell{waiting: map[Pool][]*Waiter{}} }

// Wait returns a waiter, which must be ended.
func (b *Bell) Wait(p Pool, handlers []string) *Waiter {
	w := &Waiter{Rung: make(chan struct{}, 1), pool: p, handlers: handlers}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[p] = append(b.waiting[p], w)
	return w
}

// End ends a wait. If it was rung for, and the ring was not heard, the next waiter hears it.
func (b *Bell) End(w *Waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(func(one *Waiter) bool { return one == w }, w.pool, 1)
	select {
	case <-w.Rung:
		b.ring(w.pool, w.handlers, 1)
	default:
	}
}

// Ring tells up to n waiters of a pool that there are tasks for a handler.
func (b *Bell) Ring(p Pool, handler string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ring(p, []string{handler}, n)
}

// RingAll tells all waiters.
func (b *Bell) RingAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p, list := range b.waiting {
		for _, w := range list {
			w.Rung <- struct{}{} // it has room for the one ring
		}
		delete(b.waiting, p)
	}
}

func (b *Bell) ring(p Pool, handlers []string, n int) {
	for _, w := range b.drop(func(w *Waiter) bool { return common(w.handlers, handlers) }, p, n) {
		w.Rung <- struct{}{}
	}
}

// drop removes and returns the first n waiters of a pool of which a condition holds.
func (b *Bell) drop(which func(*Waiter) bool, p Pool, n int) (dropped []*Waiter) {
	var stay []*Waiter
	for _, w := range b.waiting[p] {
		if len(dropped) < n && which(w) {
			dropped = append(dropped, w)
		} else {
			stay = append(stay, w)
		}
	}
	if b.waiting[p] = stay; len(stay) == 0 {
		delete(b.waiting, p)
	}
	return dropped
}

func common(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}
