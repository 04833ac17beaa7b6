package executor

import (
	"context"
	"errors"

	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/run"
)

// handOver lets an attempt that may begin wait in the queue of its pool, where a worker fetches it. The fire is then complete: nobody holds
// the attempt, its entry is not done, and the bucket-loader puts it back now and then. So whatever is forgotten comes again, and a fire of
// what still waits puts it where it is.
//
//   - The attempt is released before its task can be found, because whoever hands the task out acquires it at once.
//   - If this process dies in between, nobody has the attempt, and the entry is put back.
//   - If it stalls in between, another fire may have been handed over and its task may be fetched: then the late task is not added, or nobody
//     can acquire its attempt.
//   - Whoever hands the task out makes the last check again, because a stop may come while it waits (I4).
func (a *attempt) handOver(ctx context.Context) {
	s, w := a.s, a.w
	t := &pools.Task{
		Fire: w.fire, Holder: s.holder(w.fire.DefinitionID), StopVersion: a.stopVersion, Incarnation: w.incarnation,
		Again: w.fire.Attempt > 1 || a.rec.Token.Counter > 1,
	}
	if !a.release(ctx) {
		return // ctx ended
	}
	full := false
	err := run.Retry(ctx, s.deps.Logger, "hand a task over", func(ctx context.Context) error {
		err := s.deps.Pools.Add(ctx, t, s.deps.Clock.Now())
		if full = errors.Is(err, pools.ErrFull); full {
			return nil
		}
		return err
	})
	switch {
	case err != nil: // ctx ended
	case full:
		w.called = false
		s.hosts.reject(w) // it is deferred
	default:
		w.done()
	}
}
