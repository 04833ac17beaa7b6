package watch

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
)

// end closes what is open of a job, and forgets it.
func (w *Watchdog) end(ctx context.Context, s *subject, why string) error {
	for _, line := range s.lines {
		if err := w.close(ctx, s, line, why); err != nil {
			return err
		}
	}
	for _, id := range s.definitions {
		if err := w.store().Unwatch(ctx, incidents.Watched{JobID: s.id, DefinitionID: id}); err != nil {
			return err
		}
	}
	return w.store().ForgetJob(ctx, s.id)
}

// miss tells that an occurrence missed a deadline: with the first, an incident begins. It is noted before it is written, so whoever carries on
// after a crash knows that it is to be written, and closed.
func (w *Watchdog) miss(ctx context.Context, l *look, p *place, d incidents.Deadline, v verdict) error {
	line, now := l.lines[d], job.Instant(w.Clock.Now())
	line.behind = true
	if line.Open != nil {
		open := *line.Open
		open.First, open.Last, open.Missed = earlier(open.First, p.at), job.Later(open.Last, p.at), open.Missed+1
		line.Open = &open
		return nil
	}
	j := l.job
	i := &incidents.Incident{
		ID: incidents.ID(j.ID, d, p.at), Tenant: j.Tenant, JobID: j.ID, JobName: j.Name, Owner: j.Owner, Deadline: d, Within: d.Of(p.Def),
		Cause: v.cause, Reason: v.reason, First: p.at, Last: p.at, Missed: 1, DeadlineAt: p.deadline, NoticedAt: now,
	}
	if p.at.Before(line.Met) { // it is known only now
		i.ClosedAt, i.Closed = now, "A later occurrence met the deadline."
		line.behind = false
		if err := w.store().Put(ctx, i); err != nil {
			return err
		}
		err := w.tellOwners(ctx, l, line, i)
		if line.Told = nil; err != nil {
			return err
		}
		w.Metrics.incidents.WithLabelValues(string(d), string(v.cause)).Inc()
		return nil
	}
	line.Open, line.Told, line.written = i, nil, time.Time{}
	if err := w.note(ctx, l.subject); err != nil {
		return err
	}
	w.Metrics.incidents.WithLabelValues(string(d), string(v.cause)).Inc()
	w.Logger.Warn("a job has missed a deadline", "job_id", j.ID, "tenant", j.Tenant, "deadline", d, "reason", v.cause)
	if err := w.flush(ctx, line); err != nil {
		w.Logger.Warn("an incident cannot be written, it is tried again", "job_id", j.ID, "error", err)
	}
	if err := w.tellOwners(ctx, l, line, i); err != nil {
		w.Logger.Warn("the owners of a job cannot be told, it is tried again", "job_id", j.ID, "error", err)
	}
	return nil
}

// flush writes an open incident that has changed, unless it was written just before.
func (w *Watchdog) flush(ctx context.Context, line *line) error {
	now := w.Clock.Now()
	if line.Open == nil || !line.behind || now.Sub(line.written) < tellEvery {
		return nil
	}
	if err := w.store().Put(ctx, line.Open); err != nil {
		return err
	}
	line.written, line.behind = now, false
	return nil
}

// close ends the open incident of a line, if there is one. After a crash before that is noted it is closed again.
func (w *Watchdog) close(ctx context.Context, s *subject, line *line, why string) error {
	if line.Open == nil {
		return nil
	}
	i := *line.Open
	i.ClosedAt, i.Closed = job.Instant(w.Clock.Now()), why
	if err := w.store().Put(ctx, &i); err != nil {
		return err
	}
	for _, other := range s.lines { // who was told of this one is told when the last incident of the job is over
		for _, id := range line.Told {
			if other.Open != nil && !slices.Contains(other.Told, id) {
				other.Told = append(slices.Clip(other.Told), id)
			}
		}
	}
	line.Open, line.Told, line.behind, s.unnoted = nil, nil, false, true
	w.Logger.Info("an incident has ended", "job_id", s.id, "tenant", i.Tenant, "deadline", i.Deadline, "reason", why)
	if err := w.note(ctx, s); err != nil {
		w.Logger.Warn("the end of an incident cannot be noted, it is tried again", "job_id", s.id, "error", err)
	}
	return nil
}

// note notes how far a job was judged, and its open incidents.
func (w *Watchdog) note(ctx context.Context, s *subject) error {
	how := map[incidents.Deadline]incidents.Judged{}
	for d, line := range s.lines {
		how[d] = incidents.Judged{Until: maps.Clone(line.Until), Aside: line.Aside, Met: line.Met, Open: line.Open, Told: line.Told, Periods: maps.Clone(line.Periods)}
	}
	if err := w.store().Note(ctx, s.id, how); err != nil {
		s.unnoted = true
		return err
	}
	s.stale, s.unnoted, s.noted = false, false, w.Clock.Now()
	return nil
}
