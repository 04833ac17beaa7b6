//go:build servers

package zookeeper_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/adapters/zookeeper"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/coord/coordtest"
)

var roots atomic.Int64

func newRoot() string { return fmt.Sprintf("/test-%d-%d", time.Now().UnixNano(), roots.Add(1)) }

// open connects to the server that infra/local started.
func open(t *testing.T, root string, partitions int) *zookeeper.Coordinator {
	t.Helper()
	c, err := zookeeper.Open(zookeeper.Options{
		Servers: []string{servertest.Address(t, "ZOOKEEPER")}, Root: root, Partitions: partitions,
		SessionTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestConformance(t *testing.T) {
	coordtest.Run(t, func(t *testing.T) coord.Coordinator { return open(t, newRoot(), 4) })
}

func TestCheckWaitsForAConnectionThatIsBeingMade(t *testing.T) {
	for range 20 {
		if err := open(t, newRoot(), 4).Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	nobody, err := zookeeper.Open(zookeeper.Options{Servers: []string{"127.0.0.1:1"}, Root: newRoot(), Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nobody.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if nobody.Check(ctx) == nil {
		t.Error("a server that is not there is said to answer")
	}
}

// Otherwise a process on standby for others would never know that it lacks nothing.
func TestMemberThatOwnsNothingIsToldSo(t *testing.T) {
	root := newRoot()
	first := join(t, root, 1)
	settle(t, 1, []*process{first}, []int{1})
	second := join(t, root, 1)
	select {
	case set := <-second.sets:
		if len(set) > 0 {
			t.Errorf("it was told that it owns %v", set)
		}
	case <-time.After(10 * time.Second):
		t.Error("it was told nothing")
	}
}

// process is a member with its own session.
type process struct {
	c     *zookeeper.Coordinator
	sets  <-chan []coord.Owner
	leave context.CancelFunc
	owned map[int]int64
}

func join(t *testing.T, root string, partitions int) *process {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	c := open(t, root, partitions)
	sets, err := c.Join(ctx, coord.RoleWorker)
	if err != nil {
		t.Fatal(err)
	}
	return &process{c, sets, leave, map[int]int64{}}
}

// settle waits until the processes own the partitions as wanted, each partition once.
func settle(t *testing.T, partitions int, all []*process, want []int) {
	t.Helper()
	deadline := time.After(10 * time.Second) // the aim: every partition has exactly one owner within this time
	for {
		holders := map[int]int{}
		var counts []int
		for _, p := range all {
			counts = append(counts, len(p.owned))
			for partition := range p.owned {
				holders[partition]++
			}
		}
		slices.Sort(counts)
		if len(holders) == partitions && slices.Equal(counts, want) && !slices.ContainsFunc(slices.Collect(maps.Values(holders)), func(n int) bool { return n != 1 }) {
			return
		}
		for _, p := range all {
			select {
			case set, open := <-p.sets:
				if !open {
					t.Fatal("a member's channel was closed")
				}
				clear(p.owned)
				for _, o := range set {
					p.owned[o.Partition] = o.Epoch
				}
			case <-time.After(20 * time.Millisecond):
			case <-deadline:
				t.Fatalf("after 10 s the members own %v, want %v", counts, want)
			}
		}
	}
}

func TestEveryPartitionHasOneOwnerWhenMembersComeAndGo(t *testing.T) {
	const partitions = 12
	root := newRoot()
	a := join(t, root, partitions)
	settle(t, partitions, []*process{a}, []int{12})
	b, c := join(t, root, partitions), join(t, root, partitions)
	settle(t, partitions, []*process{a, b, c}, []int{4, 4, 4})
	before := maps.Clone(c.owned)
	began := time.Now()
	_ = b.c.Close() // its session ends at once; that of a killed process ends with its timeout
	settle(t, partitions, []*process{a, c}, []int{6, 6})
	t.Logf("all partitions had an owner %s after a member was gone", time.Since(began).Round(time.Millisecond))
	for p, epoch := range before {
		if c.owned[p] != epoch {
			t.Errorf("partition %d moved, or its epoch changed from %d to %d, without need", p, epoch, c.owned[p])
		}
	}
	a.leave()
	settle(t, partitions, []*process{c}, []int{12})
}

func TestMemberThatCannotReachTheEnsembleGoesOnOwning(t *testing.T) {
	cut := servertest.NewProxy(t, servertest.Address(t, "ZOOKEEPER"))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	c, err := zookeeper.Open(zookeeper.Options{
		Servers: []string{cut.Address()}, Root: newRoot(), Partitions: 3, SessionTimeout: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	sets, err := c.Join(ctx, coord.RoleWorker)
	if err != nil {
		t.Fatal(err)
	}
	var last []coord.Owner
	for len(last) < 3 {
		last = <-sets
	}
	cut.Off()
	select {
	case set := <-sets:
		t.Errorf("cut off, it was told of %v", set)
	case <-time.After(5 * time.Second): // more than two sessions
	}
	cut.On()
	// Its session has ended: it is told of nothing, then of everything under greater epochs.
	for {
		set := <-sets
		if len(set) < 3 {
			continue
		}
		for i, o := range set {
			if o.Epoch <= last[i].Epoch {
				t.Errorf("%+v after %+v", o, last[i])
			}
		}
		return
	}
}

func TestStartNumbersThatWereGivenOverABadNetworkAreNeverTheSame(t *testing.T) {
	var mu sync.Mutex
	given := map[int64]int{}
	servertest.NoLeak(t, func() {
		p := servertest.NewProxy(t, servertest.Address(t, "ZOOKEEPER"))
		c, err := zookeeper.Open(zookeeper.Options{
			Servers: []string{p.Address()}, Root: newRoot(), Partitions: 3, SessionTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		const limit = 20 * time.Second // a call waits until the ensemble answers again
		servertest.UnderFaults(t, p, limit, func(ctx context.Context, _ int) error {
			n, err := c.StartNumber(ctx)
			if err == nil {
				mu.Lock()
				given[n]++
				mu.Unlock()
			}
			return err
		})
	})
	for n, times := range given {
		if times > 1 {
			t.Errorf("%d was given %d times", n, times)
		}
	}
}
