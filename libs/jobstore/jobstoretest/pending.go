package jobstoretest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// suitePartition is the partition that the suite uses, otherPartition the one that must not be affected.
const suitePartition, otherPartition = 3, 2

// buckets is a store and the minute that a test uses, a little above the low-water mark.
type buckets struct {
	jobstore.Pending
	minute int64
}

// RunPending runs the suite of minute buckets.
func RunPending(t *testing.T, open func(t *testing.T) jobstore.Pending) {
	for _, c := range []struct {
		promise string
		check   func(t *testing.T, s buckets)
	}{
		{"an entry is read back as it was written", entryIsReadBack},
		{"an entry that is due before its bucket stays in its bucket", entryKeepsItsBucket},
		{"a second put of an entry changes nothing", secondPutIsNone},
		{"a second put of an entry changes neither done nor its decision", putLeavesMarks},
		{"a deferred row is done and says until when", deferredRow},
		{"puts, marks and decisions of one row that race all take effect", writesOfOneRowRace},
		{"done marks exactly the row that is named", markIsExact},
		{"a mark of a row that is not there leaves nothing", markOfNothing},
		{"a decision is read back as it was written, and marks nothing done", decisionIsReadBack},
		{"a decision alone is no row", decisionOfNothing},
		{"a row that is not there is not found", rowIsNotFound},
		{"many rows are read at once, those that do not exist are missing", manyRowsAreRead},
		{"a bucket is scanned in key order, in pages without gap or repetition, marks or not", scanInPages},
		{"a scan sees its own bucket only", scanIsExact},
		{"buckets that are scanned at the same time are each scanned exactly", scansAtOnce},
		{"many entries are put at once, over many buckets", manyArePut},
		{"the first open bucket is the first that has a row", firstOpen},
		{"the heads of buckets are their first rows", headsAreTheFirstRows},
		{"a closed bucket is gone, those above it and other partitions' stay", closeIsExact},
		{"partitions that are closed at the same time are each closed exactly", closesAtOnce},
		{"the low-water mark is where it was closed to, and never goes back", lowWaterFollows},
		{"a row below the low-water mark stays away when it is marked", closedStaysClosed},
		{"a partition that was never set up has no low-water mark", noProgress},
	} {
		t.Run(c.promise, func(t *testing.T) {
			s := open(t)
			low, err := s.LowWater(t.Context(), suitePartition)
			must(t, err)
			c.check(t, buckets{s, low + 5})
		})
	}
}

// entries returns n entries of one minute bucket, due a second apart.
func entries(partition int, minute int64, n int) []job.Entry {
	list := make([]job.Entry, n)
	for i := range list {
		at := job.MinuteStart(minute).Add(time.Duration(i)*time.Second + 7*time.Millisecond)
		id := newJobID()
		list[i] = job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: partition, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1 + i%3,
				DefinitionID: newDefinitionID(),
			},
			JobID: id, Trigger: job.TriggerSchedule, NominalAt: at.Add(-time.Hour), ScheduledFor: at.Add(-time.Minute),
			Ordinal: i + 1, BackfillFired: i, WrittenAt: at.Add(time.Millisecond), Chained: i%2 == 1,
		}, at)
	}
	return list
}

func entry(s buckets) job.Entry { return entries(suitePartition, s.minute, 1)[0] }

func (s buckets) row(t *testing.T, l job.Locator) job.PendingRow {
	t.Helper()
	row, err := s.Row(t.Context(), l)
	must(t, err)
	rows, err := s.Rows(t.Context(), []job.Locator{l})
	must(t, err)
	same(t, "Rows", rows, map[job.Locator]job.PendingRow{l: row})
	return row
}

// scan returns all rows of a bucket.
func (s buckets) scan(t *testing.T, partition int, minute int64) []job.PendingRow {
	t.Helper()
	rows, err := s.Scan(t.Context(), partition, minute, nil, 1000)
	must(t, err)
	return rows
}

// wantNoRow checks that no read, scan or search finds a row.
func (s buckets) wantNoRow(t *testing.T, l job.Locator) {
	t.Helper()
	_, err := s.Row(t.Context(), l)
	mustBe(t, err, jobstore.ErrNotFound)
	several, err := s.Rows(t.Context(), []job.Locator{l})
	must(t, err)
	if len(several) != 0 {
		t.Errorf("several rows read at once are %+v", several)
	}
	if rows := s.scan(t, l.Partition, l.Minute); len(rows) != 0 {
		t.Errorf("the bucket holds %+v", rows)
	}
	m, ok, err := s.FirstOpen(t.Context(), l.Partition, l.Minute, l.Minute+1)
	must(t, err)
	if ok {
		t.Errorf("minute %d has a row", m)
	}
	heads, err := s.Heads(t.Context(), l.Partition, l.Minute, l.Minute+1, 1)
	must(t, err)
	if len(heads) != 0 {
		t.Errorf("the bucket begins with %+v", heads)
	}
}

func entryIsReadBack(t *testing.T, s buckets) {
	list := entries(suitePartition, s.minute, 3)
	must(t, s.Put(t.Context(), list))
	rows := s.scan(t, suitePartition, s.minute)
	for i, e := range list {
		want := job.PendingRow{Entry: e}
		same(t, "row", s.row(t, e.Locator), want)
		if len(rows) != len(list) {
			t.Fatalf("%d rows, want %d", len(rows), len(list))
		}
		same(t, "scanned row", rows[i], want)
	}
}

func entryKeepsItsBucket(t *testing.T, s buckets) {
	e := entry(s)
	e.DueAt = e.DueAt.Add(-3 * time.Minute) // written late, so its minute is later than its due time
	must(t, s.Put(t.Context(), []job.Entry{e}))
	same(t, "bucket", s.scan(t, suitePartition, s.minute), []job.PendingRow{{Entry: e}})
	if rows := s.scan(t, suitePartition, job.Minute(e.DueAt)); len(rows) != 0 {
		t.Errorf("the minute of its due time holds %+v", rows)
	}
}

func secondPutIsNone(t *testing.T, s buckets) {
	e := entry(s)
	must(t, s.Put(t.Context(), []job.Entry{e, e}))
	atOnce(writers, func(i int) {
		again := e
		again.WrittenAt = e.WrittenAt.Add(time.Duration(i) * time.Minute)
		if err := s.Put(t.Context(), []job.Entry{again}); err != nil {
			t.Error(err)
		}
	})
	same(t, "bucket", s.scan(t, suitePartition, s.minute), []job.PendingRow{{Entry: e}})
}

func someDecision(e job.Entry) job.Decision {
	return job.Decision{
		Fire: true, Skipped: &job.SkippedRange{From: e.DueAt.Add(time.Minute), To: e.DueAt.Add(time.Hour), Count: 60},
		Disposition: job.DispositionSkippedPaused, Next: e.DueAt.Add(61 * time.Minute), NextOrdinal: 62, NextBackfillFired: 3,
	}
}

func putLeavesMarks(t *testing.T, s buckets) {
	e := entry(s)
	d := someDecision(e)
	must(t, s.Put(t.Context(), []job.Entry{e}))
	must(t, s.Decide(t.Context(), e.Locator, d))
	must(t, s.Put(t.Context(), []job.Entry{e}))
	same(t, "decided row", s.row(t, e.Locator), job.PendingRow{Entry: e, Decision: &d})
	must(t, s.MarkDone(t.Context(), []job.Locator{e.Locator}))
	must(t, s.Put(t.Context(), []job.Entry{e}))
	want := job.PendingRow{Entry: e, Done: true, Decision: &d}
	same(t, "done row", s.row(t, e.Locator), want)
	same(t, "bucket", s.scan(t, suitePartition, s.minute), []job.PendingRow{want})
}

func deferredRow(t *testing.T, s buckets) {
	list := entries(suitePartition, s.minute, 3)
	must(t, s.Put(t.Context(), list))
	until := list[0].DueAt.Add(time.Hour)
	must(t, s.Defer(t.Context(), list[0].Locator, until))
	must(t, s.Defer(t.Context(), list[1].Locator, until.Add(time.Second)))
	must(t, s.MarkDone(t.Context(), []job.Locator{list[1].Locator, list[2].Locator})) // another event of the same attempt
	must(t, s.Put(t.Context(), list))
	want := []job.PendingRow{
		{Entry: list[0], Done: true, DeferredTo: until},
		{Entry: list[1], Done: true, DeferredTo: until.Add(time.Second)},
		{Entry: list[2], Done: true},
	}
	for i := range want {
		same(t, fmt.Sprint("row ", i), s.row(t, list[i].Locator), want[i])
	}
	same(t, "bucket", s.scan(t, suitePartition, s.minute), want)
	e := entry(s)
	must(t, s.Defer(t.Context(), e.Locator, until))
	_, err := s.Row(t.Context(), e.Locator)
	mustBe(t, err, jobstore.ErrNotFound)
}

func writesOfOneRowRace(t *testing.T, s buckets) {
	e := entry(s)
	d := someDecision(e)
	must(t, s.Put(t.Context(), []job.Entry{e}))
	atOnce(3*writers, func(i int) {
		var err error
		switch i % 3 {
		case 0:
			err = s.Put(t.Context(), []job.Entry{e})
		case 1:
			err = s.MarkDone(t.Context(), []job.Locator{e.Locator})
		case 2:
			err = s.Decide(t.Context(), e.Locator, d)
		}
		if err != nil {
			t.Error(err)
		}
	})
	same(t, "row", s.row(t, e.Locator), job.PendingRow{Entry: e, Done: true, Decision: &d})
}

// neighbours returns rows whose keys each differ from the first one's in one part.
func neighbours(s buckets) []job.Entry {
	e := entry(s)
	attempt, definition, due, execution, minute, partition := e, e, e, e, e, e
	attempt.Attempt = 2
	definition.DefinitionID = newDefinitionID()
	due.DueAt = e.DueAt.Add(time.Millisecond)
	execution.ExecutionID = job.ScheduleExecutionID(newJobID(), e.NominalAt)
	minute.Minute++
	partition.Partition = otherPartition
	return []job.Entry{e, attempt, definition, due, execution, minute, partition}
}

func markIsExact(t *testing.T, s buckets) {
	list := neighbours(s)
	must(t, s.Put(t.Context(), list))
	for marked := range list {
		must(t, s.MarkDone(t.Context(), []job.Locator{list[marked].Locator}))
		for i, e := range list {
			if row := s.row(t, e.Locator); row.Entry != e || row.Done != (i <= marked) {
				t.Errorf("after %d marks row %d is %+v", marked+1, i, row)
			}
		}
	}
	must(t, s.MarkDone(t.Context(), nil))
}

func markOfNothing(t *testing.T, s buckets) {
	e := entry(s)
	must(t, s.MarkDone(t.Context(), []job.Locator{e.Locator}))
	s.wantNoRow(t, e.Locator)
	there := entry(s)
	must(t, s.Put(t.Context(), []job.Entry{there}))
	must(t, s.MarkDone(t.Context(), []job.Locator{e.Locator, there.Locator}))
	same(t, "bucket", s.scan(t, suitePartition, s.minute), []job.PendingRow{{Entry: there, Done: true}})
}

func decisionIsReadBack(t *testing.T, s buckets) {
	list := entries(suitePartition, s.minute, 3)
	must(t, s.Put(t.Context(), list))
	decisions := []job.Decision{{}, {Fire: true, Next: list[1].DueAt.Add(time.Hour), NextOrdinal: 2}, someDecision(list[2])}
	var want []job.PendingRow
	for i, e := range list {
		must(t, s.Decide(t.Context(), e.Locator, decisions[i]))
		want = append(want, job.PendingRow{Entry: e, Decision: &decisions[i]})
		same(t, fmt.Sprint("row ", i), s.row(t, e.Locator), want[i])
	}
	same(t, "bucket", s.scan(t, suitePartition, s.minute), want)
}

func decisionOfNothing(t *testing.T, s buckets) {
	e := entry(s)
	must(t, s.Decide(t.Context(), e.Locator, job.Decision{Fire: true}))
	s.wantNoRow(t, e.Locator)
}

func rowIsNotFound(t *testing.T, s buckets) {
	list := neighbours(s)
	must(t, s.Put(t.Context(), list[1:]))
	_, err := s.Row(t.Context(), list[0].Locator)
	mustBe(t, err, jobstore.ErrNotFound)
}

func manyRowsAreRead(t *testing.T, s buckets) {
	list := entries(suitePartition, s.minute, jobstore.MaxGetMany)
	must(t, s.Put(t.Context(), list[:len(list)-1]))
	must(t, s.MarkDone(t.Context(), []job.Locator{list[7].Locator}))
	must(t, s.Decide(t.Context(), list[8].Locator, job.Decision{Fire: true}))
	want := map[job.Locator]job.PendingRow{}
	locators := make([]job.Locator, 0, len(list))
	for i, e := range slices.Backward(list) {
		locators = append(locators, e.Locator)
		if i < len(list)-1 {
			want[e.Locator] = s.row(t, e.Locator)
		}
	}
	rows, err := s.Rows(t.Context(), locators)
	must(t, err)
	same(t, "Rows", rows, want)
	if !rows[list[7].Locator].Done || rows[list[8].Locator].Decision == nil || rows[list[9].Locator].Done {
		t.Error("marks and decisions do not stand at their rows")
	}
	rows, err = s.Rows(t.Context(), nil)
	must(t, err)
	if len(rows) != 0 {
		t.Errorf("no locators gave %d rows", len(rows))
	}
}

func byKey(a, b job.Entry) int {
	switch {
	case !a.DueAt.Equal(b.DueAt):
		return a.DueAt.Compare(b.DueAt)
	case a.ExecutionID != b.ExecutionID:
		return map[bool]int{true: -1, false: 1}[a.ExecutionID < b.ExecutionID]
	case a.Attempt != b.Attempt:
		return a.Attempt - b.Attempt
	}
	return map[bool]int{true: -1, false: 1}[a.DefinitionID < b.DefinitionID]
}

func scanInPages(t *testing.T, s buckets) {
	list := append(entries(suitePartition, s.minute, 16), neighbours(s)[:5]...)
	slices.SortFunc(list, byKey)
	for i := range list {
		e := list[len(list)-1-i]
		must(t, s.Put(t.Context(), []job.Entry{e}))
	}
	var want []job.PendingRow
	for i, e := range list {
		row := job.PendingRow{Entry: e, Done: i%3 == 0}
		if row.Done {
			must(t, s.MarkDone(t.Context(), []job.Locator{e.Locator}))
		}
		if i%2 == 0 {
			d := someDecision(e)
			row.Decision = &d
			must(t, s.Decide(t.Context(), e.Locator, d))
		}
		want = append(want, row)
	}
	for _, limit := range []int{1, 4, 7, 21, 100} {
		same(t, fmt.Sprint("scan by ", limit), s.pages(t, limit), want)
	}
}

// pages scans the bucket page by page; fewer than the limit means the end.
func (s buckets) pages(t *testing.T, limit int) []job.PendingRow {
	t.Helper()
	var all []job.PendingRow
	var after *job.Locator
	for range 1000 {
		rows, err := s.Scan(t.Context(), suitePartition, s.minute, after, limit)
		must(t, err)
		all = append(all, rows...)
		if len(rows) < limit {
			return all
		}
		if len(rows) > limit {
			t.Fatalf("a page of %d, limit %d", len(rows), limit)
		}
		after = &rows[limit-1].Locator
	}
	t.Fatal("the scan has no end")
	return nil
}
