package writes

import (
	"context"
	"slices"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/pools"
	"github.com/minutehand/minutehand/services/job-api/internal/reads"
)

// unserved returns the warning of a job whose tasks no worker fetches, as far as is known.
func (ws *Writes) unserved(ctx context.Context, j *job.Job) []reads.Warning {
	t := &j.Definition.Target
	if t.Kind != job.TargetPool || ws.deps.Pools == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hotWithin)
	defer cancel()
	s, err := ws.deps.Pools.Show(ctx, pools.Pool{Tenant: j.Tenant, Name: t.Pool}, ws.deps.Clock.Now())
	if err != nil || slices.ContainsFunc(s.Workers, func(w pools.Worker) bool { return slices.Contains(w.Handlers, t.Handler) }) {
		return nil // a job needs no warning
	}
	return []reads.Warning{{
		Code: "unserved", Pointer: "/target/handler", Message: "No worker of the pool that has this handler was seen in the last ten minutes. Its tasks wait until there is one.",
	}}
}
