package schedulerworker

import (
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
)

// task is an entry that a shard holds: read, prepared, and waiting for its instant.
//
//	Due gives it ──► fresh ──► preparing ──► queued until at ──► firing ──► published ──► removed
//	                   ▲           │            ▲     │             │            │
//	                   │           └──► aside ──┘     │             └────────────┴──► queued again, where a server did not answer
//	                   └── waits for row: its job is read again            └──► parked: its lane has no room
//
// Aside is what is done in place of firing: a refusal, a missed-run decision, a look for a row that is on its way. A task is dropped in
// any state when its partition is another's.
type task struct {
	entry *job.Entry // shared with the hot tier, never changed
	// from is the shard that took it.
	from     *shard
	owner    coord.Owner
	series   *occurrence.Series
	tenantID string
	labels   map[string]string
	// incarnation of the hot tier, read before the job row was.
	incarnation string
	takenAt     time.Time
	// judgedAt is when the read of the job row began by which the entry was judged.
	judgedAt time.Time
	// rejudged: it was judged once more because that was too long ago.
	rejudged bool
	// at is when the task is looked at next: its due instant, or the next recheck while it is held back.
	at time.Time
	// queued: it stands in the shard's queue, once.
	queued bool
	// waitsForRow: the job row is on its way, or could not be read.
	waitsForRow bool
	// published: the fire is durable, only the removal from the hot bucket is missing.
	published bool
	// bare: publish the fire alone, without chain or policy; it was dispatched before.
	bare bool
	// aside is what is to be done with the task instead of firing it.
	aside aside
	// waitsSince is since when its lane has had less room than entries; zero if it had room.
	waitsSince time.Time
	// fresh: its row was read since it was taken; it was not settled by then.
	fresh bool
	// park: its lane has no room, so it is attended to and parked instead of published; parked: it was.
	park, parked bool
	// regiven: it was given as parked while this shard still had it.
	regiven bool
	// counted: it takes up room of its lane. reserved is what it takes up of the worker's budget, in bytes.
	counted  bool
	reserved int64
	// markAt is when a parked entry is marked on its row, zero for never; markNow: at once, there are too many to remember.
	markAt  time.Time
	markNow bool
	// busy: a goroutine works on the task, the loop leaves it alone. dropped: it was to be forgotten meanwhile.
	busy, dropped bool
}

// aside is work on a task instead of firing it. It gives the instant at which the task is to be looked at again; the
// zero time means that nothing is left to do.
type aside func(ctx context.Context) (again time.Time, err error)

// Bounds of what a shard has under way at once, beside one read.
const maxAside = 64

// maxPreparing and maxFiring are those of each class.
var maxPreparing, maxFiring = [classes]int{2, 1}, [classes]int{8, 1}

const (
	allPreparing = 2 + 1
	allFiring    = 8 + 1
)

// taskQueue is a heap by the instant at which a task is looked at next.
type taskQueue []*task

func (q taskQueue) Len() int           { return len(q) }
func (q taskQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q taskQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *taskQueue) Push(x any) { *q = append(*q, x.(*task)) }

// Pop implements heap.Interface.
func (q *taskQueue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return t
}
