package writes

import (
	"context"
	"errors"
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

// findParents finds the jobs that a definition of a job follows, "" for a new one, by their ids or keys. Those that it followed before may be
// gone; a key that the request writes stands for the job that has it now, if there is one. It refuses what is not there, and a circle, also one that others close; two requests that come at once may close one between them, which
// the bound on what follows one another ends.
func (ws *Writes) findParents(ctx context.Context, r *edge.Request, jobID string, before []job.Parent, d *job.Definition) error {
	parents := d.Schedule.After
	if len(parents) == 0 {
		return nil
	}
	body, _ := r.Tree.(map[string]any)
	_, written := body["after"]
	known := map[string]bool{}
	for i := range parents {
		p, at := &parents[i], fmt.Sprintf("/after/%d/job", i)
		if k := slices.IndexFunc(before, func(o job.Parent) bool { return o.Named == p.Named }); k >= 0 {
			p.JobID = before[k].JobID
			known[p.JobID] = true
		}
		if p.JobID == "" || written {
			id, err := ws.deps.Reads.JobID(ctx, r, p.Named, at)
			var refused *problem.Problem
			switch {
			case err == nil:
				p.JobID = id
			case p.JobID == "" || !errors.As(err, &refused):
				return err
			}
		}
		if slices.ContainsFunc(parents[:i], func(o job.Parent) bool { return o.JobID == p.JobID }) {
			return edge.Invalid([]problem.Fault{{Pointer: at, Code: "duplicate", Message: "Another item names this job; use on: any for both ends."}})
		}
	}
	return ws.checkParents(ctx, r.Tenant(), jobID, known, &d.Schedule)
}

const (
	// mostAncestors bounds how many jobs are looked at that a job follows, directly or through others.
	mostAncestors = 1000
	// mostWays bounds how often a job is executed because each of the first jobs of those that it follows was, once.
	mostWays = 1000
)

// tooLong returns the answer to a request by which too much would follow one another.
func tooLong() error {
	return edge.Invalid([]problem.Fault{{
		Pointer: "/after", Code: "too-long",
		Message: "At most 100 jobs may follow one another; one may follow 1000, directly or through others, and be executed 1000 times for one execution of each.",
	}})
}

// checkParents looks at the jobs that a job follows, and at those that they follow in turn. known are those of its parents that need not be there.
func (ws *Writes) checkParents(ctx context.Context, tenant job.Tenant, jobID string, known map[string]bool, s *job.Schedule) error {
	follower := map[string]string{} // by whom each was named first
	schedules := map[string]*job.Schedule{}
	var level []string
	for i := range s.After {
		follower[s.After[i].JobID] = jobID
		level = append(level, s.After[i].JobID)
	}
	for depth := 1; len(level) > 0; depth++ {
		if follower[jobID] != "" {
			return inCircle(follower, jobID, s.After)
		}
		if depth > job.MaxChain-1 || len(follower) > mostAncestors {
			return tooLong()
		}
		next := map[string]string{}
		for chunk := range slices.Chunk(level, jobstore.MaxGetMany) {
			rows, err := ws.deps.Jobs.GetMany(ctx, chunk)
			if err != nil {
				return fmt.Errorf("read the jobs that a job follows: %w", err)
			}
			for _, id := range chunk {
				j := rows[id]
				if depth == 1 && !known[id] && (j == nil || j.Deleted || j.Tenant != tenant) {
					return noParent(s.After, id)
				}
				if j == nil {
					continue
				}
				schedules[id] = &j.Definition.Schedule
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
	if ways(s, schedules, map[*job.Schedule]int{}) > mostWays {
		return tooLong()
	}
	return nil
}

// ways returns how often a schedule executes its job because each first job was executed once, or more than mostWays. done has what is known.
func ways(s *job.Schedule, schedules map[string]*job.Schedule, done map[*job.Schedule]int) int {
	if n, ok := done[s]; ok {
		return n
	}
	done[s] = mostWays + 1 // for a circle, which a race may have made
	n := 0
	for _, p := range s.After {
		of := 1
		if parent := schedules[p.JobID]; parent != nil && len(parent.After) > 0 {
			of = ways(parent, schedules, done)
		}
		if s.All {
			n = max(n, of)
		} else {
			n += of
		}
	}
	done[s] = min(n, mostWays+1)
	return done[s]
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
