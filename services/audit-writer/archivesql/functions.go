package archivesql

import (
	"cmp"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// register gives every connection of SQLite the functions of Athena that it lacks, once for the process.
var register = sync.OnceValue(func() error {
	aggregate := func(name string, arguments int32, make func() sqlite.AggregateFunction) error {
		return sqlite.RegisterFunction(name, &sqlite.FunctionImpl{
			NArgs: arguments, Deterministic: true, MakeAggregate: func(sqlite.FunctionContext) (sqlite.AggregateFunction, error) { return make(), nil },
		})
	}
	return errors.Join(
		sqlite.RegisterDeterministicScalarFunction("date_trunc", 2, truncated),
		sqlite.RegisterDeterministicScalarFunction("date_diff", 3, difference),
		aggregate("count_if", 1, func() sqlite.AggregateFunction { return &counted{} }),
		aggregate("bool_or", 1, func() sqlite.AggregateFunction { return &anyTrue{} }),
		aggregate("min_by", 2, func() sqlite.AggregateFunction { return &extreme{sign: -1} }),
		aggregate("max_by", 2, func() sqlite.AggregateFunction { return &extreme{sign: 1} }),
		aggregate("approx_percentile", 2, func() sqlite.AggregateFunction { return &percentile{} }),
	)
})

func instantOf(v driver.Value) (time.Time, error) {
	text, ok := v.(string)
	if !ok {
		return time.Time{}, fmt.Errorf("%v is not an instant", v)
	}
	return time.Parse(instantForm, text)
}

// units are those that an instant can be truncated to and that a difference can be counted in.
func units() map[string]time.Duration {
	return map[string]time.Duration{
		"millisecond": time.Millisecond, "second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
	}
}

func truncated(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
	name, _ := args[0].(string)
	unit, ok := units()[name]
	if !ok {
		return nil, fmt.Errorf("date_trunc: unit %q", name)
	}
	if args[1] == nil {
		return nil, nil
	}
	at, err := instantOf(args[1])
	return at.Truncate(unit).Format(instantForm), err
}

func difference(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
	name, _ := args[0].(string)
	unit, ok := units()[name]
	if !ok {
		return nil, fmt.Errorf("date_diff: unit %q", name)
	}
	if args[1] == nil || args[2] == nil {
		return nil, nil
	}
	from, err := instantOf(args[1])
	to, errTo := instantOf(args[2])
	return int64(to.Sub(from) / unit), errors.Join(err, errTo)
}

// whole is an aggregate that is asked only when its group is complete.
type whole struct{}

func (whole) WindowInverse(*sqlite.FunctionContext, []driver.Value) error {
	return errors.New("this function is no window function here")
}

func (whole) WindowValue(*sqlite.FunctionContext) (driver.Value, error) {
	return nil, errors.New("this function is no window function here")
}

func (whole) Final(*sqlite.FunctionContext) {}

func isTrue(v driver.Value) bool { n, ok := v.(int64); return ok && n != 0 }

// counted counts the rows in which its argument is true, also in a window.
type counted struct{ n int64 }

func (c *counted) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	if isTrue(args[0]) {
		c.n++
	}
	return nil
}

func (c *counted) WindowInverse(_ *sqlite.FunctionContext, args []driver.Value) error {
	if isTrue(args[0]) {
		c.n--
	}
	return nil
}

func (c *counted) WindowValue(*sqlite.FunctionContext) (driver.Value, error) { return c.n, nil }

func (c *counted) Final(*sqlite.FunctionContext) {}

type anyTrue struct {
	whole
	is bool
}

func (a *anyTrue) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	a.is = a.is || isTrue(args[0])
	return nil
}

func (a *anyTrue) WindowValue(*sqlite.FunctionContext) (driver.Value, error) { return a.is, nil }

// extreme keeps a value of the row with the least (sign -1) or greatest second argument.
type extreme struct {
	whole
	sign  int
	value driver.Value
	by    driver.Value
}

func (e *extreme) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	if args[1] == nil {
		return nil
	}
	if e.by == nil || compare(args[1], e.by)*e.sign > 0 {
		e.value, e.by = args[0], args[1]
	}
	return nil
}

func (e *extreme) WindowValue(*sqlite.FunctionContext) (driver.Value, error) { return e.value, nil }

func compare(a, b driver.Value) int {
	switch x := a.(type) {
	case int64:
		if y, ok := b.(int64); ok {
			return cmp.Compare(x, y)
		}
	case float64:
		if y, ok := b.(float64); ok {
			return cmp.Compare(x, y)
		}
	case string:
		if y, ok := b.(string); ok {
			return cmp.Compare(x, y)
		}
	}
	return 0
}

// percentile is exact, where Athena's is near.
type percentile struct {
	whole
	values []int64
	q      float64
}

func (p *percentile) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	switch q := args[1].(type) {
	case float64:
		p.q = q
	case int64:
		p.q = float64(q)
	}
	if n, ok := args[0].(int64); ok {
		p.values = append(p.values, n)
	}
	return nil
}

func (p *percentile) WindowValue(*sqlite.FunctionContext) (driver.Value, error) {
	if len(p.values) == 0 {
		return nil, nil
	}
	slices.Sort(p.values)
	return p.values[min(int(p.q*float64(len(p.values))), len(p.values)-1)], nil
}
