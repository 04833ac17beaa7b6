package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

const (
	// rowWithin is how long after its definition was listed a job's row is looked for.
	rowWithin = 10 * time.Minute
	// idle is the pause before a job is looked at again of which nothing is due, soon that before one is of which something may be on its way.
	idle, soon = 5 * time.Minute, 30 * time.Second
	// noteEvery is how often it is noted how far a job was judged, while no incident begins or ends; tellEvery how often an open incident is
	// written that has grown.
	noteEvery, tellEvery = 5 * time.Minute, 10 * time.Second
	// maxDefinitions bounds the definitions of a job of which occurrences are judged together.
	maxDefinitions = 20
)

// segment is a definition and until where it was in force.
type segment struct {
	*occurrence.Series
	// until is where its instants end, made when the definition was made: what was due before then has no deadline.
	until, made time.Time
}

// next returns the first instant at or after one that has a deadline.
func (s *segment) next(from time.Time) (time.Time, bool) {
	at, ok := s.Plan.First(job.Later(from, s.Def.EffectiveAt))
	return at, ok && at.Before(s.until)
}

// far is after every instant.
var far = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// judge holds the occurrences of a job against its deadlines, as far as they are due, and returns when to look at it again; zero for never.
func (w *Watchdog) judge(ctx context.Context, s *subject, j *job.Job) (again time.Time, err error) {
	now := w.Clock.Now()
	if j == nil || j.IsVoid() {
		if now.Sub(s.changed) < rowWithin {
			return now.Add(soon), nil
		}
		return w.end(ctx, s, "")
	}
	if j.Deleted || j.Status == job.StatusCancelled {
		return w.end(ctx, s, "The job was cancelled.")
	}
	segments, err := w.segments(ctx, s, j, now)
	if err != nil {
		return now, err
	}
	again = now.Add(idle)
	if now.Sub(s.changed) < rowWithin {
		again = now.Add(soon) // the row may be on its way
	}
	over := true
	for _, d := range incidents.Deadlines() {
		at, err := w.judgeLine(ctx, s, j, segments, d)
		if err != nil {
			return now, err
		}
		if !at.IsZero() {
			over = false
			again = earlier(again, at)
		}
	}
	for _, l := range s.lines {
		if err := w.write(ctx, l); err != nil {
			return now, err
		}
	}
	if s.stale && now.Sub(s.noted) >= noteEvery {
		if err := w.note(ctx, s); err != nil {
			return now, err
		}
	}
	return w.forget(ctx, s, j, over, again)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// forget removes the definitions of a job from its list that are over: those before the row's, when all was judged of them; the row's, when it
// names no instant any more; and those of which the row never came.
func (w *Watchdog) forget(ctx context.Context, s *subject, j *job.Job, over bool, again time.Time) (time.Time, error) {
	now := w.Clock.Now()
	judged := j.Definition.EffectiveAt
	for _, l := range s.lines {
		judged = earlier(judged, l.Until)
	}
	var left []string
	for _, id := range s.definitions {
		before := id < j.Definition.ID && (over || !judged.Before(j.Definition.EffectiveAt))
		ended := id == j.Definition.ID && over && j.Status == job.StatusActive
		never := id > j.Definition.ID && now.Sub(s.changed) > rowWithin
		if !before && !ended && !never {
			left = append(left, id)
			continue
		}
		if err := w.store().Unwatch(ctx, incidents.Watched{JobID: s.id, DefinitionID: id}); err != nil {
			return now, err
		}
	}
	if s.definitions = left; len(left) > 0 {
		return again, nil
	}
	return w.end(ctx, s, "The schedule has ended.")
}

// end closes what is open of a job, and stops watching it.
func (w *Watchdog) end(ctx context.Context, s *subject, why string) (time.Time, error) {
	for _, l := range s.lines {
		if err := w.close(ctx, s, l, why); err != nil {
			return w.Clock.Now(), err
		}
	}
	for _, id := range s.definitions {
		if err := w.store().Unwatch(ctx, incidents.Watched{JobID: s.id, DefinitionID: id}); err != nil {
			return w.Clock.Now(), err
		}
	}
	return time.Time{}, w.store().ForgetJob(ctx, s.id)
}

// segments returns the definitions of a job of which occurrences are to be judged yet, the oldest first.
func (w *Watchdog) segments(ctx context.Context, s *subject, j *job.Job, now time.Time) (list []segment, err error) {
	until := far
	for _, l := range s.lines {
		// What nobody has watched for too long is not judged any more.
		l.Until = job.Later(l.Until, now.Add(-job.MaxDeadline-w.Behind))
		until = earlier(until, l.Until)
	}
	end, d, page := far, j.Definition, []job.Definition(nil)
	for range maxDefinitions {
		if d.EffectiveAt.Before(end) {
			def := d
			plan, err := schedule.Compile(def.Schedule, j.ID)
			if err != nil {
				return nil, fmt.Errorf("read the schedule of job %s: %w", j.ID, err)
			}
			series := &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &def, Plan: plan}
			if end != far {
				series.EndsAt = end
			}
			list = append(list, segment{Series: series, until: series.Until(end), made: job.DefinedAt(def.ID)})
			end = d.EffectiveAt
		}
		if !until.Before(end) || job.FirstDefinition(j.ID, d.ID) {
			break
		}
		if len(page) == 0 {
			if page, err = w.Jobs.Definitions(ctx, j.ID, d.ID, 5); err != nil {
				return nil, fmt.Errorf("read definitions of job %s: %w", j.ID, err)
			}
			if len(page) == 0 {
				break
			}
		}
		d, page = page[0], page[1:]
	}
	slices.Reverse(list)
	return list, nil
}

// place is an occurrence and its deadline.
type place struct {
	*segment
	at, due, deadline time.Time
}

// nextOf returns the first occurrence of segments, at or after an instant, that has a deadline.
func nextOf(segments []segment, d incidents.Deadline, from time.Time) (p place, ok bool) {
	for n := range segments {
		s := &segments[n]
		within := d.Of(s.Def)
		if within == 0 {
			continue
		}
		if at, ok := s.next(from); ok {
			due := s.Plan.ScheduledFor(at)
			return place{segment: s, at: at, due: due, deadline: due.Add(within)}, true
		}
	}
	return p, false
}

// judgeLine holds the occurrences of a job against one deadline, as far as they are due, and returns when the next is; zero for never.
func (w *Watchdog) judgeLine(ctx context.Context, s *subject, j *job.Job, segments []segment, d incidents.Deadline) (again time.Time, err error) {
	l := s.lines[d]
	for range w.AtOnce {
		now := w.Clock.Now()
		p, ok := nextOf(segments, d, l.Until)
		if ok && j.Status == job.StatusPaused && p.at.After(j.PausedAt) {
			return now.Add(idle), w.close(ctx, s, l, "The job was paused.") // a resume decides about what comes now
		}
		from := p.deadline.Add(w.Settle)
		if !ok {
			from = time.Time{}
		}
		if !ok || now.Before(from) {
			return w.recheck(ctx, s, j, segments, d, from)
		}
		v := verdict{kind: excused}
		if !p.due.Before(p.made) {
			if v, err = w.weigh(ctx, j, &p, d); err != nil {
				return again, err
			}
		}
		switch {
		case v.kind == undecided && now.Sub(p.deadline) < w.Settle+w.Undecided:
			return now.Add(w.Again), nil
		case v.kind == undecided:
			w.Metrics.undecided.Inc()
		}
		w.Metrics.judged.Inc()
		l.Until, s.stale = p.at.Add(time.Millisecond), true
		switch v.kind {
		case missed:
			err = w.miss(ctx, s, j, &p, d, v)
		case met:
			err = w.close(ctx, s, l, fmt.Sprintf("The occurrence of %s met the deadline.", text(p.at)))
		}
		if err != nil {
			return again, err
		}
	}
	return w.Clock.Now(), nil // there is more, and others come first
}

// text is an instant as reasons show it.
func text(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// recheck returns when a job is looked at again whose next deadline is due at an instant; zero for both if there is none. While its last
// occurrence has missed one, and the next is far, that is before: as soon as the occurrence has happened, the incident is over.
func (w *Watchdog) recheck(
	ctx context.Context, s *subject, j *job.Job, segments []segment, d incidents.Deadline, from time.Time,
) (again time.Time, err error) {
	l, soon := s.lines[d], w.Clock.Now().Add(soon)
	if l.Open == nil || !from.IsZero() && from.Before(soon) {
		return from, nil
	}
	happened, ended, err := w.happened(ctx, j, segments, d, l.Open.Last)
	switch {
	case err != nil:
		return from, err
	case happened:
		return from, w.close(ctx, s, l, fmt.Sprintf("The occurrence of %s has happened, late.", text(l.Open.Last)))
	case from.IsZero() && ended:
		return from, w.close(ctx, s, l, "The schedule has no further occurrence with this deadline.")
	case from.IsZero():
		return soon, nil
	}
	return earlier(from, soon), nil
}

// happened reports whether an occurrence has begun, or has succeeded; ended, whether it will not any more.
func (w *Watchdog) happened(
	ctx context.Context, j *job.Job, segments []segment, d incidents.Deadline, at time.Time,
) (happened, ended bool, err error) {
	for n := range segments {
		if s := &segments[n]; !at.Before(s.Def.EffectiveAt) && at.Before(s.until) {
			p := place{segment: s, at: at, due: s.Plan.ScheduledFor(at)}
			e, err := w.look(ctx, j, &p)
			if err != nil {
				return false, false, err
			}
			if d == incidents.StartWithin {
				return e.called, e.over, nil
			}
			return !e.succeeded.IsZero(), e.over, nil
		}
	}
	return false, true, nil
}

// miss notes that an occurrence missed a deadline: with the first, an incident begins.
func (w *Watchdog) miss(ctx context.Context, s *subject, j *job.Job, p *place, d incidents.Deadline, v verdict) error {
	l, now := s.lines[d], job.Instant(w.Clock.Now())
	if l.Open != nil {
		open := *l.Open
		open.Last, open.Missed = p.at, open.Missed+1
		l.Open, l.behind = &open, true
		return w.write(ctx, l)
	}
	i := &incidents.Incident{
		ID: incidents.ID(j.ID, d, p.at), Tenant: j.Tenant, JobID: j.ID, JobName: j.Name, Owner: j.Owner, Deadline: d, Within: d.Of(p.Def),
		Cause: v.cause, Reason: v.reason, First: p.at, Last: p.at, Missed: 1, DeadlineAt: p.deadline, NoticedAt: now,
	}
	if err := w.store().Put(ctx, i); err != nil {
		return err
	}
	l.Open, l.written, l.behind = i, now, false
	w.Metrics.incidents.WithLabelValues(string(d), string(v.cause)).Inc()
	w.Logger.Warn("a job has missed a deadline", "job_id", j.ID, "tenant", j.Tenant, "deadline", d, "reason", v.cause)
	return w.note(ctx, s)
}

// write writes an open incident that has grown, unless that was done just before.
func (w *Watchdog) write(ctx context.Context, l *line) error {
	now := w.Clock.Now()
	if l.Open == nil || !l.behind || now.Sub(l.written) < tellEvery {
		return nil
	}
	if err := w.store().Put(ctx, l.Open); err != nil {
		return err
	}
	l.written, l.behind = now, false
	return nil
}

// close ends the open incident of a line, if there is one.
func (w *Watchdog) close(ctx context.Context, s *subject, l *line, why string) error {
	if l.Open == nil {
		return nil
	}
	i := *l.Open
	i.ClosedAt, i.Closed = job.Instant(w.Clock.Now()), why
	if err := w.store().Put(ctx, &i); err != nil {
		return err
	}
	l.Open, l.behind = nil, false
	w.Logger.Info("a job meets its deadline again, or has none any more", "job_id", s.id, "tenant", i.Tenant, "deadline", i.Deadline, "reason", why)
	return w.note(ctx, s)
}

// note notes how far a job was judged, and its open incidents.
func (w *Watchdog) note(ctx context.Context, s *subject) error {
	how := map[incidents.Deadline]incidents.Judged{}
	for d, l := range s.lines {
		if !l.Until.IsZero() {
			how[d] = l.Judged
		}
	}
	if err := w.store().Note(ctx, s.id, how); err != nil {
		return err
	}
	s.stale, s.noted = false, w.Clock.Now()
	return nil
}
