package writes

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// maxLooks bounds the pools that are looked up for the jobs of a request.
const maxLooks = 20

// served tells whether workers are there for the jobs of a request. Each pool is looked up once. The first that does not answer in time is the
// last: a missing warning does less harm than a late answer.
type served struct {
	pools pools.Queue
	now   time.Time
	shown map[pools.Pool]map[string]bool
	left  int
}

func (ws *Writes) served() *served {
	return &served{pools: ws.deps.Pools, now: ws.deps.Clock.Now(), shown: map[pools.Pool]map[string]bool{}, left: maxLooks}
}

// warn returns the warning of a job whose tasks no worker fetches, as far as is known.
func (s *served) warn(ctx context.Context, j *job.Job) []reads.Warning {
	t := &j.Definition.Target
	if t.Kind != job.TargetPool || s.pools == nil {
		return nil
	}
	p := pools.Pool{Tenant: j.Tenant, Name: t.Pool}
	handlers, looked := s.shown[p]
	if !looked {
		handlers = s.look(ctx, p)
		s.shown[p] = handlers
	}
	if handlers == nil || handlers[t.Handler] {
		return nil
	}
	return []reads.Warning{{
		Code: "unserved", Pointer: "/target/handler", Message: "No worker of the pool that has this handler was seen in the last ten minutes. Its tasks wait until there is one.",
	}}
}

// look returns which handlers the workers of a pool have; nil if that is not known.
func (s *served) look(ctx context.Context, p pools.Pool) map[string]bool {
	if s.left <= 0 {
		return nil
	}
	s.left--
	ctx, cancel := context.WithTimeout(ctx, hotWithin)
	defer cancel()
	state, err := s.pools.Show(ctx, p, s.now)
	if err != nil {
		s.left = 0
		return nil
	}
	handlers := map[string]bool{}
	for _, w := range state.Workers {
		for _, h := range w.Handlers {
			handlers[h] = true
		}
	}
	return handlers
}
