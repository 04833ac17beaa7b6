package schedulerworker

import (
	"cmp"
	"context"
	"time"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
)

// task is an entry that a shard holds: read, prepared, and waiting for its instant.
//
//	Due gives it ──► fresh ──► preparing ──► queued until at ──► firing ──► published ──► queued until its instant is over ──► removed
//	                   ▲           │            ▲     │             │            │
//	                   │           └──► aside ──┘     │             └────────────┴──► queued again, where a server did not answer
//	                   └── waits for row: its job is read again            └──► parked: its lane has no room
//
// Aside is work done in place of firing: a refusal, a missed-run decision, a look for a row that is on its way. A task in
// any state is dropped when its partition gets another owner.
type task struct {
	entry *job.Entry // shared with the hot tier, never changed
	// from is the shard that took the task.
	from   *shard
	owner  coord.Owner
	series *occurrence.Series
	tenant job.Tenant
	labels map[string]string
	// followed is whether other jobs follow the entry's.
	followed bool
	// incarnation is the hot tier's, read before the job row was read.
	incarnation string
	takenAt     time.Time
	// judgedAt is when the read of the job row that decided about the entry began.
	judgedAt time.Time
	// stopped is set if its job's row says that its execution alone is not to be called.
	stopped bool
	// rejudged is set if the entry was judged once more, because judgedAt was too long ago.
	rejudged bool
	// at is when the task is looked at next: its due instant, or the next recheck while it is held back.
	at time.Time
	// queued is set while the task is in the shard's queue, where it stands once.
	queued bool
	// waitsForRow is set if the job row is on its way, or could not be read.
	waitsForRow bool
	// ahead is set if its fire may be published ahead of its instant.
	ahead bool
	// published is set if the fire is durable and only the removal from the hot bucket is missing; stays, while its instant is to come.
	published, stays bool
	// bare is set to publish the fire alone, without chain or policy, because the entry was dispatched before.
	bare bool
	// missed is set if it was late when its time came, whatever it has waited for since.
	missed bool
	// entered is set if its execution is among those in progress of its job, in this row; waited, if it was its turn after others.
	entered, waited bool
	// stops is the state of its job's row, if its executions may not overlap. From heldAt on a stop record of heldVersion holds if it is stored
	// once more. untold counts how often too many changes of the job were not published yet.
	stops       *job.State
	heldVersion int64
	heldAt      time.Time
	untold      int
	// aside is work to do on the task instead of firing it.
	aside aside
	// waitsSince is since when its lane has had less room than entries; zero if it had room.
	waitsSince time.Time
	// fresh is set if its row was read since it was taken, and it was not settled by then.
	fresh bool
	// park is set if its lane has no room, so that it is attended to and parked instead of published; parked, once it was.
	park, parked bool
	// regiven is set if it was given as parked while this shard still had it.
	regiven bool
	// counted is set while it takes up room in its lane. reserved is what it takes of the worker's budget, in bytes.
	counted  bool
	reserved int64
	// markAt is when a parked entry is marked on its row, zero for never; markNow marks it at once, as there are too many to
	// remember.
	markAt  time.Time
	markNow bool
	// busy is set while a goroutine works on the task and the loop leaves it alone; dropped, if it was to be forgotten
	// meanwhile.
	busy, dropped bool
}

// aside is work on a task instead of firing it. It returns the instant at which to look at the task again; the zero time
// means that nothing is left to do.
type aside func(ctx context.Context) (again time.Time, err error)

// side is a queue of work aside. What is decided about overlaps, at every instant of some jobs, holds up nothing else, nor does what waits for
// its turn.
type side int

const (
	seldom side = iota
	overlapping
	inTurn
	sides
)

// Bounds on what a shard has in flight at once, besides one read: maxAside of each side.
const maxAside = 64

// maxPreparing and maxFiring hold the bounds for each class.
var maxPreparing, maxFiring = [classes]int{2, 1}, [classes]int{8, 1}

const (
	allPreparing = 2 + 1
	allFiring    = 8 + 1
)

// taskQueue is a heap ordered by the instant at which a task is looked at next, at the same instant the most precise first, and then by
// partition: what a batch has of one partition costs hardly more than one entry of it, and in a stampede everything is due at once. The
// order of the partitions is another at each instant, so that no job is always the last.
type taskQueue []*task

func (q taskQueue) Len() int { return len(q) }
func (q taskQueue) Less(i, j int) bool {
	if at := q[i].at.Compare(q[j].at); at != 0 {
		return at < 0
	}
	if p := cmp.Compare(q[j].entry.Precision, q[i].entry.Precision); p != 0 {
		return p < 0
	}
	shift := int(uint32(q[i].at.Unix()) * 2654435761 >> 12) // of Knuth's multiplicative hash
	return q[i].entry.Partition^shift < q[j].entry.Partition^shift
}
func (q taskQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

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

// ours returns the entry as messages carry it, with the tenant that the job row names, and whether that has dependents.
func (t *task) ours() job.Entry {
	e := *t.entry
	e.Tenant, e.Followed = t.tenant, t.followed && e.Elsewhere() == nil
	return e
}

// target is what the record says of what is called.
func (t *task) target() job.TargetRef {
	target := t.entry.Calls(t.series.Def.Target)
	return target.Ref()
}

// fire returns the message for the task's attempt, published at an instant.
func (t *task) fire(at time.Time) *job.Fire {
	f := &job.Fire{
		Entry: t.ours(), Target: t.entry.Calls(t.series.Def.Target), Retry: t.series.Def.Retry,
		Incarnation: t.incarnation, Epoch: t.owner.Epoch, TakenAt: job.Instant(t.takenAt),
		PublishedAt: at, Fresh: t.fresh,
	}
	if f.Trigger == job.TriggerSchedule {
		f.Deadlines = t.series.Def.Deadlines
	}
	return f
}
