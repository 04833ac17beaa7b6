package writes

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

// replaceJob gives a job the definition in the body.
func (ws *Writes) replaceJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.update(ctx, r, func(*job.Job) ([]byte, bool, error) { return r.Raw, false, nil })
}

// update gives a job a new definition, effective now: each nominal instant before now stays with the old one, each from now
// on belongs to the new one. The order is that of step 1 in services/README.md: the superseded definition (its entries may
// still need it), the first entry of the new one, the job row, the stop record. Until the row is written the entry is held.
func (ws *Writes) update(
	ctx context.Context, r *edge.Request, body func(*job.Job) (text []byte, keepBody bool, err error),
) (edge.Response, error) {
	match := r.Parameters["If-Match"]
	if match == "" {
		return edge.Response{}, problem.New(http.StatusPreconditionRequired, "precondition-required",
			"Send the header If-Match with the job's ETag, so that nobody's change is lost.")
	}
	return ws.redefine(ctx, r, func(j *job.Job, now time.Time) error {
		if match != "*" && match != form.ETag(j) {
			return problem.New(http.StatusPreconditionFailed, "changed",
				"The job was changed since it was read; read it again and apply the change to that.")
		}
		if j.Status == job.StatusCancelled {
			return cancelled()
		}
		text, keepBody, err := body(j)
		if err != nil {
			return err
		}
		b, def, err := form.Parse(text, now, j)
		if err != nil {
			return err
		}
		if err := checkKey(j.Key, b.Key); err != nil {
			return err
		}
		if err := ws.findNamed(ctx, r, j, &def); err != nil {
			return err
		}
		if keepBody {
			def.Target.Body = j.Definition.Target.Body
		}
		if err := form.OneBody(&def); err != nil {
			return err
		}
		def.EffectiveAt = j.NextEffective(now)
		if at := def.Schedule.RunAt; !at.IsZero() && at.Before(now) && !at.Equal(j.Definition.Schedule.RunAt) {
			return edge.Invalid([]problem.Fault{{
				Pointer: "/run_at", Code: "in-the-past", Message: "Lies in the past; give an instant ahead, or trigger the job.",
			}})
		}
		if old := j.Definition.Schedule; old.Type == job.ScheduleInterval && def.Schedule.Type == job.ScheduleInterval &&
			b.StartAt == nil {
			def.Schedule.StartAt = old.StartAt // the anchor stays where it was
		}
		if err := carryOrdinal(j, &def); err != nil {
			return err
		}
		j.Name, j.Labels, j.Owner, j.Notify, j.Definition = b.Name, b.Labels, b.Owner, b.Notifies(), def
		return nil
	})
}

// carryOrdinal continues the count of occurrences if a change leaves the schedule alone.
func carryOrdinal(j *job.Job, def *job.Definition) error {
	standing := j.Definition.Schedule
	standing.Unknown = "" // the client knows nothing of what a later release wrote
	if !reflect.DeepEqual(standing, def.Schedule) || def.Schedule.MaxOccurrences == 0 {
		return nil
	}
	series, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return err
	}
	def.FirstOrdinal = series.OrdinalAt(def.EffectiveAt)
	return nil
}

// resumeJob is an update whose definition begins just after paused_at; the late rule gives the instants since then
// their dispositions.
func (ws *Writes) resumeJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return ws.redefine(ctx, r, func(j *job.Job, _ time.Time) error {
		switch j.Status {
		case job.StatusCancelled:
			return cancelled()
		case job.StatusActive:
			return jobchange.ErrNoChange
		}
		def := j.Definition
		def.EffectiveAt = j.PausedAt.Add(time.Millisecond)
		if err := carryOrdinal(j, &def); err != nil {
			return err
		}
		j.Status, j.Definition = job.StatusActive, def
		return nil
	})
}

// redefine stores a new definition, which change makes from the row. It writes the definition's first entry before the row,
// and only the row makes the definition current. Until then a worker holds the entry, and drops it when the grace is over.
// The worker first raises the row's version, so a row that is written too late conflicts, and the change starts over.
func (ws *Writes) redefine(
	ctx context.Context, r *edge.Request, change func(j *job.Job, now time.Time) error,
) (edge.Response, error) {
	jobID := r.PathValue("id")
	var series *occurrence.Series
	edit := ws.edit(r, func(ctx context.Context, j *job.Job) error {
		if j.Deleted {
			return jobstore.ErrNotFound
		}
		now := job.Instant(ws.deps.Clock.Now())
		old := j.Definition
		if err := change(j, now); err != nil {
			return err
		}
		j.Definition.ID = job.NextDefinitionID(old.ID, ws.newID(job.DefinitionPrefix, now))
		j.UpdatedAt = now
		var err error
		if series, err = form.Compile(jobID, &j.Definition); err != nil {
			return err
		}
		series.Tenant = j.Tenant
		if err := ws.deps.Jobs.PutDefinition(ctx, jobID, old); err != nil {
			return fmt.Errorf("put definition %s: %w", old.ID, err)
		}
		return ws.list(ctx, j)
	})
	edit.First = func(j *job.Job, written time.Time) (first job.Entry, fires bool) {
		if j.Status == job.StatusActive {
			first, fires = series.First(bucket.Partition(jobID, ws.cfg.Partitions), written)
			first.Trace = trace.Of(ctx)
		}
		return first, fires
	}
	j, err := ws.change.Change(ctx, r.Tenant(), jobID, edit)
	if err != nil {
		return edge.Response{}, fmt.Errorf("redefine job %s: %w", jobID, err)
	}
	return ws.answerChange(ctx, &j)
}

// answerChange answers a change once it holds.
func (ws *Writes) answerChange(ctx context.Context, j *jobchange.Changed) (edge.Response, error) {
	if err := ws.hold(ctx, j); err != nil {
		return edge.Response{}, err
	}
	return ws.deps.Reads.Answer(ctx, http.StatusOK, &j.Job)
}
