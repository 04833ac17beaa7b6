package watch

import (
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// A worker decides that an occurrence gives way, and stalls before it says so. Then an update comes into the row that was made before the
// occurrence was due. It begins that instant again, and its target is called long after the deadline.
func TestOccurrenceThatGaveWayIsNotExcusedBeforeThatIsOnRecord(t *testing.T) {
	for name, recorded := range map[string]bool{"called after the update": false, "on record as skipped": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newFixture(t)
				j := f.create(startOnly)
				f.until(nth(j, 1).Add(-5 * time.Second))
				made := job.Instant(time.Now())
				e := f.entry(j, 1)
				f.must(f.Pending.Put(t.Context(), []job.Entry{e}))
				f.must(f.Pending.Decide(t.Context(), e.Locator, job.Decision{GaveWayTo: made}))
				f.until(nth(j, 1).Add(9 * time.Second)) // it has been held against the deadline
				if list := f.all(); len(list) != 0 {
					t.Fatalf("told before the update: %+v", list)
				}
				f.redefine(j, func() {
					j.Definition.ID, j.Definition.EffectiveAt = job.DefinitionPrefix+ulid.MustNew(ulid.Timestamp(made), ulid.DefaultEntropy()).String(), made
				})
				if recorded {
					event := job.AttemptEvent(&job.Fire{Entry: e}, job.TargetRef{}, job.Outcome{Kind: job.OutcomeSkipped, Disposition: job.DispositionSkippedOverlap}, time.Now())
					f.must(f.History.Record(t.Context(), jobstore.Unencoded(&event)))
				} else {
					f.record(j, 1, 1, outcome(j, 1, job.OutcomeSucceeded, 9*time.Second))
				}
				for n := 2; n <= 6; n++ {
					f.succeed(j, n)
				}
				f.until(nth(j, 6))
				if recorded {
					if list := f.all(); len(list) != 0 {
						t.Errorf("%+v", list)
					}
					return
				}
				if i := f.one(); !i.First.Equal(nth(j, 1)) || i.Missed != 1 || i.Cause != incidents.CauseLate || i.ClosedAt.IsZero() {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}
