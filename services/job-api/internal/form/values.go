package form

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// duration is a duration as the API writes it: "30s", "5m", "1h30m", "250ms".
type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = duration(v)
	return err
}

// MarshalJSON implements json.Marshaler: the shortest form, "1h30m" and not "1h30m0s".
func (d duration) MarshalJSON() ([]byte, error) {
	rest := time.Duration(d)
	if rest == 0 {
		return []byte(`"0s"`), nil
	}
	text := make([]byte, 0, 16)
	text = append(text, '"')
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := rest / u.size; n > 0 {
			text = strconv.AppendInt(text, int64(n), 10)
			text = append(text, u.name...)
			rest -= n * u.size
		}
	}
	return append(text, '"'), nil
}

// Whole is a whole number in any form that JSON has for it: 100, 100.0, 1e2. The document bounds it well within an int.
type Whole int

// UnmarshalJSON implements json.Unmarshaler.
func (n *Whole) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	*n = Whole(f)
	return err
}

// Duration returns a duration as answers show it.
func Duration(d time.Duration) json.Marshaler { return duration(d) }

// text is Duration, for a member that may be left out.
func text(d time.Duration) *duration { v := duration(d); return &v }

// durationOf returns the duration that a client gave, or otherwise.
func durationOf(d *duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return time.Duration(*d)
}

// instantOf returns the instant that a client gave, in whole milliseconds; the zero time if it gave none.
func instantOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return job.Instant(*t)
}

// Instant returns an instant as answers show it: nil, which JSON leaves out, for the zero time.
func Instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Time is a length of time that a client may give.
type Time duration

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(b []byte) error { return (*duration)(t).UnmarshalJSON(b) }

// Or returns the length of time, or another one if none was given.
func (t *Time) Or(otherwise time.Duration) time.Duration {
	return durationOf((*duration)(t), otherwise)
}
