package schedule

import (
	"math"

	"github.com/minutehand/minutehand/libs/job"
)

// resolver resolves matching civil times to instants of a zone, in Unix seconds.
//
// Every segment of the zone has a window: the instants whose civil time, at the segment's offset, may fire. The policies only move
// the window's ends. A window runs past the segment's end by the length of a gap, which makes a civil time that does not exist fire
// at the offset from before the gap. It starts late or stops early by the length of a fold, which drops one of the two passes. The
// occurrences are the union over all windows, so two civil times that meet in one instant are one occurrence, and order is by
// instant. This relies on segments being longer than the jumps at their ends, which a test checks for all zones.
type resolver struct {
	match *matcher
	zone  *zone
	dst   job.DST // with the defaults filled in
}

// window returns the instants [lo, hi) of segment i.
func (r *resolver) window(i int) (lo, hi int64) {
	lo, hi = r.zone.starts[i], r.zone.end(i)
	if r.match.rhythm {
		return lo, hi
	}
	if before := r.zone.jump(i); before < 0 && r.dst.Fold == job.FoldFirst {
		lo -= before
	}
	after := r.zone.jump(i + 1)
	if after > 0 && r.dst.Gap == job.GapNextValid || after < 0 && r.dst.Fold == job.FoldLast {
		hi += after
	}
	return lo, hi
}

// first returns the first occurrence at or after sec.
func (r *resolver) first(sec int64) (int64, bool) {
	best, found := int64(0), false
	// No civil second in [from, match) matches. Successive windows mostly continue each other in civil time, so
	// the answer for one is mostly the answer for the next, and a sparse expression is searched once, not per window.
	from, match := int64(math.MaxInt64), int64(math.MinInt64)
	for i := max(r.zone.segment(sec)-1, 0); i < len(r.zone.starts); i++ {
		lo, hi := r.window(i)
		lo = max(lo, sec)
		if found && lo >= best {
			break
		}
		if lo >= hi {
			continue
		}
		off := r.zone.offs[i]
		if c := lo + off; c < from || c > match {
			var ok bool
			if match, ok = r.match.next(c); !ok {
				match = math.MaxInt64 / 2
			}
			from = c
		}
		if at := match - off; at < hi && (!found || at < best) {
			best, found = at, true
		}
	}
	return best, found
}

// last returns the last occurrence at or before sec.
func (r *resolver) last(sec int64) (int64, bool) {
	best, found := int64(0), false
	from, match := int64(math.MinInt64), int64(math.MaxInt64) // no civil second in (match, from] matches
	for i := r.zone.segment(sec); i >= 0; i-- {
		lo, hi := r.window(i)
		hi = min(hi, sec+1)
		if found && hi <= best+1 {
			break
		}
		if lo >= hi {
			continue
		}
		off := r.zone.offs[i]
		if c := hi - 1 + off; c > from || c < match {
			var ok bool
			if match, ok = r.match.prev(c); !ok {
				match = math.MinInt64 / 2
			}
			from = c
		}
		if at := match - off; at >= lo && (!found || at > best) {
			best, found = at, true
		}
	}
	return best, found
}
