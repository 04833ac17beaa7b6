package jobapi

import (
	"context"
	"errors"

	"github.com/minutehand/minutehand/libs/lifecycle"
)

// holdingShare is one in how many connections may wait until a change holds.
const holdingShare = 4

// errNotHeld means: the change is stored, and does not hold yet.
var errNotHeld = errors.New("a server of the hot tier failed over, so the change holds in some seconds")

// hold returns when a change holds, which takes up to dedupe.ReplacedFor and the clocks' difference where a server of the hot tier has
// failed over. Only a share of the connections may wait for that, and none of them once the service is told to stop; the others get
// errNotHeld. A request that is repeated finds nothing to change, and waits for what is left of the time.
func (s *Service) hold(ctx context.Context, j *lifecycle.Changed) error {
	if j.HoldsIn == 0 {
		return nil
	}
	select {
	case s.holding <- struct{}{}:
		defer func() { <-s.holding }()
	default:
		return errNotHeld
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := make(chan error, 1)
	go func() { held <- j.Hold(ctx) }()
	select {
	case err := <-held:
		return err
	case <-s.stopping:
		cancel()
		return errors.Join(errNotHeld, <-held)
	}
}
