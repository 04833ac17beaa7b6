package schedulerworker

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/wire"
)

// judgeChange decides what becomes of an entry that tells of a change: it is published if the row has the change. If the row will
// never have it, because another change came first, the entry is dropped. Otherwise it waits like every entry whose row is on its way,
// and when its grace is over the row is raised, so that it cannot come any more.
func (s *Service) judgeChange(t *task, row *job.Job, found bool) prepared {
	if t.entry.Change.Setting != "" {
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return s.judgeSetting(ctx, t) }}
	}
	if !found {
		return s.await(t)
	}
	has, never := t.entry.Tells(row.Version, row.Changes)
	switch {
	case has:
		t.tenant = row.Tenant
		return prepared{at: t.entry.DueAt}
	case never:
		return prepared{aside: func(ctx context.Context) (time.Time, error) { return time.Time{}, s.dropChange(ctx, t) }}
	}
	return s.await(t)
}

// judgeSetting is judgeChange for a setting, which has no version: whether another change came first shows when the grace is over.
func (s *Service) judgeSetting(ctx context.Context, t *task) (again time.Time, err error) {
	name := t.entry.Change.Setting
	value, err := s.deps.Settings.Setting(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	changes, err := jobchange.Named(value)
	if err != nil {
		return time.Time{}, err
	}
	if has, _ := t.entry.Tells(0, changes); has {
		t.tenant = t.entry.Tenant
		return t.entry.DueAt, nil
	}
	if s.deps.Clock.Since(t.entry.WrittenAt) <= s.cfg.Grace {
		t.waitsForRow = true
		return s.deps.Clock.Now().Add(s.cfg.HoldRecheck), nil
	}
	if err := jobchange.Raise(ctx, s.deps.Settings, name, value); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, s.dropChange(ctx, t)
}

func (s *Service) dropChange(ctx context.Context, t *task) error {
	s.metrics.refused.WithLabelValues("orphan").Inc()
	return s.finish(ctx, t)
}

// freshChange is how old an entry of a change may be so that its row is not read before it is published.
const freshChange = 10 * time.Second

// sendChanges publishes the events of changes, and then takes their entries out of the hot buckets. A crash in between publishes an
// event again, under the same id. An older entry may have been published before, and put back by a hot tier that had forgotten it was
// removed: its row tells.
func (s *Service) sendChanges(ctx context.Context, tasks []*task, now time.Time) error {
	done, err := s.doneChanges(ctx, tasks, now)
	if err != nil {
		return err
	}
	var records []dispatch.Message
	entries := make([]*job.Entry, len(tasks))
	for i, t := range tasks {
		entries[i] = t.entry
		if t.published || done[t.entry.Locator] {
			continue
		}
		if t.lapsed(s.deps.Clock.Now(), s.cfg.OwnerTTL) {
			return errLapsed{}
		}
		e := job.ChangeEvent(t.ours(), job.Instant(now))
		records = append(records, wire.EventMessage(&e))
	}
	if err := s.deps.Log.Publish(ctx, dispatch.TopicEvents, records); err != nil {
		return err
	}
	s.metrics.changes.Add(float64(len(records)))
	for _, t := range tasks {
		t.published = true
	}
	return s.deps.Hot.Remove(ctx, entries)
}

// doneChanges returns which of the older entries are done.
func (s *Service) doneChanges(ctx context.Context, tasks []*task, now time.Time) (map[job.Locator]bool, error) {
	var old []job.Locator
	for _, t := range tasks {
		if !t.published && now.Sub(t.entry.WrittenAt) > freshChange {
			old = append(old, t.entry.Locator)
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	rows, err := s.deps.Pending.Rows(ctx, old)
	if err != nil {
		return nil, err
	}
	done := map[job.Locator]bool{}
	for _, l := range old {
		row, found := rows[l]
		done[l] = !found || row.Done
	}
	return done, nil
}
