package jobstore

import (
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Of says whose history is read: a job's, or that of what stands in its place.
type Of struct {
	ID string
	// RunsAt is the instant of the job's first definition, if its row still has that one and it is a one-shot.
	RunsAt time.Time
	// Updated is set if the row has another definition than the first.
	Updated bool
}

// OfJob returns whose history that of a job is, as its row says.
func OfJob(j *job.Job) Of {
	of := Of{ID: j.ID, Updated: !job.FirstDefinition(j.ID, j.Definition.ID)}
	if !of.Updated && j.Definition.Schedule.Type == job.ScheduleOneShot {
		of.RunsAt = j.Definition.Schedule.RunAt
	}
	return of
}

// OfOneShot reports whether an event is of the one occurrence of a job that was a one-shot from the start, and is not to be skipped when it
// is late. Its instant is that of the job's first definition. So a store may keep it under that instant, and still find it by its job.
func OfOneShot(e *job.Event) bool {
	return e.Type != job.EventSkipped && e.Type != job.EventChange && e.Entry.Trigger == job.TriggerSchedule && e.Entry.Plain &&
		job.FirstDefinition(e.Entry.JobID, e.Entry.DefinitionID)
}
