package schedule

import "math/bits"

// matcher is a parsed expression: which civil seconds match. It knows nothing about zones.
type matcher struct {
	second, minute, hour, month uint64 // bit v is value v
	year                        bitset // bit y is 1970+y

	dom, domFromEnd, domNearest uint64 // bit d is day d, L-d, dW
	domLastWeekday              bool   // LW
	dow                         uint64 // bit d is weekday d, Sunday as 0
	dowNth                      [5]uint64
	dowLast                     uint64
	dowNthSet                   bool // one of dowNth and dowLast is not empty
	domStar, dowStar            bool // the field counts as not set

	rhythm bool // the hour field is * or a step: see the package comment on jumps
	spread bool // a field uses H

	firstSecond, firstMinute, lastSecond, lastMinute int
}

// matches reports whether civil second c matches.
func (m *matcher) matches(c int64) bool {
	next, ok := m.next(c)
	return ok && next == c
}

// next returns the first matching civil second at or after c.
func (m *matcher) next(c int64) (int64, bool) {
	days, second := splitCivil(c)
	if days < 0 {
		days, second = 0, 0
	}
	year, month, day := dateOf(days)
	if m.dayMatches(year, month, day) {
		if s, ok := m.nextInDay(second); ok {
			return int64(days)*secondsPerDay + int64(s), true
		}
	}
	days, ok := m.nextDay(year, month, day+1)
	if !ok {
		return 0, false
	}
	s, _ := m.nextInDay(0)
	return int64(days)*secondsPerDay + int64(s), true
}

// prev returns the last matching civil second at or before c.
func (m *matcher) prev(c int64) (int64, bool) {
	days, second := splitCivil(c)
	if days < 0 {
		return 0, false
	}
	year, month, day := dateOf(days)
	if m.dayMatches(year, month, day) {
		if s, ok := m.prevInDay(second); ok {
			return int64(days)*secondsPerDay + int64(s), true
		}
	}
	days, ok := m.prevDay(year, month, day-1)
	if !ok {
		return 0, false
	}
	s, _ := m.prevInDay(secondsPerDay - 1)
	return int64(days)*secondsPerDay + int64(s), true
}

// nextInDay returns the first matching second of a day at or after s.
func (m *matcher) nextInDay(s int) (int, bool) {
	h, mi, se := s/3600, s/60%60, s%60
	if m.hour&(1<<h) != 0 {
		if m.minute&(1<<mi) != 0 {
			if rest := m.second >> se; rest != 0 {
				return s + bits.TrailingZeros64(rest), true
			}
		}
		if rest := m.minute >> (mi + 1); rest != 0 {
			return h*3600 + (mi+1+bits.TrailingZeros64(rest))*60 + m.firstSecond, true
		}
	}
	rest := m.hour >> (h + 1)
	if rest == 0 {
		return 0, false
	}
	return (h+1+bits.TrailingZeros64(rest))*3600 + m.firstMinute*60 + m.firstSecond, true
}

// prevInDay returns the last matching second of a day at or before s.
func (m *matcher) prevInDay(s int) (int, bool) {
	h, mi, se := s/3600, s/60%60, s%60
	if m.hour&(1<<h) != 0 {
		if m.minute&(1<<mi) != 0 {
			if rest := m.second & upTo(se); rest != 0 {
				return h*3600 + mi*60 + bits.Len64(rest) - 1, true
			}
		}
		if rest := m.minute & (1<<mi - 1); rest != 0 {
			return h*3600 + (bits.Len64(rest)-1)*60 + m.lastSecond, true
		}
	}
	rest := m.hour & (1<<h - 1)
	if rest == 0 {
		return 0, false
	}
	return (bits.Len64(rest)-1)*3600 + m.lastMinute*60 + m.lastSecond, true
}

// nextDay returns the first matching day on or after a date whose day may be one past the end of its month.
func (m *matcher) nextDay(year, month, day int) (int, bool) {
	for year <= maxYear {
		if year < minYear || !m.year.has(year-minYear) {
			year, month, day = year+1, 1, 1
			continue
		}
		for ; month <= 12; month, day = month+1, 1 {
			if m.month&(1<<month) == 0 {
				continue
			}
			if rest := m.daysOf(year, month) >> day; rest != 0 {
				return dayNumber(year, month, day+bits.TrailingZeros64(rest)), true
			}
		}
		year, month, day = year+1, 1, 1
	}
	return 0, false
}

// prevDay returns the last matching day on or before a date whose day may be 0.
func (m *matcher) prevDay(year, month, day int) (int, bool) {
	for year >= minYear {
		if year > maxYear || !m.year.has(year-minYear) {
			year, month, day = year-1, 12, 31
			continue
		}
		for ; month >= 1; month, day = month-1, 31 {
			if m.month&(1<<month) == 0 {
				continue
			}
			if rest := m.daysOf(year, month) & upTo(day); rest != 0 {
				return dayNumber(year, month, bits.Len64(rest)-1), true
			}
		}
		year, month, day = year-1, 12, 31
	}
	return 0, false
}

func (m *matcher) dayMatches(year, month, day int) bool {
	if year < minYear || year > maxYear || !m.year.has(year-minYear) || m.month&(1<<month) == 0 {
		return false
	}
	return m.daysOf(year, month)&(1<<day) != 0
}

// daysOf returns the matching days of a month, bit d for day d.
func (m *matcher) daysOf(year, month int) uint64 {
	length := daysIn(year, month)
	valid := upTo(length) &^ 1
	if m.domStar && m.dowStar && m.dom&valid == valid && m.dow == upTo(6) {
		return valid
	}
	first := weekday(dayNumber(year, month, 1))
	dom, dow := m.byDate(length, first), m.byWeekday(length, first)
	if m.domStar || m.dowStar {
		return dom & dow & valid
	}
	return (dom | dow) & valid
}

// byDate returns the days that the day of month field names; first is the weekday of day 1.
func (m *matcher) byDate(length, first int) uint64 {
	days := m.dom
	for rest := m.domFromEnd; rest != 0; rest &= rest - 1 {
		if d := length - bits.TrailingZeros64(rest); d >= 1 {
			days |= 1 << d
		}
	}
	if m.domNearest != 0 {
		// W stands alone, so there is one such day.
		if d := bits.TrailingZeros64(m.domNearest); d <= length {
			days |= 1 << nearestWeekday(d, length, first)
		}
	}
	if m.domLastWeekday {
		days |= 1 << nearestWeekday(length, length, first)
	}
	return days
}

// nearestWeekday returns the day from Monday to Friday nearest to day d that lies in the same month.
func nearestWeekday(d, length, first int) int {
	switch (first + d - 1) % 7 {
	case 6: // Saturday
		if d == 1 {
			return 3
		}
		return d - 1
	case 0: // Sunday
		if d == length {
			return d - 2
		}
		return d + 1
	}
	return d
}

// byWeekday returns the days that the day of week field names.
func (m *matcher) byWeekday(length, first int) uint64 {
	const everyWeek = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28
	days := fromWeekday(m.dow, first) * everyWeek << 1
	if !m.dowNthSet {
		return days
	}
	for k, set := range m.dowNth {
		days |= fromWeekday(set, first) << (7*k + 1)
	}
	days |= fromWeekday(m.dowLast, (first+length)%7) << (length - 6)
	return days
}

// fromWeekday turns a set of weekdays so that bit 0 is weekday w.
func fromWeekday(set uint64, w int) uint64 { return (set>>w | set<<(7-w)) & upTo(6) }

// upTo returns the bits 0 to n, n at most 63.
func upTo(n int) uint64 { return 1<<(n+1) - 1 }
