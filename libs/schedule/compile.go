package schedule

import (
	"hash/fnv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

const (
	minEvery = time.Second
	// maxJitter keeps an offset from reaching more than a year beyond the years for which instants are defined.
	maxJitter = 366 * 24 * time.Hour
	// maxSpread is the distance of what is spread.
	maxSpread = time.Hour
)

// Compile checks a schedule and prepares it. The job id seeds the jitter and the values that H stands for, and nothing
// else; the empty id, for a preview, is an id like any other. Whether an expression with H can ever match may depend
// on the id ("0 0 31 H *" cannot where H is February), so compile it for the id that it is to have. Every fault is an
// *Error; if there are several, they are joined.
func Compile(s job.Schedule, jobID string) (*Plan, error) { return CompileBy(current(), s, jobID) }

// CompileBy is Compile by other time zone data than that in force.
func CompileBy(zones *Zones, s job.Schedule, jobID string) (*Plan, error) {
	var f faults
	p := &Plan{kind: s.Type, lo: minMS, hi: maxMS}
	hash := fnv.New64a()
	hash.Write([]byte(jobID)) // never fails, says hash.Hash
	p.seed = hash.Sum64()

	p.compileZone(zones, s, &f)
	p.compileLimits(s, &f)
	p.compileJitter(s, &f)
	dst := checkDST(s.DST, &f)
	checkForeign(s, &f)
	switch s.Type {
	case job.ScheduleOneShot:
		p.compileOneShot(s, &f)
	case job.ScheduleInterval:
		p.compileInterval(s, &f)
	case job.ScheduleCron:
		p.compileCron(s, jobID, dst, &f)
	case job.ScheduleAfter:
		p.compileAfter(s, &f)
	default:
		f.add("type", "Use one of the types one_shot, cron, interval and after.")
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Plan) compileZone(zones *Zones, s job.Schedule, f *faults) {
	name := s.Timezone
	if name == "" {
		name = "UTC"
	}
	z, err := zones.load(name)
	if err != nil {
		*f = append(*f, err)
	}
	p.zone = z
}

func (p *Plan) compileLimits(s job.Schedule, f *faults) {
	if !s.StartAt.IsZero() {
		p.lo = floorMS(s.StartAt)
		if !inRange(p.lo) {
			f.add("start_at", "Use a time in the years 1970 to 2199.")
		}
	}
	if !s.EndAt.IsZero() {
		// An end beyond the last year is a common way to write "never", and limits nothing.
		p.hi = min(floorMS(s.EndAt), maxMS)
		switch {
		case p.hi <= minMS:
			f.add("end_at", "Use a time after the beginning of 1970.")
		case !s.StartAt.IsZero() && p.hi <= p.lo:
			f.add("end_at", "Use a time after start_at.")
		}
	}
	if s.MaxOccurrences < 0 {
		f.add("max_occurrences", "Use a positive number, or 0 for no limit.")
	}
}

func (p *Plan) compileJitter(s job.Schedule, f *faults) {
	p.jitter = s.Jitter.Milliseconds()
	if s.Jitter < 0 || s.Jitter > maxJitter || s.Jitter%time.Millisecond != 0 {
		f.add("jitter", "Use whole milliseconds from 0 to 366 days.")
	}
	p.spread = s.Spread.Milliseconds()
	switch {
	case s.Spread == 0:
	case s.Spread < time.Second || s.Spread > maxSpread || s.Spread%time.Millisecond != 0:
		f.add("spread_within", "Use whole milliseconds from 1 second to 1 hour.")
	case s.Jitter != 0:
		f.add("jitter", "Leave this out, or spread: both say by how much an occurrence may be moved.")
	}
}

func checkDST(dst job.DST, f *faults) job.DST {
	switch dst.Gap {
	case "":
		dst.Gap = job.GapNextValid
	case job.GapNextValid, job.GapSkip:
	default:
		f.add("dst/gap", "Use next_valid or skip.")
	}
	switch dst.Fold {
	case "":
		dst.Fold = job.FoldFirst
	case job.FoldFirst, job.FoldLast, job.FoldBoth:
	default:
		f.add("dst/fold", "Use first, last or both.")
	}
	return dst
}

// checkForeign rejects members that belong to another type, because their author expects them to have an effect. The members that
// any type may carry (zone, limits, jitter, spread, DST policies) are let through.
func checkForeign(s job.Schedule, f *faults) {
	if s.Type != job.ScheduleOneShot && !s.RunAt.IsZero() {
		f.add("run_at", "Leave this out, or use type one_shot.")
	}
	if s.Type != job.ScheduleCron && s.CronExpr != "" {
		f.add("cron_expr", "Leave this out, or use type cron.")
	}
	if s.Type != job.ScheduleAfter && (len(s.After) > 0 || s.All) {
		f.add("after", "Leave this out, or use type after.")
	}
	if s.Type != job.ScheduleInterval && s.Every != 0 {
		f.add("every", "Leave this out, or use type interval.")
	}
}

func (p *Plan) compileOneShot(s job.Schedule, f *faults) {
	p.runAt = floorMS(s.RunAt)
	switch {
	case s.RunAt.IsZero():
		f.add("run_at", "Give the time at which a one_shot fires.")
	case !inRange(p.runAt):
		f.add("run_at", "Use a time in the years 1970 to 2199.")
	case p.runAt < p.lo || p.runAt >= p.hi:
		f.add("run_at", "Use a time from start_at on and before end_at.")
	}
}

func (p *Plan) compileInterval(s job.Schedule, f *faults) {
	p.anchor, p.every = p.lo, s.Every.Milliseconds()
	if s.Every < minEvery || s.Every%time.Millisecond != 0 {
		f.add("every", "Use a period of at least one second, in whole milliseconds.")
	}
	if s.StartAt.IsZero() {
		f.add("start_at", "Give the time from which an interval is counted.")
	}
}

// compileAfter checks a schedule without instants.
func (p *Plan) compileAfter(s job.Schedule, f *faults) {
	if len(s.After) == 0 || len(s.After) > job.MaxParents {
		f.add("after", "Name the jobs that this one follows, at most 20.")
	}
	for name, set := range map[string]bool{
		"timezone": s.Timezone != "", "dst": s.DST != job.DST{}, "start_at": !s.StartAt.IsZero(), "end_at": !s.EndAt.IsZero(),
		"max_occurrences": s.MaxOccurrences != 0, "jitter": s.Jitter != 0, "spread_within": s.Spread != 0,
	} {
		if set {
			f.add(name, "Leave this out: a job of type after has no instants of its own.")
		}
	}
}

func (p *Plan) compileCron(s job.Schedule, jobID string, dst job.DST, f *faults) {
	match, wrong := parseCron(s.CronExpr, jobID)
	if len(wrong) > 0 {
		*f = append(*f, wrong...)
		return
	}
	if p.zone == nil {
		return
	}
	p.cron = resolver{match, p.zone, dst}
	// The expression matches some civil time, but perhaps only one that this zone skips, or one whose instant is
	// just outside the years. The limits play no part: a schedule that has run out is still a schedule.
	if at, ok := p.cron.first(minSec); !ok || at >= maxSec {
		f.add("cron_expr", neverMatches)
	}
}

func inRange(ms int64) bool { return ms >= minMS && ms < maxMS }
