package executor

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// maxEnding bounds the outcomes on their way to the log; beyond it invocations keep their hosts' places.
	maxEnding = 4096
	// endBatch is how many outcomes are stored and published at once.
	endBatch = 512
)

// ending is an attempt that has an outcome.
type ending struct {
	w       *task
	token   job.Token
	outcome job.Outcome
}

// end hands an outcome over to be stored and published; false when ctx ended before there was room. So a host's place is
// free again as soon as its answer is there.
func (s *Service) end(ctx context.Context, w *task, t job.Token, o job.Outcome) bool {
	o.DefinitionID = w.fire.DefinitionID
	o.Timeline.Taken, o.Timeline.Published = w.fire.TakenAt, w.fire.PublishedAt
	o.Timeline.Consumed, o.Timeline.Completed = w.consumedAt, job.Instant(time.Now())
	select {
	case s.endings <- ending{w, t, o}:
		return true
	case <-ctx.Done():
		return false
	}
}

// endLoop stores and publishes outcomes, as many at once as there are, until the channel is closed.
func (s *Service) endLoop(ctx context.Context) {
	batch := make([]ending, 0, endBatch)
	for first := range s.endings {
		batch = append(batch[:0], first)
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
	}
}

// endAll stores outcomes and publishes them: only a stored outcome is published. Where the attempt is another's by now,
// that one's record is followed.
func (s *Service) endAll(ctx context.Context, batch []ending) {
	var events []job.Event
	var stored []ending
	for _, e := range batch {
		key := dedupe.KeyOf(&e.w.fire.Entry)
		var rec dedupe.Record
		var ok bool
		err := run.Patiently(ctx, s.deps.Logger, "store an outcome", func(ctx context.Context) (err error) {
			rec, ok, err = s.deps.Records.Finish(ctx, key, e.token, e.outcome, time.Now())
			return err
		})
		s.leases.drop(key, e.token)
		switch {
		case err != nil: // ctx ended: the fire stays uncommitted
		case !ok:
			s.follow(ctx, e.w, rec)
		default:
			s.metrics.outcomes.WithLabelValues(string(e.outcome.Kind)).Inc()
			events = append(events, job.AttemptEvent(&e.w.fire, e.outcome, e.outcome.Timeline.Completed))
			stored = append(stored, e)
		}
	}
	if len(events) == 0 || s.publish(ctx, events...) != nil {
		return
	}
	for _, e := range stored {
		s.window.done(e.w.partition, e.w.offset)
	}
}
