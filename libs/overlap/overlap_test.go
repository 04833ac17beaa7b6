package overlap_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/overlap"
)

// stores are those of one job, in memory.
type stores struct {
	jobstore.Jobs
	mu      sync.Mutex
	runs    []job.Locator
	rows    map[job.Locator]job.PendingRow
	records map[attempts.Key]attempts.Record
	low     int64
}

func (s *stores) LowWater(context.Context, int) (int64, error) { return s.low, nil }

func (s *stores) Runs(context.Context, string) ([]job.Locator, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.runs), nil
}

func (s *stores) SwapRuns(_ context.Context, _ string, old, runs []job.Locator) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.runs, old) {
		return jobstore.ErrConflict
	}
	s.runs = slices.Clone(runs)
	return nil
}

func (s *stores) Rows(_ context.Context, locators []job.Locator) (map[job.Locator]job.PendingRow, error) {
	rows := map[job.Locator]job.PendingRow{}
	for _, l := range locators {
		if row, found := s.rows[l]; found {
			rows[l] = row
		}
	}
	return rows, nil
}

func (s *stores) Lookup(_ context.Context, keys []attempts.Key) (list []attempts.Record, _ error) {
	for _, k := range keys {
		list = append(list, s.records[k])
	}
	return list, nil
}

func (s *stores) enter(t *testing.T, e *job.Entry, stopped func(string) bool) time.Time {
	t.Helper()
	p := s.join(t, e, 0, stopped)
	if p.Full == p.GaveWayTo().IsZero() {
		t.Fatalf("its place is %+v", p)
	}
	return p.GaveWayTo()
}

func (s *stores) join(t *testing.T, e *job.Entry, most int, stopped func(string) bool) overlap.Place {
	t.Helper()
	p, err := s.all().Enter(t.Context(), e, most, now, stopped)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *stores) all() overlap.Stores { return overlap.Stores{Jobs: s, Rows: s, Records: s} }

func (s *stores) before(t *testing.T, e *job.Entry) string {
	t.Helper()
	before, err := s.all().Turn(t.Context(), e, now, nil)
	if err != nil {
		t.Fatal(err)
	}
	return before
}

// end marks an entry as done.
func (s *stores) end(e *job.Entry) {
	row := s.rows[e.Locator]
	row.Done = true
	s.rows[e.Locator] = row
}

const jobID = "job_01M7ZJW5E6D77SAJPXRZ65CMZZ"

var now = time.Date(2039, 1, 1, 12, 0, 0, 0, time.UTC)

// entry returns the n-th attempt at the execution of a minute.
func entry(minute, attempt int) *job.Entry {
	at := now.Add(time.Duration(minute) * time.Minute)
	due := at.Add(time.Duration(attempt-1) * time.Second)
	return &job.Entry{
		Locator: job.Locator{Minute: job.Minute(at), DueAt: due, ExecutionID: job.ScheduleExecutionID(jobID, at), Attempt: attempt, DefinitionID: "def_1"},
		JobID:   jobID, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Alone: true,
	}
}

func open(e *job.Entry) job.PendingRow { return job.PendingRow{Entry: *e} }

func TestARowInAClosedBucketIsOver(t *testing.T) {
	s := line(t, 2)
	late := now.Add(2 * jobstore.ClosesAfter)
	first, second := entry(1, 1), entry(2, 1)
	s.low = first.Minute
	if before, err := s.all().Turn(t.Context(), second, late, nil); err != nil || before != first.ExecutionID {
		t.Errorf("before the second is %q, %v", before, err)
	}
	s.low = first.Minute + 1 // all in it was done when it was closed: this row came after that
	if before, err := s.all().Turn(t.Context(), second, late, nil); err != nil || before != "" {
		t.Errorf("before the second is %q, %v", before, err)
	}
}

func TestExecutionIsInProgressWhileOneOfItsRowsIsOpen(t *testing.T) {
	first, second := entry(1, 1), entry(2, 1)
	ended := func(o job.Outcome) attempts.Record { return attempts.Record{Exists: true, Outcome: &o} }
	for _, c := range []struct {
		name    string
		row     *job.PendingRow // of the first; nil if there is none
		rec     attempts.Record
		stopped bool
		busy    bool
	}{
		{"open", &job.PendingRow{Entry: *first}, attempts.Record{}, false, true},
		{"done", &job.PendingRow{Entry: *first, Done: true}, attempts.Record{}, false, false},
		{"its bucket is closed", nil, attempts.Record{}, false, false},
		{"succeeded, not marked yet", &job.PendingRow{Entry: *first}, ended(job.Outcome{Kind: job.OutcomeSucceeded}), false, false},
		{"failed for good", &job.PendingRow{Entry: *first}, ended(job.Outcome{Kind: job.OutcomeFailed}), false, false},
		{"failed, and comes again", &job.PendingRow{Entry: *first}, ended(job.Outcome{Kind: job.OutcomeFailed, Retryable: true}), false, true},
		{"gave way itself", &job.PendingRow{Entry: *first, Decision: &job.Decision{GaveWayTo: now}}, attempts.Record{}, false, false},
		{"decided not to be called, and called", &job.PendingRow{Entry: *first, Decision: &job.Decision{}}, attempts.Record{Exists: true, LapsesAt: now.Add(time.Second)}, false, true},
		{"cancelled, and waits", &job.PendingRow{Entry: *first}, attempts.Record{}, true, false},
		{"cancelled, and still called", &job.PendingRow{Entry: *first}, attempts.Record{Exists: true, LapsesAt: now.Add(time.Second)}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &stores{rows: map[job.Locator]job.PendingRow{first.Locator: open(first)}, records: map[attempts.Key]attempts.Record{attempts.KeyOf(first): c.rec}}
			if other := s.enter(t, first, nil); !other.IsZero() {
				t.Fatalf("the first gives way to %s", other)
			}
			if delete(s.rows, first.Locator); c.row != nil {
				s.rows[first.Locator] = *c.row
			}
			other := s.enter(t, second, func(x string) bool { return c.stopped && x == first.ExecutionID })
			if c.busy != other.Equal(first.NominalAt) || !c.busy && !other.IsZero() {
				t.Errorf("the second gives way to %s", other)
			}
			if want := second.Locator; !c.busy && !slices.Equal(s.runs, []job.Locator{want}) {
				t.Errorf("in progress are %v, want %v", s.runs, want)
			}
		})
	}
}

// The settler stands still between the row of the next attempt, which a loader finds, and the list.
func TestCancelledExecutionIsInProgressWhileItsNextAttemptRuns(t *testing.T) {
	first, again, second := entry(1, 1), entry(1, 2), entry(2, 1)
	s := &stores{rows: map[job.Locator]job.PendingRow{first.Locator: open(first), again.Locator: open(again)}, records: map[attempts.Key]attempts.Record{}}
	s.enter(t, first, nil)
	s.records[attempts.KeyOf(first)] = attempts.Record{Exists: true, Outcome: &job.Outcome{Kind: job.OutcomeFailed, Retryable: true}}
	s.records[attempts.KeyOf(again)] = attempts.Record{Exists: true, LapsesAt: now.Add(time.Second)}
	cancelled := func(x string) bool { return x == first.ExecutionID }
	if other := s.enter(t, second, cancelled); !other.Equal(first.NominalAt) {
		t.Errorf("the second gives way to %s", other)
	}
	s.records[attempts.KeyOf(again)] = attempts.Record{Exists: true, LapsesAt: now.Add(-time.Second)}
	if other := s.enter(t, second, cancelled); !other.IsZero() {
		t.Errorf("its attempt is over, and the second gives way to %s", other)
	}
}

func TestOfExecutionsThatEnterAtOnceOneGetsIn(t *testing.T) {
	s := &stores{rows: map[job.Locator]job.PendingRow{}}
	const n = 8
	for i := range n {
		s.rows[entry(i, 1).Locator] = open(entry(i, 1))
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for i := range n {
		group.Go(func() {
			if s.enter(t, entry(i, 1), nil).IsZero() {
				mu.Lock()
				in++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if in != 1 || len(s.runs) != 1 {
		t.Errorf("%d of %d entered, in progress are %v", in, n, s.runs)
	}
}

func TestRowThatIsNotedLateHidesNoneThatIsOpen(t *testing.T) {
	s := &stores{rows: map[job.Locator]job.PendingRow{}}
	for attempt := 1; attempt <= 3; attempt++ {
		e := entry(1, attempt)
		s.rows[e.Locator] = open(e)
	}
	s.enter(t, entry(1, 1), nil)
	note := func(attempt int) {
		t.Helper()
		if err := overlap.Note(t.Context(), s, entry(1, attempt)); err != nil {
			t.Fatal(err)
		}
		row := s.rows[entry(1, attempt-1).Locator]
		row.Done = true
		s.rows[row.Locator] = row
	}
	note(2)
	note(3)
	if !slices.Equal(s.runs, []job.Locator{entry(1, 3).Locator}) {
		t.Errorf("in progress are %v, want the third attempt alone", s.runs)
	}
	note(2) // by a settler that stalled
	if other := s.enter(t, entry(2, 1), nil); !other.Equal(entry(1, 1).NominalAt) {
		t.Errorf("the next gives way to %s", other)
	}
}
