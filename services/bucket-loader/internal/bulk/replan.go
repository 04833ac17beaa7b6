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
// the jobs that are noted are counted once, whatever crashes. They are also updated if the operation is paused or cancelled. Those of which that
// fails stay noted, beside the next ones, until the operation has ended.
func (r *Runner) replan(ctx context.Context, t job.Tenant, o *operations.Operation) (changed bool, err error) {
	now := job.Instant(r.Clock.Now())
	if here := schedule.TZDataVersion(); o.TZData != here && !o.Settled() { // what was planned already would be moved back
		if o.Chunk, o.UpdatedAt = nil, now; !o.Ended() {
			o.End(operations.StatusFailed, fmt.Sprintf("it was asked for by time zone data %s, and a bucket-loader has %s; give all processes the same, and ask again", o.TZData, here), now)
		}
		return true, nil
	}
	var failed []string
	if c := o.Chunk; c != nil {
		failed, err = r.replanAll(ctx, t, o, c.Sources)
		changed = len(failed) < len(c.Sources) || o.Ended()
		o.HandedOut += len(c.Sources) - len(failed)
	}
	var more []string
	due := o.Status == operations.StatusRunning && !o.DueAt.After(now)
	switch {
	case due && o.Read && len(failed) == 0:
		o.End(operations.StatusDone, "", now)
		changed = true
	case due && !o.Read && len(failed) < mostReplanned:
		var missed error
		if more, missed = r.take(ctx, t, o, min(mostReplanned-len(failed), o.Rate)); missed != nil {
			err = errors.Join(err, missed)
			break
		}
		changed = true
		o.DueAt = now.Add(time.Duration(len(more)) * time.Second / time.Duration(o.Rate))
	}
	if changed {
		if o.Chunk, o.UpdatedAt = nil, now; len(failed)+len(more) > 0 && !o.Ended() {
			o.Chunk = &operations.Chunk{NotedAt: now, DueAt: now, Rate: o.Rate, Sources: append(failed, more...)}
		}
	}
	return changed, err
}

// take returns the next jobs of a page, at most so many, of which the next occurrence lies elsewhere.
func (r *Runner) take(ctx context.Context, t job.Tenant, o *operations.Operation, most int) (ids []string, err error) {
	page, next, err := r.Jobs.List(ctx, t, o.Cursor, jobsRead)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	if ids, err = r.elsewhere(ctx, page, most); err != nil {
		return nil, err
	}
	if len(ids) == most {
		next = ids[most-1]
	}
	o.Cursor, o.Read = next, next == ""
	return ids, nil
}

// candidate is an active cron job that goes by a time zone.
type candidate struct {
	job    *job.Job
	series *occurrence.Series
	// next is the next instant, zero if there is none; near are that, the one after it, which other data may have planned already, and the one
	// before it.
	next time.Time
	near []time.Time
}

func (r *Runner) entryAt(c *candidate, at time.Time) job.Locator {
	return r.entryDue(c, at, c.series.Plan.ScheduledFor(at))
}

func (r *Runner) entryDue(c *candidate, at, due time.Time) job.Locator {
	return c.series.Locator(bucket.Partition(c.job.ID, r.Partitions), at, due)
}

// elsewhere returns those of jobs, in their order and no more than most, that have no entry where the time zone data of this process puts their next
// occurrence, and one that waits ahead where other data may have put it. A job that is held or behind has neither, and is left alone: its next
// entry is to be planned yet, by this data.
func (r *Runner) elsewhere(ctx context.Context, jobs []job.Job, most int) (ids []string, err error) {
	now := r.Clock.Now()
	var list []*candidate
	var locators []job.Locator
	for n := range jobs {
		c := r.candidate(&jobs[n], now)
		if c == nil {
			continue
		}
		if list = append(list, c); !c.next.IsZero() {
			locators = append(locators, r.entryAt(c, c.next))
		}
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	for _, c := range list {
		if !c.next.IsZero() {
			if _, there := rows[r.entryAt(c, c.next)]; there {
				continue
			}
		}
		moved, err := r.moved(ctx, c, now)
		if err != nil {
			return nil, err
		}
		if !moved {
			continue
		}
		if ids = append(ids, c.job.ID); len(ids) == most {
			break
		}
	}
	return ids, nil
}

// moved reports whether an entry of a candidate waits ahead where other time zone data may have put it.
func (r *Runner) moved(ctx context.Context, c *candidate, now time.Time) (bool, error) {
	var locators []job.Locator
	for _, x := range occurrence.Elsewhere(c.series.Plan, c.near...) {
		if x.At.After(now) && !x.Nominal.Equal(c.next) {
			locators = append(locators, r.entryDue(c, x.Nominal, x.At))
		}
	}
	rows, err := r.Pending.Rows(ctx, locators)
	if err != nil {
		return false, fmt.Errorf("read entries of job %s: %w", c.job.ID, err)
	}
	for _, row := range rows {
		if !row.Done {
			return true, nil
		}
	}
	return false, nil
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
	end := now
	if next, ok := c.series.NextRun(now); ok {
		c.next, c.near, end = next, []time.Time{next}, next
		if after, ok := plan.Next(next); ok {
			c.near = append(c.near, after)
		}
	}
	if last, ok := c.series.Prev(end); ok {
		c.near = append(c.near, last)
	}
	return c
}

// replanAll updates those of jobs whose next occurrence lies elsewhere, and returns when the updates hold. The others may have been updated before a
// crash, and get the stop record that it may have left out. failed are those of which that is to be tried again.
func (r *Runner) replanAll(ctx context.Context, t job.Tenant, o *operations.Operation, ids []string) (failed []string, err error) {
	rows, err := r.Jobs.GetMany(ctx, ids)
	if err != nil {
		return ids, fmt.Errorf("read jobs: %w", err)
	}
	var jobs []job.Job
	for _, id := range ids {
		if j := rows[id]; j != nil && j.Tenant == t {
			jobs = append(jobs, *j)
		}
	}
	moved, err := r.elsewhere(ctx, jobs, len(jobs))
	if err != nil {
		return ids, err
	}
	changes, errs := make([]jobchange.Changed, len(jobs)), make([]error, len(jobs))
	_ = run.Each(len(jobs), lookups, func(n int) error {
		changes[n], errs[n] = r.replanJob(ctx, o, &jobs[n], slices.Contains(moved, jobs[n].ID))
		return nil
	})
	_ = run.Each(len(jobs), mostReplanned, func(n int) error {
		if errs[n] == nil {
			errs[n] = changes[n].Await(ctx)
		}
		return nil
	})
	for n, err := range errs {
		if err != nil {
			failed = append(failed, jobs[n].ID)
			errs[n] = fmt.Errorf("plan job %s: %v", jobs[n].ID, err) //nolint:errorlint // a conflict about the job is none about the operations
		}
	}
	return failed, errors.Join(errs...)
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
		return changed, err
	}
	if err := hotbucket.AddNear(ctx, r.Hot, changed.Entries); err != nil && ctx.Err() == nil {
		r.Logger.Warn("cannot add entries to the hot bucket, the sweeps will", "job_id", read.ID, "error", err)
	}
	return changed, nil
}
