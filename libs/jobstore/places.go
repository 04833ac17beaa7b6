package jobstore

import (
	"cmp"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// ByPlace orders events as [History.Executions] returns them.
func ByPlace(a, b job.Event) int {
	atA, executionA := a.Place()
	atB, executionB := b.Place()
	return cmp.Or(atB.Compare(atA), cmp.Compare(executionA, executionB), cmp.Compare(a.Entry.Attempt, b.Entry.Attempt), cmp.Compare(a.ID, b.ID))
}

// Follows reports whether an execution comes after the cursor in a job's history.
func (c Cursor) Follows(nominalAt time.Time, executionID string) bool {
	if c.NominalAt.IsZero() || nominalAt.Before(c.NominalAt) {
		return true
	}
	return nominalAt.Equal(c.NominalAt) && executionID > c.ExecutionID
}

// Schedules returns the place behind all that somebody asked for at the cursor's instant: what comes after it there is the schedule's own
// execution. An operation has all of its executions at one instant, and there may be very many.
func (c Cursor) Schedules(jobID string) Cursor {
	if first := job.ScheduleExecutionID(jobID, time.UnixMilli(0)); c.ExecutionID < first {
		c.ExecutionID = first
	}
	return c
}
