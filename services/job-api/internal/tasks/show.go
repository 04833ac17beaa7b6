package tasks

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// pool is a pool as answers show it.
type pool struct {
	Name     string    `json:"name"`
	Running  int       `json:"running"`
	Handlers []handler `json:"handlers"`
	Workers  []worker  `json:"workers"`
	Settings *settings `json:"settings,omitempty"`
}

// handler is what waits and runs for a handler.
type handler struct {
	Name    string `json:"name"`
	High    int    `json:"high"`
	Normal  int    `json:"normal"`
	Low     int    `json:"low"`
	Running int    `json:"running"`
}

// worker is a worker as answers show it.
type worker struct {
	pools.Worker
	LogsURL string `json:"logs_url,omitempty"`
}

// show shows a pool: what waits and runs there, and its workers.
func (ts *Tasks) show(ctx context.Context, r *edge.Request) (edge.Response, error) {
	if ts.deps.Queue == nil {
		return edge.Response{}, errNoQueue
	}
	p := poolAt(r)
	s, err := ts.deps.Queue.Show(ctx, p, ts.deps.Clock.Now())
	if err != nil {
		return edge.Response{}, err
	}
	_, all, err := pools.Read(ctx, ts.deps.Settings, p.Tenant)
	if err != nil {
		return edge.Response{}, err
	}
	set, err := all.Get(p.Name)
	if err != nil {
		return edge.Response{}, err
	}
	shown := pool{Name: p.Name, Running: s.Taken, Handlers: []handler{}, Workers: []worker{}, Settings: showSettings(&set)}
	names := maps.Clone(s.Running)
	for name := range s.Waiting {
		names[name] = 0
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n := s.Waiting[name]
		shown.Handlers = append(shown.Handlers, handler{name, n[job.PriorityHigh], n[job.PriorityNormal], n[job.PriorityLow], s.Running[name]})
	}
	for _, w := range s.Workers {
		shown.Workers = append(shown.Workers, worker{w, set.LogsOfWorker(p.Name, w.Name)})
	}
	return edge.Response{Status: http.StatusOK, Body: shown}, nil
}

// list names the pools of the tenant that are in use.
func (ts *Tasks) list(ctx context.Context, r *edge.Request) (edge.Response, error) {
	if ts.deps.Queue == nil {
		return edge.Response{}, errNoQueue
	}
	all, err := ts.deps.Queue.Pools(ctx, ts.deps.Clock.Now())
	if err != nil {
		return edge.Response{}, err
	}
	items := []map[string]string{}
	for _, p := range all {
		if p.Tenant == r.Tenant() {
			items = append(items, map[string]string{"name": p.Name})
		}
	}
	return edge.Response{Status: http.StatusOK, Body: map[string]any{"items": items}}, nil
}
