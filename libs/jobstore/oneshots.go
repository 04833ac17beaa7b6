package jobstore

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// OfOneShot reports whether an event is of the one occurrence of a one-shot, whose instant its job's definition names. Then a store may keep
// it under that instant alone, and find it through the job's row.
func OfOneShot(e *job.Event) bool {
	return e.Type != job.EventSkipped && e.Type != job.EventChange && e.Entry.Trigger == job.TriggerSchedule && e.Entry.Plain
}

// OneShots returns the instants of the definitions that are one-shots, newest first, each once.
func OneShots(definitions ...job.Definition) []time.Time {
	var instants []time.Time
	for i := range definitions {
		if s := &definitions[i].Schedule; s.Type == job.ScheduleOneShot {
			instants = append(instants, s.RunAt)
		}
	}
	slices.SortFunc(instants, func(a, b time.Time) int { return b.Compare(a) })
	return slices.CompactFunc(instants, time.Time.Equal)
}

// Follows reports whether an execution comes after the cursor in a job's history.
func (c Cursor) Follows(nominalAt time.Time, executionID string) bool {
	if c.NominalAt.IsZero() || nominalAt.Before(c.NominalAt) {
		return true
	}
	return nominalAt.Equal(c.NominalAt) && executionID > c.ExecutionID
}
