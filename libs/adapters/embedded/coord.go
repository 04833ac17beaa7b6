package embedded

import (
	"context"
	"fmt"
	"sync"

	"github.com/minutehand/minutehand/libs/coord"
)

// Coordinator assigns every partition to this process. Its numbers are durable, so they grow across restarts.
type Coordinator struct {
	db *DB
	mu sync.Mutex
}

var _ coord.Coordinator = (*Coordinator)(nil)

// NewCoordinator returns the coordinator of db.
func NewCoordinator(db *DB) *Coordinator { return &Coordinator{db: db} }

// StartNumber implements coord.Coordinator.
func (c *Coordinator) StartNumber(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.db.getNumber(metaKey("start"))
	if err != nil {
		return 0, fmt.Errorf("embedded: start number: %w", err)
	}
	b := c.db.pebble.NewBatch()
	defer b.Close()
	if err := setNumber(b, metaKey("start"), n+1); err != nil {
		return 0, fmt.Errorf("embedded: start number: %w", err)
	}
	if err := c.db.commit(b); err != nil {
		return 0, fmt.Errorf("embedded: start number: %w", err)
	}
	return n + 1, nil
}

// Join implements coord.Coordinator.
func (c *Coordinator) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	epoch, err := c.StartNumber(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]coord.Owner, c.db.partitions)
	for p := range all {
		all[p] = coord.Owner{Role: role, Partition: p, Epoch: epoch}
	}
	owned := make(chan []coord.Owner, 1)
	owned <- all
	context.AfterFunc(ctx, func() { close(owned) })
	return owned, nil
}
