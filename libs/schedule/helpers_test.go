package schedule_test

import (
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

func compile(t testing.TB, s job.Schedule) *schedule.Plan {
	t.Helper()
	p, err := schedule.Compile(s, "job-1")
	if err != nil {
		t.Fatalf("Compile(%+v): %v", s, err)
	}
	return p
}

func cron(expr, zone string) job.Schedule {
	return job.Schedule{Type: job.ScheduleCron, CronExpr: expr, Timezone: zone}
}

func utc(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
}

// between lists the nominal instants in [from, to), forwards; it fails if Prev, First or Count disagree.
func between(t testing.TB, p *schedule.Plan, from, to time.Time) []time.Time {
	t.Helper()
	var forwards, backwards []time.Time
	for at, ok := p.First(from); ok && at.Before(to); at, ok = p.Next(at) {
		if n := len(forwards); n > 0 && !at.After(forwards[n-1]) {
			t.Fatalf("Next(%v) = %v", forwards[n-1], at)
		}
		forwards = append(forwards, at)
	}
	for at, ok := p.Prev(to); ok && !at.Before(from); at, ok = p.Prev(at) {
		if n := len(backwards); n > 0 && !at.Before(backwards[n-1]) {
			t.Fatalf("Prev(%v) = %v", backwards[n-1], at)
		}
		backwards = append(backwards, at)
	}
	slices.Reverse(backwards)
	if !slices.Equal(forwards, backwards) {
		t.Fatalf("from %v to %v:\n Next %v\n Prev %v", from, to, forwards, backwards)
	}
	if n := p.Count(from, to, 1<<30); n != len(forwards) {
		t.Fatalf("Count(%v, %v) = %d, want %d", from, to, n, len(forwards))
	}
	for n := range len(forwards) + 2 {
		want := time.Time{}
		if n > 0 && n <= len(forwards) {
			want = forwards[n-1]
		}
		if at, ok := p.Nth(from, to, n); !at.Equal(want) || ok == want.IsZero() {
			t.Fatalf("Nth(%v, %v, %d) = %v, %t, want %v", from, to, n, at, ok, want)
		}
		if n == 20 { // each takes time in proportion to n
			break
		}
	}
	return forwards
}
