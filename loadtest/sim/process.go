package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/loadtest/sim/servers"
)

// The errors that faults return.
var (
	errFault  = errors.New("simulated: the server did not answer")
	errOutage = errors.New("simulated: the server is away")
	errDead   = errors.New("simulated: this process is dead")
)

// sessionTimeout is how long the coordinator and the log wait for a process that they do not hear from.
const sessionTimeout = 6 * time.Second

// process is one run of a service, from its start to its death or to the end of the simulation.
type process struct {
	w    *world
	name string // such as "executor-1"; all runs of it share it
	kind string
	run  int
	// clock is that of its machine.
	clock clock.Clock

	ctx    context.Context
	cancel context.CancelFunc
	gone   chan struct{} // closed when it is dead
	ended  chan struct{} // closed when its service has returned

	mu           sync.Mutex
	dead         bool
	stalledUntil time.Time
	members      []*servers.Member
	consumers    []*servers.Consumer
	seen         map[bucketOf]time.Time // when a loader last read what is in a bucket
}

// die ends the process: nothing that it still does has any effect, and nobody hears from it any more.
func (p *process) die(restart time.Duration) {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return
	}
	p.dead = true
	close(p.gone)
	p.mu.Unlock()
	p.w.tell(p.name, "", "dies")
	p.cancel()
	p.w.background.Go(func() {
		p.w.after(restart, func() { p.w.start(p.kind, p.name, p.run+1) })
		p.w.after(sessionTimeout-restart, p.lapse) // others may own them before or after it is back
	})
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// restart tells the process to stop, lets it finish what it has begun, and starts it again a while later.
func (p *process) restart(later time.Duration) {
	p.w.tell(p.name, "", "is told to stop")
	p.cancel()
	select {
	case <-p.ended:
	case <-p.gone:
	case <-p.w.base.Done():
		return
	}
	p.die(later)
}

// stall makes the process stall for a while.
func (p *process) stall(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := time.Now().Add(d)
	if p.dead || until.Before(p.stalledUntil) {
		return
	}
	first := time.Now().After(p.stalledUntil)
	p.stalledUntil = until
	if first {
		p.w.tell(p.name, "", fmt.Sprintf("stalls for %s", d))
		p.w.background.Go(p.lapseWhileStalled)
	}
}

// lapseWhileStalled takes a process's partitions from it when its session times out, and lets it in again afterwards.
func (p *process) lapseWhileStalled() {
	p.w.after(sessionTimeout, func() {})
	if !p.stalled() {
		return
	}
	p.lapse()
	for p.stalled() {
		p.w.after(50*time.Millisecond, func() {})
	}
	p.rejoin()
}

func (p *process) stalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead && time.Now().Before(p.stalledUntil)
}

func (p *process) lapse() {
	p.mu.Lock()
	members, consumers := p.members, p.consumers
	p.mu.Unlock()
	for _, m := range members {
		m.Lapse()
	}
	for _, c := range consumers {
		c.Lapse()
	}
}

func (p *process) rejoin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		for _, m := range p.members {
			m.Return()
		}
	}
}

// ready waits while the process stalls, and returns an error if it is dead.
func (p *process) ready() error {
	for {
		p.mu.Lock()
		dead, wait := p.dead, time.Until(p.stalledUntil)
		p.mu.Unlock()
		if dead {
			return errDead
		}
		if wait <= 0 {
			return nil
		}
		p.wait(wait)
	}
}

// wait waits, unless the process dies.
func (p *process) wait(d time.Duration) { p.waitFor(context.Background(), d) }

// waitFor waits, unless the process dies or the caller gives up.
func (p *process) waitFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-p.gone:
	}
}

// through passes a call to a port through the faults of the simulation.
func through[T any](ctx context.Context, p *process, op *Op, key string, call func(context.Context) (T, error)) (T, error) {
	return knowing(ctx, p, op, key, func(ctx context.Context, _ Fault) (T, error) { return call(ctx) })
}

// some returns the elements for which a fault lets a call take effect: all of them, except with FailPartly.
func some[E any](p *process, f Fault, list []E, key func(E) string) []E {
	if f.Kind != FailPartly {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(e E) bool { return p.w.faults.dice.roll("part/%s/%d", key(e), f.Point.N) < 0.5 })
}

// knowing is through for a call whose effect depends on the fault (FailPartly and Unseen).
func knowing[T any](ctx context.Context, p *process, op *Op, key string, call func(context.Context, Fault) (T, error)) (T, error) {
	var zero T
	if err := p.ready(); err != nil {
		return zero, err
	}
	if p.w.away(op.Port) || p.w.away(p.name+"/"+op.Port) {
		p.waitFor(ctx, p.w.hanging(op.Port))
		return zero, errOutage
	}
	f := p.w.faults.At(p.kind, op, key)
	p.note(op, key, f)
	later := func() {
		p.w.background.Go(func() {
			p.w.after(f.For, func() { _, _ = call(p.w.base, f) })
		})
	}
	switch f.Kind {
	case FailBefore:
		return zero, errFault
	case FailLate:
		later()
		return zero, errFault
	case SlowBefore:
		p.wait(f.For)
	case DieBefore:
		p.die(f.For)
	case StallBefore:
		p.stall(f.For)
	}
	if err := p.ready(); err != nil {
		return zero, err
	}
	v, err := call(ctx, f)
	switch f.Kind {
	case FailAfter, FailPartly, Unseen:
		return zero, errFault
	case Twice:
		later()
	case SlowAfter:
		p.wait(f.For)
	case DieAfter:
		p.die(f.For)
	case StallAfter:
		p.stall(f.For)
	}
	if err := p.ready(); err != nil {
		return zero, err
	}
	return v, err
}

// note records a call and the fault that strikes it.
func (p *process) note(op *Op, key string, f Fault) {
	if f.Kind == None {
		p.w.tell(p.name, key, op.Port+"."+op.Name)
	} else {
		p.w.tell(p.name, key, "FAULT "+f.String())
	}
	switch f.Kind {
	case FailLate, Twice, SlowBefore, SlowAfter:
		if op != opDue { // after a slow read, nothing that it returned is done
			p.w.delayed(p, f.For, false)
		}
	case StallBefore, StallAfter:
		p.w.delayed(p, f.For, true)
	}
}

// do is through for calls that return only an error.
func do(ctx context.Context, p *process, op *Op, key string, call func(context.Context) error) error {
	_, err := through(ctx, p, op, key, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// write is do for a call about several elements; FailPartly lets some of them take effect.
func write[E any](ctx context.Context, p *process, op *Op, list []E, key func(E) string, call func(context.Context, []E) error) error {
	_, err := knowing(ctx, p, op, first(list, key), func(ctx context.Context, f Fault) (struct{}, error) {
		return struct{}{}, call(ctx, some(p, f, list, key))
	})
	return err
}
