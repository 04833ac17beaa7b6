package tasks

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
)

// A worker is told what a webhook is told: of what repeats an occurrence, that one's instant; of anything else when it was due, and its instant
// without jitter.
func TestTaskTellsTheInstantForWhichItStands(t *testing.T) {
	nominal := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	due, occurrence := nominal.Add(5*time.Second), nominal.Add(-24*time.Hour)
	for _, c := range []struct {
		note               *job.Note
		scheduled, nominal time.Time
	}{
		{nil, due, nominal},
		{&job.Note{TZData: "2026a"}, due, nominal},
		{&job.Note{Source: "exe_1", Occurrence: occurrence}, occurrence, occurrence},
	} {
		f := &job.Fire{Entry: job.Entry{NominalAt: nominal, ScheduledFor: due, Note: c.note}}
		if got := shown(&pools.Task{Fire: f}, &pools.Lease{}, nil); !got.ScheduledFor.Equal(c.scheduled) || !got.NominalAt.Equal(c.nominal) {
			t.Errorf("with the note %+v, it tells %s and %s", c.note, got.ScheduledFor, got.NominalAt)
		}
	}
}
