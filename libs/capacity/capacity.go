// Package capacity is the port through which executors report to workers how much of each lane they can call soon. So what they
// cannot call waits where it already is, in the hot buckets, instead of on the log.
//
// What every adapter promises:
//   - A report replaces the same executor's previous one.
//   - A report older than Fresh is no longer returned; all of them may be forgotten at any time.
//
// Only speed depends on it: without reports workers publish a little of each lane.
package capacity

import (
	"context"
	"time"
)

// Fresh is how long a report is valid.
const Fresh = 3 * time.Second

// MaxLanes bounds the lanes of one report.
const MaxLanes = 1000

// Report is an executor's report on itself.
type Report struct {
	// Executor is the name of the process, new at each start.
	Executor string
	// Behind is the age of the fires that the executor consumes now; zero when it waits for more.
	Behind time.Duration
	Lanes  []Lane
	// Age is how long ago the report was made; an adapter sets it.
	Age time.Duration
}

// Lane is an executor's report on a lane in which it has something to do.
type Lane struct {
	ID uint32
	// Waiting is how many of its fires wait for their target.
	Waiting int
	// Window is how many waiting fires the executor wants: as many as it calls within about two seconds, plus the calls that it could
	// begin at once.
	Window int
}

// Board is where reports are posted and read.
type Board interface {
	// Post replaces the executor's report. A report without lanes withdraws it.
	Post(ctx context.Context, r Report) error
	// Read returns all fresh reports, in the order of their executors' names.
	Read(ctx context.Context) ([]Report, error)
}
