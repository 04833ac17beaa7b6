package coord

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/run"
)

const (
	// GiveUpAfter is how long an owner goes on without getting anything done before it gives its role up: longer than a server
	// takes to fail over, and shorter than anybody should wait for one process that is cut off.
	GiveUpAfter = 45 * time.Second
	// tryEvery is the pause between two looks whether a role that was given up can be carried out again.
	tryEvery = 2 * time.Second
)

// Progress is what an owner says of its work: each kind of server that it needs has one. The zero value has begun nothing.
type Progress struct {
	// since is when the first try began after which none has succeeded, in nanoseconds since the Unix epoch; 0 for none.
	since atomic.Int64
}

// Begin notes that something is tried that needs the server.
func (p *Progress) Begin(now time.Time) { p.since.CompareAndSwap(0, now.UnixNano()) }

// Done notes that a try has succeeded.
func (p *Progress) Done() { p.since.Store(0) }

// stuck reports whether nothing has succeeded since before the instant.
func (p *Progress) stuck(before time.Time) bool {
	since := p.since.Load()
	return since != 0 && since < before.UnixNano()
}

// Role is a role that a process gives up while it cannot carry it out.
type Role struct {
	Coord  Coordinator
	Name   hotbucket.Role
	Logger *slog.Logger
	Clock  clock.Clock
	// Hot and Cold are how work gets on with the two kinds of server without which nothing gets done.
	Hot, Cold *Progress
	// Buckets are the hot ones, of which one has to answer; AskCold returns nil when the cold store does.
	Buckets hotbucket.Buckets
	AskCold func(ctx context.Context) error

	// last is what was owned last.
	last []hotbucket.Owner
}

// maxAsked is of how many partitions the hot tier is asked at most.
const maxAsked = 16

// able returns nil when the role can be carried out again.
func (r *Role) able(ctx context.Context) (err error) {
	for _, o := range r.last[:min(len(r.last), maxAsked)] {
		if _, err = r.Buckets.Incarnations(ctx, []int{o.Partition}); err == nil {
			break // another node's partitions may be away from everybody
		}
	}
	if err != nil {
		return err
	}
	return r.AskCold(ctx)
}

// Keep joins the role, and is a member of it until ctx ends, except while nothing gets done: a process that reaches the
// coordinator and not the stores would keep its partitions for ever, and nobody would carry them out. After GiveUpAfter it
// gives everything back, and joins again when it is able to. The channel is Join's: it carries the whole set of what is owned,
// which is empty meanwhile, and is closed when ctx ends. The error is that of the first Join.
//
// When nobody reaches the stores, everybody leaves, and the first who reaches them again gets all partitions. Others may own
// them before this process has read that they are no longer its own; epochs and leases hold them apart.
func (r *Role) Keep(ctx context.Context) (<-chan []hotbucket.Owner, error) {
	joined, leave := context.WithCancel(ctx)
	sets, err := r.Coord.Join(joined, r.Name)
	if err != nil {
		leave()
		return nil, err
	}
	told := make(chan []hotbucket.Owner, 1)
	go func() {
		defer close(told)
		defer func() { leave() }()
		for r.follow(ctx, sets, told) {
			leave()
			r.tell(told, nil)
			r.Logger.Warn("nothing got done for too long: the role is given up until its servers answer", "role", r.Name, "after", GiveUpAfter)
			for r.able(ctx) != nil {
				if run.Sleep(ctx, tryEvery) != nil {
					return
				}
			}
			r.Hot.Done()
			r.Cold.Done()
			joined, leave = context.WithCancel(ctx)
			err := run.Patiently(ctx, r.Logger, "join a role again", func(context.Context) (err error) {
				sets, err = r.Coord.Join(joined, r.Name)
				return err
			})
			if err != nil {
				return
			}
			r.Logger.Info("the role's servers answer again", "role", r.Name)
		}
	}()
	return told, nil
}

// follow passes on what the coordinator says, until ctx ends or nothing gets done; it reports whether the latter.
func (r *Role) follow(ctx context.Context, sets <-chan []hotbucket.Owner, told chan []hotbucket.Owner) (stuck bool) {
	look := time.NewTicker(GiveUpAfter / 10)
	defer look.Stop()
	before := false
	for {
		select {
		case owned, ok := <-sets:
			if !ok {
				return false // ctx ended
			}
			if len(owned) > 0 {
				r.last = owned
			}
			r.tell(told, owned)
		case <-look.C:
			limit := r.Clock.Now().Add(-GiveUpAfter)
			stuck := r.Hot.stuck(limit) || r.Cold.stuck(limit)
			if stuck && before { // twice: a process that stood still gets a moment to go on
				return true
			}
			before = stuck
		case <-ctx.Done():
			return false
		}
	}
}

// tell gives a set; one that was not read yet gives way to it.
func (r *Role) tell(told chan []hotbucket.Owner, owned []hotbucket.Owner) {
	select {
	case <-told:
	default:
	}
	told <- owned
}
