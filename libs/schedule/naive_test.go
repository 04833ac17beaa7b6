package schedule_test

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// naive is an expression together with its meaning, worked out while it is drawn and without the package's parser: plain loops over
// values and dates of package time.
type naive struct {
	second, minute, hour, month naiveField
	dom, dow                    naiveField
}

type naiveField struct {
	text   string
	plain  string // text, with H replaced by the values for which it stands
	values [64]bool
	days   []func(time.Time) bool // the L, W and # forms
}

func (n naive) String() string {
	return strings.Join([]string{n.second.text, n.minute.text, n.hour.text, n.dom.text, n.month.text, n.dow.text}, " ")
}

// plain returns the expression without H.
func (n naive) plain() string {
	return strings.Join([]string{n.second.plain, n.minute.plain, n.hour.plain, n.dom.plain, n.month.plain, n.dow.plain}, " ")
}

func (n naive) rhythm() bool {
	return strings.HasPrefix(n.hour.text, "*") || strings.Contains(n.hour.text, "/")
}

// perDay returns how many civil seconds of a matching day match.
func (n naive) perDay() int {
	product := 1
	for _, f := range []naiveField{n.second, n.minute, n.hour} {
		count := 0
		for _, set := range f.values {
			if set {
				count++
			}
		}
		product *= count
	}
	return product
}

func (n naive) dayMatches(date time.Time) bool {
	if !n.month.values[date.Month()] {
		return false
	}
	dom := n.dom.values[date.Day()] || slices.ContainsFunc(n.dom.days, func(is func(time.Time) bool) bool { return is(date) })
	dow := n.dow.values[date.Weekday()] || slices.ContainsFunc(n.dow.days, func(is func(time.Time) bool) bool { return is(date) })
	if strings.ContainsAny(n.dom.text[:1]+n.dow.text[:1], "*?") {
		return dom && dow
	}
	return dom || dow
}

// civil calls yield with each matching civil second (in UTC) of [from, to), which are midnights.
func (n naive) civil(from, to time.Time, yield func(int64)) {
	for date := from; date.Before(to); date = date.AddDate(0, 0, 1) {
		if !n.dayMatches(date) {
			continue
		}
		for h := range 24 {
			for m := range 60 {
				if !n.hour.values[h] || !n.minute.values[m] {
					continue
				}
				for s := range 60 {
					if n.second.values[s] {
						yield(date.Unix() + int64(h*3600+m*60+s))
					}
				}
			}
		}
	}
}

// drawNaive draws an expression of six fields.
func drawNaive(t *rapid.T) naive {
	n := naive{
		second: naiveField{text: "0", plain: "0", values: [64]bool{0: true}},
		minute: drawField(t, "minute", 0, 59, ""),
		hour:   drawField(t, "hour", 0, 23, ""),
		month:  drawField(t, "month", 1, 12, "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"),
	}
	if rapid.IntRange(0, 3).Draw(t, "seconds") == 0 {
		n.second = drawField(t, "second", 0, 59, "")
	}
	n.dom, n.dow = drawDom(t), drawDow(t)
	for _, f := range []*naiveField{&n.dom, &n.dow} {
		if f.plain == "" {
			f.plain = f.text
		}
	}
	return n
}

// drawField draws a list of values, ranges and steps; half of the fields are *.
func drawField(t *rapid.T, name string, low, high int, names string) naiveField {
	var f naiveField
	var items, plain []string
	count := max(rapid.IntRange(-2, 3).Draw(t, name+" items"), 0)
	for range count {
		text, meaning := "", ""
		if rapid.IntRange(0, 4).Draw(t, name+" hashed") == 0 {
			text, meaning = f.drawHashed(t, name, low, high)
		} else {
			text = f.drawItem(t, name, low, high, names)
			meaning = text
		}
		items, plain = append(items, text), append(plain, meaning)
	}
	if count == 0 {
		items, plain = []string{"*"}, []string{"*"}
		f.run(low, high, 1, low, high)
	}
	f.text, f.plain = strings.Join(items, ","), strings.Join(plain, ",")
	return f
}

func (f *naiveField) drawItem(t *rapid.T, name string, low, high int, names string) string {
	word := func(v int) string {
		if names != "" && rapid.Bool().Draw(t, "as name") {
			return names[3*(v-low):][:3]
		}
		return fmt.Sprint(v)
	}
	a := rapid.IntRange(low, high).Draw(t, name+" a")
	b := rapid.IntRange(low, high).Draw(t, name+" b")
	step := rapid.IntRange(1, min(high-low, 20)).Draw(t, name+" step")
	switch rapid.IntRange(0, 5).Draw(t, name+" form") {
	case 0:
		f.run(low, high, step, low, high)
		return fmt.Sprintf("*/%d", step)
	case 1:
		f.run(a, high, step, low, high)
		return fmt.Sprintf("%s/%d", word(a), step)
	case 2:
		f.run(a, b, 1, low, high)
		return word(a) + "-" + word(b)
	case 3:
		f.run(a, b, step, low, high)
		return fmt.Sprintf("%s-%s/%d", word(a), word(b), step)
	}
	f.values[a] = true
	return word(a)
}

// hashedJob is the job whose id the H of a drawn expression hashes.
const hashedJob = "job-1"

// drawHashed draws a form of H, and lists the values for which it stands: those whose place in the range leaves the same remainder
// as the hash when divided by the step.
func (f *naiveField) drawHashed(t *rapid.T, name string, low, high int) (text, meaning string) {
	text = "H"
	a, b := low, high
	if name == "day of month" {
		b = 28
	}
	if rapid.Bool().Draw(t, name+" hash range") {
		a, b = rapid.IntRange(low, high).Draw(t, name+" a"), rapid.IntRange(low, high).Draw(t, name+" b")
		text = fmt.Sprintf("H(%d-%d)", a, b)
	}
	places := []int{a}
	for v := a; v != b; places = append(places, v) {
		if v++; v > high {
			v = low
		}
	}
	step := len(places)
	if rapid.Bool().Draw(t, name+" hash step") {
		step = rapid.IntRange(1, len(places)).Draw(t, name+" step")
		text += fmt.Sprintf("/%d", step)
	}
	sum := sha256.Sum256([]byte(name + "\x00" + hashedJob))
	rest := new(big.Int).Mod(new(big.Int).SetBytes(sum[:8]), big.NewInt(int64(step))).Int64()
	var list []string
	for i, v := range places {
		if int64(i%step) == rest {
			f.values[v] = true
			list = append(list, fmt.Sprint(v))
		}
	}
	return text, strings.Join(list, ",")
}

// run walks from a to b, wrapping past the end if need be, and sets every step-th value.
func (f *naiveField) run(a, b, step, low, high int) {
	for v, i := a, 0; ; i++ {
		if i%step == 0 {
			f.values[v] = true
		}
		if v == b {
			return
		}
		if v++; v > high {
			v = low
		}
	}
}

func drawDom(t *rapid.T) naiveField {
	sameMonth := func(date time.Time, days int) bool { return date.AddDate(0, 0, days).Month() == date.Month() }
	fromEnd := func(k int) func(time.Time) bool {
		return func(date time.Time) bool { return sameMonth(date, k) && !sameMonth(date, k+1) }
	}
	k := rapid.IntRange(1, 31).Draw(t, "day")
	switch rapid.IntRange(0, 9).Draw(t, "day of month form") {
	case 0:
		return naiveField{text: "L", days: []func(time.Time) bool{fromEnd(0)}}
	case 1:
		k = min(k, 30)
		f := naiveField{text: fmt.Sprintf("15,L-%d", k), days: []func(time.Time) bool{fromEnd(k)}}
		f.values[15] = true
		return f
	case 2:
		return naiveField{text: fmt.Sprintf("%dW", k), days: []func(time.Time) bool{func(date time.Time) bool { return date.Day() == naiveNearest(date, k) }}}
	case 3:
		return naiveField{text: "LW", days: []func(time.Time) bool{func(date time.Time) bool {
			return date.Day() == naiveNearest(date, time.Date(date.Year(), date.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day())
		}}}
	case 4:
		f := naiveField{text: "?"}
		f.run(1, 31, 1, 1, 31)
		return f
	}
	return drawField(t, "day of month", 1, 31, "")
}

// naiveNearest tries all days of the month.
func naiveNearest(month time.Time, day int) int {
	best := 0
	length := time.Date(month.Year(), month.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
	for d := 1; d <= length && day <= length; d++ {
		weekday := time.Date(month.Year(), month.Month(), d, 0, 0, 0, 0, time.UTC).Weekday()
		distance := func(d int) int { return max(d-day, day-d) }
		if weekday != time.Saturday && weekday != time.Sunday && (best == 0 || distance(d) < distance(best)) {
			best = d
		}
	}
	return best
}

func drawDow(t *rapid.T) naiveField {
	d := rapid.IntRange(0, 7).Draw(t, "weekday")
	k := rapid.IntRange(1, 5).Draw(t, "nth")
	is := func(date time.Time) bool { return int(date.Weekday()) == d%7 }
	switch rapid.IntRange(0, 9).Draw(t, "day of week form") {
	case 0:
		return naiveField{text: fmt.Sprintf("%d#%d", d, k), days: []func(time.Time) bool{
			func(date time.Time) bool { return is(date) && (date.Day()+6)/7 == k },
		}}
	case 1:
		return naiveField{text: fmt.Sprintf("%dL", d), days: []func(time.Time) bool{
			func(date time.Time) bool { return is(date) && date.AddDate(0, 0, 7).Month() != date.Month() },
		}}
	case 2:
		f := naiveField{text: "?"}
		f.run(0, 6, 1, 0, 6)
		return f
	case 3:
		f := naiveField{text: fmt.Sprintf("3-%d", max(d, 3))}
		for v := 3; v <= max(d, 3); v++ {
			f.values[v%7] = true
		}
		return f
	}
	return drawField(t, "day of week", 0, 6, "SUNMONTUEWEDTHUFRISAT")
}
