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
	// GiveUpAfter is how long an owner goes on without getting anything done before it gives up its role: longer than a server takes
	// to fail over, and shorter than anybody should wait for one process that is cut off.
	GiveUpAfter = 45 * time.Second
	// tryEvery is the pause between two checks of whether a role that was given up can be carried out again.
	tryEvery = 2 * time.Second
)

// Progress is an owner's report on its work with one kind of server; each kind that it needs has its own. The zero value has begun
// nothing.
type Progress struct {
	// since is when the first attempt began after which none has succeeded, in nanoseconds since the Unix epoch; 0 for none.
	since atomic.Int64
}

// Begin notes the start of an attempt at something that needs the server.
func (p *Progress) Begin(now time.Time) { p.since.CompareAndSwap(0, now.UnixNano()) }

// Done notes that an attempt succeeded.
func (p *Progress) Done() { p.since.Store(0) }

// stuck reports whether nothing has succeeded since before the instant.
func (p *Progress) stuck(before time.Time) bool {
	since := p.since.Load()
	return since != 0 && since < before.UnixNano()
}

// Membership is a process's membership in a role, which the process gives up while it cannot carry the role out.
type Membership struct {
	Coord  Coordinator
	Role   Role
	Logger *slog.Logger
	Clock  clock.Clock
	// Hot and Cold report on the work with the two kinds of server without which nothing gets done.
	Hot, Cold *Progress
	// AskHot returns nil when the hot bucket of a partition answers; one partition must. AskCold returns nil when the cold store
	// answers.
	AskHot  func(ctx context.Context, partition int) error
	AskCold func(ctx context.Context) error

	// last is the last set that was owned.
	last []Owner
}

// maxAsked bounds the partitions that able asks the hot tier about.
const maxAsked = 16

// able returns nil when the role can be carried out again.
func (m *Membership) able(ctx context.Context) (err error) {
	for _, o := range m.last[:min(len(m.last), maxAsked)] {
		if err = m.AskHot(ctx, o.Partition); err == nil {
			break // other partitions may be on a node that nobody reaches
		}
	}
	if err != nil {
		return err
	}
	return m.AskCold(ctx)
}

// Keep joins the role, and stays a member until ctx ends, except while nothing gets done. A process that reaches the coordinator
// but not the stores would otherwise keep its partitions for ever, and nobody would work on them. After GiveUpAfter it gives
// everything back, and joins again when it is able to. The channel is like Join's: it carries the whole set of what is owned, which
// is empty in the meantime, and is closed when ctx ends. The error is that of the first Join.
//
// When nobody reaches the stores, everybody leaves, and the first who reaches them again gets all partitions. Others may own them
// before this process has read that they are no longer its own; epochs and leases keep them apart.
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

// follow passes on what the coordinator says, until ctx ends or nothing gets done; it reports whether it was the latter.
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
			if stuck && before { // twice: a process that was suspended gets a moment to go on
				return true
			}
			before = stuck
		case <-ctx.Done():
			return false
		}
	}
}

// tell sends a set, in place of one that has not been read yet.
func (m *Membership) tell(told chan []Owner, owned []Owner) {
	select {
	case <-told:
	default:
	}
	told <- owned
}
