package schedule

import (
	"fmt"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Occurrence is a nominal instant in the form that a person wants to see.
type Occurrence struct {
	At    time.Time // UTC
	Local time.Time // the same instant in the schedule's zone
	// Note says in plain English what a jump of local time did to this occurrence of a cron schedule; mostly empty.
	Note string
}

// Preview returns the next n nominal instants strictly after a time, or as many as there are.
func (p *Plan) Preview(after time.Time, n int) []Occurrence {
	var list []Occurrence
	for ms, ok := p.first(floorMS(after) + 1); ok && len(list) < n; ms, ok = p.first(ms + 1) {
		list = append(list, p.Occurrence(toTime(ms)))
	}
	return list
}

// Occurrence returns a nominal instant in the form that a person wants to see.
func (p *Plan) Occurrence(nominal time.Time) Occurrence {
	o := Occurrence{At: nominal, Local: nominal.In(p.zone.loc)}
	if p.kind == job.ScheduleCron {
		o.Note = p.cron.note(nominal.Unix())
	}
	return o
}

// note explains an occurrence that a gap moved or that lies in a fold.
func (r *resolver) note(sec int64) string {
	i := r.zone.segment(sec)
	local := sec + r.zone.offs[i]
	if i > 0 && r.zone.jump(i) > 0 {
		if _, hi := r.window(i - 1); sec < hi {
			if wanted := sec + r.zone.offs[i-1]; r.match.matches(wanted) {
				return r.gapNote(wanted, local)
			}
		}
	}
	switch {
	case sec < r.zone.starts[i]-r.zone.jump(i):
		return r.foldNote(local, job.FoldLast)
	case sec >= r.zone.end(i)+r.zone.jump(i+1):
		return r.foldNote(local, job.FoldFirst)
	}
	return ""
}

func (r *resolver) gapNote(wanted, local int64) string {
	layout, day := clockLayout(wanted, local), " on this day"
	if wanted/secondsPerDay != local/secondsPerDay {
		layout, day = "2006-01-02 "+layout, ""
	}
	was, is := time.Unix(wanted, 0).UTC().Format(layout), time.Unix(local, 0).UTC().Format(layout)
	note := fmt.Sprintf("%s does not exist%s in %s; fires at %s", was, day, r.zone.loc, is)
	if r.match.matches(local) {
		note += ", as one occurrence with that time's own"
	}
	return note
}

func (r *resolver) foldNote(local int64, pass job.FoldPolicy) string {
	clock := time.Unix(local, 0).UTC().Format(clockLayout(local))
	note := fmt.Sprintf("%s occurs twice on this day in %s; ", clock, r.zone.loc)
	which := "first"
	if pass == job.FoldLast {
		which = "second"
	}
	if r.match.rhythm || r.dst.Fold == job.FoldBoth {
		return note + "fires both times, this is the " + which
	}
	return note + "fires the " + which + " time"
}

// clockLayout shows seconds only where there are any.
func clockLayout(civil ...int64) string {
	for _, c := range civil {
		if c%60 != 0 {
			return "15:04:05"
		}
	}
	return "15:04"
}
