package schedulerworker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// holdEvery is the pause between two looks at what an operator holds.
	holdEvery = time.Second
	// holdFor is how long a held entry is left alone before it is looked at again.
	holdFor = 10 * time.Second
)

func (s *Service) readHold(ctx context.Context) error {
	v, err := s.deps.Settings.Setting(ctx, jobstore.SettingDispatchHold)
	if err != nil {
		return err
	}
	h := &job.DispatchHold{}
	if v != nil {
		if err := json.Unmarshal(v, h); err != nil {
			return fmt.Errorf("dispatch hold: %w", err)
		}
	}
	s.hold.Store(h)
	return nil
}

// holdLoop follows what is held. While that cannot be read, the last reading stands.
func (s *Service) holdLoop(ctx context.Context) {
	for run.Sleep(ctx, holdEvery) == nil {
		if err := s.readHold(ctx); err != nil && ctx.Err() == nil {
			s.deps.Logger.Warn("cannot read what is held, what was read before stands", "error", err)
		}
	}
}

// postpone leaves a held entry in its hot bucket, out of the way of others, until it is looked at again.
func (s *Service) postpone(ctx context.Context, t *task) error {
	s.metrics.postponed.Inc()
	return s.deps.Hot.Postpone(ctx, t.owner, []*job.Entry{t.entry}, s.deps.Clock.Now().Add(holdFor))
}
