package sdk

import (
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that the API writes as text such as "1h30m" or "250ms", to the millisecond.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler. Less than a millisecond is an error.
func (d Duration) MarshalText() ([]byte, error) {
	ms := time.Duration(d).Milliseconds()
	if d < 0 || time.Duration(d)%time.Millisecond != 0 {
		return nil, fmt.Errorf("a duration of the API is a whole number of milliseconds, and not negative: %s", time.Duration(d))
	}
	var b strings.Builder
	for _, unit := range []struct {
		name string
		ms   int64
	}{{"h", 3_600_000}, {"m", 60_000}, {"s", 1000}, {"ms", 1}} {
		if n := ms / unit.ms; n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + unit.name)
			ms -= n * unit.ms
		}
	}
	if b.Len() == 0 {
		return []byte("0s"), nil
	}
	return []byte(b.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// String implements fmt.Stringer.
func (d Duration) String() string { return time.Duration(d).String() }

// add adds a parameter to a query, unless it is zero.
func add(q url.Values, name string, value any) {
	switch v := value.(type) {
	case string:
		if v != "" {
			q.Set(name, v)
		}
	case int:
		if v != 0 {
			q.Set(name, strconv.Itoa(v))
		}
	case time.Time:
		if !v.IsZero() {
			q.Set(name, v.UTC().Format(time.RFC3339Nano))
		}
	default:
		panic(fmt.Sprintf("no parameter is a %T", value))
	}
}

// pages iterates over the items of pages, from the one at the cursor on.
func pages[T any](first string, page func(cursor string) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor := first; ; {
			items, next, err := page(cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			cursor = next
		}
	}
}
