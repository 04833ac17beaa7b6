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
			all[i] = soakRow{used: map[string]float64{"executor, live MB": 30, "Redis, MB of keys": 300, "executor, files": 200}, behind: 3000, groups: 3}
			change(i, &all[i])
		}
		return all
	}
	for name, c := range map[string]struct {
		change func(i int, r *soakRow)
		want   string
	}{
		"nothing":                    {func(int, *soakRow) {}, ""},
		"noise":                      {func(i int, r *soakRow) { r.used["executor, live MB"] += float64(i % 3) }, ""},
		"growth at first":            {func(i int, r *soakRow) { r.used["Redis, MB of keys"] = float64(min(i, 5)) * 60 }, ""},
		"a leak":                     {func(i int, r *soakRow) { r.used["executor, live MB"] += 2 * float64(i) }, "executor, live MB"},
		"a server's disk":            {func(i int, r *soakRow) { r.used["Redis, MB of keys"] += 15 * float64(i) }, "Redis, MB of keys"},
		"descriptors":                {func(i int, r *soakRow) { r.used["executor, files"] += 80 * float64(i) }, "executor, files"},
		"a group that does not tell": {func(i int, r *soakRow) { r.groups = 3 - i/11 }, "of 3 groups"},
		"a group that has stopped":   {func(i int, r *soakRow) { r.behind = 9000 * float64(i) }, "before it"},
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
