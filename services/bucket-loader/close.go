package bucketloader

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// close closes, in order, the buckets in which everything is done and whose minute passed CloseAfter ago, and some seconds (calm). It
// reads each once more right before: an entry written since the bucket was seen all done keeps it open. No entry that
// counts can be written after that read. An API write that took longer is repeated into its current minute, and a child lives in the
// bucket of its parent or a later one, and the parent is not done while the child is written.
func (s *Service) close(ctx context.Context, p *partition, now time.Time) error {
	end := job.Minute(now.Add(-s.cfg.CloseAfter - s.calm(p)))
	if p.low >= end || p.closeTried >= end && now.Before(p.closeAgain) {
		return nil
	}
	p.closeTried, p.closeAgain = end, now.Add(s.cfg.CloseSweepAfter)
	to := p.low
	for to < end {
		if to+1 < end { // otherwise there is one bucket to read, which shows whether it is empty
			minute, ok, err := s.firstOpen(ctx, p, to, end)
			if err != nil {
				return err
			}
			if to = minute; !ok {
				to = end
				break
			}
		}
		done, err := s.allDone(ctx, p, to)
		if err != nil {
			return err
		}
		if !done {
			delete(p.allDone, to)
			p.done.remove(to, to+1)
			p.empty.remove(to, to+1)
			break
		}
		to++
	}
	if to <= p.low {
		return nil
	}
	if err := s.deps.Pending.Close(ctx, p.owner.Partition, to); err != nil {
		return err
	}
	s.metrics.closed.Add(float64(to - p.low))
	p.low = to
	p.done.remove(0, to)
	p.empty.remove(0, to)
	for m := range p.allDone {
		if m < to {
			delete(p.allDone, m)
		}
	}
	if to == end {
		clear(p.putBacks) // everything that was put back so far is done
	}
	return nil
}

func (s *Service) allDone(ctx context.Context, p *partition, minute int64) (bool, error) {
	done := true
	err := s.pages(ctx, p, minute, nil, func(rows []job.PendingRow) (more bool, err error) {
		for i := range rows {
			done = done && rows[i].Done
		}
		return done, nil
	})
	return done, err
}

// oldestOpen returns when the oldest minute that is not closed began.
func (s *Service) oldestOpen(p *partition) time.Time {
	if p.staged == 0 {
		return s.deps.Clock.Now()
	}
	return job.MinuteStart(p.low)
}
