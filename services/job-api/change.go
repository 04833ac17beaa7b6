package jobapi

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"reflect"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/lifecycle"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
)

func (s *Service) replaceJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return s.update(ctx, r, func(*job.Job) ([]byte, bool, error) { return r.Raw, false, nil })
}

// patchJob merges the body into the definition as the API shows it, and checks the result like a replacement.
func (s *Service) patchJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return s.update(ctx, r, func(j *job.Job) (text []byte, keepBody bool, err error) {
		current, err := json.Marshal(form.Of(j))
		if err != nil {
			return nil, false, err
		}
		tree, err := edge.Decode(current, math.MaxInt)
		if err != nil {
			return nil, false, err
		}
		merged := mergePatch(tree, r.Tree)
		if m, ok := merged.(map[string]any); ok {
			if p, ok := r.Tree.(map[string]any); ok && p["delay"] != nil && p["run_at"] == nil {
				delete(m, "run_at") // a new delay takes the place of the instant that the old one was resolved to
			}
		}
		if p := edge.Invalid(s.document.CheckBody("replaceJob", merged)); p != nil {
			return nil, false, p
		}
		keepBody = takeBody(merged, r.Tree)
		text, err = encodeTree(merged)
		return text, keepBody, err
	})
}

// takeBody takes the target's body out of a merged definition unless the patch sets it: encoding it again would change
// its bytes, and it is not measured in that form. taken reports whether it did.
func takeBody(merged, patch any) (taken bool) {
	member := func(tree any, name string) map[string]any {
		m, _ := tree.(map[string]any)
		inner, _ := m[name].(map[string]any)
		return inner
	}
	target := member(merged, "target")
	_, there := target["body"]
	if _, set := member(patch, "target")["body"]; set || !there {
		return false
	}
	delete(target, "body")
	return true
}

// encodeTree encodes without the escapes that are only for HTML.
func encodeTree(tree any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(tree)
	return text.Bytes(), err
}

// mergePatch is RFC 7396.
func mergePatch(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result, ok := target.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for name, value := range members {
		if value == nil {
			delete(result, name)
			continue
		}
		result[name] = mergePatch(result[name], value)
	}
	return result
}

// update gives a job a new definition, effective now: each nominal instant before now stays with the old one, each
// from now on belongs to the new one. The order is that of step 1 in services/README.md: the superseded definition (its entries may still
// need it), the first entry of the new one, the job row, the stop record. Until the row is there the entry is held.
func (s *Service) update(
	ctx context.Context, r *edge.Request, body func(*job.Job) (text []byte, keepBody bool, err error),
) (edge.Response, error) {
	match := r.Parameters["If-Match"]
	if match == "" {
		return edge.Response{}, problem.New(http.StatusPreconditionRequired, "precondition-required",
			"Send the header If-Match with the job's ETag, so that nobody's change is lost.")
	}
	return s.redefine(ctx, r.PathValue("id"), func(j *job.Job, now time.Time) error {
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
		b, def, err := form.Parse(text, now, j.Definition.Target.Headers)
		if err != nil {
			return err
		}
		if keepBody {
			def.Target.Body = j.Definition.Target.Body
		}
		// Later than what it supersedes, which begins behind a pause or was made by a clock that is ahead, and than a pause
		// that it is made in: the instants of a job pass from one definition to the next and never back.
		def.EffectiveAt = job.Later(now, j.Definition.EffectiveAt.Add(time.Millisecond))
		if j.Status == job.StatusPaused {
			def.EffectiveAt = job.Later(def.EffectiveAt, j.PausedAt.Add(time.Millisecond))
		}
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
		j.Name, j.Labels, j.Definition = b.Name, b.Labels, def
		return nil
	})
}

// carryOrdinal lets the count of occurrences go on where a change leaves the schedule alone.
func carryOrdinal(j *job.Job, def *job.Definition) error {
	if !reflect.DeepEqual(j.Definition.Schedule, def.Schedule) || def.Schedule.MaxOccurrences == 0 {
		return nil
	}
	line, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return err
	}
	def.FirstOrdinal = line.OrdinalAt(def.EffectiveAt)
	return nil
}

// resumeJob is an update whose definition begins just after paused_at; the late rule gives the instants since then
// their dispositions.
func (s *Service) resumeJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	return s.redefine(ctx, r.PathValue("id"), func(j *job.Job, _ time.Time) error {
		switch j.Status {
		case job.StatusCancelled:
			return cancelled()
		case job.StatusActive:
			return lifecycle.ErrNoChange
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

// redefine stores a new definition, which change makes from the row. Its first entry is written before the row, in which
// the entry's own definition stands only then: until it does a worker holds the entry, and drops it when the grace is over.
// It moves the row's version on before that, so that a row that comes later does not come at all: this begins anew.
func (s *Service) redefine(
	ctx context.Context, jobID string, change func(j *job.Job, now time.Time) error,
) (edge.Response, error) {
	p := bucket.Partition(jobID, s.cfg.Partitions)
	var first job.Entry
	var fires bool
	j, err := s.change.Change(ctx, jobID, func(ctx context.Context, j *job.Job) error {
		fires = false
		if j.Deleted {
			return jobstore.ErrNotFound
		}
		now := job.Instant(s.deps.Clock.Now())
		old := j.Definition
		if err := change(j, now); err != nil {
			return err
		}
		j.Definition.ID = job.NextDefinitionID(old.ID, s.newID(job.DefinitionPrefix, now))
		j.UpdatedAt = now
		line, err := form.Compile(jobID, &j.Definition)
		if err != nil {
			return err
		}
		if err := s.deps.Jobs.PutDefinition(ctx, jobID, old); err != nil {
			return err
		}
		if j.Status != job.StatusActive {
			return nil
		}
		var began time.Time
		for {
			written := job.Instant(s.deps.Clock.Now())
			if first, fires = line.First(p, written); !fires {
				return nil
			}
			if began.IsZero() {
				began = written
			} else if m := job.NewEntry(first, began).Minute; m != first.Minute {
				first.Repeats = m // what was decided about that one holds for this one too
			}
			first.Trace = trace.Of(ctx)
			err := s.deps.Pending.Put(ctx, []job.Entry{first})
			if err != nil || !s.tookTooLong(written) { // else its bucket may have closed meanwhile
				return err
			}
		}
	})
	if err != nil {
		return edge.Response{}, err
	}
	if fires {
		s.writeThrough(ctx, first)
	}
	return s.answerChange(ctx, &j)
}

// answerChange answers a change when it holds.
func (s *Service) answerChange(ctx context.Context, j *lifecycle.Changed) (edge.Response, error) {
	if err := s.hold(ctx, j); err != nil {
		return edge.Response{}, err
	}
	return s.reads.Answer(ctx, http.StatusOK, &j.Job)
}

func (s *Service) pauseJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	if err := s.mustStand(ctx, r.PathValue("id")); err != nil {
		return edge.Response{}, err
	}
	j, err := s.change.Pause(ctx, r.PathValue("id"), job.Instant(s.deps.Clock.Now()))
	if err != nil {
		return edge.Response{}, err
	}
	return s.answerChange(ctx, &j)
}

// mustStand refuses a job that is gone or cancelled.
func (s *Service) mustStand(ctx context.Context, jobID string) error {
	j, err := s.deps.Jobs.Get(ctx, jobID)
	switch {
	case err != nil:
		return err
	case j.Deleted:
		return jobstore.ErrNotFound
	case j.Status == job.StatusCancelled:
		return cancelled()
	}
	return nil
}

func (s *Service) cancelJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := s.cancel(ctx, r.PathValue("id"), false)
	if err != nil {
		return edge.Response{}, err
	}
	if j.Deleted {
		return edge.Response{}, jobstore.ErrNotFound
	}
	return s.answerChange(ctx, &j)
}

func (s *Service) deleteJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	j, err := s.cancel(ctx, r.PathValue("id"), true)
	if err == nil {
		err = s.hold(ctx, &j)
	}
	return edge.Response{Status: http.StatusNoContent}, err
}

// cancel stops a job for good; with hide it also disappears from reads.
func (s *Service) cancel(ctx context.Context, jobID string, hide bool) (lifecycle.Changed, error) {
	return s.change.Change(ctx, jobID, func(_ context.Context, j *job.Job) error {
		if j.Status == job.StatusCancelled && (j.Deleted || !hide) {
			return lifecycle.ErrNoChange
		}
		now := job.Instant(s.deps.Clock.Now())
		if j.Status != job.StatusCancelled {
			j.EndsAt = now
			if j.Status == job.StatusPaused { // what follows on a pause gets its disposition by a resume, which there will not be
				j.EndsAt = j.PausedAt.Add(time.Millisecond)
			}
		}
		j.Status, j.Deleted, j.UpdatedAt = job.StatusCancelled, j.Deleted || hide, now
		return nil
	})
}

func cancelled() *problem.Problem {
	return problem.New(http.StatusConflict, "cancelled", "The job is cancelled, which is final; create a new one.")
}
