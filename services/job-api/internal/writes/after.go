package writes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// dependents returns the store of who follows whom.
func (ws *Writes) dependents() dependents.Store {
	return dependents.Store{Jobs: ws.deps.Jobs, Settings: ws.deps.Settings}
}

// findParents finds the jobs that a definition of a job follows, "" for a new one, by their ids or keys. It refuses what is not there, and a circle,
// also one that others close; two requests that come at once may close one between them, which the bound on what follows one another ends.
func (ws *Writes) findParents(ctx context.Context, r *edge.Request, jobID string, d *job.Definition) error {
	parents := d.Schedule.After
	if len(parents) == 0 {
		return nil
	}
	for i := range parents {
		p, at := &parents[i], fmt.Sprintf("/after/%d/job", i)
		var err error
		if p.JobID, err = ws.deps.Reads.JobID(ctx, r, p.Named, at); err != nil {
			return err
		}
		if slices.ContainsFunc(parents[:i], func(o job.Parent) bool { return o.JobID == p.JobID }) {
			return edge.Invalid([]problem.Fault{{Pointer: at, Code: "duplicate", Message: "Another item names this job; use on: any for both ends."}})
		}
	}
	return ws.checkParents(ctx, r.Tenant(), jobID, parents)
}

// mostAncestors bounds how many jobs are looked at that a job follows, directly or through others.
const mostAncestors = 1000

// checkParents looks at the jobs that a job follows, and at those that they follow in turn.
func (ws *Writes) checkParents(ctx context.Context, tenant job.Tenant, jobID string, parents []job.Parent) error {
	follower := map[string]string{} // by whom each was named first
	var level []string
	for i := range parents {
		follower[parents[i].JobID] = jobID
		level = append(level, parents[i].JobID)
	}
	for depth := 1; len(level) > 0; depth++ {
		if follower[jobID] != "" {
			return inCircle(follower, jobID, parents)
		}
		if depth > job.MaxChain-1 || len(follower) > mostAncestors {
			return edge.Invalid([]problem.Fault{{
				Pointer: "/after", Code: "too-long", Message: "At most 100 jobs may follow one another, and one may follow 1000, directly or through others.",
			}})
		}
		next := map[string]string{}
		for chunk := range slices.Chunk(level, jobstore.MaxGetMany) {
			rows, err := ws.deps.Jobs.GetMany(ctx, chunk)
			if err != nil {
				return fmt.Errorf("read the jobs that a job follows: %w", err)
			}
			for _, id := range chunk {
				j := rows[id]
				if depth == 1 && (j == nil || j.Deleted || j.Tenant != tenant) {
					return noParent(parents, id)
				}
				if j == nil {
					continue
				}
				for _, p := range j.Definition.Schedule.After {
					if _, seen := follower[p.JobID]; !seen {
						next[p.JobID] = id
					}
				}
			}
		}
		level = slices.Sorted(maps.Keys(next))
		maps.Copy(follower, next)
	}
	return nil
}

// noParent returns the answer to a request that names a job which is not there.
func noParent(parents []job.Parent, id string) error {
	i := slices.IndexFunc(parents, func(p job.Parent) bool { return p.JobID == id })
	return edge.Invalid([]problem.Fault{{
		Pointer: fmt.Sprintf("/after/%d/job", i), Code: "not-found", Message: "There is no such job; check its id.",
	}})
}

// inCircle returns the answer to a request by which a job would follow itself. follower has by whom each job on the way is followed.
func inCircle(follower map[string]string, jobID string, parents []job.Parent) error {
	path := []string{jobID}
	first := jobID
	for id := follower[jobID]; id != "" && id != jobID; id = follower[id] {
		path, first = append(path, id), id
	}
	path = append(path, jobID)
	slices.Reverse(path)
	i := slices.IndexFunc(parents, func(p job.Parent) bool { return p.JobID == first })
	return edge.Invalid([]problem.Fault{{
		Pointer: fmt.Sprintf("/after/%d/job", i), Code: "circle", Message: "The job would follow itself: " + strings.Join(path, " after ") + ".",
	}})
}
