package main

import (
	"strings"
	"testing"
	"time"
)

func TestSoakFindsWhatGrowsAndWhatIsBehind(t *testing.T) {
	rows := func(change func(i int, r *soakRow)) []soakRow {
		all := make([]soakRow, soakSamples)
		for i := range all {
			all[i] = soakRow{mb: map[string]float64{"executor, live": 30, "Redis, of keys": 300}, hundreds: map[string]float64{"executor, files": 2}, behind: 3000}
			change(i, &all[i])
		}
		return all
	}
	for name, c := range map[string]struct {
		change func(i int, r *soakRow)
		want   string
	}{
		"nothing":                  {func(int, *soakRow) {}, ""},
		"noise":                    {func(i int, r *soakRow) { r.mb["executor, live"] += float64(i % 3) }, ""},
		"growth at first":          {func(i int, r *soakRow) { r.mb["Redis, of keys"] = float64(min(i, 5)) * 60 }, ""},
		"a leak":                   {func(i int, r *soakRow) { r.mb["executor, live"] += 2 * float64(i) }, "executor, live"},
		"a server's disk":          {func(i int, r *soakRow) { r.mb["Redis, of keys"] += 15 * float64(i) }, "Redis, of keys"},
		"descriptors":              {func(i int, r *soakRow) { r.hundreds["executor, files"] += 0.8 * float64(i) }, "executor, files"},
		"a group that has stopped": {func(i int, r *soakRow) { r.behind = 9000 * float64(i) }, "before it"},
	} {
		err := levelled(rows(c.change))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestSoakCountsWhatIsDue(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, last := range []time.Duration{time.Minute, 36 * time.Second} {
		s := soaking{from, from.Add(last)}
		instants := map[time.Time]int{}
		for i := range soakRecurring {
			for at := s.recurs(i); at.Before(s.until); at = at.Add(soakEvery) {
				instants[at]++
			}
		}
		for round := range 10 {
			for i := range soakOneShots {
				if at := s.once(round, i); at.Before(s.until) {
					instants[at]++
				}
			}
		}
		for _, at := range []time.Time{from.Add(-time.Second), from, from.Add(17 * time.Second), s.until, s.until.Add(time.Hour)} {
			want := 0
			for due, n := range instants {
				if !due.After(at) {
					want += n
				}
			}
			if got := s.due(at); got != want {
				t.Errorf("of %s %d are due after %s, want %d", last, got, at.Sub(from), want)
			}
		}
	}
}
