//go:build servers

package cassandra_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/cassandra"
	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/run"
)

// A page shows when each of its jobs last fired, which may be a month ago: two reads. A one-shot is asked for in one more place, a job that was
// updated in two.
func TestPageOfJobsAsksTheStoreFourTimesForEachAtMost(t *testing.T) {
	const page, atOnce, days = 50, 16, 30
	_, keyspace := openNamed(t)
	var asked atomic.Int64
	s, err := cassandra.Open(cassandra.Options{
		Hosts: []string{servertest.Address(t, "CASSANDRA")}, Keyspace: keyspace, Timeout: 20 * time.Second,
		Observe: func(r cassandra.Request) {
			if strings.HasPrefix(r.Statements[0], "SELECT") && !strings.Contains(r.Statements[0], "FROM cluster") {
				asked.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.SpreadHistory(t.Context(), 16); err != nil {
		t.Fatal(err)
	}
	history := cassandra.NewHistory(s)
	now := job.Instant(time.Now())
	ids, of, most := make([]string, page), make([]jobstore.Of, page), int64(0)
	for i := range ids {
		j := oneShot(now.Add(-time.Hour))
		ids[i] = j.ID
		switch i % 3 {
		case 0: // recurring
			of[i] = jobstore.Of{ID: j.ID}
			most += 2
		case 1:
			of[i] = jobstore.OfJob(&j)
			most += 3
		default:
			of[i] = jobstore.Of{ID: j.ID, Updated: true}
			if err := cassandra.NewJobStore(s).PutDefinition(t.Context(), j.ID, j.Definition); err != nil {
				t.Fatal(err)
			}
			most += 4
		}
		var events []*job.Event
		for _, ago := range []int{3 + i%20, days - 2} {
			at := now.Add(-time.Duration(ago) * 24 * time.Hour)
			events = append(events, &job.Event{
				ID: fmt.Sprint("event ", ago), Type: job.EventAttempt, At: at,
				Entry: job.Entry{
					Locator: job.Locator{DueAt: at, ExecutionID: job.ScheduleExecutionID(ids[i], at), Attempt: 1, DefinitionID: "def_1"},
					JobID:   ids[i], Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at,
				},
				Outcome: job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired},
			})
		}
		if err := history.Record(t.Context(), jobstore.Unencoded(events...)); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		asked.Store(0)
		began := time.Now()
		err = run.Each(page, atOnce, func(i int) error {
			events, err := history.Executions(t.Context(), of[i], jobstore.Cursor{}, now.Add(-days*24*time.Hour), 20)
			if err == nil && (len(events) != 2 || !events[1].Entry.NominalAt.Before(events[0].Entry.NominalAt)) {
				err = fmt.Errorf("job %d: %d events, or not the newest first", i, len(events))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a page of %d jobs asked %d times, in %s", page, asked.Load(), time.Since(began).Round(time.Millisecond))
		if n := asked.Load(); n > most {
			t.Errorf("the store was asked %d times for %d jobs, want at most %d", n, page, most)
		}
	}
}
