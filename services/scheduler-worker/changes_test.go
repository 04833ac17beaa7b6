package schedulerworker

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
)

const setting = "key/default/1"

// settingChange makes a change of a setting that was read as old; between runs after the entry is durable and before the swap.
func (f *fixture) settingChange(old []byte, between func(e job.Entry)) (value []byte, err error) {
	f.t.Helper()
	written := &writtenEntries{Pending: f.deps.Pending}
	r := jobchange.Recorder{Pending: written, Entropy: rand.Reader, Partitions: 1, Grace: f.cfg.Grace}
	changes, err := jobchange.Named(old)
	f.must(err)
	err = r.Setting(f.t.Context(), job.SettingsOf(0), 0, job.Change{Operation: "revokeKey", Setting: setting}, job.Author{Subject: "local"}, &changes, func() error {
		between(written.last)
		value = []byte(`{"hash":"x","changes":[{"id":"` + changes[len(changes)-1].ID + `"}]}`)
		return f.deps.Settings.SwapSetting(f.t.Context(), setting, old, value)
	})
	return value, err
}

type writtenEntries struct {
	jobstore.Pending
	last job.Entry
}

func (w *writtenEntries) Put(ctx context.Context, entries []job.Entry) error {
	w.last = entries[len(entries)-1]
	return w.Pending.Put(ctx, entries)
}

// judged returns when a change's entry is looked at again, the zero time if it was dropped.
func (f *fixture) judged(e job.Entry) (again time.Time, t *task) {
	f.t.Helper()
	t = &task{entry: &e, from: newShard(f.Service), owner: coord.Owner{Role: coord.RoleWorker, Epoch: 1}, takenAt: f.deps.Clock.Now()}
	again, err := f.judgeSetting(f.t.Context(), t)
	f.must(err)
	return again, t
}

func TestChangeOfASettingIsPublishedOnceItsRowHasIt(t *testing.T) {
	f := newFixture(t)
	var entry job.Entry
	_, err := f.settingChange(nil, func(e job.Entry) {
		entry = e
		if again, task := f.judged(e); again.IsZero() || !task.waitsForRow {
			t.Errorf("it does not wait for its row: %s", again)
		}
	})
	f.must(err)
	again, judgedTask := f.judged(entry)
	if !again.Equal(entry.DueAt) || judgedTask.waitsForRow {
		t.Fatalf("it is looked at again at %s", again)
	}
	f.must(f.sendChanges(t.Context(), []*task{judgedTask}, f.deps.Clock.Now()))
	if told := f.log.events; len(told) != 1 || told[0].Type != job.EventChange || told[0].Entry.Change.Operation != "revokeKey" || told[0].Entry.By.Subject != "local" {
		t.Errorf("told %+v", told)
	}
	f.must(f.deps.Pending.MarkDone(t.Context(), []job.Locator{entry.Locator}))
	entry.WrittenAt = entry.WrittenAt.Add(-time.Minute)
	_, judgedTask = f.judged(entry)
	f.must(f.sendChanges(t.Context(), []*task{judgedTask}, f.deps.Clock.Now()))
	if len(f.log.events) != 1 {
		t.Error("an entry that came back after its event was settled was published again")
	}
}

// The writer stalls for longer than the grace between the entry and the row, at a new setting and at one that was there.
func TestWriterOfASettingWhoseEntryWasDroppedConflicts(t *testing.T) {
	f := newFixture(t)
	var old []byte
	for _, name := range []string{"new", "there"} {
		_, err := f.settingChange(old, func(e job.Entry) {
			e.WrittenAt = e.WrittenAt.Add(-f.cfg.Grace - time.Second)
			if again, _ := f.judged(e); !again.IsZero() {
				t.Errorf("%s: it was not dropped", name)
			}
			if row, err := f.deps.Pending.Row(t.Context(), e.Locator); err != nil || !row.Done {
				t.Errorf("%s: its row is not done: %v", name, err)
			}
		})
		if !errors.Is(err, jobstore.ErrConflict) {
			t.Errorf("%s: the writer got %v", name, err)
		}
		raised, err := f.deps.Settings.Setting(t.Context(), setting)
		f.must(err)
		old, err = f.settingChange(raised, func(job.Entry) {})
		f.must(err)
	}
}
