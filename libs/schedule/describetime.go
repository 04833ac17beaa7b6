package schedule

import (
	"fmt"
	"time"
)

// timePhrase is the part of a description that gives the times of a day.
type timePhrase struct {
	text   string
	clock  bool // it lists clock times
	ranged bool // it ends in a clause of its own, ", from … through …"
}

// A list of up to fewTimes clock times is clearer than any rule; one of up to someTimes still beats nested lists.
const (
	fewTimes  = 4
	someTimes = 8
	fewRanges = 3
)

// times describes the times of a matching day. If every day of all years matches, a range of hours may run past
// midnight; otherwise "from 22:00 through 02:00 on Monday" would be wrong about Monday's first hours.
func (m *matcher) times(daily bool) timePhrase {
	count := size(m.hour) * size(m.minute) * size(m.second)
	if count <= fewTimes {
		return m.clockTimes()
	}
	if phrase, ok := m.regularTimes(daily); ok {
		return phrase
	}
	if count <= someTimes {
		return m.clockTimes()
	}
	return timePhrase{text: m.nestedTimes()}
}

// clockTimes lists every time: "At 09:00 and 17:30".
func (m *matcher) clockTimes() timePhrase {
	var list []string
	for _, h := range values(m.hour) {
		for _, mi := range values(m.minute) {
			for _, s := range values(m.second) {
				list = append(list, m.clock(h, mi, s))
			}
		}
	}
	return timePhrase{text: "At " + joined(list, "and"), clock: true}
}

// clock shows seconds only where the expression has any but 0.
func (m *matcher) clock(h, mi, s int) string {
	if m.second == 1 {
		return fmt.Sprintf("%02d:%02d", h%24, mi)
	}
	return fmt.Sprintf("%02d:%02d:%02d", h%24, mi, s)
}

// regularTimes describes times that are evenly spaced within ranges of hours: "Every 15 minutes, from 09:00 through
// 17:45".
func (m *matcher) regularTimes(daily bool) (timePhrase, bool) {
	every, ranges := m.spacing(), m.hourRanges(daily)
	if every == time.Hour {
		hours := values(m.hour)
		if step := stepOf(hours); step > 1 {
			every, ranges = time.Duration(step)*time.Hour, [][2]int{{hours[0], hours[len(hours)-1]}}
		}
		for _, r := range ranges {
			if r[0] == r[1] {
				return timePhrase{}, false
			}
		}
	}
	if every == 0 || len(ranges) > fewRanges {
		return timePhrase{}, false
	}
	text := "Every " + period(every)
	if offset, ok := m.offset(every); ok {
		return timePhrase{text: text + offset}, true
	}
	var list []string
	for _, r := range ranges {
		first := m.clock(r[0], lowest(m.minute), lowest(m.second))
		last := m.clock(r[1], highest(m.minute), highest(m.second))
		list = append(list, "from "+first+" through "+last)
	}
	return timePhrase{text: text + ", " + joined(list, "and"), ranged: true}, true
}

// spacing returns the distance between the times within an hour if it continues across consecutive hours, or 0 if they are not
// evenly spaced.
func (m *matcher) spacing() time.Duration {
	if step := cycleStep(m.second, 60); step > 0 && size(m.minute) == 60 {
		return time.Duration(step) * time.Second
	}
	if size(m.second) > 1 {
		return 0
	}
	if size(m.minute) == 1 {
		return time.Hour
	}
	if size(m.hour) == 1 { // there is no next hour to continue to
		return time.Duration(stepOf(values(m.minute))) * time.Minute
	}
	return time.Duration(cycleStep(m.minute, 60)) * time.Minute
}

// hourRanges returns the hours as ranges; the second end may lie beyond 23.
func (m *matcher) hourRanges(daily bool) [][2]int {
	hours := values(m.hour)
	if daily {
		hours = unbroken(hours, 24)
	}
	return rangesOf(hours)
}

// offset returns what follows "Every minute" and the like instead of a range, if that is enough: the times fill the day, and as a
// rhythm they also fill it where local time jumps.
func (m *matcher) offset(every time.Duration) (string, bool) {
	mi, s := lowest(m.minute), lowest(m.second)
	switch {
	case size(m.hour) != 24 || !m.rhythm:
		return "", false
	case mi == 0 && s == 0:
		return "", true
	case every == time.Minute:
		return fmt.Sprintf(" at second %d", s), true
	case every == time.Hour && s == 0:
		return fmt.Sprintf(" at minute %d", mi), true
	}
	return "", false
}

// nestedTimes describes any times, field by field: "At minutes 5 and 17 of hours 9 through 12".
func (m *matcher) nestedTimes() string {
	minutes, hours := counted("minute", values(m.minute)), counted("hour", values(m.hour))
	if size(m.minute) == 60 {
		minutes = "every minute"
	}
	if size(m.hour) == 24 {
		hours = "every hour"
	}
	if minutes != "every minute" || hours != "every hour" {
		minutes += " of " + hours
	}
	step := cycleStep(m.second, 60)
	switch {
	case m.second == 1 && size(m.minute) == 60:
		return "Every minute of " + hours
	case m.second == 1:
		return "At " + minutes
	case step > 0 && lowest(m.second) == 0:
		return "Every " + period(time.Duration(step)*time.Second) + " of " + minutes
	}
	return "At " + counted("second", values(m.second)) + " of " + minutes
}
