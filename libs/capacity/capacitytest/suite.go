// Package capacitytest is the conformance suite of the board on which executors report what they can take: each clause of the
// port's contract is a test here, named after the promise.
package capacitytest

import (
	"reflect"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/capacity"
)

// Run runs the suite. Each board that open returns is empty. The function in runs a check: in a synctest bubble, for a board that
// reads this process's clock.
func Run(t *testing.T, in func(t *testing.T, check func(t *testing.T)), open func(t *testing.T) capacity.Board) {
	clause := func(promise string, check func(t *testing.T)) { t.Run(promise, func(t *testing.T) { in(t, check) }) }
	a := capacity.Report{Executor: "a", Behind: 1500 * time.Millisecond, Lanes: []capacity.Lane{{ID: 1<<32 - 1, Waiting: 3, Window: 1 << 20}, {ID: 1}}}
	b := capacity.Report{Executor: "b", Lanes: []capacity.Lane{{ID: 7, Waiting: 1, Window: 2}}}

	clause("an empty board shows nothing", func(t *testing.T) {
		board := open(t)
		same(t, read(t, board))
	})
	clause("a report is shown whole, beside those of others", func(t *testing.T) {
		board := open(t)
		post(t, board, b)
		post(t, board, a)
		same(t, read(t, board), a, b)
		same(t, read(t, board), a, b)
	})
	clause("a report replaces the one before", func(t *testing.T) {
		board := open(t)
		post(t, board, a)
		post(t, board, b)
		next := capacity.Report{Executor: "a", Lanes: []capacity.Lane{{ID: 2, Waiting: 9, Window: 9}}}
		post(t, board, next)
		same(t, read(t, board), next, b)
	})
	clause("a report without lanes withdraws it", func(t *testing.T) {
		board := open(t)
		post(t, board, a)
		post(t, board, b)
		post(t, board, capacity.Report{Executor: "a"})
		same(t, read(t, board), b)
		post(t, board, capacity.Report{Executor: "never there"})
		same(t, read(t, board), b)
	})
	clause("an old report is no longer shown", func(t *testing.T) {
		board := open(t)
		post(t, board, a)
		time.Sleep(capacity.Fresh * 2 / 3)
		post(t, board, b)
		reports, err := board.Read(t.Context())
		if err != nil || len(reports) != 2 || reports[0].Age <= reports[1].Age {
			t.Errorf("the board shows %+v (%v)", reports, err)
		}
		time.Sleep(capacity.Fresh * 2 / 3)
		same(t, read(t, board), b)
	})
}

func post(t *testing.T, b capacity.Board, r capacity.Report) {
	t.Helper()
	if err := b.Post(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, b capacity.Board) []capacity.Report {
	t.Helper()
	reports, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range reports {
		if age := reports[i].Age; age < 0 || age > capacity.Fresh {
			t.Errorf("a report is %s old", age)
		}
		reports[i].Age = 0
	}
	return reports
}

func same(t *testing.T, got []capacity.Report, want ...capacity.Report) {
	t.Helper()
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("the board shows\n%+v, want\n%+v", got, want)
	}
}
