// Package capacity is the port over which executors tell workers how much of each lane they can call soon, so that what
// they cannot call waits where it already is, in the hot buckets, instead of on the log.
//
// What every adapter promises:
//   - A report replaces what the same executor said before.
//   - A report that is older than Fresh is no longer given; all of them may be forgotten at any time.
//
// Nothing depends on it but speed: without reports workers publish a little of each lane.
package capacity

import (
	"context"
	"time"
)

// Fresh is how long a report holds.
const Fresh = 3 * time.Second

// MaxLanes bounds the lanes of one report.
const MaxLanes = 1000

// Report is what an executor says of itself.
type Report struct {
	// Executor is the name of the process, new at each start.
	Executor string
	// Behind is how old the fires are that the executor consumes now; zero when it waits for more.
	Behind time.Duration
	Lanes  []Lane
	// Age is how long ago the report was made; an adapter sets it.
	Age time.Duration
}

// Lane is what an executor says of a lane in which it has something to do.
type Lane struct {
	ID uint32
	// Waiting is how many of its fires wait for their target.
	Waiting int
	// Window is how many of them the executor would have waiting: what it calls within about two seconds, and the calls
	// that it could begin at once.
	Window int
}

// Board is where reports are posted and read.
type Board interface {
	// Post replaces the executor's report. One without lanes withdraws it.
	Post(ctx context.Context, r Report) error
	// Read gives all fresh reports, in the order of their executors' names.
	Read(ctx context.Context) ([]Report, error)
}
