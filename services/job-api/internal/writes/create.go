package writes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
	"github.com/minutehand/minutehand/services/job-api/internal/form"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// createJob accepts a job, in the order of step 1 in services/README.md: claim, entry, job row, answer, write-through.
func (ws *Writes) createJob(ctx context.Context, r *edge.Request) (edge.Response, error) {
	now := job.Instant(ws.deps.Clock.Now())
	return ws.createAs(ctx, r, jobstore.Claim{
		ID: ws.newID(job.JobPrefix, now), DefinitionID: ws.newID(job.DefinitionPrefix, now), AcceptedAt: now,
	}, false)
}

// createAs accepts a job with the ids and the instant of a claim, unless the request has a key under which others were claimed before. With
// again, an earlier try may have had the same.
func (ws *Writes) createAs(ctx context.Context, r *edge.Request, claim jobstore.Claim, again bool) (edge.Response, error) {
	now := claim.AcceptedAt
	key, err := r.IdempotencyKey()
	if err != nil {
		return edge.Response{}, err
	}
	body, def, refusal := form.Parse(r.Raw, now, nil)
	// What is past by now, such as the end of an interval, may not have been past when an earlier try was answered.
	if refusal != nil && (key == "" || !validAt(r.Raw, now.Add(-jobstore.KeyTTL))) {
		return edge.Response{}, refusal
	}
	turn, answered, err := ws.begin(ctx, r, "createJob", key, claim)
	if err != nil {
		return edge.Response{}, err
	}
	if answered != nil {
		return *answered, nil
	}
	if !turn.claim.AcceptedAt.Equal(now) {
		body, def, refusal = form.Parse(r.Raw, turn.claim.AcceptedAt, nil) // what an earlier try of this request decided
	}
	if refusal != nil {
		return edge.Response{}, refusal
	}
	j := newJob(r.Tenant(), &body, def, turn.claim)
	turn.again = turn.again || again
	var standing *job.Job
	if key != "" || turn.again {
		if standing, err = ws.createdBefore(ctx, r, &j); err != nil {
			return edge.Response{}, err
		}
	}
	var resp edge.Response
	if standing != nil {
		resp, err = ws.deps.Reads.Answer(ctx, http.StatusCreated, standing)
	} else if err = ws.findNamed(ctx, r, &job.Job{}, &j.Definition); err == nil {
		resp, err = ws.accept(ctx, r, j, key != "" || j.Key != "", turn.again)
	}
	if err != nil {
		return edge.Response{}, err
	}
	return turn.finish(ctx, resp)
}

// validAt reports whether a body had no faults at an instant.
func validAt(body []byte, at time.Time) bool {
	_, _, err := form.Parse(body, at, nil)
	return err == nil
}

// createdBefore returns the job that an earlier try of the request created; nil if there is none. A row alone does not
// prove that: the try may have written it too late for its entry, and died before it wrote another.
func (ws *Writes) createdBefore(ctx context.Context, r *edge.Request, j *job.Job) (*job.Job, error) {
	standing, err := ws.deps.Jobs.Get(ctx, j.ID)
	if errors.Is(err, jobstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", j.ID, err)
	}
	if standing.IsVoid() {
		return nil, lostKey()
	}
	if ws.tookTooLong(j.CreatedAt) {
		if begun, err := ws.hasBegun(ctx, &standing); err != nil || !begun && untouched(&standing) {
			return nil, err
		}
		if err := ws.tellCreation(ctx, r, &standing); err != nil {
			return nil, err
		}
	}
	return &standing, nil
}

// untouched reports whether no change has found a job to be there since it was created. That others follow it is no change.
func untouched(j *job.Job) bool { return j.Version == 1 || j.Version == 2 && j.Followed }

// hasBegun reports whether anything is on record for a job: then its first entry was not dropped. One that follows others has no such entry.
func (ws *Writes) hasBegun(ctx context.Context, j *job.Job) (bool, error) {
	if j.Definition.Schedule.Type == job.ScheduleAfter {
		return true, nil
	}
	events, err := ws.deps.History.Executions(ctx, jobstore.OfJob(j), jobstore.Cursor{}, j.CreatedAt.Add(-j.Definition.CatchUpWindow), 1)
	if err != nil {
		return false, fmt.Errorf("read history of job %s: %w", j.ID, err)
	}
	return len(events) > 0, nil
}

// newJob returns the first version of a job's row.
func newJob(tenant job.Tenant, body *form.Job, def job.Definition, claim jobstore.Claim) job.Job {
	def.ID, def.EffectiveAt = claim.DefinitionID, claim.AcceptedAt
	return job.Job{
		ID: claim.ID, Tenant: tenant, Name: body.Name, Key: body.Key, Labels: body.Labels, Owner: body.Owner, Notify: body.Notifies(),
		Status: job.StatusActive, Version: 1, CreatedAt: claim.AcceptedAt, UpdatedAt: claim.AcceptedAt, Definition: def,
	}
}

// accept makes a new job durable: its first entry and that by which its creation becomes known, then its row.
//
// A crash after the entry leaves an entry without a job, which the worker holds and drops when the grace is over. So a
// writer that takes longer than half of the grace from the entry to the acknowledged row starts over with a new entry: the
// old one may have been dropped, or its bucket may have closed.
func (ws *Writes) accept(ctx context.Context, r *edge.Request, j job.Job, exclusive, again bool) (edge.Response, error) {
	series, err := newSeries(&j)
	if err != nil {
		return edge.Response{}, err
	}
	p := bucket.Partition(j.ID, ws.cfg.Partitions)
	before := j.CreatedAt // the floor of the previous try
	for {
		floor := ws.floor(j.CreatedAt)
		now := job.Instant(ws.deps.Clock.Now())
		first, ok := ws.firstEntry(series, p, floor, before)
		before = floor
		if !ok && j.Definition.Schedule.Type != job.ScheduleAfter {
			return edge.Response{}, noOccurrence()
		}
		if err := ws.takeJobKey(ctx, &j); err != nil {
			return edge.Response{}, err
		}
		entries := []job.Entry{ws.creation(r, &j, floor, now)}
		if ok {
			first.Trace = trace.Of(ctx)
			entries = append(entries, first)
		}
		if err := ws.deps.Pending.Put(jobstore.RowFollows(ctx), entries); err != nil {
			return edge.Response{}, fmt.Errorf("put first entry of job %s: %w", j.ID, err)
		}
		if ws.tookTooLong(now) {
			again = true
			continue
		}
		err := ws.list(ctx, &j)
		if err == nil {
			err = ws.deps.Jobs.Create(ctx, j, exclusive)
		}
		if errors.Is(err, jobstore.ErrExists) {
			err = ws.keptJobKey(ctx, &j)
		}
		if err != nil {
			return edge.Response{}, fmt.Errorf("create job %s: %w", j.ID, err)
		}
		if ws.tookTooLong(now) {
			exclusive, again = false, true // the row exists: only the entry is repeated
			continue
		}
		if again {
			if err := ws.reviveAll(ctx, entries); err != nil {
				return edge.Response{}, err
			}
		}
		ws.Near(ctx, entries)
		return ws.created(ctx, r, &j, series)
	}
}

// created answers with a new job, and with what its client may want to know of it.
func (ws *Writes) created(ctx context.Context, r *edge.Request, j *job.Job, series *occurrence.Series) (edge.Response, error) {
	resp, err := ws.deps.Reads.Answer(ctx, http.StatusCreated, j)
	if body, ok := resp.Body.(*reads.Job); ok && err == nil {
		ws.warn(ctx, body, r.Raw, j, series, ws.served())
	}
	return resp, err
}

// warn tells with a new job what its client may want to know of it.
func (ws *Writes) warn(ctx context.Context, shown *reads.Job, text []byte, j *job.Job, series *occurrence.Series, s *served) {
	shown.Warnings = slices.Concat(ws.crowds.warn(ctx, text, series, shown.NextRunAt, s.now), s.warn(ctx, j), untold(j))
}

// untold returns the warning of a job that asks for notifications of deadlines and has none.
func untold(j *job.Job) []reads.Warning {
	i := slices.IndexFunc(j.Notify, func(n job.Notify) bool { return n.Tells(job.CauseSLAMissed) })
	if i < 0 || j.Definition.Deadlines != (job.Deadlines{}) {
		return nil
	}
	what := "give it sla."
	if j.Definition.Schedule.Type == job.ScheduleAfter {
		what = "a job that follows others has none."
	}
	return []reads.Warning{{
		Code: "no-deadline", Pointer: "/notify/" + strconv.Itoa(i) + "/on", Message: "Nobody will be told of sla_missed, because the job has no deadline to miss; " + what,
	}}
}

// list lets a job be found by those who watch its deadlines, and by those whose jobs it follows, before its row is written: if that never
// comes, they forget it.
func (ws *Writes) list(ctx context.Context, j *job.Job) error {
	err := ws.dependents().Follow(ctx, j, ws.deps.Clock.Now())
	if errors.Is(err, dependents.ErrMany) {
		return edge.Invalid([]problem.Fault{{Pointer: "/after", Code: "too-many", Message: "One of these jobs is followed by 100 others already."}})
	}
	if err != nil {
		return fmt.Errorf("let job %s follow others: %w", j.ID, err)
	}
	return incidents.Store{Lists: ws.deps.Settings}.Watch(ctx, j)
}

// newSeries returns the series of occurrences of a new job. If the job's first instant is slightly past, its definition
// begins there.
func newSeries(j *job.Job) (*occurrence.Series, error) {
	series, err := form.Compile(j.ID, &j.Definition)
	if err != nil {
		return nil, err
	}
	series.Tenant = j.Tenant
	if at := j.Definition.Schedule.RunAt; !at.IsZero() && at.Before(j.Definition.EffectiveAt) {
		if j.Definition.EffectiveAt.Sub(at) > j.Definition.CatchUpWindow {
			return nil, edge.Invalid([]problem.Fault{{
				Pointer: "/run_at", Code: "in-the-past", Message: "Lies in the past by more than the catch-up window.",
			}})
		}
		j.Definition.EffectiveAt = at // its one instant belongs to the definition
	}
	return series, nil
}

// noOccurrence returns the answer to a schedule that will never fire.
func noOccurrence() *problem.Problem {
	return edge.Invalid([]problem.Fault{{
		Pointer: "/type", Code: "no-occurrence",
		Message: "The schedule has no occurrence from now on; check start_at, end_at and the instants it names.",
	}})
}
