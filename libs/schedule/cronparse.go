package schedule

import (
	"fmt"
	"math/bits"
	"strings"
)

// maxExprLen is the longest expression in bytes; it bounds the work of parsing.
const maxExprLen = 256

// parseCron parses an expression, with H for the job with that id. It returns the faults of the fields, at most one each.
func parseCron(expr, jobID string) (*matcher, faults) {
	var f faults
	if len(expr) > maxExprLen {
		f.add("cron_expr", fmt.Sprintf("Use at most %d bytes.", maxExprLen))
		return nil, f
	}
	for i := range len(expr) {
		if c := expr[i]; c != '\t' && (c < ' ' || c > '~') {
			f.add("cron_expr", "Use printable ASCII characters only, with spaces or tabs between the fields.")
			return nil, f
		}
	}
	expr = strings.Trim(strings.ToUpper(expr), " \t")
	if strings.HasPrefix(expr, "TZ=") || strings.HasPrefix(expr, "CRON_TZ=") {
		f.add("cron_expr", "Name the time zone in the member timezone instead of in the expression.")
		return nil, f
	}
	if strings.HasPrefix(expr, "@") {
		if expr = expand(expr, &f); len(f) > 0 {
			return nil, f
		}
	}
	return parseFields(strings.FieldsFunc(expr, func(r rune) bool { return r == ' ' || r == '\t' }), jobID)
}

// expand replaces a macro by its fields.
func expand(macro string, f *faults) string {
	switch macro {
	case "@YEARLY", "@ANNUALLY":
		return "0 0 1 1 *"
	case "@MONTHLY":
		return "0 0 1 * *"
	case "@WEEKLY":
		return "0 0 * * 0"
	case "@DAILY", "@MIDNIGHT":
		return "0 0 * * *"
	case "@HOURLY":
		return "0 * * * *"
	}
	if strings.HasPrefix(macro, "@EVERY") || strings.HasPrefix(macro, "@REBOOT") {
		f.add("cron_expr", "Use a schedule of type interval for a fixed period; cron has no @every and no @reboot here.")
		return ""
	}
	f.add("cron_expr", "Use one of the macros @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly, or write out the fields.")
	return ""
}

func parseFields(fields []string, jobID string) (*matcher, faults) {
	var f faults
	switch len(fields) {
	case 5:
		fields = append(append([]string{"0"}, fields...), "*")
	case 6:
		fields = append(append([]string{}, fields...), "*")
	case 7:
	default:
		f.add("cron_expr", "Give 5 fields, or 6 with seconds first, or 7 with seconds first and the year last.")
		return nil, f
	}
	m := &matcher{}
	for i, text := range fields {
		if fault := m.setField(field(i), text, jobID); fault != nil {
			f = append(f, fault)
		}
	}
	if len(f) > 0 {
		return nil, f
	}
	m.firstSecond = bits.TrailingZeros64(m.second)
	m.firstMinute = bits.TrailingZeros64(m.minute)
	m.lastSecond = bits.Len64(m.second) - 1
	m.lastMinute = bits.Len64(m.minute) - 1
	if _, ok := m.next(minSec); !ok {
		f.add("cron_expr", neverMatches)
		return nil, f
	}
	return m, nil
}

const neverMatches = "Choose a time that exists: none from 1970 to 2199 matches this expression."

// setField parses one field into m.
func (m *matcher) setField(which field, text, jobID string) *Error {
	p := fieldParser{rule: ruleOf(which), which: which, jobID: jobID}
	p.field(text)
	if p.fault != nil {
		return p.fault
	}
	m.spread = m.spread || p.spread
	starred := text == "?" || strings.HasPrefix(text, "*")
	switch which {
	case fieldSecond:
		m.second = p.values[0]
	case fieldMinute:
		m.minute = p.values[0]
	case fieldHour:
		m.hour = p.values[0]
		m.rhythm = starred || strings.Contains(text, "/")
	case fieldDom:
		m.dom = p.values[0]
		m.domFromEnd, m.domNearest, m.domLastWeekday = p.fromEnd, p.nearest, p.lastWeekday
		m.domStar = starred
	case fieldMonth:
		m.month = p.values[0]
	case fieldDow:
		m.dow = p.values[0]
		m.dowNth, m.dowLast = p.nth, p.last
		m.dowNthSet = p.nth != [5]uint64{} || p.last != 0
		m.dowStar = starred
	case fieldYear:
		m.year = p.values
	}
	return nil
}
