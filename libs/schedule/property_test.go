package schedule_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	refcron "github.com/netresearch/go-cron"
	"pgregory.net/rapid"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/schedule"
)

// walk is real time in one zone, tick by tick: the instants at which the wall clock shows a civil time.
type walk struct {
	from, to time.Time // UTC midnights; the walk itself begins earlier and ends later
	tick     int64
	first    int64       // civil time of shown[0]
	shown    [][]int64   // by civil tick, the instants that show it
	jumps    []time.Time // UTC midnights of days with a jump
}

func newWalk(t *testing.T, zone, from, to string, tick int64) *walk {
	t.Helper()
	loc, err := schedule.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{from: utc(t, from+"T00:00:00Z"), to: utc(t, to+"T00:00:00Z"), tick: tick}
	const margin = 4 * 24 * 3600
	w.first = w.from.Unix() - margin
	w.shown = make([][]int64, (w.to.Unix()+margin-w.first)/tick)
	before := int64(0)
	for at := w.first - margin; at < w.to.Unix()+2*margin; at += tick {
		local := time.Unix(at, 0).In(loc)
		civil := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), local.Second(), 0, time.UTC).Unix()
		if civil%tick != 0 {
			t.Fatalf("%s: the offset at %v is no multiple of the tick", zone, local)
		}
		if i := (civil - w.first) / tick; i >= 0 && i < int64(len(w.shown)) {
			w.shown[i] = append(w.shown[i], at)
		}
		if off := civil - at; off != before {
			if at > w.first {
				w.jumps = append(w.jumps, time.Unix(at, 0).UTC().Truncate(24*time.Hour))
			}
			before = off
		}
	}
	return w
}

// resolve returns the instants of a civil second under the policies.
func (w *walk) resolve(civil int64, dst job.DST) []int64 {
	rest := civil % w.tick
	i := (civil - rest - w.first) / w.tick
	if at := w.shown[i]; len(at) > 0 {
		switch {
		case dst.Fold == job.FoldFirst:
			return []int64{at[0] + rest}
		case dst.Fold == job.FoldLast:
			return []int64{at[len(at)-1] + rest}
		case len(at) == 2:
			return []int64{at[0] + rest, at[1] + rest}
		}
		return []int64{at[0] + rest}
	}
	if dst.Gap == job.GapSkip {
		return nil
	}
	back := int64(0) // ticks to the last civil time that exists: its offset applies
	for len(w.shown[i-back]) == 0 {
		back++
	}
	passes := w.shown[i-back]
	return []int64{passes[len(passes)-1] + back*w.tick + rest}
}

// expected returns all occurrences in [from, to), by brute force.
func (w *walk) expected(n naive, dst job.DST, from, to time.Time) []time.Time {
	if n.rhythm() {
		dst = job.DST{Gap: job.GapSkip, Fold: job.FoldBoth}
	}
	var list []time.Time
	n.civil(from.AddDate(0, 0, -3), to.AddDate(0, 0, 3), func(civil int64) {
		for _, sec := range w.resolve(civil, dst) {
			if at := time.Unix(sec, 0).UTC(); !at.Before(from) && at.Before(to) {
				list = append(list, at)
			}
		}
	})
	slices.SortFunc(list, time.Time.Compare)
	return slices.Compact(list)
}

// pick returns a range of days that is worth the walk and not too long for it.
func (w *walk) pick(t *rapid.T, n naive) (from, to time.Time) {
	perDay := n.perDay()
	if perDay <= 4 {
		return w.from, w.to
	}
	day := rapid.SampledFrom(w.jumps).Draw(t, "day")
	reach := 30
	if perDay > 100 {
		reach = 2
	}
	if perDay > 5000 {
		reach = 0
	}
	from, to = day.AddDate(0, 0, -reach), day.AddDate(0, 0, reach+1)
	if from.Before(w.from) {
		from = w.from
	}
	if to.After(w.to) {
		to = w.to
	}
	return from, to
}

func TestOccurrencesAreThoseOfAWalkThroughRealTime(t *testing.T) {
	for _, z := range []struct {
		zone, from, to string
		tick           int64
	}{
		{"America/New_York", "2023-01-01", "2026-01-01", 900},
		{"Europe/London", "2025-01-01", "2028-01-01", 900},
		{"Australia/Lord_Howe", "2023-06-01", "2026-06-01", 900},
		{"America/Sao_Paulo", "2016-01-01", "2019-06-01", 900},
		{"Pacific/Apia", "2010-01-01", "2013-01-01", 900},
		{"Africa/Casablanca", "2024-01-01", "2027-01-01", 900},
		{"America/St_Johns", "2007-01-01", "2007-12-31", 60}, // jumps at 00:01
		{"Asia/Pyongyang", "2014-01-01", "2019-01-01", 900},  // standard time itself moved, by half an hour
	} {
		t.Run(z.zone, func(t *testing.T) {
			t.Parallel()
			w := newWalk(t, z.zone, z.from, z.to, z.tick)
			if len(w.jumps) < 2 {
				t.Fatal("there is no jump to test")
			}
			rapid.Check(t, func(t *rapid.T) {
				n := drawNaive(t)
				s := cron(n.String(), z.zone)
				s.DST.Gap = rapid.SampledFrom([]job.GapPolicy{job.GapNextValid, job.GapSkip}).Draw(t, "gap")
				s.DST.Fold = rapid.SampledFrom([]job.FoldPolicy{job.FoldFirst, job.FoldLast, job.FoldBoth}).Draw(t, "fold")
				p, err := schedule.Compile(s, hashedJob)
				if err != nil {
					if !strings.Contains(err.Error(), "exists") {
						t.Fatalf("%s: %v", n, err)
					}
					t.Skip("can never match")
				}
				from, to := w.pick(t, n)
				want := w.expected(n, s.DST, from, to)
				if got := list(t, p, from, to); !slices.Equal(got, want) {
					t.Fatalf("%s in %s, %v:\n got %s\nwant %s", n, z.zone, s.DST, firstDifference(got, want), firstDifference(want, got))
				}
			})
		})
	}
}

// list is between for rapid.
func list(t *rapid.T, p *schedule.Plan, from, to time.Time) []time.Time {
	var forwards []time.Time
	for at, ok := p.First(from); ok && at.Before(to); at, ok = p.Next(at) {
		forwards = append(forwards, at)
	}
	i := len(forwards)
	for at, ok := p.Prev(to); ok && !at.Before(from); at, ok = p.Prev(at) {
		if i--; i < 0 || forwards[i] != at {
			t.Fatalf("Prev finds %v, which Next does not", at)
		}
	}
	if i != 0 {
		t.Fatalf("Prev misses %d of %d instants, the last of them %v", i, len(forwards), forwards[i-1])
	}
	return forwards
}

func firstDifference(a, b []time.Time) string {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return a[i].String()
		}
	}
	return "the end"
}

// Any instant, not only an occurrence, lies between its Prev and its Next with nothing between.
func TestNextAndPrevAreConsistentFromAnyInstant(t *testing.T) {
	zones := []string{"", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Monrovia", "Africa/Cairo", "Asia/Gaza"}
	rapid.Check(t, func(t *rapid.T) {
		s := cron(drawNaive(t).String(), rapid.SampledFrom(zones).Draw(t, "zone"))
		s.DST.Fold = rapid.SampledFrom([]job.FoldPolicy{job.FoldFirst, job.FoldLast, job.FoldBoth}).Draw(t, "fold")
		p, err := schedule.Compile(s, hashedJob)
		if err != nil {
			t.Skip("can never match")
		}
		at := time.Unix(rapid.Int64Range(0, 7258118400).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		next, hasNext := p.Next(at)
		prev, hasPrev := p.Prev(at)
		first, hasFirst := p.First(at)
		if hasNext && !next.After(at) || hasPrev && !prev.Before(at) || hasFirst && first.Before(at) {
			t.Fatalf("at %v: prev %v, first %v, next %v", at, prev, first, next)
		}
		if hasFirst && !first.Equal(at) && first != next {
			t.Fatalf("at %v: first %v, next %v", at, first, next)
		}
		if hasPrev && hasFirst {
			if after, _ := p.Next(prev); after != first {
				t.Fatalf("Next(Prev(%v)) = %v, want %v", at, after, first)
			}
		}
		if hasNext {
			if before, ok := p.Prev(next); ok && before.After(at) || ok && hasPrev && before.Before(prev) {
				t.Fatalf("Prev(Next(%v)) = %v", at, before)
			}
		}
	})
}

func TestUTCAgreesWithGoCron(t *testing.T) {
	openStep := regexp.MustCompile(`(^|,)\w+/`)
	stepInRange := regexp.MustCompile(`\w-\w+/`)
	parser := refcron.MustNewParser(refcron.Second | refcron.Minute | refcron.Hour | refcron.Dom | refcron.Month | refcron.Dow |
		refcron.DomL | refcron.DomW | refcron.DowNth | refcron.DowLast | refcron.DowOrDom).WithMaxSearchYears(12)
	rapid.Check(t, func(t *rapid.T) {
		n := drawNaive(t)
		if strings.HasPrefix(n.dom.text, "*/") || strings.HasPrefix(n.dow.text, "*/") || strings.Contains(n.dom.text+n.dow.text, ",*/") ||
			strings.Contains(n.dom.text+n.dow.text, "*/1") {
			t.Skip("go-cron, like robfig/cron, takes */2 for a field that is set and 5,*/1 for one that is not; Vixie asks for the first character")
		}
		if openStep.MatchString(n.dow.text) {
			t.Skip("go-cron ends 1/6 in the day of week with 7, which is Sunday again; robfig/cron, Quartz and we end it with Saturday")
		}
		if stepInRange.MatchString(n.dow.text) {
			t.Skip("go-cron reads 2-0/6, a stepped range to Sunday, as Sunday; counted from its beginning it is Tuesday")
		}
		expr := n.plain()
		if strings.HasSuffix(n.dow.text, "L") {
			expr = strings.TrimSuffix(expr, "L") + "#L" // go-cron's spelling of the last one
		}
		reference, err := parser.Parse(expr)
		if err != nil {
			t.Skip("go-cron refuses a step as long as the range, which is harmless")
		}
		p, err := schedule.Compile(cron(n.String(), ""), hashedJob)
		if err != nil {
			t.Skip("can never match; go-cron finds out by searching")
		}
		at := time.Unix(rapid.Int64Range(0, 4102444800).Draw(t, "at"), 0).UTC()
		for range 20 {
			want := reference.Next(at)
			got, _ := p.Next(at)
			if want.IsZero() {
				if got.Before(at.AddDate(12, 0, 0)) {
					t.Fatalf("%s after %v: got %v, go-cron finds none", n, at, got)
				}
				return
			}
			if !got.Equal(want) {
				t.Fatalf("%s after %v: got %v, go-cron %v", n, at, got, want)
			}
			at = got
		}
	})
}
