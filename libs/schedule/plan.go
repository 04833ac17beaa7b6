package schedule

import (
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Plan is a compiled schedule.
type Plan struct {
	kind   job.ScheduleType
	lo, hi int64 // nominal instants lie in [lo, hi), in milliseconds

	runAt  int64 // one_shot
	anchor int64 // interval: its instants are anchor + k*every
	every  int64
	cron   resolver

	zone   *zone
	jitter int64  // milliseconds
	spread int64  // the same, at full hours
	seed   uint64 // hash of the job id
}

// Next returns the first nominal instant strictly after a time, or false if there is none.
func (p *Plan) Next(after time.Time) (time.Time, bool) { return instant(p.first(floorMS(after) + 1)) }

// First returns the first nominal instant at or after a time, or false if there is none.
func (p *Plan) First(from time.Time) (time.Time, bool) { return instant(p.first(ceilMS(from))) }

// Prev returns the last nominal instant strictly before a time, or false if there is none.
func (p *Plan) Prev(before time.Time) (time.Time, bool) { return instant(p.last(ceilMS(before) - 1)) }

// hour is an hour in milliseconds.
const hour = 60 * 60 * 1000

// ScheduledFor returns the instant at which a nominal instant of this job is due to fire. It is later by an offset in [0, jitter),
// or [0, spread) at a full hour,
// that is a hash of the job id, so the offset is the same for each occurrence and on every machine. If the next nominal instant is
// nearer than that, the hash is taken over the time until then: the result is before the next instant, and jobs stay spread
// out instead of meeting just before it. The result may lie after end_at.
func (p *Plan) ScheduledFor(nominal time.Time) time.Time {
	at := floorMS(nominal)
	spread := p.spreadAt(at)
	if spread == 0 {
		return toTime(at)
	}
	if next, ok := p.first(at + 1); ok {
		spread = min(spread, next-at)
	}
	return toTime(at + int64(p.seed%uint64(spread)))
}

// spreadAt returns within which time of a nominal instant it is due, if no other is nearer.
func (p *Plan) spreadAt(at int64) int64 {
	if at%hour == 0 {
		return max(p.jitter, p.spread)
	}
	return p.jitter
}

// MayBeDue returns when a nominal instant of other time zone data may be due: as if this data had named it, as if the next one lay a period later,
// and as if it lay further away than the jitter reaches. Without jitter that is the instant.
func (p *Plan) MayBeDue(nominal time.Time, period time.Duration) []time.Time {
	list := []time.Time{p.ScheduledFor(nominal)}
	at := floorMS(nominal)
	spread := p.spreadAt(at)
	for _, within := range []int64{spread, min(spread, period.Milliseconds())} {
		if within <= 0 {
			continue
		}
		if due := toTime(at + int64(p.seed%uint64(within))); !slices.ContainsFunc(list, due.Equal) {
			list = append(list, due)
		}
	}
	return list
}

// Note returns by which rules of its time zone the plan made a nominal instant; nil for a schedule that asks no zone but UTC.
func (p *Plan) Note(nominal time.Time) *job.Note {
	if p.kind != job.ScheduleCron || p.zone.loc == time.UTC {
		return nil
	}
	return &job.Note{TZData: p.zone.release, UTCOffset: p.zone.offset(nominal)}
}

// Localize notes in the entry of an execution that somebody asked for what [Plan.Note] notes of an occurrence: by which rules the zone of the
// job's schedule shows its nominal instant. It notes nothing where the schedule asks no zone but UTC, or one that the data does not have.
func Localize(e *job.Entry, s *job.Schedule) {
	if s.Type != job.ScheduleCron || s.Timezone == "" {
		return
	}
	z, err := current().load(s.Timezone)
	if err != nil || z.loc == time.UTC {
		return
	}
	n := job.Note{}
	if e.Note != nil {
		n = *e.Note
	}
	n.TZData, n.UTCOffset = z.release, z.offset(e.NominalAt)
	e.Note = &n
}

// Count returns how many nominal instants lie in [from, to), or limit if there are more. It takes constant time for an
// interval and time proportional to the result for cron.
func (p *Plan) Count(from, to time.Time, limit int) int {
	lo, hi := max(ceilMS(from), p.lo), min(ceilMS(to), p.hi)
	if lo >= hi || limit <= 0 {
		return 0
	}
	if p.kind == job.ScheduleInterval {
		first, ok := p.first(lo)
		if !ok || first >= hi {
			return 0
		}
		return int(min(int64(limit), (hi-1-first)/p.every+1))
	}
	n := 0
	for at, ok := p.first(lo); ok && at < hi && n < limit; at, ok = p.first(at + 1) {
		n++
	}
	return n
}

// Nth returns the nominal instant that n-1 others precede in [from, to), or false if fewer than n lie there. It takes constant time for an
// interval and time proportional to n for cron.
func (p *Plan) Nth(from, to time.Time, n int) (time.Time, bool) {
	at, ok := p.first(ceilMS(from))
	if p.kind == job.ScheduleInterval && n > 1 && ok {
		if int64(n-1) > (maxMS-at)/p.every {
			return time.Time{}, false
		}
		at, ok = p.first(at + int64(n-1)*p.every)
	} else {
		for ; ok && n > 1 && at < ceilMS(to); n-- {
			at, ok = p.first(at + 1)
		}
	}
	return instant(at, ok && n >= 1 && at < ceilMS(to))
}

// first returns the first nominal instant at or after ms.
func (p *Plan) first(ms int64) (int64, bool) {
	ms = max(ms, p.lo)
	if ms >= p.hi || p.kind == job.ScheduleAfter {
		return 0, false
	}
	at, ok := int64(0), true
	switch p.kind {
	case job.ScheduleOneShot:
		at, ok = p.runAt, p.runAt >= ms
	case job.ScheduleInterval:
		at = p.anchor + (ms-p.anchor+p.every-1)/p.every*p.every
	case job.ScheduleCron:
		at, ok = p.cron.first((ms + 999) / 1000)
		at *= 1000
	}
	return at, ok && at < p.hi
}

// last returns the last nominal instant at or before ms.
func (p *Plan) last(ms int64) (int64, bool) {
	ms = min(ms, p.hi-1)
	if ms < p.lo || p.kind == job.ScheduleAfter {
		return 0, false
	}
	at, ok := int64(0), true
	switch p.kind {
	case job.ScheduleOneShot:
		at, ok = p.runAt, p.runAt <= ms
	case job.ScheduleInterval:
		at = ms - (ms-p.anchor)%p.every
	case job.ScheduleCron:
		at, ok = p.cron.last(ms / 1000)
		at *= 1000
	}
	return at, ok && at >= p.lo
}

// floorMS returns the last whole millisecond at or before t; times outside 1970 to 2199 become the nearest millisecond
// that is still outside, so that no arithmetic on the result overflows.
func floorMS(t time.Time) int64 {
	switch sec := t.Unix(); {
	case sec < minSec:
		return minMS - 1
	case sec >= maxSec:
		return maxMS
	}
	return t.UnixMilli()
}

// ceilMS returns the first whole millisecond at or after t, limited as floorMS limits it.
func ceilMS(t time.Time) int64 {
	ms := floorMS(t)
	if ms >= minMS && ms < maxMS && t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return ms
}

func toTime(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func instant(ms int64, ok bool) (time.Time, bool) {
	if !ok {
		return time.Time{}, false
	}
	return toTime(ms), true
}
