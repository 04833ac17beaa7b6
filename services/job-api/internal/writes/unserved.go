package writes

import (
	"context"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// served tells whether workers are there for the jobs of a request. Each pool is looked up once.
type served struct {
	pools pools.Queue
	now   time.Time
	shown map[pools.Pool]func(handler string) bool
}

func (ws *Writes) served() served {
	return served{pools: ws.deps.Pools, now: ws.deps.Clock.Now(), shown: map[pools.Pool]func(string) bool{}}
}

// warn returns the warning of a job whose tasks no worker fetches, as far as is known.
func (s served) warn(ctx context.Context, j *job.Job) []reads.Warning {
	t := &j.Definition.Target
	if t.Kind != job.TargetPool || s.pools == nil {
		return nil
	}
	p := pools.Pool{Tenant: j.Tenant, Name: t.Pool}
	if s.shown[p] == nil {
		s.shown[p] = s.look(ctx, p)
	}
	if s.shown[p](t.Handler) {
		return nil
	}
	return []reads.Warning{{
		Code: "unserved", Pointer: "/target/handler", Message: "No worker of the pool that has this handler was seen in the last ten minutes. Its tasks wait until there is one.",
	}}
}

// look returns which handlers the workers of a pool have: any, as far as it is not known, because a job needs no warning.
func (s served) look(ctx context.Context, p pools.Pool) func(handler string) bool {
	ctx, cancel := context.WithTimeout(ctx, hotWithin)
	defer cancel()
	state, err := s.pools.Show(ctx, p, s.now)
	return func(handler string) bool {
		return err != nil || slices.ContainsFunc(state.Workers, func(w pools.Worker) bool { return slices.Contains(w.Handlers, handler) })
	}
}
