package worker

import (
	"context"
	"errors"
	"time"

	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// sendLate carries out the missed-run policy for one entry. The decision is claimed, written on the entry's row, and
// only then carried out: whoever takes the entry after a crash anywhere in between finds it and does the same.
func (s *Service) sendLate(ctx context.Context, t *task, now time.Time) error {
	row, err := s.deps.Pending.Row(ctx, t.entry.Locator)
	if errors.Is(err, jobstore.ErrNotFound) || err == nil && row.Done {
		return s.remove(ctx, t)
	}
	if err != nil {
		return err
	}
	decision := row.Decision
	if decision == nil {
		decision, err = s.decide(ctx, t, now)
		if err != nil {
			return err
		}
		if decision == nil { // dispatched before
			t.bare = true
			return s.carryOut(ctx, []*task{t}, nil, now)
		}
	}
	return s.carryOutLate(ctx, t, *decision, now)
}

// decide returns nil when there are signs that the entry was dispatched before.
func (s *Service) decide(ctx context.Context, t *task, now time.Time) (*job.Decision, error) {
	if t.line.Plan != nil {
		exists, err := s.successorExists(ctx, t, now)
		if err != nil || exists {
			return nil, err
		}
	}
	records, err := s.deps.Records.Lookup(ctx, []dedupe.Key{dedupe.KeyOf(t.entry)})
	if err != nil {
		return nil, err
	}
	if rec := records[0]; rec.Exists && (rec.Outcome == nil || rec.Outcome.Kind != job.Skipped) {
		return nil, nil
	}
	d := job.Decision{Fire: t.line.Def.MissedRun != job.MissedSkip} // a one_shot has nothing after it
	if t.line.Plan != nil {
		d = t.line.Late(t.entry, now)
	}
	claims := []hotbucket.Claim{claimOf(t, d)}
	standing, err := s.deps.Hot.Claim(ctx, t.owner, claims)
	if err != nil {
		return nil, err
	}
	return &standing[0], s.deps.Pending.Decide(ctx, t.entry.Locator, standing[0])
}

func (s *Service) carryOutLate(ctx context.Context, t *task, d job.Decision, now time.Time) error {
	at := job.Instant(now)
	var events []job.Event
	fires := d.Fire
	if !fires {
		o := job.Outcome{
			Kind: job.Skipped, Disposition: job.SkippedMissed, Timeline: job.Timeline{Completed: at},
		}
		rec, stored, err := s.deps.Records.Refuse(ctx, dedupe.KeyOf(t.entry), o, at)
		if err != nil {
			return err
		}
		if !stored && (rec.Outcome == nil || rec.Outcome.Kind != job.Skipped) {
			fires = true // it was fired
		} else {
			events = append(events, job.AttemptEvent(t.fire(), o, at))
		}
	}
	if t.line.Plan != nil {
		if next, ok := t.line.Successor(t.entry, d, at); ok {
			if err := s.chain(ctx, []job.Entry{next}, now); err != nil {
				return err
			}
		}
	}
	if d.Skipped != nil {
		events = append(events, job.SkippedEvent(t.entry, t.tenantID, *d.Skipped, job.SkippedMissed, at))
	}
	if err := s.publishEvents(ctx, events); err != nil {
		return err
	}
	s.metrics.late.WithLabelValues(decisionLabel(fires)).Inc()
	if fires {
		t.bare = true
		return s.carryOut(ctx, []*task{t}, nil, time.Now())
	}
	return s.remove(ctx, t)
}

func decisionLabel(fires bool) string {
	if fires {
		return "fire"
	}
	return "skip"
}
