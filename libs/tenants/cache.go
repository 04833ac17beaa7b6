package tenants

import (
	"errors"
	"sync"
	"time"
)

const (
	// Fresh is how long a row is used without being read again.
	Fresh = 5 * time.Second
	// maxCached bounds the rows of one kind that are kept, those that do not exist included.
	maxCached = 10_000
)

// cache keeps rows for as long as they are fresh.
type cache[V any] struct {
	mu   sync.Mutex
	rows map[string]cached[V]
}

type cached[V any] struct {
	v     V
	err   error // nil, or that there is no row
	until time.Time
}

// get returns a row, which read reads if it is not at hand. That there is none is kept as well, other errors are not.
func (c *cache[V]) get(id string, now time.Time, read func() (V, error)) (V, error) {
	c.mu.Lock()
	row, ok := c.rows[id]
	c.mu.Unlock()
	if ok && now.Before(row.until) && row.until.Sub(now) <= Fresh { // the clock may have been set back
		return row.v, row.err
	}
	v, err := read()
	if err != nil && !errors.Is(err, ErrNotFound) {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = map[string]cached[V]{}
	}
	for other := range c.rows { // any: a flood of names drives out what is read again cheaply
		if len(c.rows) < maxCached {
			break
		}
		delete(c.rows, other)
	}
	c.rows[id] = cached[V]{v, err, now.Add(Fresh)}
	return v, err
}

func (c *cache[V]) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rows, id)
}
