package occurrence

import (
	"fmt"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func TestOccurrenceThatItsJitterMovesAheadIsNotMissed(t *testing.T) {
	day := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	ahead := 0
	for i := range 50 {
		id := fmt.Sprintf("job_%026d", i)
		s := job.Schedule{Type: job.ScheduleCron, CronExpr: "0,1 0 * * *", Jitter: time.Hour}
		plan, err := schedule.Compile(s, id)
		if err != nil {
			t.Fatal(err)
		}
		l := Series{JobID: id, Plan: plan, Def: &job.Definition{
			ID: "def_1", Schedule: s, MissedRun: job.MissedFireOnce, CatchUpWindow: time.Minute,
		}}
		e := l.entry(0, day, 1)
		now := day.Add(5 * time.Minute)
		second := day.Add(time.Minute)
		d := l.Late(&e, now)
		if plan.ScheduledFor(second).After(now) {
			ahead++
			if d.Skipped != nil || !d.Next.Equal(second) {
				t.Errorf("the occurrence of %s, due at %s, is passed over at %s: %+v", second, plan.ScheduledFor(second), now, d)
			}
		} else if plan.ScheduledFor(second).Before(now.Add(-time.Minute)) && d.Skipped == nil {
			t.Errorf("the occurrence of %s, due at %s, is not skipped at %s: %+v", second, plan.ScheduledFor(second), now, d)
		}
	}
	if ahead == 0 {
		t.Error("no occurrence was ahead: this shows nothing")
	}
}
