// Package job is the vocabulary of Minutehand: jobs, definitions, entries, fires, outcomes and events, and the pure rules that
// follow from them alone. One word per thing: services/README.md lists them.
//
// It promises to be pure: no clock, no I/O, no goroutine, nothing but the standard library and ULIDs. A caller that needs the time
// passes it in. All instants are UTC in whole milliseconds (see [Instant]); durations in JSON are text such as "30s".
package job

import "time"

// Instant converts t to the form in which every instant is kept: UTC, whole milliseconds, no monotonic reading. Two equal instants
// in this form are equal with ==.
func Instant(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(t.UnixMilli()).UTC()
}

// Bound returns the first instant in the form of [Instant] that is not before t: where t begins or ends a range of instants, it does so too.
func Bound(t time.Time) time.Time { return Instant(t.Add(time.Millisecond - 1)) }

// Minute returns the number of the minute that contains t, counted from the Unix epoch.
func Minute(t time.Time) int64 {
	ms := t.UnixMilli()
	m := ms / 60_000
	if ms < 0 && ms%60_000 != 0 {
		m--
	}
	return m
}

// MinuteStart returns the first instant of a minute.
func MinuteStart(minute int64) time.Time { return time.UnixMilli(minute * 60_000).UTC() }

// Later returns the later of two instants.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
