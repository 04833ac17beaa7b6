package reads

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/libs/forecast"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/problem"
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
	none := errors.Is(err, forecast.ErrNone) || err == nil && f.Stale(now)
	if err != nil && !none {
		return edge.Response{}, err
	}
	first := job.Minute(now)
	end := first + forecast.Minutes
	if !none {
		first, end = max(first, f.From), f.From+forecast.Minutes
	}
	from, to, err := foreseen(r, now, first, end)
	if err != nil {
		return edge.Response{}, err
	}
	if none {
		return edge.Response{Status: http.StatusOK, Body: map[string]any{"share": 0, "planned": 0, "error": 0, "items": []planned{}}}, nil
	}
	step := int64(1)
	if d, err := time.ParseDuration(r.Parameters["step"]); err == nil {
		step = int64(d / time.Minute)
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

// foreseen returns the minutes [from, to) of those in [first, end) that a request asks for, or what is wrong with the range that it names.
func foreseen(r *edge.Request, now time.Time, first, end int64) (from, to int64, err error) {
	asked, before := span(r, now)
	from, to = max(first, minuteFrom(asked)), end
	if !before.IsZero() {
		to = min(to, minuteFrom(before))
	}
	refuse := func(name, code, message string) (int64, int64, error) {
		return 0, 0, edge.BadParameter("The range has nothing of a forecast.", problem.Fault{Pointer: "/query/" + name, Code: code, Message: message})
	}
	hours := fmt.Sprintf("what is forecast: that is from %s to %s.", job.MinuteStart(first).Format(time.RFC3339), job.MinuteStart(end).Format(time.RFC3339))
	switch {
	case !before.IsZero() && minuteFrom(before) <= job.Minute(now):
		return refuse("to", "past", "Must be later than now, and end a range of "+hours)
	case !before.IsZero() && !asked.Before(before):
		return refuse("to", "before-from", "Must be later than from.")
	case minuteFrom(asked) >= end:
		return refuse("from", "beyond-forecast", "Lies behind the end of "+hours)
	}
	return from, to, nil
}

// minuteFrom returns the first minute that begins at an instant, or after it.
func minuteFrom(at time.Time) int64 { return job.Minute(at.Add(time.Minute - 1)) }
