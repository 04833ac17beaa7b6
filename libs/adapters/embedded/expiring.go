package embedded

import (
	"sync"
	"time"
)

// fifo is a queue of keys with the instants at which they were added, oldest first.
type fifo[K comparable] struct {
	items []aged[K]
	head  int
}

type aged[K comparable] struct {
	key K
	at  time.Time
}

func (q *fifo[K]) len() int { return len(q.items) - q.head }

func (q *fifo[K]) push(k K, at time.Time) { q.items = append(q.items, aged[K]{k, at}) }

func (q *fifo[K]) first() aged[K] { return q.items[q.head] }

func (q *fifo[K]) pop() aged[K] {
	a := q.items[q.head]
	q.items[q.head] = aged[K]{}
	q.head++
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append([]aged[K](nil), q.items[q.head:]...)
		q.head = 0
	}
	return a
}

// expiring is a map whose values expire after a time, or earlier when there are too many: the oldest first.
type expiring[K comparable, V any] struct {
	keep time.Duration
	most int

	mu     sync.Mutex
	values map[K]V
	queue  fifo[K]
}

func newExpiring[K comparable, V any](keep time.Duration, most int) *expiring[K, V] {
	return &expiring[K, V]{keep: keep, most: most, values: map[K]V{}}
}

// get returns the value under key, which may have been kept longer than it had to be.
func (m *expiring[K, V]) get(key K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok = m.values[key]
	return v, ok
}

// getOrAdd returns the value under key, after setting it to v if there was none.
func (m *expiring[K, V]) getOrAdd(now time.Time, key K, v V) V {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.queue.len() > 0 && (m.queue.len() >= m.most || now.Sub(m.queue.first().at) >= m.keep) {
		delete(m.values, m.queue.pop().key)
	}
	if old, ok := m.values[key]; ok {
		return old
	}
	m.values[key] = v
	m.queue.push(key, now)
	return v
}
