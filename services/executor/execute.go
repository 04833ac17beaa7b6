package executor

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/libs/wire"
)

const (
	// leaseWait is the longest pause between two looks at a lease that another task or process holds.
	leaseWait = time.Second
	// maxIdleTakeovers ends an attempt that never began, in case it kills every executor that takes it before that.
	maxIdleTakeovers = 100
	// settleWait is how long a row may stay open after its attempt's outcome before the outcome is published once more.
	settleWait = 5 * time.Second
	// releaseLimit bounds the release of an attempt that has not begun, when the process must end at once.
	releaseLimit = 2 * time.Second
)

// execute carries out step 6 of services/README.md for one fire. It returns when the fire is complete (its place in the
// window is done), its outcome is on its way to the log, it was put aside, or ctx ended. In the last case the fire stays
// uncommitted and its lease expires.
func (s *Service) execute(ctx context.Context, w *task) {
	if w.shed && w.untold == nil {
		w.called = false
		s.hosts.reject(w)
		return
	}
	if w.isEarly(s.deps.Clock.Now()) {
		s.hosts.delay(w, w.begins()) // it found no room among those that came ahead
		return
	}
	a := s.attempt(w)
	if a.own = s.leases.reserve(a.key); a.own == nil { // the same fire came before and is in progress
		s.metrics.duplicates.Inc()
		s.hosts.delayBehind(w, s.deps.Clock.Now().Add(leaseWait))
		return
	}
	defer a.leave()
	if fence, began := a.begin(ctx); began {
		a.call(ctx, fence)
		return
	}
	var held bool
	if a.rec, held = s.acquire(ctx, a); !held {
		if ctx.Err() != nil {
			a.withdraw(ctx)
		}
		return
	}
	if a.rec.Token.Counter == 1 {
		a.rec.Running = false // nobody but this task had it before, and it has called nobody
	}
	s.leases.set(a.own, lease{token: a.rec.Token, definitionID: a.rec.DefinitionID, mayHaveBegun: a.rec.Running, begun: a.rec.Running})
	if w.untold != nil {
		// The executor that had the attempt never ended it. What this one was answered stands, also if the other called in vain.
		a.end(ctx, *w.untold)
		return
	}
	if !s.ofPool(w) && a.mine() && (a.rec.Running && a.rec.Takeovers >= s.cfg.MaxTakeovers || a.rec.Takeovers >= maxIdleTakeovers) {
		a.giveUp(ctx)
		return
	}
	a.conclude(ctx)
}

// acquire takes the lease. Without the lease the fire is complete (there is an outcome, and the row is done or the outcome
// is published again), or put aside for the executor that has the attempt.
func (s *Service) acquire(ctx context.Context, a *attempt) (attempts.Record, bool) {
	var rec attempts.Record
	var held bool
	w := a.w
	err := run.Retry(ctx, s.deps.Logger, "take a lease", func(ctx context.Context) (err error) {
		now := s.deps.Clock.Now()
		rec, held, err = s.deps.Records.Acquire(ctx, a.key, a.holder, now, now.Add(s.cfg.LeaseTTL))
		return err
	})
	if err != nil || held {
		return rec, held && err == nil
	}
	s.metrics.duplicates.Inc()
	s.follow(ctx, w, rec)
	return rec, false
}

// follow handles a record that belongs to another executor. It waits for the lease, and then for the outcome to settle the
// row. The executor that stored the outcome may have died before it published the outcome, or had another row in hand. So
// if the row stays open, the outcome is published again with this fire's locator.
func (s *Service) follow(ctx context.Context, w *task, rec attempts.Record) {
	now := s.deps.Clock.Now()
	if rec.Outcome == nil && s.ofPool(w) { // it waits for a worker, or one has it, for as long as a day: its entry is put back if it is lost
		w.done()
		return
	}
	if rec.Outcome == nil {
		until := now.Add(leaseWait)
		if rec.LapsesAt.Before(until) {
			until = rec.LapsesAt
		}
		s.hosts.delayForOther(w, until)
		return
	}
	s.forget(ctx, w)
	d := rec.Outcome.DefinitionID
	mine := d == "" || d == w.fire.DefinitionID
	switch gone, err := s.rowGone(ctx, w); {
	case err != nil:
		return // ctx ended
	case gone:
		w.done()
		return
	case mine && now.Before(rec.Outcome.Timeline.Completed.Add(settleWait)):
		s.hosts.delayForOther(w, now.Add(leaseWait))
		return
	}
	event := job.AttemptEvent(w.fire, w.target(), *rec.Outcome, rec.Outcome.Timeline.Completed)
	if !mine {
		// The attempt is settled, retried or given up under the definition that it was invoked with; this row only ends.
		event = *s.released(w)
	}
	if s.publish(ctx, &event) == nil {
		w.done()
	}
}

// lastCheck makes sure that nothing stopped the attempt, and steps the record to running; fence is then the invocation's
// token. gone reports that the entry's row is done or gone: the fire is an old one.
func (s *Service) lastCheck(
	ctx context.Context, a *attempt,
) (verdict job.Verdict, fence job.Fence, gone bool, err error) {
	w := a.w
	check := attempts.Check{Entry: &w.fire.Entry}
	var endsAt time.Time // where the fire's definition ended, once that is known
	asked := w.fire.Fresh
	for {
		memory, err := s.memory(ctx, w)
		if err != nil {
			return 0, fence, false, err
		}
		if !s.trusts(w, memory) {
			if gone, err := s.ask(ctx, w); gone || err != nil {
				return 0, fence, gone, err
			}
			asked = true
			continue
		}
		if !asked && memory.Doubts(w.fire.DueAt, s.deps.Clock.Now()) {
			if gone, err := s.rowGone(ctx, w); gone || err != nil {
				return 0, fence, gone, err
			}
			asked = true
		}
		// The hot tier may lose its memory right now: it accepts the check under the trusted incarnation, or not at all.
		check.Incarnation = w.incarnation
		began := s.deps.Clock.Now()
		fence, stop, err := s.checkOnce(ctx, a, check)
		if errors.Is(err, attempts.ErrIncarnation) {
			continue
		}
		if err != nil {
			return 0, fence, false, err
		}
		verdict := job.VerdictProceed
		if stop != nil {
			verdict = stop.JudgeAttempt(&w.fire.Entry, endsAt)
		}
		switch {
		case verdict == job.VerdictAheadOfRow:
			if gone, err := s.refreshStop(ctx, w); gone || err != nil {
				return 0, fence, gone, err
			}
		case verdict == job.VerdictSuperseded:
			if endsAt, gone, err = s.endOf(ctx, w); gone || err != nil {
				return 0, fence, gone, err
			}
		case verdict == job.VerdictProceed && stop != nil: // it may begin, if this stop record still stands
			check.StopVersion = stop.Version
		case s.deps.Clock.Since(began) <= time.Second:
			a.stopVersion = check.StopVersion
			return verdict, fence, false, nil
		}
	}
}

// checkOnce asks the hot tier for the last check, and notes what holds for the lease from then on. If another stop record
// stands than the one that the check names, stop is that record, and nothing began.
func (s *Service) checkOnce(ctx context.Context, a *attempt, check attempts.Check) (fence job.Fence, stop *job.State, err error) {
	// The hot tier may forget the lease right after the check too. The lease must then come back as one that has begun.
	s.leases.set(a.own, lease{token: a.rec.Token, definitionID: a.w.fire.DefinitionID, mayHaveBegun: true})
	var refused error
	err = run.Retry(ctx, s.deps.Logger, "check a last time", func(ctx context.Context) (err error) {
		fence, stop, err = s.deps.Records.Start(ctx, a.key, a.rec.Token, check)
		if refused = nil; errors.Is(err, attempts.ErrFenced) || errors.Is(err, attempts.ErrIncarnation) {
			refused, err = err, nil
		}
		return err
	})
	if err != nil {
		return fence, nil, err
	}
	if refused == nil && stop == nil {
		s.leases.set(a.own, lease{token: a.rec.Token, definitionID: a.w.fire.DefinitionID, begun: true})
	} else {
		s.leases.set(a.own, lease{token: a.rec.Token, definitionID: a.rec.DefinitionID, mayHaveBegun: a.rec.Running, begun: a.rec.Running})
	}
	return fence, stop, refused
}

// memory returns what the hot tier may have forgotten about the fire's job.
func (s *Service) memory(ctx context.Context, w *task) (memory attempts.Memory, err error) {
	err = run.Retry(ctx, s.deps.Logger, "read the hot tier's incarnation", func(ctx context.Context) (err error) {
		memory, err = s.deps.Records.Memory(ctx, w.fire.JobID)
		return err
	})
	return memory, err
}

// trusts reports whether the hot tier cannot have forgotten anything that concerns this fire: its incarnation is the one
// under which the fire's job row was read, and outcomes stored since the fire was taken are still kept.
func (s *Service) trusts(w *task, memory attempts.Memory) bool {
	return w.incarnation == memory.Incarnation && w.knownSince.After(memory.KeptSince) &&
		s.deps.Clock.Since(w.knownSince) < attempts.Retention-clock.MaxDifference
}

// ask takes the slow way for a fire that the hot tier may know nothing about any more. It waits until the settlers have
// passed the current end of the events log, so that an outcome that was published is marked. Then it reads the entry's row
// and the job's. Afterwards the task trusts the incarnation that was read before the wait, so a further loss meanwhile is
// noticed.
func (s *Service) ask(ctx context.Context, w *task) (gone bool, err error) {
	s.metrics.asked.Inc()
	var memory attempts.Memory
	began := s.deps.Clock.Now()
	err = run.Retry(ctx, s.deps.Logger, "ask the settlers", func(ctx context.Context) (err error) {
		for {
			began = s.deps.Clock.Now()
			if memory, err = s.deps.Records.Memory(ctx, w.fire.JobID); err != nil {
				return err
			}
			// A full tier may just have dropped an outcome that is as recent as this reading.
			young := memory.KeptSince.Sub(job.Instant(began))
			if young < 0 {
				return s.awaitSettlers(ctx)
			}
			if err := run.Sleep(ctx, young+time.Millisecond); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return false, err
	}
	if gone, err = s.rowGone(ctx, w); err != nil || gone {
		return gone, err
	}
	w.incarnation, w.knownSince = memory.Incarnation, job.Instant(began)
	return s.refreshStop(ctx, w)
}

// rowGone reports whether the row of the fire's entry is done or gone.
func (s *Service) rowGone(ctx context.Context, w *task) (gone bool, err error) {
	err = run.Retry(ctx, s.deps.Logger, "ask an entry's row", func(ctx context.Context) error {
		row, err := s.deps.Pending.Row(ctx, w.fire.Locator)
		gone = errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Done
		if gone {
			return nil
		}
		return err
	})
	return gone, err
}

// awaitSettlers returns once the settlers have passed the current end of the events.
func (s *Service) awaitSettlers(ctx context.Context) error {
	const longest = 100 * time.Millisecond
	end, err := s.deps.Log.End(ctx, dispatch.TopicEvents)
	for pause := time.Millisecond; err == nil; pause = min(2*pause, longest) {
		if pause == longest {
			var present dispatch.Position
			if present, err = s.deps.Log.End(ctx, dispatch.TopicEvents); err != nil {
				break
			}
			end = end.Within(present)
		}
		var settled dispatch.Position
		settled, err = s.deps.Log.Committed(ctx, dispatch.TopicEvents, dispatch.GroupSettle)
		if err != nil || settled.Passed(end) {
			break
		}
		if settled.LogID != end.LogID { // recreated meanwhile: note the end again
			if end, err = s.deps.Log.End(ctx, dispatch.TopicEvents); err != nil {
				break
			}
		}
		if err := run.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return err
}

// refreshStop writes the job row's state into the stop record. gone reports that there is no such job.
func (s *Service) refreshStop(ctx context.Context, w *task) (gone bool, err error) {
	err = run.Retry(ctx, s.deps.Logger, "read a job's row", func(ctx context.Context) error {
		row, err := s.deps.Jobs.Get(ctx, w.fire.JobID)
		if errors.Is(err, jobstore.ErrNotFound) {
			gone = true
			return nil
		}
		if err != nil {
			return err
		}
		_, err = s.deps.Records.SetStop(ctx, row.ID, row.State())
		return err
	})
	return gone, err
}

// endOf returns where the fire's definition ended because another followed. It reads the row first: a definition that takes
// its place after that read is found among the superseded ones. gone reports that the job or the definition is gone: then
// nobody waits for this fire.
func (s *Service) endOf(ctx context.Context, w *task) (endsAt time.Time, gone bool, err error) {
	err = run.Retry(ctx, s.deps.Logger, "read where a definition ended", func(ctx context.Context) error {
		row, err := s.deps.Jobs.Get(ctx, w.fire.JobID)
		var other time.Time
		if err == nil {
			_, other, err = s.deps.Jobs.Definition(ctx, w.fire.JobID, w.fire.DefinitionID)
		}
		if errors.Is(err, jobstore.ErrNotFound) {
			gone = true
			return nil
		}
		endsAt = row.Definition.EndOf(other)
		return err
	})
	return endsAt, gone, err
}

// invoke calls the target. If ctx ends meanwhile, ok is false and nothing is recorded: the lease expires and another executor goes on.
func (s *Service) invoke(ctx context.Context, w *task, fence job.Fence) (outcome job.Outcome, ok bool) {
	invoked := job.Instant(s.deps.Clock.Now())
	if w.fire.FirstOfSchedule() && !w.fire.InLine() { // what waited for others is late by their fault
		s.metrics.lateness[w.fire.Precision].Observe(s.deps.Clock.Since(w.fire.ScheduledFor).Seconds())
	}
	if trace.On() {
		var span oteltrace.Span
		ctx, span = trace.Start(ctx, "invoke", w.fire.Trace, oteltrace.SpanKindClient, attribute.String("minutehand.execution_id", w.fire.ExecutionID),
			attribute.String("minutehand.tenant", w.fire.Tenant.String()),
			attribute.Int("minutehand.attempt", w.fire.Attempt), attribute.String("minutehand.fencing_token", fence.String()))
		defer func() {
			span.SetAttributes(attribute.String("minutehand.outcome", string(outcome.Kind)))
			span.End()
		}()
	}
	s.metrics.running.Inc()
	outcome, interrupted := s.calls.make(ctx, w.fire, func(ctx context.Context) job.Outcome {
		if w.fire.Target.Kind == job.TargetWebhook {
			return s.webhook.call(ctx, w.fire, fence)
		}
		return s.messages.call(ctx, w.fire, fence)
	})
	s.metrics.running.Dec()
	if ctx.Err() != nil {
		return outcome, false
	}
	if interrupted && outcome.Kind != job.OutcomeSucceeded {
		outcome = job.Outcome{Kind: job.OutcomeCancelled, Error: "the execution was cancelled while it ran"}
	}
	outcome.Fence, outcome.Disposition = fence, job.DispositionFired
	outcome.Worker, outcome.RequestBytes = s.cfg.Name, max(outcome.RequestBytes, int64(len(w.fire.Target.Body)))
	outcome.Timeline.Invoked = invoked
	return outcome, true
}

// awaitInstant waits until the fire is due, by this machine's clock (I5).
func (s *Service) awaitInstant(ctx context.Context, f *job.Fire) error {
	if f.Precision == job.PrecisionPrecise {
		return s.alarm.wait(ctx, f.DueAt)
	}
	for d := s.deps.Clock.Until(f.DueAt); d > 0; d = s.deps.Clock.Until(f.DueAt) {
		if err := run.Sleep(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// release releases a lease under which this executor has called nobody: the record is again what it was when the lease was acquired.
func (s *Service) release(ctx context.Context, key attempts.Key, rec *attempts.Record) bool {
	err := run.Retry(ctx, s.deps.Logger, "release a lease", func(ctx context.Context) error {
		return s.deps.Records.Release(ctx, key, rec.Token, rec.Running, rec.DefinitionID)
	})
	return err == nil
}

func (s *Service) publish(ctx context.Context, events ...*job.Event) error {
	records := make([]dispatch.Message, len(events))
	for i, e := range events {
		records[i] = wire.EventMessage(e)
	}
	return run.Retry(ctx, s.deps.Logger, "publish events", func(ctx context.Context) error {
		return s.deps.Log.Publish(ctx, dispatch.TopicEvents, records)
	})
}

func (s *Service) released(w *task) *job.Event {
	e := job.ReleasedEvent(w.fire, w.target(), job.Instant(s.deps.Clock.Now()))
	return &e
}

// lost is the outcome of an attempt that began, and whose executor never came back with an outcome.
func (s *Service) lost(rec attempts.Record) job.Outcome {
	why := "the executor that began this attempt was lost before it could tell the outcome, and the job was stopped since"
	if rec.Takeovers >= s.cfg.MaxTakeovers {
		why = "every executor that began this attempt was lost before it could tell the outcome"
	}
	return job.Outcome{Kind: job.OutcomeWorkerLost, Retryable: true, Disposition: job.DispositionFired, Fence: job.Fence{Start: rec.Token.Start}, Error: why}
}
