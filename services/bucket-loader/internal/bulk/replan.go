package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobchange"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/operations"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/schedule"
)

const (
	// jobsRead is how many jobs a replan reads at once, mostReplanned how many it notes at most.
	jobsRead, mostReplanned = jobstore.MaxGetMany, 100
)

// replan goes on with an operation that plans jobs by the time zone data of this process. It looks through a tenant's jobs, notes those of which
// the next occurrence lies elsewhere, and updates these in the next turn. An update that a crash repeats is none: the entry is there by then. So
// the jobs that are noted are counted once, whatever crashes. They are also updated if the operation is paused or cancelled.
func (r *Runner) replan(ctx context.Context, t job.Tenant, o *operations.Operation) (changed bool, err error) {
	now := job.Instant(r.Clock.Now())
	if c := o.Chunk; c != nil {
		if err := r.replanAll(ctx, t, o, c.Sources); err != nil {
			return false, err
		}
		o.HandedOut, o.Chunk, o.UpdatedAt = o.HandedOut+len(c.Sources), nil, now
		return true, nil
	}
	if o.Status != operations.StatusRunning || o.DueAt.After(now) {
		return false, nil
	}
	if o.Read {
		o.End(operations.StatusDone, "", now)
		o.UpdatedAt = now
		return true, nil
	}
	page, next, err := r.Jobs.List(ctx, t, o.Cursor, jobsRead)
	if err != nil {
		return false, fmt.Errorf("list jobs: %w", err)
	}
	ids, err := r.elsewhere(ctx, page)
	if err != nil {
		return false, err
	}
	if most := min(mostReplanned, o.Rate); len(ids) > most {
		ids = ids[:most]
		next = ids[most-1]
	}
	o.Cursor, o.Read, o.UpdatedAt = next, next == "", now
	if len(ids) > 0 {
		o.Chunk = &operations.Chunk{NotedAt: now, DueAt: now, Rate: o.Rate, Sources: ids}
		o.DueAt = now.Add(time.Duration(len(ids)) * time.Second / time.Duration(o.Rate))
	}
	return true, nil
}

// candidate is an active cron job that goes by a time zone.
type candidate struct {
	job    *job.Job
	series *occurrence.Series
	// last and next are the instants around now; zero where there is none.
	last, next time.Time
}

func (r *Runner) entryAt(c *candidate, at time.Time) job.Locator {
	due := c.series.Plan.ScheduledFor(at)
	return job.Locator{
		Partition: bucket.Partition(c.job.ID, r.Partitions), Minute: job.Minute(due), DueAt: due,
		ExecutionID: job.ScheduleExecutionID(c.job.ID, at), Attempt: 1, DefinitionID: c.job.Definition.ID,
	}
}

// elsewhere returns those of jobs, in their order, that have no entry where the time zone data of this process puts their next occurrence, and
// of which the occurrence before is done or has none either. Its entry is read first: a worker marks it as done after it has written the next.
//
// A schedule that is behind by more than an occurrence is among them, and one that has ended before its end_at. An update changes nothing
// for them.
func (r *Runner) elsewhere(ctx context.Context, jobs []job.Job) (ids []string, err error) {
	var list []*candidate
	now := r.Clock.Now()
	for n := range jobs {
		if c := r.candidate(&jobs[n], now); c != nil {
			list = append(list, c)
		}
	}
	waits := map[*candidate]bool{}
	for _, of := range []func(c *candidate) time.Time{
		func(c *candidate) time.Time { return c.last }, func(c *candidate) time.Time { return c.next },
	} {
		if err := r.look(ctx, list, of, waits); err != nil {
			return nil, err
		}
	}
	for _, c := range list {
		if !waits[c] {
			ids = append(ids, c.job.ID)
		}
	}
	return ids, nil
}

// look notes which candidates have an entry that is not done at an instant.
func (r *Runner) look(ctx context.Context, list []*candidate, of func(c *candidate) time.Time, waits map[*candidate]bool) error {
	at := map[job.Locator]*candidate{}
	var locators []job.Locator
	for _, c := range list {
		if instant := of(c); !waits[c] && !instant.IsZero() {
			l := r.entryAt(c, instant)
			at[l], locators = c, append(locators, l)
		}
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	for l, row := range rows {
		if !row.Done {
			waits[at[l]] = true
		}
	}
	return nil
}

// candidate returns a job that other time zone data may have planned; nil if none can have.
func (r *Runner) candidate(j *job.Job, now time.Time) *candidate {
	s := &j.Definition.Schedule
	if j.Deleted || j.Status != job.StatusActive || s.Type != job.ScheduleCron || s.Timezone == "" || s.Timezone == "UTC" {
		return nil
	}
	plan, err := schedule.Compile(*s, j.ID)
	if err != nil {
		r.Logger.Warn("a schedule cannot be planned by this time zone data", "job_id", j.ID, "error", err)
		return nil
	}
	c := &candidate{job: j, series: &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &j.Definition, Plan: plan}}
	next, ok := c.series.NextRun(now)
	if !ok && !s.EndAt.After(now) {
		return nil
	}
	if !ok {
		next = s.EndAt
	} else {
		c.next = next
	}
	if last, ok := c.series.Prev(next); ok {
		c.last = last
	}
	return c
}

// replanAll updates those of jobs that have no entry where this time zone data puts their next occurrence, and returns when the updates hold. The
// others may have been updated before a crash, and get the stop record that it may have left out.
func (r *Runner) replanAll(ctx context.Context, t job.Tenant, o *operations.Operation, ids []string) error {
	rows, err := r.Jobs.GetMany(ctx, ids)
	if err != nil {
		return fmt.Errorf("read jobs: %w", err)
	}
	var jobs []job.Job
	for _, id := range ids {
		if j := rows[id]; j != nil && j.Tenant == t {
			jobs = append(jobs, *j)
		}
	}
	moved, err := r.elsewhere(ctx, jobs)
	if err != nil {
		return err
	}
	changes := make([]jobchange.Changed, len(jobs))
	err = run.Each(len(jobs), lookups, func(n int) (err error) {
		changes[n], err = r.replanJob(ctx, o, &jobs[n], slices.Contains(moved, jobs[n].ID))
		return err
	})
	if err != nil {
		return err
	}
	return run.Each(len(changes), mostReplanned, func(n int) error {
		if err := changes[n].Await(ctx); err != nil {
			return fmt.Errorf("wait until the change of job %s holds: %w", jobs[n].ID, err)
		}
		return nil
	})
}

// replanJob gives a job that was read and has moved the definition that it has, effective now, as an update without a change does. A job that was
// changed since then is left alone: that planned it.
func (r *Runner) replanJob(ctx context.Context, o *operations.Operation, read *job.Job, moved bool) (jobchange.Changed, error) {
	var series *occurrence.Series
	edit := jobchange.Edit{Operation: "replanJobs", Object: o.ID, By: o.By, Most: job.MaxWorkerChanges}
	edit.Apply = func(ctx context.Context, j *job.Job) error {
		if !moved || j.Deleted || j.Status != job.StatusActive || j.Definition.ID != read.Definition.ID {
			return jobchange.ErrNoChange
		}
		plan, err := schedule.Compile(j.Definition.Schedule, j.ID)
		if err != nil {
			return jobchange.ErrNoChange
		}
		now, old := job.Instant(r.Clock.Now()), j.Definition
		of := &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &old, Plan: plan}
		d := &j.Definition
		d.ID = job.NextDefinitionID(old.ID, job.DefinitionPrefix+ulid.MustNew(uint64(now.UnixMilli()), r.Entropy).String())
		d.EffectiveAt = j.NextEffective(now)
		if d.Schedule.MaxOccurrences > 0 {
			d.FirstOrdinal = of.OrdinalAt(d.EffectiveAt)
		}
		j.UpdatedAt = now
		series = &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: d, Plan: plan}
		if err := r.Jobs.PutDefinition(ctx, j.ID, old); err != nil {
			return fmt.Errorf("put definition %s: %w", old.ID, err)
		}
		return incidents.Store{Lists: r.Store.Settings}.Watch(ctx, j)
	}
	edit.First = func(_ *job.Job, written time.Time) (job.Entry, bool) {
		return series.First(bucket.Partition(read.ID, r.Partitions), written)
	}
	changer := jobchange.Changer{Jobs: r.Jobs, Stops: r.Stops, Recorder: jobchange.Recorder{
		Pending: r.Pending, Clock: r.Clock, Entropy: r.Entropy, Partitions: r.Partitions, Grace: lateWrite,
	}}
	changed, err := changer.Change(ctx, read.Tenant, read.ID, edit)
	if errors.Is(err, jobstore.ErrNotFound) {
		return jobchange.Changed{}, nil
	}
	if err != nil {
		return changed, fmt.Errorf("plan job %s: %w", read.ID, err)
	}
	if err := hotbucket.AddNear(ctx, r.Hot, changed.Entries); err != nil && ctx.Err() == nil {
		r.Logger.Warn("cannot add entries to the hot bucket, the sweeps will", "job_id", read.ID, "error", err)
	}
	return changed, nil
}
