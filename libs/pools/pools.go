// Package pools is the port that holds the tasks of pools of workers: programs that nobody can call, and that fetch what there is to do. It
// lies in the hot tier, so that a task may be fetched through any job-api.
//
// What every adapter promises:
//   - Every call on one pool is atomic.
//   - A task waits, or somebody has taken it until an instant, or it is not there. It is taken by one at a time.
//   - A pool holds MaxTasks and MaxBytes at most.
//   - Everything may be forgotten at any time: what guarantees a task is its entry in the cold store, which is not done (decision 64).
package pools

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/wire"
)

// Bounds of a pool, and of a call.
const (
	// MaxTasks bounds the tasks of a pool.
	MaxTasks = 200_000
	// MaxBytes bounds the size of the tasks of a pool.
	MaxBytes = 256 << 20
	// MaxWorkers bounds the workers of a pool that are shown.
	MaxWorkers = 1000
	// WorkerKept is how long a worker is shown after it was seen last.
	WorkerKept = 10 * time.Minute
	// MaxPools bounds the pools that are known.
	MaxPools = 10_000
	// UnusedFor is how long a pool is known at least after the last task was added.
	UnusedFor = 24 * time.Hour
	// TakenFor is how long a task is kept for whom took it until a lease is bound to it. It is longer than attempts.AloneFor, so that who takes the
	// task next gets the lease of its attempt, also where clocks differ.
	TakenFor = 20 * time.Second
	// PollKept is how long it is known what a poll has taken.
	PollKept = time.Minute
	// MaxHeld bounds the handlers of a pool of which it is known that limits kept tasks back. Workers of others look for themselves.
	MaxHeld = 1000
	// MaxLapsed bounds the tasks that Lapsed returns.
	MaxLapsed = 100
)

// ErrFull means that a pool has no room for a task.
var ErrFull = errors.New("the pool has no room")

// Pool is a pool of a tenant.
type Pool struct {
	Tenant job.Tenant
	Name   string
}

// String returns the pool's name among those of all tenants.
func (p Pool) String() string { return p.Tenant.String() + "/" + p.Name }

// ParsePool returns the pool of a name that String has returned.
func ParsePool(text string) (p Pool, ok bool) {
	tenant, name, ok := strings.Cut(text, "/")
	t, err := job.ParseTenant(tenant)
	return Pool{Tenant: t, Name: name}, ok && err == nil && name != ""
}

// Task is an attempt that waits for a worker, or that one has.
type Task struct {
	// Fire is the attempt.
	Fire *job.Fire
	// Holder acquires the attempt's lease when the task is handed out. It is drawn with the task, so that doing it twice is doing it once.
	Holder attempts.Holder
	// StopVersion is that of the job's stop record by which the attempt may begin, and Incarnation that of the hot tier which has forgotten
	// nothing that concerns it.
	StopVersion int64
	Incarnation string
	// KnownSince is since when it was known that the attempt has not ended: outcomes that are older may be forgotten.
	KnownSince time.Time
	// Again is set if a worker may have had the execution before, and left progress.
	Again bool
	// Lease is what is bound to the task; nil if nothing is.
	Lease *Lease
}

// ID names a task: it is that of the attempt.
func (t *Task) ID() string { return IDOf(attempts.KeyOf(&t.Fire.Entry)) }

// Pool returns where the task waits.
func (t *Task) Pool() Pool { return Pool{Tenant: t.Fire.Tenant, Name: t.Fire.Target.Pool} }

// IDOf names the task of an attempt.
func IDOf(k attempts.Key) string { return k.ExecutionID + "." + strconv.Itoa(k.Attempt) }

// KeyOf returns the attempt of a task.
func KeyOf(id string) (k attempts.Key, ok bool) {
	at := strings.LastIndexByte(id, '.')
	if at < 0 {
		return k, false
	}
	n, err := strconv.Atoi(id[at+1:])
	return attempts.Key{ExecutionID: id[:at], Attempt: n}, err == nil && n > 0 && at > 0
}

// Lease is that a worker has a task. It holds what is needed to end the attempt.
type Lease struct {
	// Fire is the attempt's, without headers and body.
	Fire *job.Fire
	// Token is that of the attempt's lease, Fence the worker's.
	Token job.Token
	Fence job.Fence
	// Worker names the worker. Begun is when it had the task, Until the end of its lease.
	Worker       string
	Begun, Until time.Time
	// StoppedAt is when it was told to stop, because Why; zero if it was not.
	StoppedAt time.Time
	Why       string
	// Progress is set if the worker has told any, Again if one before may have.
	Progress, Again bool
	// Number counts how often the lease was changed.
	Number int64
}

// AnyNumber stands for each number of a lease.
const AnyNumber = -1

// Take asks for tasks.
type Take struct {
	// Poll names the call: one that is repeated under the same name gets the same tasks, as far as they are still taken.
	Poll string
	// Handlers are what the worker can do.
	Handlers []string
	Most     int
	// Limits bound what runs.
	Limits Limits
	// Now is the caller's clock.
	Now time.Time
}

// Taken is what a call has taken.
type Taken struct {
	Tasks []*Task
	// Again is set if a call of this name has taken tasks before: these are the ones among them that are still taken.
	Again bool
}

// Limits bound the tasks of a pool that are taken at once. The zero value bounds nothing.
type Limits struct {
	// Running bounds all of them; nil for no bound.
	Running *int
	// Handlers bounds those for handlers, by name.
	Handlers map[string]int
}

// Room returns how many tasks may be taken of a pool in which so many are taken, and how many of each handler, if a call may take `most`.
func (l *Limits) Room(most, taken int, handlers []string, running func(handler string) int) (room int, of map[string]int) {
	room, of = most, make(map[string]int, len(handlers))
	if l.Running != nil {
		room = max(0, min(room, *l.Running-taken))
	}
	for _, h := range handlers {
		of[h] = most
		if limit, there := l.Handlers[h]; there {
			of[h] = max(0, min(most, limit-running(h)))
		}
	}
	return room, of
}

// Worker is a worker as it was seen last.
type Worker struct {
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	Handlers []string  `json:"handlers"`
	Running  int       `json:"running"`
	SeenAt   time.Time `json:"seen_at"`
	// Beats is set if a heartbeat showed it, which tells less than a poll.
	Beats bool `json:"-"`
}

// After returns what is known of a worker that is seen once more, or for the first time if before is nil. After a heartbeat its version and handlers
// are as it told before, and it has one task at least.
func (w *Worker) After(before *Worker) Worker {
	after := *w
	if w.Beats && before != nil {
		after = *before
		after.Running, after.SeenAt = max(before.Running, w.Running), job.Later(before.SeenAt, w.SeenAt)
	}
	after.Beats = false
	return after
}

// State is what there is in a pool.
type State struct {
	// Waiting counts the tasks that wait, by handler and priority.
	Waiting map[string]map[job.Priority]int
	// Taken counts those that somebody has, Running the same by handler.
	Taken   int
	Running map[string]int
	// Workers were seen lately, in the order of their names.
	Workers []Worker
}

// Queue holds the tasks of all pools.
type Queue interface {
	// Add lets a task wait. One that waits there already is replaced and keeps its place, one that somebody has stays as it is, unless its
	// time is over. ErrFull if there is no room.
	Add(ctx context.Context, t *Task, now time.Time) error
	// Take takes tasks for TakenFor: those of a high priority first, but never only those, and of each priority the earliest instants. It takes no
	// more than the limits leave room for; what is taken already counts, whatever the limits were then.
	Take(ctx context.Context, p Pool, t Take) (Taken, error)
	// Bind binds a lease to a task that is taken; then it is taken until the lease's end. ok reports whether the task is still taken, and what is bound
	// to it is nothing, for a lease with the number 0, or else the lease with the same fence and the number before. So of two that change it at
	// once, one does.
	Bind(ctx context.Context, p Pool, id string, l *Lease, now time.Time) (ok bool, err error)
	// Leases returns the leases that are bound to tasks, in order; nil for one that has none.
	Leases(ctx context.Context, p Pool, ids []string) ([]*Lease, error)
	// Remove removes a taken task to which a lease with this fence and number is bound; with a zero fence one to which none is. It reports whether there
	// was one: of two that remove a task at once, one did.
	Remove(ctx context.Context, p Pool, id string, fence job.Fence, number int64) (removed bool, err error)
	// Forget removes a task that waits.
	Forget(ctx context.Context, p Pool, id string) error
	// Lapsed returns tasks whose time is over, with their leases if they have any, at most MaxLapsed. Those that have none wait again.
	Lapsed(ctx context.Context, p Pool, now time.Time) ([]*Lease, error)
	// Pools returns the pools to which tasks were added within UnusedFor, or a little less, in the order of their names.
	Pools(ctx context.Context, now time.Time) ([]Pool, error)
	// See notes a worker, as [Worker.After] says if it is known.
	See(ctx context.Context, p Pool, w *Worker) error
	// Show returns what there is in a pool.
	Show(ctx context.Context, p Pool, now time.Time) (*State, error)
	// Bell rings when tasks were added, here or elsewhere, and when there is room again where limits kept tasks from being taken. A ring may be
	// lost.
	Bell() *Bell
}

// priorities are the priorities in their order.
func priorities() []job.Priority {
	return []job.Priority{job.PriorityHigh, job.PriorityNormal, job.PriorityLow}
}

// Turn returns in which order the priorities are looked at for the n-th task that a pool gives: of seven tasks, four are of a high
// priority first, two of the normal one, and one of the low one, as long as there are any.
func Turn(n int64) []job.Priority {
	first := []int{0, 1, 0, 2, 0, 1, 0}[n%7]
	order := []job.Priority{priorities()[first]}
	for i, p := range priorities() {
		if i != first {
			order = append(order, p)
		}
	}
	return order
}

// PriorityOf returns a task's priority.
func PriorityOf(t *Task) job.Priority {
	if p := t.Fire.Target.Priority; p == job.PriorityHigh || p == job.PriorityLow {
		return p
	}
	return job.PriorityNormal
}

// head is what a task is written as beside its fire, and a lease beside its own.
type head struct {
	Name        string     `json:"h,omitempty"`
	Definition  string     `json:"d,omitempty"`
	Start       int64      `json:"s,omitempty"`
	StopVersion int64      `json:"v,omitempty"`
	Incarnation string     `json:"i,omitempty"`
	KnownSince  int64      `json:"k,omitempty"`
	Number      int64      `json:"n,omitempty"`
	Again       bool       `json:"a,omitempty"`
	Token       *job.Token `json:"t,omitempty"`
	Fence       *job.Fence `json:"f,omitempty"`
	Worker      string     `json:"w,omitempty"`
	Begun       int64      `json:"b,omitempty"`
	Until       int64      `json:"u,omitempty"`
	StoppedAt   int64      `json:"x,omitempty"`
	Why         string     `json:"y,omitempty"`
	Progress    bool       `json:"p,omitempty"`
}

// MarshalTask encodes a task without its lease.
func MarshalTask(t *Task) []byte {
	return join(&head{
		Name: t.Holder.Name, Definition: t.Holder.DefinitionID, Start: t.Holder.Start, StopVersion: t.StopVersion, Incarnation: t.Incarnation, Again: t.Again,
		KnownSince: milli(t.KnownSince),
	}, t.Fire)
}

// UnmarshalTask decodes what MarshalTask has encoded.
func UnmarshalTask(b []byte) (*Task, error) {
	h, f, err := split(b)
	if err != nil {
		return nil, err
	}
	return &Task{
		Fire: f, Holder: attempts.Holder{Name: h.Name, DefinitionID: h.Definition, Start: h.Start},
		StopVersion: h.StopVersion, Incarnation: h.Incarnation, Again: h.Again, KnownSince: instant(h.KnownSince),
	}, nil
}

// MarshalLease encodes a lease.
func MarshalLease(l *Lease) []byte {
	return join(&head{
		Token: &l.Token, Fence: &l.Fence, Worker: l.Worker, Begun: milli(l.Begun), Until: milli(l.Until), StoppedAt: milli(l.StoppedAt), Why: l.Why, Progress: l.Progress,
		Again: l.Again, Number: l.Number,
	}, l.Fire)
}

// UnmarshalLease decodes what MarshalLease has encoded.
func UnmarshalLease(b []byte) (*Lease, error) {
	h, f, err := split(b)
	if err != nil {
		return nil, err
	}
	l := &Lease{Fire: f, Worker: h.Worker, Begun: instant(h.Begun), Until: instant(h.Until), StoppedAt: instant(h.StoppedAt), Why: h.Why, Progress: h.Progress, Again: h.Again, Number: h.Number}
	if h.Token != nil && h.Fence != nil {
		l.Token, l.Fence = *h.Token, *h.Fence
	}
	return l, nil
}

// join puts a head before a fire: its JSON, a zero byte, which JSON has none of, and the fire.
func join(h *head, f *job.Fire) []byte {
	text, _ := json.Marshal(h) // a struct of texts and numbers
	return append(append(text, 0), wire.MarshalFire(f)...)
}

var errMalformed = errors.New("pools: a task cannot be read")

func split(b []byte) (h head, f *job.Fire, err error) {
	text, rest, ok := strings.Cut(string(b), "\x00")
	if !ok || json.Unmarshal([]byte(text), &h) != nil {
		return h, nil, errMalformed
	}
	fire, err := wire.UnmarshalFire([]byte(rest))
	return h, &fire, err
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func instant(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// Is reports whether a lease, nil for none, has a fence and a number; a zero fence is that of none.
func (l *Lease) Is(fence job.Fence, number int64) bool {
	if l == nil {
		return fence == (job.Fence{})
	}
	return l.Fence == fence && (number == AnyNumber || l.Number == number)
}

// Follows reports whether a lease may be bound where another one is; nil for none.
func (l *Lease) Follows(bound *Lease) bool {
	if bound == nil {
		return l.Number == 0
	}
	return l.Fence == bound.Fence && l.Number == bound.Number+1
}
