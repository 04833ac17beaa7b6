package schedule

import (
	"fmt"
	"strings"
)

// field is a position in an expression of seven fields.
type field int

const (
	fieldSecond field = iota
	fieldMinute
	fieldHour
	fieldDom
	fieldMonth
	fieldDow
	fieldYear
)

// rule is what a field may contain.
type rule struct {
	name     string
	min, max int
	names    string // three letters for each value from min on
	usage    string // the values in words
}

func ruleOf(f field) rule {
	return [...]rule{
		fieldSecond: {"second", 0, 59, "", "numbers from 0 to 59, or H"},
		fieldMinute: {"minute", 0, 59, "", "numbers from 0 to 59, or H"},
		fieldHour:   {"hour", 0, 23, "", "numbers from 0 to 23, or H"},
		fieldDom:    {"day of month", 1, 31, "", "numbers from 1 to 31, L, L-3, LW, 15W or H"},
		fieldMonth:  {"month", 1, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC", "numbers from 1 to 12, JAN to DEC or H"},
		fieldDow:    {"day of week", 0, 6, "SUNMONTUEWEDTHUFRISAT", "numbers from 0 to 7, SUN to SAT, 5#3, 5L or H"},
		fieldYear:   {"year", minYear, maxYear, "", "numbers from 1970 to 2199"},
	}[f]
}

// bitset holds the values of a field, years from 1970 on.
type bitset [4]uint64

func (b *bitset) add(v int)      { b[v>>6] |= 1 << (v & 63) }
func (b *bitset) has(v int) bool { return b[v>>6]&(1<<(v&63)) != 0 }

// fieldParser collects the values of one field, up to its first fault.
type fieldParser struct {
	rule
	which field
	jobID string // what H hashes
	fault *Error

	spread      bool // there is an H
	values      bitset
	fromEnd     uint64    // day of month: bit k is L-k
	nearest     uint64    // day of month: bit d is dW
	lastWeekday bool      // day of month: LW
	nth         [5]uint64 // day of week: bit d of nth[k-1] is d#k
	last        uint64    // day of week: bit d is dL
}

func (p *fieldParser) fail(format string, args ...any) {
	p.fault = &Error{"cron_expr", CodeInvalid, fmt.Sprintf("In the %s field, ", p.name) + fmt.Sprintf(format, args...)}
}

func (p *fieldParser) field(text string) {
	if text == "?" {
		if p.which != fieldDom && p.which != fieldDow {
			p.fail("use * for any value; ? is for the day fields.")
			return
		}
		text = "*"
	}
	items := strings.Split(text, ",")
	for _, item := range items {
		switch {
		case item == "":
			p.fail("put one value before and after each comma.")
		case item[0] == 'H':
			p.hashed(item)
		case p.which == fieldDom && (item[0] == 'L' || strings.HasSuffix(item, "W")):
			p.daySpecial(item, len(items) == 1)
		case p.which == fieldDow && strings.Contains(item, "#"):
			p.nthWeekday(item)
		case p.which == fieldDow && strings.HasSuffix(item, "L"):
			if d, ok := p.value(strings.TrimSuffix(item, "L")); ok {
				p.last |= 1 << (d % 7)
			}
		default:
			p.span(item)
		}
		if p.fault != nil {
			return
		}
	}
}

// daySpecial parses L, L-3, LW and 15W.
func (p *fieldParser) daySpecial(item string, alone bool) {
	before, isWeekday := strings.CutSuffix(item, "W")
	fromEnd, isFromEnd := strings.CutPrefix(item, "L-")
	switch {
	case isWeekday && !alone:
		p.fail("use W on its own, not in a list.")
	case item == "L":
		p.fromEnd |= 1
	case item == "LW":
		p.lastWeekday = true
	case isFromEnd:
		// L-30 is the first of a month of 31 days; L-0 would be a second spelling of L.
		if k, ok := number(fromEnd); ok && k >= 1 && k <= 30 {
			p.fromEnd |= 1 << k
		} else {
			p.fail("use L-1 to L-30 to count from the last day.")
		}
	case isWeekday:
		if d, ok := p.value(before); ok {
			p.nearest |= 1 << d
		}
	default:
		p.badValue()
	}
}

// nthWeekday parses 5#3.
func (p *fieldParser) nthWeekday(item string) {
	before, after, _ := strings.Cut(item, "#")
	d, ok := p.value(before)
	if !ok {
		return
	}
	k, ok := number(after)
	if !ok || k < 1 || k > 5 {
		p.fail("use #1 to #5 after the day.")
		return
	}
	p.nth[k-1] |= 1 << (d % 7)
}

// span parses *, a, a-b and each of them with a step.
func (p *fieldParser) span(item string) {
	base, stepText, stepped := strings.Cut(item, "/")
	step := 1
	if stepped {
		var ok bool
		if step, ok = p.step(stepText, p.period()); !ok {
			return
		}
	}
	lo, hi := p.min, p.max
	if base != "*" {
		first, last, ranged := strings.Cut(base, "-")
		var ok bool
		if lo, ok = p.value(first); !ok {
			return
		}
		switch {
		case ranged:
			if hi, ok = p.value(last); !ok {
				return
			}
		case !stepped:
			hi = lo
		}
	}
	if lo, hi = p.unwrap(lo, hi); lo > hi {
		p.fail("put the earlier year of a range first.")
		return
	}
	p.run(lo, hi, step)
}

// period is how many values the field has.
func (p *fieldParser) period() int { return p.max - p.min + 1 }

// step parses what follows the slash.
func (p *fieldParser) step(s string, limit int) (int, bool) {
	step, ok := number(s)
	if !ok || step < 1 || step > limit {
		p.fail("give a step from 1 to %d after the slash.", limit)
		return 0, false
	}
	return step, true
}

// run sets every step-th value from lo to hi. Where a range wraps, hi is above the greatest value.
func (p *fieldParser) run(lo, hi, step int) {
	for v := lo; v <= hi; v += step {
		p.set(p.min + (v-p.min)%p.period())
	}
}

// unwrap lets a range that wraps run past the greatest value. Years do not wrap.
func (p *fieldParser) unwrap(lo, hi int) (int, int) {
	if lo == 7 && p.which == fieldDow { // a range that begins on Sunday begins the week: 7-2 is 0-2, 7-7 is 0
		lo, hi = 0, hi%7
	}
	if lo > hi && p.which != fieldYear {
		hi += p.period()
	}
	return lo, hi
}

func (p *fieldParser) set(v int) {
	if p.which == fieldYear {
		v -= minYear
	}
	p.values.add(v)
}

// value parses a number or name of the field. The day of week may be 7.
func (p *fieldParser) value(s string) (int, bool) {
	if len(s) == 3 {
		for i := 0; i < len(p.names); i += 3 {
			if p.names[i:i+3] == s {
				return p.min + i/3, true
			}
		}
	}
	v, ok := number(s)
	if ok && v >= p.min && (v <= p.max || v == 7 && p.which == fieldDow) {
		return v, true
	}
	p.badValue()
	return 0, false
}

func (p *fieldParser) badValue() { p.fail("use %s.", p.usage) }

// number parses one to four digits: no sign, no space, nothing that could overflow.
func number(s string) (int, bool) {
	if len(s) < 1 || len(s) > 4 {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}
