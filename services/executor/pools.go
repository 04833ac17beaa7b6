package executor

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/libs/run"
)

// waitsFor is how long an attempt is held for its task. Until then, its entry is not put back. After that it is, and handed over once more.
const waitsFor = 5 * time.Minute

// handOver lets an attempt that may begin wait in the queue of its pool, where a worker fetches it. The fire is then complete: its entry is
// not done, and the bucket-loader puts it back when nobody holds the attempt any more. So whatever is forgotten comes again, and a fire of what
// still waits renews its task.
//
//   - The attempt is released before its task can be found, because the job-api that hands the task out acquires it at once. It does so as the
//     same holder: it does not matter which of the two comes first, and neither takes the attempt from the other.
//   - If this process dies before the task waits, or before it holds the attempt for it, nobody has the attempt, and the entry is put back.
//   - If it stalls before that, another fire may have been handed over and its task fetched: then the late task is not added, nobody can acquire
//     its attempt, or its check is too old.
//   - The job-api makes the last check again, because a stop may come while the task waits (I4). If this executor's check is so old that the hot tier
//     may have forgotten the attempt's outcome, the entry is judged again instead.
func (a *attempt) handOver(ctx context.Context) {
	s, w := a.s, a.w
	t := &pools.Task{
		Fire: w.fire, Holder: s.holder(w.fire.DefinitionID), StopVersion: a.stopVersion, Incarnation: w.incarnation, KnownSince: w.knownSince,
		Again: s.mayHaveBegun(w.fire, &a.rec, w.incarnation),
	}
	if !a.release(ctx) {
		return // ctx ended
	}
	full, err := s.letWait(ctx, a.key, t)
	switch {
	case err != nil: // ctx ended
	case full:
		w.called = false
		s.hosts.reject(w) // it is deferred
	default:
		w.done()
	}
}

const (
	// addsAgain bounds how often a task is added again because the hot tier may have forgotten it.
	addsAgain = 3
	// atOnce is by when the attempt of a task is held that was added: no server is back so soon after it died.
	atOnce = 250 * time.Millisecond
)

// letWait adds a task to its pool, and holds its attempt for it. A hot tier that failed in between may have forgotten the task; held for nothing,
// its attempt would come again only after waitsFor. So the task is added again then, which changes nothing if it is there.
func (s *Service) letWait(ctx context.Context, k attempts.Key, t *pools.Task) (full bool, err error) {
	for range addsAgain {
		err := run.Retry(ctx, s.deps.Logger, "hand a task over", func(ctx context.Context) error {
			err := s.deps.Pools.Add(ctx, t, s.deps.Clock.Now())
			if full = errors.Is(err, pools.ErrFull); full {
				return nil
			}
			return err
		})
		if err != nil || full {
			return full, err
		}
		added, tries := s.deps.Clock.Now(), 0
		err = run.Retry(ctx, s.deps.Logger, "hold the attempt of a task", func(ctx context.Context) error {
			tries++
			now := s.deps.Clock.Now()
			_, _, err := s.deps.Records.Acquire(ctx, k, t.Holder, now, now.Add(waitsFor))
			return err
		})
		if err != nil || tries == 1 && s.deps.Clock.Since(added) < atOnce {
			return false, err
		}
	}
	return false, nil
}

// onTime is how late a task may be handed over that no worker can have had before.
const onTime = 10 * time.Second

// mayHaveBegun reports whether a worker may have had the execution before, and have told of its progress. The hot tier may have forgotten that, and the entry
// may have been deferred since, so the instant counts, and not when the attempt is due. It has forgotten it for sure if its incarnation began
// after the instant.
func (s *Service) mayHaveBegun(f *job.Fire, rec *attempts.Record, incarnation string) bool {
	forgot := !attempts.Memory{Incarnation: incarnation}.Covers(f.ScheduledFor)
	return f.Attempt > 1 || rec.Token.Counter > 1 || forgot || s.deps.Clock.Since(f.ScheduledFor) > onTime
}

// ofPool reports whether the fire is a task of a pool.
func (s *Service) ofPool(w *task) bool {
	return w.fire.Target.Kind == job.TargetPool && s.deps.Pools != nil
}

// forget removes the task of an attempt that will not begin, if it waits.
func (s *Service) forget(ctx context.Context, w *task) {
	if !s.ofPool(w) {
		return
	}
	p := pools.Pool{Tenant: w.fire.Tenant, Name: w.fire.Target.Pool}
	if err := s.deps.Pools.Forget(ctx, p, pools.IDOf(attempts.KeyOf(&w.fire.Entry))); err != nil && ctx.Err() == nil {
		s.deps.Logger.Warn("cannot remove a task that may not begin; it is judged when it is fetched", "error", err)
	}
}
