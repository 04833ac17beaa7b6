package watch

import (
	"context"
	"strconv"
	"time"
)

// awayFor is how long nobody else asks a Redis that did not answer.
const awayFor = 5 * time.Second

// away is since when Redis does not answer for a partition, and until when it is not asked again; or since when it answers again, zero while it
// does not.
type away struct{ since, until, back time.Time }

// stale reports whether what is known of a partition is so old that Redis may have answered for it since.
func (w *Watchdog) stale(a away, now time.Time) bool { return now.Sub(a.until) > 2*w.LeaseFor }

// backFor is how long after Redis answers again executors tell it what they had to.
const backFor = 10 * time.Second

// probe asks Redis, so that it is known since when it does not answer.
func (w *Watchdog) probe(ctx context.Context) {
	now := w.Clock.Now()
	if now.Before(w.probeAt) {
		return
	}
	if now.After(w.probeAt.Add(2 * w.LeaseFor)) { // nobody has asked for a while: it may have answered since
		w.probedAway.Store(0)
	}
	w.probeAt = now.Add(awayFor)
	if w.reaches(ctx, 0) {
		w.probedAway.Store(0)
	} else if ctx.Err() == nil {
		w.probedAway.CompareAndSwap(0, now.UnixMilli())
	}
}

// misses returns a partition for which this process does not reach Redis, "" for none. Of one that watches a single failure says nothing. Another
// one is asked of the partition that the one misses that watches, or of the first.
func (w *Watchdog) misses(ctx context.Context, other string) string {
	if !w.lease.Held() {
		p, err := strconv.Atoi(other)
		if err != nil || p < 0 || p >= w.Partitions {
			p = 0
		}
		if w.reaches(ctx, p) {
			return ""
		}
		return strconv.Itoa(p)
	}
	if len(w.jobs) == 0 {
		return "" // it judges nothing
	}
	w.probe(ctx)
	now, missed := w.Clock.Now(), ""
	if since := w.probedAway.Load(); since != 0 && (w.lease.Missing() || now.Sub(time.UnixMilli(since)) >= awayFor) {
		return "0"
	}
	w.away.Range(func(key, value any) bool {
		p, _ := key.(int)
		a, _ := value.(away)
		switch {
		case !a.back.IsZero() || w.stale(a, now) || now.Sub(a.since) < awayFor:
		case now.Before(a.until):
			missed = strconv.Itoa(p)
		case w.reaches(ctx, p):
			a.back = now
			w.away.Store(p, a)
		case ctx.Err() == nil:
			missed, a.until = strconv.Itoa(p), w.Clock.Now().Add(awayFor)
			w.away.Store(p, a)
		}
		return missed == ""
	})
	return missed
}

// reaches reports whether Redis answers for a partition.
func (w *Watchdog) reaches(ctx context.Context, partition int) bool {
	ask, cancel := context.WithTimeout(ctx, w.AskWithin)
	defer cancel()
	_, err := w.Hot.Incarnations(ask, []int{partition})
	return err == nil
}
