package jobstoretest

import (
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

func scanIsExact(t *testing.T, s buckets) {
	var list []job.Entry
	for d := int64(-1); d <= 1; d++ {
		list = append(list, entries(suitePartition, s.minute+d, 1)...)
		list = append(list, entries(otherPartition, s.minute+d, 1)...)
	}
	must(t, s.Put(t.Context(), list))
	for _, e := range list {
		same(t, "bucket", s.scan(t, e.Partition, e.Minute), []job.PendingRow{{Entry: e}})
	}
	last := list[2].Locator
	rows, err := s.Scan(t.Context(), last.Partition, last.Minute, &last, 10)
	must(t, err)
	if len(rows) != 0 {
		t.Errorf("after the last row come %+v", rows)
	}
	if rows := s.scan(t, suitePartition, s.minute+100); len(rows) != 0 {
		t.Errorf("an empty bucket holds %+v", rows)
	}
}

// scansAtOnce scans the same minute of several partitions, some twice, by different limits. Of one, the first rows are no more than marks.
func scansAtOnce(t *testing.T, s buckets) {
	held := map[int][]job.PendingRow{}
	for p, n := range map[int]int{0: 3, otherPartition: 12, suitePartition: 7} {
		list := entries(p, s.minute, n)
		if p == suitePartition {
			for i := range 4 {
				must(t, s.Decide(t.Context(), list[i].Locator, someDecision(list[i])))
			}
			list = list[4:]
		}
		must(t, s.Put(t.Context(), list))
		for _, e := range list {
			held[p] = append(held[p], job.PendingRow{Entry: e})
		}
	}
	var scans sync.WaitGroup
	for range 5 {
		for p := range suitePartition + 1 {
			for _, limit := range []int{1, 3, 5, 12, 500} {
				scans.Go(func() {
					rows, err := s.Scan(t.Context(), p, s.minute, nil, limit)
					if want := held[p][:min(limit, len(held[p]))]; err != nil || !slices.EqualFunc(rows, want, equalRows) {
						t.Errorf("%d of partition %d are\n%+v, want\n%+v (%v)", limit, p, rows, want, err)
					}
				})
			}
		}
	}
	scans.Wait()
}

func equalRows(a, b job.PendingRow) bool { return reflect.DeepEqual(a, b) }

func closesAtOnce(t *testing.T, s buckets) {
	to := map[int]int64{0: s.minute - 1, otherPartition: s.minute + 3, suitePartition: s.minute}
	var closed, kept []job.Entry
	for p, end := range to {
		closed = append(closed, entries(p, end-1, 2)...)
		kept = append(kept, entries(p, end, 2)...)
	}
	must(t, s.Put(t.Context(), append(slices.Clone(closed), kept...)))
	var closes sync.WaitGroup
	for range 5 {
		for p, end := range to {
			closes.Go(func() {
				if err := s.Close(t.Context(), p, end); err != nil {
					t.Error(err)
				}
			})
		}
	}
	closes.Wait()
	for _, e := range closed {
		s.wantNoRow(t, e.Locator)
	}
	for _, e := range kept {
		same(t, "row", s.row(t, e.Locator), job.PendingRow{Entry: e})
	}
	for p, end := range to {
		if low, err := s.LowWater(t.Context(), p); err != nil || low != end {
			t.Errorf("partition %d is closed to %d, want %d (%v)", p, low-s.minute, end-s.minute, err)
		}
	}
}

func manyArePut(t *testing.T, s buckets) {
	var list []job.Entry
	for m := range int64(10) {
		list = append(list, entries(suitePartition, s.minute+m, 50)...)
	}
	must(t, s.Put(t.Context(), list))
	must(t, s.Put(t.Context(), nil))
	locators := make([]job.Locator, len(list))
	for i, e := range list {
		locators[i] = e.Locator
	}
	must(t, s.MarkDone(t.Context(), locators))
	for m := range int64(10) {
		rows := s.scan(t, suitePartition, s.minute+m)
		if len(rows) != 50 {
			t.Fatalf("minute %d holds %d rows", m, len(rows))
		}
		for i, row := range rows {
			if row.Entry != list[int(m)*50+i] || !row.Done {
				t.Fatalf("row %d of minute %d is %+v", i, m, row)
			}
		}
	}
}

func firstOpen(t *testing.T, s buckets) {
	m := s.minute
	must(t, s.Put(t.Context(), entries(suitePartition, m+2, 2)))
	done := entries(suitePartition, m+4, 1)
	must(t, s.Put(t.Context(), done))
	must(t, s.MarkDone(t.Context(), []job.Locator{done[0].Locator}))
	must(t, s.Put(t.Context(), entries(otherPartition, m+1, 1)))
	for _, c := range []struct {
		from, to, want int64
		ok             bool
	}{
		{m, m + 10, m + 2, true},
		{m + 2, m + 3, m + 2, true},
		{m + 3, m + 10, m + 4, true}, // a row that is done is a row
		{m, m + 2, 0, false},
		{m + 5, m + 10, 0, false},
		{m + 2, m + 2, 0, false},
		{m + 5, m, 0, false},
	} {
		got, ok, err := s.FirstOpen(t.Context(), suitePartition, c.from, c.to)
		must(t, err)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("of [%d, %d) it is %d, %v; want %d, %v", c.from-m, c.to-m, got-m, ok, c.want-m, c.ok)
		}
	}
}

func headsAreTheFirstRows(t *testing.T, s buckets) {
	m := s.minute
	var want []job.Entry
	for _, b := range []struct{ minute, rows int64 }{{0, 1}, {2, 3}, {3, 7}, {49, 2}, {50, 3}, {51, 4}, {120, 1}} {
		list := entries(suitePartition, m+b.minute, int(b.rows))
		must(t, s.Put(t.Context(), list))
		want = append(want, list[:min(len(list), 3)]...)
	}
	must(t, s.Put(t.Context(), entries(otherPartition, m+1, 1)))
	must(t, s.MarkDone(t.Context(), []job.Locator{want[0].Locator}))
	heads := func(from, to int64) []job.PendingRow {
		rows, err := s.Heads(t.Context(), suitePartition, m+from, m+to, 3)
		must(t, err)
		return rows
	}
	all := heads(0, 121)
	if len(all) != len(want) {
		t.Fatalf("%d rows, want %d", len(all), len(want))
	}
	for i, r := range all {
		if r.Entry != want[i] || r.Done != (i == 0) {
			t.Errorf("row %d is %+v, want %+v", i, r, want[i])
		}
	}
	if rows := heads(1, 3); len(rows) != 3 || rows[0].Entry != want[1] {
		t.Errorf("of three minutes: %+v", rows)
	}
	if rows := append(heads(4, 49), append(heads(3, 3), heads(3, 2)...)...); len(rows) != 0 {
		t.Errorf("of minutes without rows: %+v", rows)
	}
}

func closeIsExact(t *testing.T, s buckets) {
	var below, kept []job.Entry
	for d := int64(-3); d < 0; d++ {
		below = append(below, entries(suitePartition, s.minute+d, 2)...)
		kept = append(kept, entries(otherPartition, s.minute+d, 2)...)
	}
	kept = append(append(kept, entries(suitePartition, s.minute, 2)...), entries(suitePartition, s.minute+1, 1)...)
	must(t, s.Put(t.Context(), append(below, kept...)))
	for _, e := range below {
		must(t, s.MarkDone(t.Context(), []job.Locator{e.Locator}))
		must(t, s.Decide(t.Context(), e.Locator, someDecision(e)))
	}
	must(t, s.Close(t.Context(), suitePartition, s.minute))
	for _, e := range below {
		s.wantNoRow(t, e.Locator)
	}
	for _, e := range kept {
		same(t, "row", s.row(t, e.Locator), job.PendingRow{Entry: e})
	}
}

func lowWaterFollows(t *testing.T, s buckets) {
	other, err := s.LowWater(t.Context(), otherPartition)
	must(t, err)
	at := s.minute
	for _, c := range []struct{ closed, want int64 }{{at, at}, {at, at}, {at + 4, at + 4}, {at + 1, at + 4}} {
		must(t, s.Close(t.Context(), suitePartition, c.closed))
		low, err := s.LowWater(t.Context(), suitePartition)
		must(t, err)
		if low != c.want {
			t.Errorf("closed to %d it is %d, want %d", c.closed-at, low-at, c.want-at)
		}
	}
	if low, err := s.LowWater(t.Context(), otherPartition); err != nil || low != other {
		t.Errorf("the other partition's is %d, was %d, %v", low, other, err)
	}
}

func closedStaysClosed(t *testing.T, s buckets) {
	list := entries(suitePartition, s.minute, 2)
	must(t, s.Put(t.Context(), list))
	must(t, s.Close(t.Context(), suitePartition, s.minute+1))
	must(t, s.MarkDone(t.Context(), []job.Locator{list[0].Locator, list[1].Locator}))
	s.wantNoRow(t, list[0].Locator)
}

func noProgress(t *testing.T, s buckets) {
	_, err := s.LowWater(t.Context(), 1<<20)
	mustBe(t, err, jobstore.ErrNoProgress)
}
