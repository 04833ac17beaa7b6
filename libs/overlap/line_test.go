package overlap_test

import (
	"context"
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
	if b := s.before(t, waiting(3)); b != first.ExecutionID {
		t.Errorf("before the third is %q", b)
	}
	if b := s.before(t, waiting(2)); b != first.ExecutionID {
		t.Errorf("before the second is %q", b)
	}
	s.end(entry(1, 2))
	if b := s.before(t, waiting(2)); b != "" {
		t.Errorf("before the second is %q, and the first has ended", b)
	}
	if b := s.before(t, waiting(3)); b != second.ExecutionID {
		t.Errorf("before the third is %q", b)
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
	// A worker that enters it a second time, after a crash, leaves it where it stands.
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
	if b := s.before(t, entry(3, 1)); b != again.ExecutionID {
		t.Errorf("before the third is %q", b)
	}
}

func TestExecutionThatHasNoPlaceGetsTheLastOne(t *testing.T) {
	s := line(t, 2)
	lost := waiting(3)
	s.rows[lost.Locator] = open(lost)
	if b := s.before(t, lost); b != entry(1, 1).ExecutionID || len(s.runs) != 3 {
		t.Errorf("before it is %q, and in line are %v", b, s.runs)
	}
}

func TestDefinitionsThatShareAnInstantKeepTheirRowsInLine(t *testing.T) {
	s := line(t, 1)
	other := entry(1, 1)
	other.DefinitionID = "def_2"
	s.rows[other.Locator] = open(other)
	s.join(t, other, 1, nil)
	second := entry(2, 1)
	s.rows[second.Locator] = open(second)
	s.join(t, second, 1, nil)
	s.note(t, waiting(1))
	s.end(entry(1, 1))
	s.end(waiting(1))
	if b := s.before(t, second); b != other.ExecutionID {
		t.Errorf("before the second is %q, and the first runs under another definition", b)
	}
}

// An executor may let go of an entry because of an update, and another definition may have an entry for the same instant. If that comes when
// the next execution has been called, its place is behind.
func TestEntryOfAnotherDefinitionEntersBehindWhoWasCalled(t *testing.T) {
	for _, called := range []string{"in its turn", "as a row that repeats another"} {
		s := line(t, 2)
		s.end(entry(1, 1))
		if called == "in its turn" {
			if b := s.before(t, entry(2, 1)); b != "" {
				t.Fatalf("before the second is %q", b)
			}
		} else {
			again := entry(2, 1)
			again.Minute++
			s.rows[again.Locator] = open(again)
			if p := s.join(t, again, 1, nil); p.Full || len(p.Before) > 0 {
				t.Fatalf("its place is %+v", p)
			}
		}
		other := entry(1, 1)
		other.DefinitionID = "def_2"
		s.rows[other.Locator] = open(other)
		if p := s.join(t, other, 1, nil); p.Full || len(p.Before) != 1 {
			t.Errorf("%s: the place of the other definition's is %+v, and the second is called", called, p)
		}
	}
}

// changing are stores in which something happens after each read of the list.
type changing struct {
	*stores
	then func()
}

func (c *changing) Runs(ctx context.Context, id string) ([]job.Locator, error) {
	runs, err := c.stores.Runs(ctx, id)
	if then := c.then; then != nil {
		c.then = nil
		then()
	}
	return runs, err
}

func TestAttemptThatFollowsWhileTheLineIsReadIsSeen(t *testing.T) {
	for _, ask := range []string{"turn", "enter again"} {
		s := line(t, 2)
		c := &changing{stores: s}
		c.then = func() {
			s.note(t, entry(1, 2))
			s.end(entry(1, 1))
		}
		all := overlap.Stores{Jobs: c, Rows: s, Records: s}
		before := ""
		if ask == "turn" {
			x, err := all.Turn(t.Context(), entry(2, 1), now, nil)
			if before = x; err != nil {
				t.Fatal(err)
			}
		} else if p, err := all.Enter(t.Context(), entry(2, 1), 1, now, nil); err != nil {
			t.Fatal(err)
		} else if len(p.Before) > 0 {
			before = p.Before[0]
		}
		if before != entry(1, 1).ExecutionID {
			t.Errorf("%s: before the second is %q", ask, before)
		}
	}
}

func TestNextIsWhoWaitedForWhatIsDone(t *testing.T) {
	next := func(s *stores) string {
		e, err := overlap.Next(t.Context(), s, s, jobID, now)
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
