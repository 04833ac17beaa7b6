package schedule

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const anyMonth = "the month"

// describe describes the times and the days on which the expression matches, without the zone.
func (m *matcher) describe() string {
	months, years := monthNames(m.month), m.yearNames()
	days, named := m.days(months)
	daily := days == "" && months == "" && years == ""
	phrase := m.times(daily)
	text := phrase.text
	switch {
	case days == "" && phrase.clock:
		text += " every day"
	case days == "":
	case phrase.ranged || !strings.HasPrefix(days, "on "):
		text += ", " + days
	default:
		text += " " + days
	}
	if months != "" && !named {
		if phrase.ranged || days != "" {
			text += ","
		}
		text += " in " + months
	}
	if years != "" {
		text += ", in " + years
	}
	return text
}

// days describes the matching days of a month, or returns "" if that is every day. It reports whether it has named the months,
// which it does where that leaves no doubt what they belong to: "on day 1 of January".
func (m *matcher) days(months string) (text string, named bool) {
	everyDate, everyWeekday := m.dom == upTo(31)&^1, m.dow == upTo(6)
	both := m.domStar || m.dowStar // both must match
	month := anyMonth
	if months != "" {
		month = months
	}
	switch {
	case everyDate && everyWeekday || !both && (everyDate || everyWeekday):
		return "", false
	case everyWeekday:
		return "on " + m.dates(month), true
	case everyDate:
		return m.onWeekdays(month)
	case both:
		return "on " + m.dates(anyMonth) + ", only if that is " + m.weekdays(anyMonth, "or"), false
	}
	return "on " + m.dates(anyMonth) + " or on " + m.weekdays(anyMonth, "and"), false
}

// onWeekdays is days for the day of week alone.
func (m *matcher) onWeekdays(month string) (text string, named bool) {
	if m.dow == 0 {
		return "on " + m.weekdays(month, "and"), true
	}
	text = m.weekdays(anyMonth, "and")
	if ranges := rangesOf(unbroken(values(m.dow), 7)); !m.dowNthSet && len(ranges) == 1 && size(m.dow) > 2 {
		return text, false // Monday through Friday
	}
	return "on " + text, false
}

// dates describes the day of month.
func (m *matcher) dates(month string) string {
	var list []string
	if m.dom != 0 {
		list = append(list, counted("day", values(m.dom)))
	}
	if m.domNearest != 0 {
		list = append(list, fmt.Sprintf("the weekday nearest day %d", lowest(m.domNearest)))
	}
	if m.domLastWeekday {
		list = append(list, "the last weekday")
	}
	for _, k := range values(m.domFromEnd) {
		switch k {
		case 0:
			list = append(list, "the last day")
		case 1:
			list = append(list, "the day before the last day")
		default:
			list = append(list, fmt.Sprintf("the day %d days before the last day", k))
		}
	}
	return joined(list, "and") + " of " + month
}

// weekdays describes the day of week.
func (m *matcher) weekdays(month, conjunction string) string {
	list := spans(unbroken(values(m.dow), 7), weekdayName)
	for k, set := range m.dowNth {
		for _, d := range values(set) {
			ordinal := [...]string{"first", "second", "third", "fourth", "fifth"}[k]
			list = append(list, "the "+ordinal+" "+weekdayName(d)+" of "+month)
		}
	}
	for _, d := range values(m.dowLast) {
		list = append(list, "the last "+weekdayName(d)+" of "+month)
	}
	return joined(list, conjunction)
}

func weekdayName(d int) string { return time.Weekday(d % 7).String() }

func monthName(i int) string { return time.Month(i%12 + 1).String() } // January is 0 and 12

// monthNames names the months after "in" or "of", or returns "" for all.
func monthNames(set uint64) string {
	list := values(set >> 1)
	if len(list) == 12 {
		return ""
	}
	if text, ok := stepped("month", list, monthName); ok {
		return text
	}
	text := joined(spans(unbroken(list, 12), monthName), "and")
	if strings.Contains(text, " through ") {
		return "the months " + text
	}
	return text
}

// yearNames names the years after "in", or returns "" for all.
func (m *matcher) yearNames() string {
	var list []int
	for i, word := range m.year {
		for ; word != 0; word &= word - 1 {
			list = append(list, minYear+64*i+bits.TrailingZeros64(word))
		}
	}
	if len(list) == maxYear-minYear+1 {
		return ""
	}
	if text, ok := stepped("year", list, strconv.Itoa); ok {
		return text
	}
	return joined(spans(list, strconv.Itoa), "and")
}
