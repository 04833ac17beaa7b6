package writes

import (
	"context"
	"errors"
	"fmt"

	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// hold adds the entries of a change to their hot buckets, and returns when the change holds.
func (ws *Writes) hold(ctx context.Context, j *jobchange.Changed) error {
	if len(j.Entries) > 0 {
		ws.Near(ctx, j.Entries)
	}
	return ws.await(ctx, j)
}

// await returns when a change holds. Where a server of the hot tier has failed over, that takes up to attempts.ReplacedFor
// and the clocks' difference. Only a share of the connections may wait for it, and none once the service is asked to stop;
// the others get edge.ErrNotHeld. A repeated request finds nothing to change, and waits for the rest of the time.
func (ws *Writes) await(ctx context.Context, j *jobchange.Changed) error {
	if j.HoldsIn == 0 {
		return nil
	}
	select {
	case ws.holding <- struct{}{}:
		defer func() { <-ws.holding }()
	default:
		return edge.ErrNotHeld
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := make(chan error, 1)
	go func() { held <- j.Await(ctx) }()
	select {
	case err := <-held:
		if err != nil {
			return fmt.Errorf("wait until the change of job %s holds: %w", j.ID, err)
		}
		return nil
	case <-ws.stopping:
		cancel()
		return errors.Join(edge.ErrNotHeld, <-held)
	}
}
