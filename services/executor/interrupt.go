package executor

import (
	"context"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
)

// interruptEvery is the pause between two looks for executions that were cancelled while running.
const interruptEvery = 500 * time.Millisecond

// calls are the invocations in flight, each with a way to interrupt it.
type calls struct {
	mu sync.Mutex
	m  map[*job.Fire]*call
}

type call struct {
	cancel      context.CancelFunc
	interrupted bool
}

// make makes a call that ends at the target's timeout and can be interrupted; it reports whether it was interrupted.
func (c *calls) make(ctx context.Context, f *job.Fire, do func(context.Context) job.Outcome) (job.Outcome, bool) {
	ctx, cancel := context.WithTimeout(ctx, f.Target.Timeout)
	defer cancel()
	one := &call{cancel: cancel}
	c.mu.Lock()
	if c.m == nil {
		c.m = map[*job.Fire]*call{}
	}
	c.m[f] = one
	c.mu.Unlock()
	o := do(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, f)
	return o, one.interrupted
}

// fires lists the calls in flight, and the jobs they belong to.
func (c *calls) fires() (fires []*job.Fire, jobIDs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for f := range c.m {
		fires = append(fires, f)
		if !seen[f.JobID] {
			seen[f.JobID] = true
			jobIDs = append(jobIDs, f.JobID)
		}
	}
	return fires, jobIDs
}

func (c *calls) interrupt(f *job.Fire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, ok := c.m[f]; ok {
		one.interrupted = true
		one.cancel()
	}
}

// interruptLoop interrupts invocations whose execution was cancelled since they began, or whose place another one took.
func (s *Service) interruptLoop(ctx context.Context) {
	for run.Sleep(ctx, interruptEvery) == nil {
		fires, jobIDs := s.calls.fires()
		if len(fires) == 0 {
			continue
		}
		states, err := s.deps.Records.StopsOf(ctx, jobIDs)
		if err != nil {
			continue // it is asked again in a moment
		}
		for _, f := range fires {
			if state := states[f.JobID]; state.Stops(f.ExecutionID) || state.Displaced(&f.Entry) {
				s.calls.interrupt(f)
			}
		}
	}
}
