// Package occurrence computes which entry follows from which: the first entry of a definition, the successor of an entry, and what
// the missed-run policy makes of a late one. It is pure: every process that computes the same thing gets the same key, so writing
// it twice has the effect of writing it once.
package occurrence

import (
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// Series is a definition with its compiled schedule: the series of occurrences that it makes for its job.
type Series struct {
	JobID  string
	Tenant job.Tenant
	Def    *job.Definition
	Plan   *schedule.Plan
	// EndsAt is where the definition that superseded this one begins; zero while there is none.
	EndsAt time.Time
}

// First returns the entry of the first occurrence at or after the definition's beginning; ok is false when the schedule has none.
// partition is the job's, now the clock of the writer.
func (s *Series) First(partition int, now time.Time) (e job.Entry, ok bool) {
	at, ok := s.Plan.First(s.Def.EffectiveAt)
	if !ok {
		return job.Entry{}, false
	}
	return s.begin(partition, at, s.Def.FirstOrdinal, now)
}

// Resume is First for the first occurrence at or after an instant, from which a series goes on that has lost its entry.
func (s *Series) Resume(partition int, from, now time.Time) (e job.Entry, ok bool) {
	at, ok := s.Plan.First(job.Later(from, s.Def.EffectiveAt))
	if !ok {
		return job.Entry{}, false
	}
	return s.begin(partition, at, s.OrdinalAt(at), now)
}

func (s *Series) begin(partition int, at time.Time, ordinal int, now time.Time) (e job.Entry, ok bool) {
	if s.beyond(ordinal) {
		return job.Entry{}, false
	}
	e = s.entry(partition, at, ordinal)
	e.WrittenAt = now
	return job.NewEntry(e, now), true
}

// OnTime returns the decision for an occurrence that is not late: it fires, and the next instant follows.
func (s *Series) OnTime(e *job.Entry) job.Decision {
	d := job.Decision{Fire: true}
	if next, ok := s.next(e.NominalAt, e.Ordinal+1); ok {
		d.Next, d.NextOrdinal = next, e.Ordinal+1
	}
	return d
}

// Late returns the decision of the missed-run policy for an entry that is taken at now, more than the catch-up window after its
// time. Instants count as missed when they are themselves that late.
//
//   - skip: none of the missed ones fires.
//   - fire_once: this one fires, the missed ones after it are skipped.
//   - backfill: this one fires and the next instant follows, missed or not, until max_backfill were fired.
func (s *Series) Late(e *job.Entry, now time.Time) job.Decision {
	if s.Def.MissedRun == job.MissedBackfill && e.BackfillFired < s.Def.MaxBackfill {
		d := s.OnTime(e)
		d.NextBackfillFired = e.BackfillFired + 1
		return d
	}
	d := job.Decision{Fire: s.Def.MissedRun == job.MissedFireOnce}
	// An instant is missed when its own time, jitter included, is more than the window ago. Jitter never reaches the next
	// instant, so only the last one before that can still be ahead.
	cutoff := now.Add(-s.Def.CatchUpWindow)
	if last, ok := s.Plan.Prev(cutoff); ok && !s.Plan.ScheduledFor(last).Before(cutoff) {
		cutoff = last
	}
	if !s.EndsAt.IsZero() && cutoff.After(s.EndsAt) {
		cutoff = s.EndsAt
	}
	first, ok := s.next(e.NominalAt, e.Ordinal+1)
	if !ok {
		return d
	}
	if !first.Before(cutoff) {
		d.Next, d.NextOrdinal = first, e.Ordinal+1
		return d
	}
	skipped, ordinal := s.skip(first, e.Ordinal+1, cutoff)
	d.Skipped, d.Disposition = &skipped, job.DispositionSkippedMissed
	if next, ok := s.next(skipped.To, ordinal); ok {
		d.Next, d.NextOrdinal = next, ordinal
	}
	return d
}

// skip returns the range of instants from first, which has the given ordinal, up to the cutoff, and the ordinal that follows it.
func (s *Series) skip(first time.Time, ordinal int, cutoff time.Time) (job.SkippedRange, int) {
	limit := job.MaxSkipCount
	if most := s.Def.Schedule.MaxOccurrences; most > 0 {
		limit = most - ordinal + 1
	}
	count := s.Plan.Count(first, cutoff, limit)
	last, _ := s.Plan.Prev(cutoff)
	if most := s.Def.Schedule.MaxOccurrences; most > 0 && count == limit {
		// The schedule ends within the range: its last occurrence is the one with the greatest ordinal.
		last, _ = s.Plan.Nth(first, cutoff, count)
	}
	return job.SkippedRange{From: first, To: last, Count: min(count, job.MaxSkipCount)}, ordinal + count
}

// From returns the run of instants from the decision's successor up to end. They share the fate of the entry because its chain ends
// there. ok is false when there are none.
func (s *Series) From(d job.Decision, end time.Time) (r job.SkippedRange, ok bool) {
	if !s.EndsAt.IsZero() && end.After(s.EndsAt) {
		end = s.EndsAt
	}
	if d.Next.IsZero() || !d.Next.Before(end) {
		return job.SkippedRange{}, false
	}
	r, _ = s.skip(d.Next, d.NextOrdinal, end)
	return r, true
}

// Successor returns the entry that follows from parent by its decision; ok is false when the schedule ends there. Its key depends
// only on the parent.
func (s *Series) Successor(parent *job.Entry, d job.Decision, now time.Time) (e job.Entry, ok bool) {
	if d.Next.IsZero() {
		return job.Entry{}, false
	}
	e = s.entry(parent.Partition, d.Next, d.NextOrdinal)
	e.BackfillFired = d.NextBackfillFired
	e.WrittenAt = now
	return job.NewEntry(e, job.MinuteStart(parent.Minute)), true
}

// Locator returns where the entry of an instant lies that is due then, unless the one before it was late. partition is the job's.
func (s *Series) Locator(partition int, instant, due time.Time) job.Locator {
	return job.Locator{
		Partition: partition, Minute: job.Minute(due), DueAt: due, ExecutionID: job.ScheduleExecutionID(s.JobID, instant), Attempt: 1, DefinitionID: s.Def.ID,
	}
}

func (s *Series) entry(partition int, at time.Time, ordinal int) job.Entry {
	due := s.Plan.ScheduledFor(at)
	e := job.Entry{
		Locator: s.Locator(partition, at, due),
		JobID:   s.JobID, Tenant: s.Tenant, Trigger: job.TriggerSchedule, NominalAt: at, ScheduledFor: due, Ordinal: ordinal,
		Note: s.Plan.Note(at),
	}
	s.Def.Mark(&e)
	return e
}

// next returns the instant after at, unless the definition has ended by then or its occurrences are used up.
func (s *Series) next(at time.Time, ordinal int) (time.Time, bool) {
	next, ok := s.Plan.Next(at)
	if !ok || s.beyond(ordinal) || !s.EndsAt.IsZero() && !next.Before(s.EndsAt) {
		return time.Time{}, false
	}
	return next, true
}

func (s *Series) beyond(ordinal int) bool {
	most := s.Def.Schedule.MaxOccurrences
	return most > 0 && ordinal > most
}

// OrdinalAt returns the ordinal of the first instant at or after t under this definition.
func (s *Series) OrdinalAt(t time.Time) int {
	limit := job.MaxSkipCount
	if most := s.Def.Schedule.MaxOccurrences; most > 0 {
		limit = most + 1
	}
	return s.Def.FirstOrdinal + s.Plan.Count(s.Def.EffectiveAt, t, limit)
}

// Until returns where the occurrences before an instant end: there, or where the definition ends, or after its last one. A cron
// schedule with max_occurrences takes time in proportion to them.
func (s *Series) Until(end time.Time) time.Time {
	if !s.EndsAt.IsZero() && s.EndsAt.Before(end) {
		end = s.EndsAt
	}
	if most := s.Def.Schedule.MaxOccurrences; most > 0 {
		if beyond, ok := s.Plan.Nth(s.Def.EffectiveAt, end, max(most-s.Def.FirstOrdinal, -1)+2); ok {
			return beyond
		}
	}
	return end
}

// Prev returns the last instant of the definition before an end that Until returned; ok is false if there is none.
func (s *Series) Prev(end time.Time) (at time.Time, ok bool) {
	at, ok = s.Plan.Prev(end)
	return at, ok && !at.Before(s.Def.EffectiveAt)
}

// NextRun returns the first instant after now that will fire if nothing changes; ok is false when the schedule has ended.
func (s *Series) NextRun(now time.Time) (time.Time, bool) {
	at, ok := s.Plan.First(job.Later(now, s.Def.EffectiveAt))
	if !ok || s.Def.Schedule.MaxOccurrences > 0 && s.beyond(s.OrdinalAt(at)) {
		return time.Time{}, false
	}
	return at, true
}
