package executor

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// maxEnding bounds the outcomes on their way to the log. Beyond it, invocations keep their places at their hosts.
	maxEnding = 4096
	// endBatch is how many outcomes are stored and published at once.
	endBatch = attempts.MaxFinish
	// gatherFor is how long outcomes are gathered after a batch that was not full. Nobody waits for them: a retry comes later, and a
	// crash leaves the lease, as a crash during the call does.
	gatherFor = 25 * time.Millisecond
)

// ending is an attempt that has an outcome.
type ending struct {
	w       *task
	own     *lease
	token   job.Token
	outcome *job.Outcome
}

// end hands an outcome over to be stored and published. It returns false if ctx ended before there was room. So a host's
// place is free again as soon as its answer has arrived.
func (s *Service) end(ctx context.Context, w *task, own *lease, t job.Token, o job.Outcome) bool {
	o.DefinitionID = w.fire.DefinitionID
	o.Timeline.Taken, o.Timeline.Published = w.fire.TakenAt, w.fire.PublishedAt
	o.Timeline.Consumed = w.consumedAt
	if o.Timeline.Completed.IsZero() {
		o.Timeline.Completed = job.Instant(s.deps.Clock.Now())
	}
	w.lighten()
	select {
	case s.endings <- ending{w, own, t, &o}:
		return true
	case <-ctx.Done():
		return false
	}
}

// endLoop stores and publishes outcomes, as many at once as are ready, until the channel is closed or ctx ends.
func (s *Service) endLoop(ctx context.Context) {
	batch := make([]ending, 0, endBatch)
	for {
		select {
		case first, ok := <-s.endings:
			if !ok {
				return
			}
			batch = append(batch[:0], first)
		case <-ctx.Done():
			return
		}
	gather:
		for len(batch) < endBatch {
			select {
			case e, ok := <-s.endings:
				if !ok {
					break gather
				}
				batch = append(batch, e)
			default:
				break gather
			}
		}
		s.endAll(ctx, batch)
		if len(batch) < endBatch && run.Sleep(ctx, gatherFor) != nil {
			return
		}
	}
}

// endAll stores outcomes and publishes them. Only a stored outcome is published. If another executor has the attempt by
// now, endAll follows that executor's record. That executor may find the attempt stopped and drop it without a word, so the
// outcome of a call is kept until one is on record.
func (s *Service) endAll(ctx context.Context, batch []ending) {
	ends := make([]attempts.Completion, len(batch))
	for i, e := range batch {
		ends[i] = attempts.Completion{Key: attempts.KeyOf(&e.w.fire.Entry), Token: e.token, Outcome: e.outcome}
	}
	var ended []attempts.Completed
	err := run.Retry(ctx, s.deps.Logger, "store outcomes", func(ctx context.Context) (err error) {
		ended, err = s.deps.Records.Finish(ctx, ends, s.deps.Clock.Now())
		return err
	})
	for i, e := range batch {
		s.leases.drop(ends[i].Key, e.own)
		s.hosts.wake(ends[i].Key)
	}
	if err != nil {
		return // ctx ended: the fires stay uncommitted
	}
	events := make([]*job.Event, 0, len(batch))
	stored := make([]ending, 0, len(batch))
	for i, e := range batch {
		if !ended[i].Stored && !isOwn(ended[i].Record.Outcome, e.outcome) {
			if ended[i].Record.Outcome == nil && !e.outcome.Timeline.Invoked.IsZero() {
				e.w.untold = e.outcome
			}
			s.follow(ctx, e.w, ended[i].Record)
			continue
		}
		s.metrics.outcomes.WithLabelValues(string(e.outcome.Kind)).Inc()
		event := job.AttemptEvent(e.w.fire, e.w.target(), *e.outcome, e.outcome.Timeline.Completed)
		events = append(events, &event)
		stored = append(stored, e)
	}
	if len(events) == 0 || s.publish(ctx, events...) != nil {
		return
	}
	for _, e := range stored {
		e.w.done()
	}
}

// isOwn reports whether the outcome on record is the one that this executor was to store: an earlier try stored it, and its answer was
// lost. A fence belongs to one invocation. Two executors that refuse an attempt in the same millisecond both publish the same event.
func isOwn(stands, own *job.Outcome) bool {
	return stands != nil && stands.Kind == own.Kind && stands.Fence == own.Fence && stands.DefinitionID == own.DefinitionID &&
		stands.Timeline.Completed.Equal(own.Timeline.Completed)
}
