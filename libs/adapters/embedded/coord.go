package embedded

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

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

// SkipStarts lets the start numbers go on beyond all that a process can have drawn which went on after this copy of the database was made:
// event ids have them, and must not come twice. A number is drawn for each start, and so there are fewer of them than seconds.
func (db *DB) SkipStarts(now time.Time) error {
	n, _, err := db.getNumber(metaKey("start"))
	if err == nil {
		err = db.set(metaKey("start"), binary.BigEndian.AppendUint64(nil, uint64(max(n, now.Unix()))))
	}
	if err != nil {
		return fmt.Errorf("embedded: skip start numbers: %w", err)
	}
	return nil
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
