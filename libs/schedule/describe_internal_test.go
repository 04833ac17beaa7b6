package schedule

import (
	"testing"

	"pgregory.net/rapid"
)

// drawSet draws a set of values from low to high in one of the shapes that a description distinguishes.
func drawSet(t *rapid.T, name string, low, high int) uint64 {
	full := upTo(high) &^ (1<<low - 1)
	a, b := rapid.IntRange(low, high).Draw(t, name+" a"), rapid.IntRange(low, high).Draw(t, name+" b")
	set := uint64(0)
	switch rapid.IntRange(0, 5).Draw(t, name+" shape") {
	case 0:
		return full
	case 1:
		return 1 << a
	case 2:
		step := rapid.IntRange(1, high-low).Draw(t, name+" step")
		for v := min(a, b); v <= max(a, b); v += step {
			set |= 1 << v
		}
		return set
	case 3:
		step := rapid.SampledFrom([]int{1, 2, 3, 5, 10, 15, 20, 30}).Draw(t, name+" step")
		for v := low + (a-low)%step; v <= high; v += step {
			set |= 1 << v
		}
		return set
	case 4: // a range, which wraps if a is greater
		for v := a; v != b; {
			set |= 1 << v
			if v++; v > high {
				v = low
			}
		}
		return set | 1<<b
	}
	return rapid.Uint64().Draw(t, name+" bits")&full | 1<<a
}

// redraw replaces the values of one field.
func (m *matcher) redraw(t *rapid.T, which field) {
	switch which {
	case fieldSecond:
		m.second = drawSet(t, "second", 0, 59)
	case fieldMinute:
		m.minute = drawSet(t, "minute", 0, 59)
	case fieldHour:
		m.hour = drawSet(t, "hour", 0, 23)
	case fieldDom:
		m.dom, m.domFromEnd, m.domNearest, m.domLastWeekday = 0, 0, 0, false
		switch rapid.IntRange(0, 4).Draw(t, "day of month") {
		case 0:
			m.domNearest = 1 << rapid.IntRange(1, 31).Draw(t, "nearest")
		case 1:
			m.domLastWeekday = true
		case 2:
			m.domFromEnd = drawSet(t, "from end", 0, 30)
		default:
			m.dom = drawSet(t, "day of month", 1, 31)
		}
	case fieldMonth:
		m.month = drawSet(t, "month", 1, 12)
	case fieldDow:
		m.dow, m.dowNth, m.dowLast = 0, [5]uint64{}, 0
		switch rapid.IntRange(0, 3).Draw(t, "day of week") {
		case 0:
			m.dowNth[rapid.IntRange(0, 4).Draw(t, "nth")] = drawSet(t, "weekday", 0, 6)
		case 1:
			m.dowLast = drawSet(t, "weekday", 0, 6)
		default:
			m.dow = drawSet(t, "weekday", 0, 6)
		}
		m.dowNthSet = m.dowNth != [5]uint64{} || m.dowLast != 0
	case fieldYear:
		m.year = bitset{drawSet(t, "year", 0, 59)}
	}
}

// sameTimes reports whether two expressions match the same civil seconds of the years 1970 to 2029, which have every month in all
// its shapes.
func sameTimes(a, b *matcher) bool {
	if a.second != b.second || a.minute != b.minute || a.hour != b.hour {
		return false
	}
	for year := minYear; year < 2030; year++ {
		for month := 1; month <= 12; month++ {
			for day := range 32 {
				if day >= 1 && day <= daysIn(year, month) && a.dayMatches(year, month, day) != b.dayMatches(year, month, day) {
					return false
				}
			}
		}
	}
	return true
}

// Expressions that match different times have different descriptions: nothing is left out, and no phrase has two meanings.
func TestDescriptionsTellExpressionsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a matcher
		for which := fieldSecond; which <= fieldYear; which++ {
			a.redraw(t, which)
		}
		a.rhythm = rapid.Bool().Draw(t, "rhythm")
		a.domStar = rapid.Bool().Draw(t, "day of month starred")
		a.dowStar = rapid.Bool().Draw(t, "day of week starred")
		b := a
		b.redraw(t, rapid.SampledFrom([]field{fieldSecond, fieldMinute, fieldHour, fieldDom, fieldMonth, fieldDow, fieldYear}).Draw(t, "changed"))
		if rapid.Bool().Draw(t, "star moves") {
			b.domStar = !b.domStar
		}
		if a.describe() == b.describe() && !sameTimes(&a, &b) {
			t.Fatalf("both %s:\n%+v\n%+v", a.describe(), a, b)
		}
	})
}

// Each set of weekdays and of months has its own words.
func TestSetsOfDaysAndMonthsHaveTheirOwnWords(t *testing.T) {
	words := map[string]uint64{}
	for set := uint64(2); set < 1<<13; set += 2 {
		text := monthNames(set)
		if other, ok := words[text]; ok {
			t.Fatalf("%b and %b are both %q", set, other, text)
		}
		words[text] = set
	}
	for set := uint64(1); set < 1<<7; set++ {
		m := matcher{dow: set}
		text := m.weekdays(anyMonth, "and")
		if other, ok := words[text]; ok {
			t.Fatalf("%b and %b are both %q", set, other, text)
		}
		words[text] = set
	}
}
