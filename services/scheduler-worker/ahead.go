package schedulerworker

import "time"

// Fires are published ahead of their instants in batches, one in each half of Config.Ahead. What is due from one tick to the next is
// published between one tick and the next before that, and removed at the tick after it.

// publishAt returns when a task's fire is published: half of Config.Ahead to all of it before its instant.
func (sh *shard) publishAt(t *task) time.Time {
	if sh.s.cfg.Ahead == 0 {
		return t.entry.DueAt
	}
	return sh.tick(t.entry.DueAt).Add(-sh.s.cfg.Ahead / 2)
}

// tick returns the shard's last tick up to an instant.
func (sh *shard) tick(at time.Time) time.Time {
	return at.Add(-sh.phase).Truncate(sh.s.cfg.Ahead / 2).Add(sh.phase)
}

// keepPublished keeps a task whose fire was published ahead until its instant is over. Nothing but its entry is needed then.
func (sh *shard) keepPublished(t *task) {
	t.series, t.labels = nil, nil
	sh.s.budget.release(t)
	sh.wakeAt(t, sh.tick(t.entry.DueAt).Add(sh.s.cfg.Ahead/2))
}
