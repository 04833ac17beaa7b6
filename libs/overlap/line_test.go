package overlap_test

import (
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/overlap"
)

// waiting returns the row of the occurrence of a minute that waits in line.
func waiting(minute int) *job.Entry {
	e := entry(minute, 1)
	e.DueAt, e.Chained, e.Queues = e.DueAt.Add(time.Second), true, true
	return e
}

// line returns stores in which the executions of the minutes from 1 to n have entered.
func line(t *testing.T, n int) *stores {
	t.Helper()
	s := &stores{rows: map[job.Locator]job.PendingRow{}}
	for i := 1; i <= n; i++ {
		s.rows[entry(i, 1).Locator] = open(entry(i, 1))
		if p := s.join(t, entry(i, 1), n, nil); p.Full || len(p.Before) != i-1 {
			t.Fatalf("the place of %d is %+v", i, p)
		}
	}
	return s
}

func (s *stores) note(t *testing.T, e *job.Entry) {
	t.Helper()
	s.rows[e.Locator] = open(e)
	if err := overlap.Note(t.Context(), s, e); err != nil {
		t.Fatal(err)
	}
}

func TestOccurrencesWaitInTheOrderInWhichTheyEntered(t *testing.T) {
	s := line(t, 3)
	first, second, third := entry(1, 1), entry(2, 1), entry(3, 1)
	for _, e := range []*job.Entry{waiting(2), waiting(3)} {
		s.note(t, e)
	}
	s.end(second)
	s.end(third)
	s.note(t, entry(1, 2)) // it is called in vain, and another attempt follows
	s.end(first)
	if b := s.before(t, waiting(3)); !slices.Equal(b, []string{first.ExecutionID, second.ExecutionID}) {
		t.Errorf("before the third are %v", b)
	}
	if b := s.before(t, waiting(2)); !slices.Equal(b, []string{first.ExecutionID}) {
		t.Errorf("before the second are %v", b)
	}
	s.end(entry(1, 2))
	if b := s.before(t, waiting(2)); len(b) > 0 {
		t.Errorf("before the second are %v, and the first has ended", b)
	}
	if b := s.before(t, waiting(3)); !slices.Equal(b, []string{second.ExecutionID}) {
		t.Errorf("before the third are %v", b)
	}
}

func TestLineTakesNoMoreThanMayWait(t *testing.T) {
	s := line(t, 2)
	third := entry(3, 1)
	s.rows[third.Locator] = open(third)
	if p := s.join(t, third, 1, nil); !p.Full || !p.GaveWayTo().Equal(entry(2, 1).NominalAt) || len(s.runs) != 2 {
		t.Errorf("its place is %+v, and in line are %v", p, s.runs)
	}
	s.end(entry(1, 1))
	if p := s.join(t, third, 1, nil); p.Full || len(s.runs) != 2 {
		t.Errorf("its place is %+v, and in line are %v", p, s.runs)
	}
	// It keeps its place, whoever enters it again.
	if p := s.join(t, third, 0, nil); p.Full || len(p.Before) != 1 {
		t.Errorf("its place is %+v", p)
	}
}

func TestRowThatRepeatsAnotherKeepsItsPlace(t *testing.T) {
	s := line(t, 3)
	again := entry(2, 1)
	again.Minute++
	s.rows[again.Locator] = open(again)
	if p := s.join(t, again, 2, nil); p.Full || len(p.Before) != 1 {
		t.Errorf("its place is %+v", p)
	}
	s.end(entry(1, 1))
	s.end(entry(2, 1))
	if b := s.before(t, entry(3, 1)); !slices.Equal(b, []string{again.ExecutionID}) {
		t.Errorf("before the third are %v", b)
	}
}

func TestExecutionThatIsNotInLineAnyMoreWaitsForNobody(t *testing.T) {
	s := line(t, 2)
	cancelled := waiting(2)
	s.note(t, cancelled)
	s.end(entry(2, 1))
	third := entry(3, 1)
	s.rows[third.Locator] = open(third)
	if p := s.join(t, third, 2, func(x string) bool { return x == cancelled.ExecutionID }); len(p.Before) != 1 {
		t.Errorf("the place of the third is %+v", p)
	}
	if b := s.before(t, cancelled); len(b) > 0 {
		t.Errorf("before what was cancelled are %v", b)
	}
}

func TestNextIsWhoWaitedForWhatIsDone(t *testing.T) {
	next := func(s *stores) string {
		e, err := overlap.Next(t.Context(), s, s, jobID)
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return ""
		}
		return e.ExecutionID
	}
	s := line(t, 3)
	s.note(t, waiting(2))
	s.end(entry(2, 1))
	if x := next(s); x != "" {
		t.Errorf("next is %s, and the first is in progress", x)
	}
	s.end(entry(1, 1))
	if x := next(s); x != waiting(2).ExecutionID {
		t.Errorf("next is %q, want the second", x)
	}
	s.end(waiting(2))
	if x := next(s); x != "" { // it was not decided yet that it waits
		t.Errorf("next is %s, want none", x)
	}
}
