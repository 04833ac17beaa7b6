package schedule

// Civil time is a date and a clock time without a zone, kept as the seconds that would have passed since
// 1970-01-01 00:00 if every day had 86400 of them.

const (
	minYear = 1970
	maxYear = 2199

	minSec = 0          // 1970-01-01T00:00:00Z
	maxSec = 7258118400 // 2200-01-01T00:00:00Z, exclusive
	minMS  = minSec * 1000
	maxMS  = maxSec * 1000

	secondsPerDay = 24 * 60 * 60
)

// dayNumber returns the days from 1970-01-01 to a date of the proleptic Gregorian calendar.
// It is days_from_civil of https://howardhinnant.github.io/date_algorithms.html, for years from 0 on: counting years
// from March puts the leap day last, so that months have a closed formula.
func dayNumber(year, month, day int) int {
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	yoe := year - era*400
	doy := (153*(month-3)+2)/5 + day - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

// dateOf is the inverse of dayNumber: civil_from_days of the same source.
func dateOf(days int) (year, month, day int) {
	days += 719468
	era := days / 146097
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = doy - (153*mp+2)/5 + 1
	year, month = yoe+era*400, mp+3
	if month > 12 {
		year++
		month -= 12
	}
	return year, month, day
}

// daysIn returns the length of a month.
func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// weekday returns the day of the week of a day number, Sunday as 0. 1970-01-01 was a Thursday, and the shift by whole
// weeks keeps the operand positive for the days just before it.
func weekday(days int) int { return (days + 4 + 7) % 7 }

// splitCivil returns the day number and the second of that day.
func splitCivil(c int64) (days, second int) {
	days, second = int(c/secondsPerDay), int(c%secondsPerDay)
	if second < 0 {
		days, second = days-1, second+secondsPerDay
	}
	return days, second
}
