package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/incidents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
)

// segment is a definition and until where it was in force.
type segment struct {
	*occurrence.Series
	// until is where its instants end, made when the definition was made: what was due before then has no deadline.
	until, made time.Time
	// superseded is set once it is known where it ended.
	superseded bool
}

// place is an occurrence and its deadline.
type place struct {
	*segment
	at, due, deadline time.Time
}

// place returns an occurrence of a segment.
func (s *segment) place(d incidents.Deadline, at time.Time) place {
	due := s.Plan.ScheduledFor(at)
	return place{segment: s, at: at, due: due, deadline: due.Add(d.Of(s.Def))}
}

// holds reports whether an instant belongs to a segment.
func (s *segment) holds(at time.Time) bool {
	return !at.Before(s.Def.EffectiveAt) && at.Before(s.until)
}

// segments finds the definitions of a job of which occurrences are to be judged: those that are listed, and came into the row.
func (w *Watchdog) segments(ctx context.Context, l *look) error {
	j := l.job
	if id := j.Definition.ID; l.over != id && !slices.Contains(l.definitions, id) {
		if err := w.addListed(ctx, l); err != nil {
			return err
		}
	}
	slices.Sort(l.definitions)
	for _, id := range l.definitions {
		s := l.known[id]
		switch {
		case id > j.Definition.ID:
			continue
		case s != nil && (s.superseded || id == j.Definition.ID):
		case id == j.Definition.ID:
			var err error
			if s, err = compile(j, j.Definition, far); err != nil {
				return err
			}
		default:
			d, ends, err := w.Jobs.Definition(ctx, j.ID, id)
			if errors.Is(err, jobstore.ErrNotFound) {
				l.known[id] = nil
				continue // it never was the row's
			}
			if err != nil {
				return fmt.Errorf("read definition %s: %w", id, err)
			}
			if s, err = compile(j, d, j.Definition.EndOf(ends)); err != nil {
				return err
			}
			s.superseded = true
		}
		if s.superseded && j.Definition.EffectiveAt.Before(s.until) { // a resume reaches back before an update in its pause
			s.until, s.EndsAt = j.Definition.EffectiveAt, j.Definition.EffectiveAt
		}
		l.known[id] = s
		l.segments = append(l.segments, s)
	}
	return nil
}

// addListed adds the definitions of a job that were listed since the lists were read, when its row has one that is not known: that, unless it is
// over, and those that were the row's in between. Each was listed before it came into the row. Without them the one before them would be taken for
// over, and forgotten, and what was held against its deadlines would be judged again once they are found.
func (w *Watchdog) addListed(ctx context.Context, l *look) error {
	page, err := w.store().Watched(ctx, incidents.SliceOf(l.id), incidents.Watched{JobID: l.id}, maxDefinitions)
	if err != nil {
		return err
	}
	for _, x := range page {
		if x.JobID == l.id && !slices.Contains(l.definitions, x.DefinitionID) {
			l.definitions, l.changed = append(l.definitions, x.DefinitionID), l.now
		}
	}
	more := len(page) == maxDefinitions && page[maxDefinitions-1].JobID == l.id
	if id := l.job.Definition.ID; !more && !slices.Contains(l.definitions, id) {
		l.over = id
	}
	return nil
}

// compile returns the segment of a definition that was in force until an end.
func compile(j *job.Job, d job.Definition, end time.Time) (*segment, error) {
	d.Target.Body, d.Target.BodyRef, d.Target.Headers = nil, nil, nil // many of them are held
	plan, err := schedule.Compile(d.Schedule, j.ID)
	if err != nil {
		return nil, fmt.Errorf("read the schedule of job %s: %w", j.ID, err)
	}
	series := &occurrence.Series{JobID: j.ID, Tenant: j.Tenant, Def: &d, Plan: plan}
	if end != far {
		series.EndsAt = end
	}
	return &segment{Series: series, until: series.Until(end), made: job.DefinedAt(d.ID)}, nil
}

// placeOf returns the occurrence of an instant; ok is false if its definition is not watched any more.
func (l *look) placeOf(d incidents.Deadline, at time.Time) (p place, ok bool) {
	for _, s := range l.segments {
		if s.holds(at) {
			return s.place(d, at), true
		}
	}
	return p, false
}

// named reports whether its definition names an occurrence, with such a deadline: an update that came into the row long after it was made need not name
// what the definition before named.
func (p *place) named(d incidents.Deadline) bool {
	at, ok := p.Plan.First(p.at)
	return ok && at.Equal(p.at) && d.Of(p.Def) > 0
}

// wasJudged reports whether an occurrence was held against such a deadline before, as an earlier definition named it: an update that came into the
// row long after it was made reaches back to what was due meanwhile, when nobody had been promised what it says.
func (l *look) wasJudged(p *place, d incidents.Deadline) bool {
	return slices.ContainsFunc(l.segments, func(s *segment) bool {
		if s.Def.ID >= p.Def.ID || p.at.Before(s.Def.EffectiveAt) || !p.at.Before(l.lines[d].Until[s.Def.ID]) {
			return false
		}
		before := s.place(d, p.at)
		return before.named(d)
	})
}
