package e2e

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
)

func TestJobFiresOnTimeAndIsOnRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world.New(t)
		w.Start()
		defer w.Stop()
		at := time.Now().Add(90 * time.Second)
		once := w.Create(world.Job("once", "ok", map[string]any{"type": "one_shot", "run_at": at}))
		every := w.Create(world.Job("every", "ok", map[string]any{"type": "cron", "cron_expr": "*/10 * * * * *"}))
		time.Sleep(5*time.Minute - time.Second)
		calls := w.Targets.CallsOf(once)
		if len(calls) != 1 || calls[0].At.Sub(at) > time.Millisecond || calls[0].At.Before(at) {
			t.Errorf("one_shot for %s was called %v", at, calls)
		}
		if n := len(w.Targets.CallsOf(every)); n != 29 {
			t.Errorf("a job of every ten seconds was called %d times in five minutes, want 29", n)
		}
		x := w.Executions(once)
		if len(x) != 1 || x[0]["state"] != "succeeded" || x[0]["lateness_ms"] != 0.0 {
			t.Errorf("executions: %v", x)
		}
		if n := len(w.Executions(every)); n != 29 {
			t.Errorf("%d executions on record", n)
		}
	})
}
