package bulk

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/operations"
)

const (
	// eventsRead is how many events are read at once to find what is replayed.
	eventsRead = 500
	// mostRepeated is how many executions of a replay are noted at once: their ids are noted too.
	mostRepeated = 100
)

// repeat takes the next executions of a replay that are due until then, the newest first, at most [mostRepeated]. left is false if there is no
// other. Between two calls it goes on behind the last execution that it has looked at, whether that is replayed or not.
func (r *Runner) repeat(ctx context.Context, o *operations.Operation, j *job.Job, c *operations.Chunk, until time.Time) (left bool, err error) {
	before := jobstore.Cursor{NominalAt: o.Last, ExecutionID: o.LastExecution}
	if before.NominalAt.IsZero() {
		before = jobstore.Cursor{NominalAt: o.To.Add(-time.Millisecond)} // everything of that instant comes after it
	}
	oldest := job.Later(o.From, r.Clock.Now().Add(-jobstore.HistoryTTL))
	events, err := r.History.Executions(ctx, jobstore.OfJob(j), before, oldest, eventsRead)
	if err != nil {
		return false, fmt.Errorf("read the history of job %s: %w", o.JobID, err)
	}
	left = len(events) == eventsRead
	for len(events) > 0 {
		if len(c.At) == mostRepeated || c.Due(len(c.At)).After(until) {
			return true, nil
		}
		at, id := events[0].Place()
		n := slices.IndexFunc(events, func(e job.Event) bool {
			_, other := e.Place()
			return other != id
		})
		own := events
		switch {
		case n > 0:
			own, events = events[:n], events[n:]
		case !left:
			events = nil
		case len(events) < eventsRead: // there may be more of it, behind the page
			return true, nil
		default:
			if own, err = r.History.Execution(ctx, id); err != nil {
				return false, fmt.Errorf("read the history of execution %s: %w", id, err)
			}
			events = nil
		}
		if slices.Contains(o.States, string(job.EndOf(own))) {
			// A run of skipped occurrences may have the same place, after a loss (I1), and has the entry of another one.
			n := slices.IndexFunc(own, func(e job.Event) bool { return e.Type == job.EventAttempt })
			if own[n].Entry.Elsewhere() != nil {
				o.Last, o.LastExecution = at, id
				continue // what was only reproduced is not what the job did
			}
			c.At, c.Sources = append(c.At, own[n].Entry.Occurrence().UnixMilli()), append(c.Sources, id)
		}
		o.Last, o.LastExecution = at, id
	}
	return left, nil
}
