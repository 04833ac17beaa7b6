package schedulerworker

import "time"

// Fires are published ahead of their instants in batches, one in each half of Config.Ahead. What is due from one tick to the next is
// published between one tick and the next before that, and removed at the tick after it.

// publishAt returns when a task's fire is published: half of Config.Ahead to all of it before its instant.
func (sh *shard) publishAt(t *task) time.Time {
	if sh.s.cfg.Ahead == 0 {
		return t.entry.DueAt
	}
	return sh.s.tick(t.entry.DueAt, sh.s.cfg.Ahead/2).Add(-sh.s.cfg.Ahead / 2)
}

// tick returns the last tick of an interval up to an instant. The shards of a worker do at the same time what can wait for a tick, because
// servers that are little used spend more on waking up than on what they are asked. Workers have ticks of their own.
func (s *Service) tick(at time.Time, every time.Duration) time.Time {
	return at.Add(-s.phase).Truncate(every).Add(s.phase)
}

// keepPublished keeps a task whose fire was published ahead until its instant is over. Nothing but its entry is needed then.
func (sh *shard) keepPublished(t *task) {
	t.series, t.labels = nil, nil
	sh.s.budget.release(t)
	sh.wakeAt(t, sh.s.tick(t.entry.DueAt, sh.s.cfg.Ahead/2).Add(sh.s.cfg.Ahead/2))
}
