package jobstoretest

import (
	"fmt"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// suitePartition is the partition that the suite works in; a store for it has at least 4.
const suitePartition = 3

// entries are n entries of one minute bucket, due a second apart.
func entries(minute int64, n int) []job.Entry {
	list := make([]job.Entry, n)
	for i := range list {
		at := job.MinuteStart(minute).Add(time.Duration(i) * time.Second)
		id := job.JobPrefix + ulid.Make().String()
		list[i] = job.NewEntry(job.Entry{
			Locator: job.Locator{
				Partition: suitePartition, DueAt: at, ExecutionID: job.ScheduleExecutionID(id, at), Attempt: 1,
				DefinitionID: job.DefinitionPrefix + ulid.Make().String(),
			},
			JobID: id, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: at, Ordinal: i + 1, WrittenAt: at,
		}, at)
	}
	return list
}

// RunPending runs the suite of minute buckets. firstMinute is the low-water mark of the store that open gives.
func RunPending(t *testing.T, firstMinute int64, open func(t *testing.T) jobstore.Pending) {
	minute := firstMinute + 5
	t.Run("an entry is read back as it was written, in its bucket and alone", func(t *testing.T) {
		s, list := open(t), entries(minute, 3)
		must(t, s.Put(t.Context(), list))
		rows, err := s.Scan(t.Context(), suitePartition, minute, nil, 10)
		must(t, err)
		if len(rows) != 3 {
			t.Fatalf("%d rows", len(rows))
		}
		for i, r := range rows {
			if r.Entry != list[i] || r.Done || r.Decision != nil {
				t.Errorf("row %d is %+v, want %+v", i, r, list[i])
			}
		}
		row, err := s.Row(t.Context(), list[1].Locator)
		must(t, err)
		if row.Entry != list[1] {
			t.Errorf("row is %+v", row)
		}
	})
	t.Run("a second put changes neither done nor the decision", func(t *testing.T) {
		s, list := open(t), entries(minute, 1)
		d := job.Decision{Fire: true, Next: list[0].DueAt.Add(time.Hour), NextOrdinal: 9}
		must(t, s.Put(t.Context(), list))
		must(t, s.MarkDone(t.Context(), []job.Locator{list[0].Locator}))
		must(t, s.Decide(t.Context(), list[0].Locator, d))
		must(t, s.Put(t.Context(), list))
		row, err := s.Row(t.Context(), list[0].Locator)
		must(t, err)
		if !row.Done || row.Decision == nil || *row.Decision != d {
			t.Errorf("row is %+v", row)
		}
	})
	t.Run("a mark without a row leaves nothing", func(t *testing.T) {
		s, list := open(t), entries(minute, 1)
		must(t, s.MarkDone(t.Context(), []job.Locator{list[0].Locator}))
		_, err := s.Row(t.Context(), list[0].Locator)
		mustBe(t, err, jobstore.ErrNotFound)
	})
	t.Run("a bucket is scanned in pages without gap or repetition, marks or not", func(t *testing.T) {
		s, list := open(t), entries(minute, 25)
		must(t, s.Put(t.Context(), list))
		for i := 0; i < 25; i += 3 {
			must(t, s.MarkDone(t.Context(), []job.Locator{list[i].Locator}))
		}
		var after *job.Locator
		n := 0
		for {
			rows, err := s.Scan(t.Context(), suitePartition, minute, after, 4)
			must(t, err)
			for _, r := range rows {
				if r.Entry != list[n] || r.Done != (n%3 == 0) {
					t.Errorf("row %d is %+v", n, r)
				}
				n++
			}
			if len(rows) < 4 {
				break
			}
			after = &rows[3].Locator
		}
		if n != 25 {
			t.Errorf("%d rows", n)
		}
	})
	t.Run("the first open bucket is found, and none where there is none", func(t *testing.T) {
		s := open(t)
		must(t, s.Put(t.Context(), entries(minute+2, 1)))
		m, ok, err := s.FirstOpen(t.Context(), suitePartition, minute, minute+10)
		must(t, err)
		if !ok || m != minute+2 {
			t.Errorf("found %d, %v", m, ok)
		}
		_, ok, err = s.FirstOpen(t.Context(), suitePartition, minute, minute+2)
		must(t, err)
		if ok {
			t.Error("found one where there is none")
		}
	})
	t.Run("closing deletes the buckets below, moves the mark, and stays closed to marks", func(t *testing.T) {
		s := open(t)
		below, above := entries(minute, 2), entries(minute+1, 1)
		must(t, s.Put(t.Context(), append(below, above...)))
		must(t, s.Close(t.Context(), suitePartition, minute+1))
		must(t, s.Close(t.Context(), suitePartition, minute)) // a late one changes nothing
		low, err := s.LowWater(t.Context(), suitePartition)
		must(t, err)
		if low != minute+1 {
			t.Errorf("low-water mark is %d, want %d", low, minute+1)
		}
		must(t, s.MarkDone(t.Context(), []job.Locator{below[0].Locator}))
		for _, e := range below {
			_, err := s.Row(t.Context(), e.Locator)
			mustBe(t, err, jobstore.ErrNotFound)
		}
		_, err = s.Row(t.Context(), above[0].Locator)
		must(t, err)
	})
	t.Run("a partition that was never set up has no low-water mark", func(t *testing.T) {
		_, err := open(t).LowWater(t.Context(), 1<<20)
		mustBe(t, err, jobstore.ErrNoProgress)
	})
}

// RunHistory runs the suite of history and dead letters.
func RunHistory(t *testing.T, open func(t *testing.T) jobstore.History) {
	begin := job.Instant(time.Now().Add(-72 * time.Hour))
	event := func(jobID string, at time.Time, attempt int) job.Event {
		x := job.ScheduleExecutionID(jobID, at)
		return job.Event{
			ID: fmt.Sprintf("%s/%d/succeeded", x, attempt), Type: job.EventAttempt, TenantID: "tenant-" + jobID, At: at,
			Entry:       job.Entry{Locator: job.Locator{ExecutionID: x, Attempt: attempt}, JobID: jobID, NominalAt: at},
			Disposition: job.Fired,
		}
	}
	t.Run("executions come newest first over days, attempts in order, and pages without gap or repetition", func(t *testing.T) {
		s, jobID := open(t), newJob().ID
		var events []job.Event
		for i := range 10 {
			at := begin.Add(time.Duration(i) * 7 * time.Hour)
			events = append(events, event(jobID, at, 1), event(jobID, at, 2))
		}
		must(t, s.Record(t.Context(), events))
		must(t, s.Record(t.Context(), events[:5])) // told twice is once
		var got []job.Event
		before := jobstore.Position{}
		for {
			page, err := s.Executions(t.Context(), jobID, before, begin.Add(-time.Hour), 6)
			must(t, err)
			got = append(got, page...)
			if len(page) == 0 {
				break
			}
			last := page[len(page)-1].Entry
			before = jobstore.Position{NominalAt: last.NominalAt, ExecutionID: last.ExecutionID}
		}
		if len(got) != len(events) {
			t.Fatalf("%d events, want %d", len(got), len(events))
		}
		for i, e := range got {
			if want := events[len(events)-2-2*(i/2)+i%2]; e.ID != want.ID {
				t.Errorf("event %d is %s, want %s", i, e.ID, want.ID)
			}
		}
		one, err := s.Execution(t.Context(), events[4].Entry.ExecutionID)
		must(t, err)
		if len(one) != 2 || one[0].Entry.Attempt != 1 {
			t.Errorf("execution is %v", one)
		}
	})
	t.Run("a tenant's dead letters come once each, in pages", func(t *testing.T) {
		s, jobID := open(t), newJob().ID
		for i := range 5 {
			d := job.DeadLetter{Event: event(jobID, begin.Add(time.Duration(i)*20*time.Hour), 1), Reason: "permanent", At: begin}
			must(t, s.PutDeadLetter(t.Context(), d))
			must(t, s.PutDeadLetter(t.Context(), d))
		}
		seen := map[string]bool{}
		cursor := ""
		for {
			page, next, err := s.DeadLetters(t.Context(), "tenant-"+jobID, cursor, 2)
			must(t, err)
			for _, d := range page {
				if seen[d.Event.ID] {
					t.Errorf("%s came twice", d.Event.ID)
				}
				seen[d.Event.ID] = true
			}
			if next == "" {
				break
			}
			cursor = next
		}
		if len(seen) != 5 {
			t.Errorf("%d dead letters, want 5", len(seen))
		}
	})
}
