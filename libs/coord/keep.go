package coord

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
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

// Membership is that of a process in a role, which it gives up while it cannot carry the role out.
type Membership struct {
	Coord  Coordinator
	Role   Role
	Logger *slog.Logger
	Clock  clock.Clock
	// Hot and Cold are how work gets on with the two kinds of server without which nothing gets done.
	Hot, Cold *Progress
	// AskHot returns nil when the hot bucket of a partition answers, of which one has to; AskCold when the cold store does.
	AskHot  func(ctx context.Context, partition int) error
	AskCold func(ctx context.Context) error

	// last is what was owned last.
	last []Owner
}

// maxAsked is of how many partitions the hot tier is asked at most.
const maxAsked = 16

// able returns nil when the role can be carried out again.
func (m *Membership) able(ctx context.Context) (err error) {
	for _, o := range m.last[:min(len(m.last), maxAsked)] {
		if err = m.AskHot(ctx, o.Partition); err == nil {
			break // another node's partitions may be away from everybody
		}
	}
	if err != nil {
		return err
	}
	return m.AskCold(ctx)
}

// Keep joins the role, and is a member of it until ctx ends, except while nothing gets done: a process that reaches the
// coordinator and not the stores would keep its partitions for ever, and nobody would carry them out. After GiveUpAfter it
// gives everything back, and joins again when it is able to. The channel is Join's: it carries the whole set of what is owned,
// which is empty meanwhile, and is closed when ctx ends. The error is that of the first Join.
//
// When nobody reaches the stores, everybody leaves, and the first who reaches them again gets all partitions. Others may own
// them before this process has read that they are no longer its own; epochs and leases hold them apart.
func (m *Membership) Keep(ctx context.Context) (<-chan []Owner, error) {
	joined, leave := context.WithCancel(ctx)
	sets, err := m.Coord.Join(joined, m.Role)
	if err != nil {
		leave()
		return nil, err
	}
	told := make(chan []Owner, 1)
	go func() {
		defer close(told)
		defer func() { leave() }()
		for m.follow(ctx, sets, told) {
			leave()
			m.tell(told, nil)
			m.Logger.Warn("nothing got done for too long: the role is given up until its servers answer", "role", m.Role, "after", GiveUpAfter)
			for m.able(ctx) != nil {
				if run.Sleep(ctx, tryEvery) != nil {
					return
				}
			}
			m.Hot.Done()
			m.Cold.Done()
			joined, leave = context.WithCancel(ctx)
			err := run.Retry(ctx, m.Logger, "join a role again", func(context.Context) (err error) {
				sets, err = m.Coord.Join(joined, m.Role)
				return err
			})
			if err != nil {
				return
			}
			m.Logger.Info("the role's servers answer again", "role", m.Role)
		}
	}()
	return told, nil
}

// follow passes on what the coordinator says, until ctx ends or nothing gets done; it reports whether the latter.
func (m *Membership) follow(ctx context.Context, sets <-chan []Owner, told chan []Owner) (stuck bool) {
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
				m.last = owned
			}
			m.tell(told, owned)
		case <-look.C:
			limit := m.Clock.Now().Add(-GiveUpAfter)
			stuck := m.Hot.stuck(limit) || m.Cold.stuck(limit)
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
func (m *Membership) tell(told chan []Owner, owned []Owner) {
	select {
	case <-told:
	default:
	}
	told <- owned
}
