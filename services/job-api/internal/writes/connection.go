package writes

import (
	"context"
	"errors"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/messaging"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// connections looks up the connections that the jobs of one request name. It reads them once, if any job names one.
type connections struct {
	of   messaging.Settings
	set  messaging.Set
	read bool
}

// find refuses a target whose connection is not there, or of another kind. It may be deleted later.
func (c *connections) find(ctx context.Context, tenant job.Tenant, t *job.Target) error {
	if t.Connection == "" {
		return nil
	}
	if !c.read {
		var err error
		if _, c.set, err = messaging.Read(ctx, c.of, tenant); err != nil {
			return err
		}
		c.read = true
	}
	there, err := c.set.Get(t.Connection)
	switch {
	case errors.Is(err, messaging.ErrNotFound):
		return edge.Invalid([]problem.Fault{{
			Pointer: "/target/connection", Code: "unknown", Message: "There is no such connection; an admin makes it with PUT /connections/NAME.",
		}})
	case err != nil || there.Kind() != t.Kind:
		return edge.Invalid([]problem.Fault{{
			Pointer: "/target/connection", Code: "another-kind", Message: "The connection is of another kind than the target.",
		}})
	}
	return nil
}

// findNamed finds what a definition names: the jobs that it follows, and its connection. standing is the job as it is: what that names already
// may be gone.
func (ws *Writes) findNamed(ctx context.Context, r *edge.Request, standing *job.Job, d *job.Definition) error {
	if err := ws.findParents(ctx, r, standing.ID, standing.Definition.Schedule.After, d); err != nil {
		return err
	}
	if t := &standing.Definition.Target; t.Connection == d.Target.Connection && t.Kind == d.Target.Kind {
		return nil
	}
	c := connections{of: ws.deps.Settings}
	return c.find(ctx, r.Tenant(), &d.Target)
}
