package retrymanager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/dispatch"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// running starts the settler, and stops it at the end of the test.
func (f fixture) running() {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	f.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	synctest.Wait()
}

func (f fixture) tell(e job.Event) {
	f.t.Helper()
	if err := f.deps.Log.Publish(f.t.Context(), dispatch.TopicEvents, []dispatch.Message{wire.EventMessage(&e)}); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f fixture) wantDone(done bool, when string) {
	f.t.Helper()
	row, err := f.deps.Pending.Row(f.t.Context(), f.entry.Locator)
	if err != nil || row.Done != done {
		f.t.Errorf("%s the entry is done: %t (%v), want %t", when, row.Done, err, done)
	}
}

// Nobody waits for a mark, and one batch costs the cold store hardly more than one mark.
func TestMarksAreGathered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.running()
		success := f.failed
		success.Outcome.Kind = job.OutcomeSucceeded
		f.tell(success)
		time.Sleep(f.cfg.Linger - time.Millisecond)
		f.wantDone(false, "before they were gathered for long enough")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		f.wantDone(true, "after that")
	})
}

func TestFailureIsSettledAtOnceWithWhatCameBeforeIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.running()
		f.tell(job.Event{ID: "evt_1", Type: job.EventSkipped, Entry: f.entry, Skipped: &job.SkippedRange{From: f.entry.DueAt, To: f.entry.DueAt, Count: 1}})
		f.tell(f.failed)
		f.wantDone(true, "right after its failure")
		f.want(true)
		committed, err := f.deps.Log.Committed(t.Context(), dispatch.TopicEvents, dispatch.GroupSettle)
		if end, endErr := f.deps.Log.End(t.Context(), dispatch.TopicEvents); err != nil || endErr != nil || !committed.Passed(end) {
			t.Errorf("%v of %v is committed (%v, %v)", committed, end, err, endErr)
		}
	})
}
