package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// Describe describes a schedule in a sentence of plain English, without a full stop: "At 09:00 on Monday, America/Los_Angeles
// time". It uses the compiled schedule, so it says what will happen, not what the author may have meant: values instead of steps
// that do not divide their field, and for H the values of this job, marked "(spread by H)". It does not cover the policies at jumps
// of local time; Preview does, day by day. Its errors are those of Compile, and whatever compiles has a description.
func Describe(s job.Schedule, jobID string) (string, error) {
	p, err := Compile(s, jobID)
	if err != nil {
		return "", err
	}
	if p.kind == job.ScheduleAfter {
		return after(s), nil
	}
	return p.core() + p.limits(s), nil
}

// after describes what a job follows.
func after(s job.Schedule) string {
	ends := map[job.On]string{job.OnSuccess: " has succeeded", job.OnFailure: " has failed for good", job.OnAny: " has ended"}
	parts := make([]string, len(s.After))
	for i, p := range s.After {
		parts[i] = p.Named + ends[p.On]
	}
	if s.All {
		return "After " + strings.Join(parts, ", and ") + ", each for the same instant"
	}
	return "After " + strings.Join(parts, ", or ")
}

// core describes the schedule without its limits.
func (p *Plan) core() string {
	switch p.kind {
	case job.ScheduleOneShot:
		return "Once, at " + toTime(p.runAt).Format(time.RFC3339Nano)
	case job.ScheduleInterval:
		return fmt.Sprintf("Every %s, counted from %s", period(time.Duration(p.every)*time.Millisecond), moment(p.anchor))
	}
	text := p.cron.match.describe()
	if p.cron.match.spread {
		text += " (spread by H)"
	}
	if name := p.zone.loc.String(); name != "UTC" {
		return text + ", " + name + " time"
	}
	return text + ", UTC"
}

// limits describes start_at, end_at, max_occurrences and jitter, where they have a meaning that core does not convey.
func (p *Plan) limits(s job.Schedule) string {
	text := ""
	if p.kind == job.ScheduleCron && !s.StartAt.IsZero() {
		text += ", not before " + moment(p.lo)
	}
	if p.kind != job.ScheduleOneShot {
		if p.hi < maxMS {
			text += ", ending before " + moment(p.hi)
		}
		switch {
		case s.MaxOccurrences == 1:
			text += ", at most once"
		case s.MaxOccurrences > 1:
			text += fmt.Sprintf(", at most %d times", s.MaxOccurrences)
		}
	}
	if s.Spread > 0 {
		text += ", up to " + length(s.Spread) + " later at full hours of UTC"
	}
	if s.Jitter > 0 {
		text += ", up to " + length(s.Jitter) + " later"
	}
	return text
}

func moment(ms int64) string { return toTime(ms).Format("2006-01-02 15:04:05.999 UTC") }

// units are those in which a length of time is written. A day is not one of them, because local days differ.
var units = [...]struct {
	size time.Duration
	name string
}{{time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}, {time.Millisecond, "millisecond"}}

// length formats whole milliseconds, such as "1 hour 30 minutes".
func length(d time.Duration) string {
	text := ""
	for _, unit := range units {
		n := d / unit.size
		d %= unit.size
		if n == 0 {
			continue
		}
		if text != "" {
			text += " "
		}
		text += fmt.Sprintf("%d %s", n, unit.name)
		if n > 1 {
			text += "s"
		}
	}
	return text
}

// period is length after "every": "minute" instead of "1 minute".
func period(d time.Duration) string {
	for _, unit := range units {
		if d == unit.size {
			return unit.name
		}
	}
	return length(d)
}
