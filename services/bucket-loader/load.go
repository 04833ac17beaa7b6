package bucketloader

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
)

// takeOver makes this loader the partition's owner in the hot tier, and finds out where it stands.
func (s *Service) takeOver(ctx context.Context, p *partition, now time.Time) error {
	if err := s.deps.Hot.SetEpoch(ctx, p.owner); err != nil {
		return err
	}
	if p.low == 0 {
		low, err := read(s, func() (int64, error) { return s.deps.Pending.LowWater(ctx, p.owner.Partition) })
		if err != nil {
			return err
		}
		p.low = low
	}
	p.staged = job.Minute(now)
	p.near = job.Minute(now) // staging reads it now
	p.firstSweep = true
	return nil
}

// stage fills the hot bucket as far ahead as ahead. It publishes the new horizon before it reads the newly covered buckets,
// also when they are read again after a restart. A writer that read the old horizon has written its entry before this read
// begins, and a writer that reads the new one adds its entry itself.
func (s *Service) stage(ctx context.Context, p *partition, now time.Time, ahead time.Duration) error {
	end := job.Minute(now.Add(ahead)) + 1
	if p.staged >= end {
		return nil
	}
	if err := s.deps.Hot.SetHorizon(ctx, p.owner, job.MinuteStart(end)); err != nil {
		return err
	}
	// If the hot tier has no room for what is far ahead, the near sweep adds it when it is near.
	if _, err := s.addAhead(ctx, p, p.staged, end); err != nil {
		return err
	}
	p.staged = end
	return nil
}

// The partitions take at most maxTurns turns at what is due for all of them at one instant: all at once would keep the stores, and what
// is called at that instant, waiting. About perTurn of them have one turn, because those share requests.
const maxTurns, perTurn = 8, 16

// turn returns how much later than others a partition has its turn, less than within.
func (s *Service) turn(p *partition, within time.Duration) time.Duration {
	turns := min(max(len(s.partitions)/perTurn, 1), maxTurns)
	return within * time.Duration(p.owner.Partition%turns) / time.Duration(turns)
}

// What can wait begins calmAfter after the beginning of a minute, at which most is due.
const calmAfter = 20 * time.Second

// calm returns how long after the beginning of a minute a partition has its turn for that.
func (s *Service) calm(p *partition) time.Duration { return calmAfter + s.turn(p, calmAfter) }

// nearSweep reads the next two minutes again shortly before they are due, so that entries which a failed write-through left
// out are added in time.
func (s *Service) nearSweep(ctx context.Context, p *partition, now time.Time) error {
	next := job.Minute(now.Add(s.cfg.NearBefore - s.turn(p, s.cfg.NearBefore/2)))
	if p.near >= next {
		return nil
	}
	full, err := s.addAhead(ctx, p, next, next+2)
	if err != nil || full {
		return err // tried again in the next round
	}
	p.near = next
	return nil
}

// addAhead adds the entries of [from, to) that are still ahead of the clock; an entry past due returns only by put-back. It
// stops when the hot tier is full.
func (s *Service) addAhead(ctx context.Context, p *partition, from, to int64) (full bool, err error) {
	for minute := from; minute < to; minute++ {
		if to-from > few {
			first, ok, err := s.firstOpen(ctx, p, minute, to)
			if err != nil || !ok {
				return false, err
			}
			minute = first
		}
		err := s.pages(ctx, p, minute, nil, func(rows []job.PendingRow) (more bool, err error) {
			var ahead []job.Entry
			now := s.deps.Clock.Now()
			for i := range rows {
				if !rows[i].Done && rows[i].DueAt.After(now) {
					ahead = append(ahead, rows[i].Entry)
				}
			}
			s.metrics.staged.Add(float64(len(ahead)))
			return true, s.deps.Hot.Add(ctx, ahead)
		})
		if errors.Is(err, hotbucket.ErrFull) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// few minutes are read one by one: asking which of them hold anything would take longer.
const few = 4

// read reads from the cold store, and notes whether the store answers.
func read[T any](s *Service, ask func() (T, error)) (T, error) {
	s.cold.Begin(s.deps.Clock.Now())
	answer, err := ask()
	if err == nil {
		s.cold.Done()
	}
	return answer, err
}

// firstOpen returns the first open minute of [from, to).
func (s *Service) firstOpen(ctx context.Context, p *partition, from, to int64) (minute int64, ok bool, err error) {
	minute, err = read(s, func() (m int64, err error) {
		m, ok, err = s.deps.Pending.FirstOpen(ctx, p.owner.Partition, from, to)
		return m, err
	})
	return minute, ok, err
}

// askCold returns nil if the cold store answers.
func (s *Service) askCold(ctx context.Context) error {
	_, err := s.deps.Pending.LowWater(ctx, 0)
	return err
}

// pages reads a bucket in pages, from after an entry or from the start, until fn wants no more.
func (s *Service) pages(
	ctx context.Context, p *partition, minute int64, after *job.Locator, fn func(rows []job.PendingRow) (more bool, err error),
) error {
	for {
		rows, err := read(s, func() ([]job.PendingRow, error) {
			return s.deps.Pending.Scan(ctx, p.owner.Partition, minute, after, s.cfg.Page)
		})
		if err != nil {
			return err
		}
		more, err := fn(rows)
		if err != nil || !more || len(rows) < s.cfg.Page {
			return err
		}
		after = &rows[len(rows)-1].Locator
	}
}
