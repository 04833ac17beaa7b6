package jobstoretest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
)

// began returns a job that began as a one-shot at an instant.
func began(at time.Time) job.Job {
	j := newJob()
	j.ID, j.Definition.ID = idAt(job.JobPrefix, at), idAt(job.DefinitionPrefix, at)
	j.Definition.Schedule = job.Schedule{Type: job.ScheduleOneShot, RunAt: at}
	return j
}

func idAt(prefix string, at time.Time) string {
	return prefix + ulid.MustNew(ulid.Timestamp(at), rand.Reader).String()
}

// redefined makes a job a one-shot at an instant, as an update does.
func redefined(t *testing.T, s jobstore.Jobs, j *job.Job, at time.Time) {
	t.Helper()
	old := j.Definition
	j.Version++
	j.Definition.ID = job.NextDefinitionID(old.ID, idAt(job.DefinitionPrefix, at))
	j.Definition.Schedule.RunAt = at
	must(t, s.PutDefinition(t.Context(), j.ID, old))
	must(t, s.Replace(t.Context(), *j))
}

// oneShot returns an event of the occurrence of a one-shot, under its present definition.
func oneShot(j *job.Job, attempt int) job.Event {
	e := event(j.ID, j.Tenant, j.Definition.Schedule.RunAt, attempt)
	e.Entry.Plain, e.Entry.DefinitionID = true, j.Definition.ID
	return e
}

func oneShotsAmongAll(t *testing.T, open func(t *testing.T) (jobstore.History, jobstore.Jobs)) {
	s, jobs := open(t)
	begin := historyBegin()
	j := began(begin)
	must(t, jobs.Create(t.Context(), j, true))
	check := func(when string, want []job.Event) {
		t.Helper()
		for _, limit := range []int{4, 7, 1000} {
			same(t, fmt.Sprintf("history %s by %d", when, limit), wholePages(t, s, &j, begin, limit), want)
		}
	}
	var newestFirst []job.Event
	record := func(events ...job.Event) {
		for range 2 {
			must(t, s.Record(t.Context(), pointers(events)))
		}
	}
	first := []job.Event{oneShot(&j, 1), oneShot(&j, 2)}
	record(first[1], first[0])
	newestFirst = first
	check("of one that began so", newestFirst)
	j.Version++ // as a pause does, which keeps the definition
	must(t, jobs.Replace(t.Context(), j))
	check("after a change that keeps its definition", newestFirst)

	redefined(t, jobs, &j, begin) // an update may keep the instant, and change what else decides
	newestFirst = append(newestFirst, oneShot(&j, 3))
	record(newestFirst[2])
	manual := event(j.ID, j.Tenant, begin.Add(30*time.Second), 1)
	manual.Entry.Trigger, manual.Entry.Plain = job.TriggerManual, true
	manual.Entry.ExecutionID = job.ManualExecutionID(j.ID, ulid.MustNew(ulid.Timestamp(manual.Entry.NominalAt), rand.Reader).String())
	manual.ID = manual.Entry.ExecutionID + "/1/failed"
	beat := event(j.ID, j.Tenant, begin.Add(time.Hour), 1)
	skipped := job.SkippedEvent(beat.Entry, job.TargetRef{}, job.SkippedRange{From: begin.Add(50 * time.Second), To: begin.Add(55 * time.Second), Count: 2},
		job.DispositionSkippedMissed, begin.Add(2*time.Hour))
	redefined(t, jobs, &j, begin.Add(2*time.Hour))
	last := oneShot(&j, 1)
	record(last, manual, beat, skipped)
	newestFirst = append([]job.Event{last, beat, skipped, manual}, newestFirst...)
	check("of one that was updated", newestFirst)

	got, err := s.Execution(t.Context(), first[0].Entry.ExecutionID)
	must(t, err)
	same(t, "the execution", got, newestFirst[4:])
	for _, c := range []struct {
		oldest time.Time
		before jobstore.Cursor
		want   []job.Event
	}{
		{begin.Add(time.Millisecond), jobstore.Cursor{}, newestFirst[:4]},
		{begin, jobstore.Cursor{NominalAt: begin}, newestFirst[4:]}, // all executions of the instant follow it
		{begin, jobstore.Cursor{NominalAt: begin, ExecutionID: first[0].Entry.ExecutionID}, nil},
	} {
		got, err := s.Executions(t.Context(), jobstore.OfJob(&j), c.before, c.oldest, 1000)
		must(t, err)
		same(t, fmt.Sprintf("history from %s to %v", c.oldest, c.before), got, c.want)
	}
}

// wholePages reads all events of a job in pages, of which each ends with an execution.
func wholePages(t *testing.T, s jobstore.History, j *job.Job, oldest time.Time, limit int) (all []job.Event) {
	t.Helper()
	before := jobstore.Cursor{}
	for {
		page, err := s.Executions(t.Context(), jobstore.OfJob(j), before, oldest, limit)
		must(t, err)
		if len(page) == 0 {
			return all
		}
		if len(page) == limit { // the last execution may go on
			_, unsure := page[limit-1].Place()
			page = page[:slices.IndexFunc(page, func(e job.Event) bool { _, id := e.Place(); return id == unsure })]
		}
		all = append(all, page...)
		before.NominalAt, before.ExecutionID = page[len(page)-1].Place()
	}
}

func oneShotsAreForgotten(t *testing.T, open func(t *testing.T) (jobstore.History, jobstore.Jobs)) {
	s, jobs := open(t)
	at := historyBegin()
	for name, update := range map[string]bool{"as it began": false, "updated": true} {
		gone, kept := began(at), began(at)
		for _, j := range []*job.Job{&gone, &kept} {
			must(t, jobs.Create(t.Context(), *j, true))
			events := []job.Event{oneShot(j, 1), event(j.ID, j.Tenant, at.Add(2*time.Hour), 1), {}}
			if update {
				redefined(t, jobs, j, at.Add(time.Hour))
			}
			events[2] = oneShot(j, 2)
			must(t, s.Record(t.Context(), pointers(events)))
		}
		for range 2 {
			must(t, s.Forget(t.Context(), jobstore.OfJob(&gone)))
			for j, want := range map[*job.Job]int{&gone: 0, &kept: 3} {
				got, err := s.Executions(t.Context(), jobstore.OfJob(j), jobstore.Cursor{}, at.Add(-time.Hour), 10)
				must(t, err)
				if len(got) != want {
					t.Errorf("%s: %d events are left, want %d", name, len(got), want)
				}
				got, err = s.Execution(t.Context(), job.ScheduleExecutionID(j.ID, at))
				must(t, err)
				if (len(got) == 0) != (want == 0) {
					t.Errorf("%s: %d events of an execution are left", name, len(got))
				}
			}
		}
	}
}
