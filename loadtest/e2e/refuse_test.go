package e2e

import (
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
)

// The model found it: a cancel is acknowledged, the hot tier forgets its stop record, and the entry is put back while
// another executor still holds the attempt. The worker refuses the entry, cannot store that, and leaves it to the
// executors.
func TestRefusedAttemptThatAnotherHoldsIsNotInvokedWhenTheStopRecordIsGone(t *testing.T) {
	bubble(t, 0, func(w *world.World) {
		at := job.Instant(time.Now().Add(10 * time.Minute))
		id := w.Create(world.Job("cancelled", "ok", map[string]any{"type": "one_shot", "run_at": at}))
		a, ctx := w.Platform.Adapters, t.Context()
		key := attempts.Key{ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1}
		other := attempts.Holder{Name: "another", Start: 1}
		if _, held, err := a.Records.Acquire(ctx, key, other, time.Now(), at.Add(30*time.Second)); err != nil || !held {
			t.Fatal(held, err)
		}
		row, err := a.Jobs.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		row.Version, row.Status = row.Version+1, job.StatusCancelled
		if err := a.Jobs.Replace(ctx, row); err != nil { // and no stop record
			t.Fatal(err)
		}
		world.Until(at.Add(2 * time.Minute))
		if n := len(w.Targets.CallsOf(id)); n != 0 {
			t.Errorf("a cancelled job was invoked %d times", n)
		}
		w.Cancel(id) // adds the stop to the ledger
	})
}
