package executor

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// attempt is a task whose attempt this executor has reserved, and later holds the lease of.
type attempt struct {
	s   *Service
	w   *task
	key attempts.Key
	own *lease
	rec attempts.Record
	// holder is the same for all tries to have the attempt, because a try whose answer was lost may have had it.
	holder attempts.Holder
	// ending is set while the lease is renewed only until the outcome is stored.
	ending bool
	// stopVersion is that of the stop record by which the last check let the attempt begin.
	stopVersion int64
}

func (s *Service) attempt(w *task) *attempt {
	return &attempt{s: s, w: w, key: attempts.KeyOf(&w.fire.Entry), holder: s.holder(w.fire.DefinitionID)}
}

// leave lets go of the attempt, unless it is ending.
func (a *attempt) leave() {
	if !a.ending {
		a.s.leases.drop(a.key, a.own)
		a.s.hosts.wake(a.key)
	}
}

// begin takes the lease and the last check in one, where the hot tier knows of nothing that stands in the way and has forgotten nothing
// that concerns the fire. Where it does not begin so, or the answer is lost, the two steps are taken one by one.
func (a *attempt) begin(ctx context.Context) (fence job.Fence, began bool) {
	s, w := a.s, a.w
	asked := s.deps.Clock.Now()
	oldest := asked.Add(clock.MaxDifference - attempts.Retention) // of what the hot tier keeps
	if w.untold != nil || w.behind || w.incarnation == "" || !w.knownSince.After(oldest) {
		return fence, false
	}
	keptSince := w.knownSince
	if !w.fire.Fresh && asked.After(w.fire.DueAt) {
		// As lastCheck has it, the row need not be read if nothing was forgotten since the fire was due. Begin makes sure that the
		// incarnation is this one, and that it has evicted nothing since.
		if memory := (attempts.Memory{Incarnation: w.incarnation, KeptSince: oldest}); !memory.Covers(w.fire.DueAt) {
			return fence, false
		}
		if w.fire.DueAt.Before(keptSince) {
			keptSince = w.fire.DueAt
		}
	}
	check := attempts.Check{Entry: &w.fire.Entry, Incarnation: w.incarnation}
	fence, began, err := s.deps.Records.Begin(ctx, a.key, a.holder, asked.Add(s.cfg.LeaseTTL), check, keptSince)
	if err != nil || !began {
		return fence, false
	}
	s.leases.set(a.own, lease{token: job.Token{Counter: 1, Start: a.holder.Start}, definitionID: w.fire.DefinitionID, begun: true})
	if s.deps.Clock.Since(asked) > time.Second {
		return fence, false // a stop may have come since
	}
	a.rec.Token = job.Token{Counter: 1, Start: a.holder.Start}
	return fence, true
}

// withdraw releases what this executor may have begun without knowing it, because it was told to stop before it had the answer. It has
// called nobody, so the next executor need not wait.
func (a *attempt) withdraw(ctx context.Context) {
	a.rec = attempts.Record{Token: job.Token{Counter: 1, Start: a.holder.Start}}
	a.releaseUncalled(ctx)
}

// releaseUncalled releases an attempt of which this executor has called nobody, also when it was told to stop.
func (a *attempt) releaseUncalled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	a.release(ctx)
}

// call calls the target at the fire's instant, for which it waits if that is a few milliseconds away. A check that is older than a second
// by then, because the clock was set back, is made again.
func (a *attempt) call(ctx context.Context, fence job.Fence) {
	s, w := a.s, a.w
	checked := s.deps.Clock.Now()
	switch err := s.awaitInstant(ctx, w.fire); {
	case err != nil:
		a.releaseUncalled(ctx)
	case s.deps.Clock.Since(checked) > time.Second:
		a.releaseUncalled(ctx)
		s.hosts.delay(w, w.fire.DueAt)
	case s.ofPool(w):
		a.handOver(ctx)
	default:
		if outcome, ok := s.invoke(ctx, w, fence); ok {
			a.end(ctx, outcome)
		}
	}
}

// mine reports whether the earlier run, if there was one, was for an entry of the same definition. A run for another
// definition's entry is ended through that entry. This entry's row may be done, and nobody would settle it.
func (a *attempt) mine() bool { return a.rec.Of(a.w.fire.DefinitionID) }

func (a *attempt) end(ctx context.Context, o job.Outcome) {
	a.ending = a.s.end(ctx, a.w, a.own, a.rec.Token, o)
}

// release gives the lease up before this executor calls the target, even where the last check let it proceed: after a long
// delay the check is made again. If an earlier holder may have called the target for another definition's entry, the attempt is that
// entry's to end again.
func (a *attempt) release(ctx context.Context) bool {
	a.s.leases.drop(a.key, a.own) // first, because a renewal would bring back what the hot tier forgot meanwhile
	return a.s.release(ctx, a.key, &a.rec)
}

// giveUp ends an attempt that earlier executors took and never finished.
func (a *attempt) giveUp(ctx context.Context) {
	a.s.forget(ctx, a.w)
	switch gone, err := a.s.rowGone(ctx, a.w); {
	case err != nil: // ctx ended
	case gone: // settled, or refused, since the fire was published: nobody would settle it again
		if a.release(ctx) {
			a.w.done()
		}
	default:
		a.end(ctx, a.s.lost(a.rec))
	}
}

// conclude makes the last check and acts on its verdict.
func (a *attempt) conclude(ctx context.Context) {
	s, w := a.s, a.w
	verdict, fence, gone, err := s.lastCheck(ctx, a)
	switch {
	case ctx.Err() != nil && err != nil:
		// Nobody was called. A stop is no crash: the next executor does not take over, and need not wait.
		a.releaseUncalled(ctx)
	case err != nil:
		s.hosts.delayForOther(w, s.deps.Clock.Now().Add(leaseWait)) // fenced: the executor that took over decides
	case gone:
		s.forget(ctx, w)
		if a.release(ctx) {
			w.done()
		}
	case verdict == job.VerdictProceed:
		a.call(ctx, fence)
	case a.rec.Running && a.mine():
		// An executor that never came back invoked it before: that counts as fired.
		a.giveUp(ctx)
	case verdict.HasDisposition() && !a.rec.Running:
		s.metrics.refused.Inc()
		s.forget(ctx, w)
		a.end(ctx, job.Refusal(verdict, &w.fire.Entry))
	default:
		s.metrics.refused.Inc()
		s.forget(ctx, w)
		if a.release(ctx) && s.publish(ctx, s.released(w)) == nil {
			w.done()
		}
	}
}
