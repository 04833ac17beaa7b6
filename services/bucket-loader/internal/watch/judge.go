package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
)

const (
	// rowWithin is how long after its definition was listed a job's row is looked for.
	rowWithin = 10 * time.Minute
	// idle is the pause before a job is looked at again of which nothing is due, soon that before one is of which something may be on its way.
	idle, soon = 5 * time.Minute, 30 * time.Second
	// calm is how far the next deadline of a job must be for its incident to end with the late end of the last occurrence. Otherwise the next
	// one that meets its deadline ends it.
	calm = 10 * time.Minute
	// noteEvery is how often it is noted how far a job was judged, while no incident begins or ends; tellEvery how often an open incident is
	// written that has grown.
	noteEvery, tellEvery = 5 * time.Minute, 10 * time.Second
	// maxAside bounds the occurrences of a job of which nothing can be told yet: beyond it one is given up. A job that is due every second has 600
	// of them at most, because they are not looked at for longer than ten minutes. asideAtOnce is how many of them one look looks at again.
	maxAside, asideAtOnce = 1000, 20
	// maxDefinitions bounds the definitions of a job that are watched: the oldest beyond it are given up.
	maxDefinitions = 100
)

// far is after every instant.
var far = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// look is what one look at a job works with.
type look struct {
	*subject
	job      *job.Job
	segments []*segment // the oldest first
	now      time.Time
}

// judge holds the occurrences of a job against its deadlines, as far as they are due, and returns when to look at it again; zero for never.
func (w *Watchdog) judge(ctx context.Context, s *subject, j *job.Job) (again time.Time, err error) {
	now := w.Clock.Now()
	if j == nil || j.IsVoid() {
		if now.Sub(s.changed) < rowWithin {
			return now.Add(soon), nil
		}
		return time.Time{}, w.end(ctx, s, "The job is gone.")
	}
	if s.unnoted || s.stale && now.Sub(s.noted) >= noteEvery {
		if err := w.note(ctx, s); err != nil {
			return now, err
		}
	}
	l := &look{subject: s, job: j, now: now}
	if err := w.segments(ctx, l); err != nil {
		return now, err
	}
	again = now.Add(idle)
	if now.Sub(s.changed) < rowWithin {
		again = now.Add(soon) // the row may be on its way
	}
	var errs []error
	for _, d := range incidents.Deadlines() {
		at, err := w.judgeLine(ctx, l, d)
		if errs = append(errs, err); err != nil {
			continue
		}
		if o := l.lines[d].Open; o != nil {
			if err := w.tellOwners(ctx, l, l.lines[d], o); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if again = earlier(again, at); l.lines[d].behind {
			again = earlier(again, job.Later(now.Add(w.Tick), l.lines[d].written.Add(tellEvery)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return now, err
	}
	left, err := w.forget(ctx, l)
	if err != nil || left {
		return again, err
	}
	return time.Time{}, w.end(ctx, s, "The job has no further occurrence with a deadline.")
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// next returns the first occurrence of a segment that was not held against a deadline, or that nobody has watched for too long; ok is false if
// there is none, or if a cancel came before its deadline.
func (w *Watchdog) next(l *look, s *segment, d incidents.Deadline) (p place, ok bool) {
	within := d.Of(s.Def)
	if within == 0 {
		return p, false
	}
	from := job.Later(l.lines[d].Until[s.Def.ID], l.now.Add(-within-w.Behind))
	at, ok := s.Plan.First(job.Later(from, s.Def.EffectiveAt))
	if !ok || !at.Before(s.until) {
		return p, false
	}
	p = s.place(d, at)
	return p, l.job.Status != job.StatusCancelled || at.Before(l.job.EndsAt) && p.deadline.Before(l.job.EndsAt)
}

// nextOf returns the occurrence whose deadline is the next. Instants after a pause are left to the resume.
func (w *Watchdog) nextOf(l *look, d incidents.Deadline) (next place, ok bool) {
	for _, s := range l.segments {
		p, found := w.next(l, s, d)
		if !found || leftToResume(l.job, &p) {
			continue
		}
		if !ok || p.deadline.Before(next.deadline) {
			next, ok = p, true
		}
	}
	return next, ok
}

// judgeLine holds the occurrences of a job against one deadline, as far as they are due, and returns when to look at it again.
func (w *Watchdog) judgeLine(ctx context.Context, l *look, d incidents.Deadline) (again time.Time, err error) {
	line := l.lines[d]
	if err := w.flush(ctx, line); err != nil {
		return again, err
	}
	if err := w.judgeAside(ctx, l, d); err != nil { // first, because they are older: a later one that met the deadline ends their incident
		return again, err
	}
	again = l.now // there is more, and others come first
	for range w.AtOnce {
		p, ok := w.nextOf(l, d)
		if !ok || l.now.Before(p.deadline.Add(w.Settle)) {
			from := far
			if ok {
				from = p.deadline.Add(w.Settle)
			}
			if again, err = w.recheck(ctx, l, d, from); err != nil {
				return again, err
			}
			break
		}
		v, err := w.weigh(ctx, l.job, &p, d)
		if err != nil && l.now.Sub(p.deadline) < w.Settle+w.Undecided {
			return again, err
		}
		if err != nil { // it holds up the others no longer
			w.Metrics.undecided.Inc()
			v = verdict{kind: excused}
		}
		if err := w.conclude(ctx, l, &p, d, v); err != nil {
			return again, err
		}
	}
	if len(line.Aside) > 0 {
		again = earlier(again, l.now.Add(w.Again))
	}
	return again, nil
}

// conclude notes what a look at an occurrence came to. If that fails, the occurrence is looked at again.
func (w *Watchdog) conclude(ctx context.Context, l *look, p *place, d incidents.Deadline, v verdict) error {
	line := l.lines[d]
	before, aside, open, last := line.Until[p.Def.ID], slices.Clone(line.Aside), line.Open, line.Met
	line.Until[p.Def.ID], l.stale = p.at.Add(time.Millisecond), true
	line.Aside = slices.DeleteFunc(slices.Clone(aside), p.at.Equal) // as another definition named it, which did not know of this one
	if (v.kind == missed || v.kind == undecided) && !slices.ContainsFunc(aside, p.at.Equal) && l.wasJudged(p, d) {
		v = verdict{kind: excused}
	}
	if v = w.settled(l, p, v); v.kind == undecided {
		if line.Aside = append(slices.Clip(line.Aside), p.at); len(line.Aside) > maxAside {
			line.Aside = line.Aside[1:]
			w.Metrics.undecided.Inc()
		}
	}
	w.Metrics.judged.Inc()
	err := w.tell(ctx, l, p, d, v)
	if err != nil {
		line.Until[p.Def.ID], line.Aside, line.Open, line.Met = before, aside, open, last
	}
	return err
}

// settled returns what a look at an occurrence came to, if nothing can be told of it and it is not to be looked at again.
func (w *Watchdog) settled(l *look, p *place, v verdict) verdict {
	if v.kind != undecided || l.now.Sub(p.deadline) < w.Settle+w.Undecided {
		return v
	}
	w.Metrics.undecided.Inc()
	if v.kind = excused; v.cause != "" {
		v.kind = missed // nothing is on record of it, and nothing will be
	}
	return v
}

// tell begins, carries on or ends an incident, as an occurrence missed or met its deadline.
func (w *Watchdog) tell(ctx context.Context, l *look, p *place, d incidents.Deadline, v verdict) error {
	line := l.lines[d]
	if v.kind == met {
		line.Met = job.Later(line.Met, p.at)
	}
	switch {
	case v.kind == missed:
		return w.miss(ctx, l, p, d, v)
	case v.kind == met && line.Open != nil && p.at.After(line.Open.Last):
		return w.recovered(ctx, l, line, p.deadline, fmt.Sprintf("The occurrence of %s met the deadline.", text(p.at)))
	}
	return nil
}

// text is an instant as reasons show it.
func text(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// judgeAside looks again at the occurrences of which nothing could be told, some at a time.
func (w *Watchdog) judgeAside(ctx context.Context, l *look, d incidents.Deadline) error {
	line := l.lines[d]
	for _, at := range slices.Clone(line.Aside[:min(len(line.Aside), asideAtOnce)]) {
		p, ok := l.placeOf(d, at)
		v := verdict{kind: excused}
		if ok && p.named(d) {
			var err error
			if v, err = w.weigh(ctx, l.job, &p, d); ctx.Err() != nil {
				return err
			}
			if err != nil {
				v = verdict{kind: undecided}
			}
		}
		aside, open := line.Aside, line.Open
		line.Aside, l.stale = slices.DeleteFunc(slices.Clone(aside), at.Equal), true
		if v = w.settled(l, &p, v); v.kind == undecided {
			line.Aside = append(line.Aside, at) // the others come first
			continue
		}
		if err := w.tell(ctx, l, &p, d, v); err != nil {
			line.Aside, line.Open = aside, open
			return err
		}
	}
	return nil
}

// recheck returns when a job is looked at again whose next deadline is settled at an instant, far if there is none. While its last occurrence has
// missed one, that is before: it ends the incident if it happens long before the next.
func (w *Watchdog) recheck(ctx context.Context, l *look, d incidents.Deadline, from time.Time) (again time.Time, err error) {
	line := l.lines[d]
	if line.Open == nil || from.Before(l.now.Add(calm)) {
		return from, nil
	}
	why := ""
	switch {
	case l.job.Status == job.StatusPaused:
		why = "The job was paused."
	case l.job.Status == job.StatusCancelled:
		why = "The job was cancelled."
	case from.Equal(far) && d.Of(&l.job.Definition) == 0:
		why = "The job has no such deadline any more."
	default:
		happened, ended, err := w.happened(ctx, l, d, line.Open.Last)
		switch {
		case err != nil:
			return from, err
		case happened:
			return from, w.recovered(ctx, l, line, l.now, fmt.Sprintf("The occurrence of %s has happened, late.", text(line.Open.Last)))
		case from.Equal(far) && ended:
			why = "The job has no further occurrence with this deadline."
		default:
			return l.now.Add(soon), nil
		}
	}
	if err := w.tellOwners(ctx, l, line, line.Open); err != nil { // a crash may have come between
		return from, err
	}
	return from, w.close(ctx, l.subject, line, why)
}

// happened reports whether an occurrence has begun, or has succeeded; ended, whether it will not any more.
func (w *Watchdog) happened(ctx context.Context, l *look, d incidents.Deadline, at time.Time) (happened, ended bool, err error) {
	p, ok := l.placeOf(d, at)
	if !ok {
		return false, true, nil
	}
	e, err := w.gather(ctx, l.job, &p)
	if err != nil {
		return false, false, err
	}
	if d == incidents.StartWithin {
		return e.called, e.over, nil
	}
	return !e.succeeded.IsZero(), e.over, nil
}

// forget takes the definitions of a job off its list of which nothing is left to judge, and those that never came into the row. It reports
// whether any is left.
func (w *Watchdog) forget(ctx context.Context, l *look) (left bool, err error) {
	for n, id := range slices.Clone(l.definitions) {
		s, current := l.known[id], id == l.job.Definition.ID
		keep := s != nil && w.owes(l, s)
		onItsWay := slices.ContainsFunc(l.definitions, func(x string) bool { return x > l.job.Definition.ID })
		if id > l.job.Definition.ID || s == nil || onItsWay && current {
			keep = keep || l.now.Sub(l.changed) < rowWithin
		}
		if len(l.definitions)-n > maxDefinitions && !current {
			keep = false
			w.Metrics.undecided.Inc()
		}
		if keep {
			left = true
			continue
		}
		if l.stale { // the next process that watches must know what was judged of it
			if err := w.note(ctx, l.subject); err != nil {
				return true, err
			}
		}
		if err := w.store().Unwatch(ctx, incidents.Watched{JobID: l.id, DefinitionID: id}); err != nil {
			return true, err
		}
		l.definitions = slices.DeleteFunc(l.definitions, func(x string) bool { return x == id })
		delete(l.known, id)
		if current {
			l.over = id
		}
		for _, line := range l.lines {
			delete(line.Until, id)
		}
	}
	return left, nil
}

// owes reports whether an occurrence of a segment is to be held against a deadline yet, or may end an incident.
func (w *Watchdog) owes(l *look, s *segment) bool {
	for d, line := range l.lines {
		if _, ok := w.next(l, s, d); ok {
			return true
		}
		if slices.ContainsFunc(line.Aside, s.holds) || line.Open != nil && s.holds(line.Open.Last) {
			return true
		}
		until, judged := line.Until[s.Def.ID]
		for _, later := range l.segments { // what was judged must not be judged again under a later definition
			if !judged || later.Def.ID <= s.Def.ID {
				continue
			}
			if p, ok := w.next(l, later, d); ok && p.at.Before(until) {
				return true
			}
		}
	}
	return false
}
