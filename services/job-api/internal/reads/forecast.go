package reads

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// planned is what is planned from an instant on, for a step, as answers show it.
type planned struct {
	At      time.Time `json:"at"`
	Planned int       `json:"planned"`
	Error   int       `json:"error"`
}

// getForecast shows how many fires are planned, for a tenant or, as for what is held, for the whole installation.
func (rs *Reads) getForecast(ctx context.Context, r *edge.Request) (edge.Response, error) {
	store := forecast.Store{Lists: rs.Settings}
	var f *forecast.Forecast
	var err error
	if HoldsAll(r) {
		f, err = store.All(ctx)
	} else {
		f, err = store.Of(ctx, r.Tenant())
	}
	now := job.Instant(rs.Clock.Now())
	if errors.Is(err, forecast.ErrNone) || err == nil && f.Stale(now) {
		return edge.Response{Status: http.StatusOK, Body: map[string]any{"share": 0, "planned": 0, "error": 0, "items": []planned{}}}, nil
	}
	if err != nil {
		return edge.Response{}, err
	}
	step := int64(1)
	if d, err := time.ParseDuration(r.Parameters["step"]); err == nil {
		step = int64(d / time.Minute)
	}
	from, to := max(job.Minute(now), f.From), f.From+forecast.Minutes
	asked, before := span(r, now)
	from = max(from, job.Minute(asked.Add(time.Minute-1)))
	if !before.IsZero() {
		to = min(to, job.Minute(before.Add(time.Minute-1)))
	}
	list, sum := []planned{}, planned{At: job.MinuteStart(from)}
	for m := from; m < to; {
		next := min(m-m%step+step, to)
		n, off := f.Sum(m, next)
		list = append(list, planned{At: job.MinuteStart(m), Planned: n, Error: off})
		sum.Planned += n
		sum.Error += off
		m = next
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{
		"as_of": f.AsOf, "share": float64(f.Read) / float64(f.Of), "planned": sum.Planned, "error": sum.Error, "items": list,
	}}, nil
}
