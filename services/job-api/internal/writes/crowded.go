package writes

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

const (
	// A minute is crowded if at least crowdedFires are planned for it, ten a second, and crowdedTimes as many as for a minute of the hour around
	// it on average.
	crowdedFires, crowdedTimes = 600, 3
	// around is how far a minute may be moved, and the half of the hour around it.
	around = 30
	// forecastFor is how long a forecast that was read is used, forecastWait how long a request waits for it, and forecastAgain when it is
	// read again after that failed.
	forecastFor, forecastWait, forecastAgain = time.Minute, 100 * time.Millisecond, 10 * time.Second
)

// crowds is what a process knows of crowded minutes.
type crowds struct {
	store forecast.Store
	clock clock.Clock

	mu       sync.Mutex
	forecast *forecast.Forecast
	goodTo   time.Time
}

// latest returns the forecast of the whole installation; nil if there is none. One request in a minute reads it; it delays no other.
func (c *crowds) latest(ctx context.Context) *forecast.Forecast {
	now := c.clock.Now()
	c.mu.Lock()
	known := c.forecast
	if now.Before(c.goodTo) {
		c.mu.Unlock()
		return known
	}
	c.goodTo = now.Add(forecastAgain)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, forecastWait)
	defer cancel()
	read, err := c.store.All(ctx)
	if err != nil {
		return known // a job needs no warning
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forecast, c.goodTo = read, now.Add(forecastFor)
	return read
}

// warn returns the warnings of a job that was just created: that many others fire in the minute in which it is due next, and which minute near
// it is calmer. A job that fires again within the hour around it is in the others' way there, too, and gets none.
func (c *crowds) warn(ctx context.Context, body []byte, s *occurrence.Series, due *time.Time, now time.Time) []reads.Warning {
	if due == nil {
		return nil
	}
	f := c.latest(ctx)
	minute := job.Minute(*due)
	if f == nil || f.Stale(now) || minute < f.From || minute >= f.From+forecast.Minutes {
		return nil
	}
	planned, off := f.Sum(minute, minute+1)
	if planned-off < crowdedFires {
		return nil
	}
	next, ok := s.NextRun(now)
	if after, more := s.Plan.Next(next); !ok || more && after.Sub(next) < 2*around*time.Minute {
		return nil
	}
	sum, _ := f.Sum(minute-around, minute+around)
	covered := min(minute+around, f.From+forecast.Minutes) - max(minute-around, f.From)
	mean := float64(sum) / float64(covered)
	if float64(planned-off) < crowdedTimes*mean {
		return nil
	}
	w := reads.Warning{Code: "crowded-minute", Pointer: pointerOf(body, &s.Def.Schedule)}
	w.Message = fmt.Sprintf("%s is crowded: about %.0f times as many fires are planned for that minute as for one of the hour around it.",
		job.MinuteStart(minute).Format("15:04 UTC"), math.Round(float64(planned)/max(mean, 1)))
	if by, ok := calmer(f, minute, job.Minute(now), mean); ok {
		way := "later"
		if by < 0 {
			way = "earlier"
		}
		w.Message += fmt.Sprintf(" %d minutes %s is calmer", max(by, -by), way)
		if sched := &s.Def.Schedule; sched.Type != job.ScheduleOneShot && sched.Spread == 0 && sched.Jitter == 0 && !next.Truncate(time.Hour).Before(next) {
			w.Message += ", or let spread move the job"
		}
		w.Message += "."
		w.Offset = by
	}
	return []reads.Warning{w}
}

// pointerOf returns where the body of a request says when its schedule is due first.
func pointerOf(body []byte, s *job.Schedule) string {
	var given map[string]json.RawMessage
	_ = json.Unmarshal(body, &given) // it was understood
	switch {
	case s.Type == job.ScheduleCron:
		return "/cron_expr"
	case given["delay"] != nil:
		return "/delay"
	case s.Type == job.ScheduleInterval && given["start_at"] != nil:
		return "/start_at"
	case s.Type == job.ScheduleInterval:
		return "/every"
	}
	return "/run_at"
}

// calmer returns by how many minutes to move from a minute to the nearest one for which no more than the mean is planned, a later one if two
// are as near.
func calmer(f *forecast.Forecast, minute, now int64, mean float64) (by int64, ok bool) {
	for d := int64(1); d < around; d++ {
		for _, by := range []int64{d, -d} {
			m := minute + by
			if m <= now || m < f.From || m >= f.From+forecast.Minutes {
				continue
			}
			if planned, _ := f.Sum(m, m+1); float64(planned) <= mean {
				return by, true
			}
		}
	}
	return 0, false
}
