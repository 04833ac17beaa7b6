//go:build servers

package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/minutehand/minutehand/libs/adapters/servertest"
	"github.com/minutehand/minutehand/libs/coord"
)

const shortSession = 2 * time.Second

// stalling loses its session right before a request, which is then made under the next session.
type stalling struct {
	ensemble
	proxies []*servertest.Proxy
	// at is the operation and a part of the node's path before which the session is lost, once passes of them are through.
	at     string
	passes int
	struck atomic.Bool
}

func (s *stalling) before(op, node string) {
	want, part, _ := strings.Cut(s.at, " ")
	if op != want || !strings.Contains(node, part) || s.struck.Load() {
		return
	}
	if s.passes > 0 {
		s.passes--
		return
	}
	s.struck.Store(true)
	session := s.SessionID()
	for _, p := range s.proxies {
		p.Off()
	}
	time.Sleep(2 * shortSession) // the servers end a session by their own clock
	for _, p := range s.proxies {
		p.On()
	}
	for began := time.Now(); (s.SessionID() == session || s.State() != zk.StateHasSession) && time.Since(began) < time.Minute; {
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *stalling) Create(node string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	s.before("create", node)
	return s.ensemble.Create(node, data, flags, acl)
}

func (s *stalling) CreateProtectedEphemeralSequential(node string, data []byte, acl []zk.ACL) (string, error) {
	s.before("create", node)
	return s.ensemble.CreateProtectedEphemeralSequential(node, data, acl)
}

func (s *stalling) Get(node string) ([]byte, *zk.Stat, error) {
	s.before("get", node)
	return s.ensemble.Get(node)
}

func (s *stalling) GetW(node string) ([]byte, *zk.Stat, <-chan zk.Event, error) {
	s.before("get", node)
	return s.ensemble.GetW(node)
}

func (s *stalling) Exists(node string) (bool, *zk.Stat, error) {
	s.before("exists", node)
	return s.ensemble.Exists(node)
}

func (s *stalling) Set(node string, data []byte, version int32) (*zk.Stat, error) {
	s.before("set", node)
	return s.ensemble.Set(node, data, version)
}

func (s *stalling) Delete(node string, version int32) error {
	s.before("delete", node)
	return s.ensemble.Delete(node, version)
}

func (s *stalling) ChildrenW(node string) ([]string, *zk.Stat, <-chan zk.Event, error) {
	s.before("children", node)
	return s.ensemble.ChildrenW(node)
}

// A request that waits for a connection is sent under whatever session comes next. A node that it creates then would belong to
// nobody, and everybody would wait for it. The next session's server may report older state than the previous one did.
func TestEveryPartitionIsOwnedAgainAfterASessionThatChangedAtAnyStep(t *testing.T) {
	servers := servertest.Addresses(t, "ZOOKEEPER_CLUSTER", 3)
	var all sync.WaitGroup
	for at, times := range map[string]int{
		"create /members": 2, "create /members/": 1, "exists /members/": 1, "children /members": 2, "get /assignment": 2, "set /assignment": 2,
		"create /owners/": 3, "get /owners/": 3, "get /epochs/": 3, "create /epochs/": 1, "set /epochs/": 3, "delete /owners/": 2,
	} {
		for passes := range times {
			step := &stalling{at: at, passes: passes}
			for _, server := range servers {
				step.proxies = append(step.proxies, servertest.NewProxy(t, server))
			}
			all.Go(func() { // they mostly wait
				if err := sessionChanges(t, servers, step); err != nil {
					t.Errorf("%s, time %d: %v", at, passes+1, err)
				}
			})
		}
	}
	all.Wait()
}

// sessionChanges lets two members share the partitions while the session of one changes.
func sessionChanges(t *testing.T, servers []string, step *stalling) error {
	const partitions = 4
	root := servertest.Unique("/session-")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	open := func(servers []string) (*Coordinator, error) {
		return Open(Options{
			Servers: servers, Root: root, Partitions: partitions, SessionTimeout: shortSession, Logger: slog.New(slog.DiscardHandler),
		})
	}
	var proxies []string
	for _, p := range step.proxies {
		proxies = append(proxies, p.Address())
	}
	stalled, err := open(proxies)
	if err != nil {
		return err
	}
	defer stalled.Close() //nolint:errcheck // nothing is left to do
	other, err := open(servers)
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // nothing is left to do
	step.ensemble, stalled.conn = stalled.conn, step

	var sets [2]<-chan []coord.Owner
	var owned [2]map[int]int64
	deadline := time.After(30 * time.Second)
	if sets[0], err = stalled.Join(ctx, coord.RoleWorker); err != nil {
		return err
	}
	for {
		// The other joins while the first one is held up, or once it owns all.
		if sets[1] == nil && (step.struck.Load() || len(owned[0]) == partitions) {
			if sets[1], err = other.Join(ctx, coord.RoleWorker); err != nil {
				return err
			}
		}
		both := map[int]int64{}
		maps.Copy(both, owned[0])
		maps.Copy(both, owned[1])
		if step.struck.Load() && len(owned[0]) == partitions/2 && len(owned[1]) == partitions/2 && len(both) == partitions {
			break
		}
		var set []coord.Owner
		who := 0
		select {
		case set = <-sets[0]:
		case set = <-sets[1]:
			who = 1
		case <-time.After(50 * time.Millisecond):
			continue
		case <-deadline:
			return fmt.Errorf("the session changed: %v; the members own %v", step.struck.Load(), owned)
		}
		owned[who] = map[int]int64{}
		for _, o := range set {
			owned[who][o.Partition] = o.Epoch
		}
	}
	for {
		members, _, err := other.conn.Children(root + "/" + string(coord.RoleWorker) + "/members")
		if err == nil && len(members) == 2 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond): // sessions are short, and one may change by itself where the machine is busy
		case <-deadline:
			return errors.Join(fmt.Errorf("of earlier sessions members are left: %v", members), err)
		}
	}
}

// watched counts the requests that read, and those that set a watch.
type watched struct {
	ensemble
	reads, watches atomic.Int64
}

func (w *watched) Get(node string) ([]byte, *zk.Stat, error) {
	w.reads.Add(1)
	return w.ensemble.Get(node)
}

func (w *watched) Children(node string) ([]string, *zk.Stat, error) {
	w.reads.Add(1)
	return w.ensemble.Children(node)
}

func (w *watched) GetW(node string) ([]byte, *zk.Stat, <-chan zk.Event, error) {
	w.watches.Add(1)
	return w.ensemble.GetW(node)
}

func (w *watched) ChildrenW(node string) ([]string, *zk.Stat, <-chan zk.Event, error) {
	w.watches.Add(1)
	return w.ensemble.ChildrenW(node)
}

// open opens a coordinator of four partitions.
func open(t *testing.T, root string) *Coordinator {
	t.Helper()
	c, err := Open(Options{
		Servers: []string{servertest.Address(t, "ZOOKEEPER")}, Root: root, Partitions: 4, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Thousands of members would keep an ensemble busy by asking whether anything has changed.
func TestAMemberThatOwnsAllItShouldAsksSeldom(t *testing.T) {
	c := open(t, servertest.Unique("/quiet-"))
	asked := &watched{ensemble: c.conn}
	c.conn = asked
	sets, err := c.Join(t.Context(), coord.RoleWorker)
	if err != nil {
		t.Fatal(err)
	}
	for owned := 0; owned < 4; owned = len(<-sets) {
	}
	began, reads, watches := time.Now(), asked.reads.Load(), asked.watches.Load()
	await(t, "it looks four times more", func() bool { return asked.reads.Load() >= reads+8 })
	if took := time.Since(began); took < 2*quietly { // it hears of its own writes at once
		t.Errorf("it looked four times in %s, want every %s", took, quietly)
	}
	if n := asked.watches.Load() - watches; n > 1 {
		t.Errorf("it set %d watches, although nothing changed", n)
	}
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

// Members that would not look again for an hour hand over all the same.
func TestAMemberIsToldOfWhatItShouldOwn(t *testing.T) {
	root := servertest.Unique("/told-")
	var members []*joined
	for n := 1; n <= 3; n++ {
		c := open(t, root)
		c.quiet = time.Hour
		members = append(members, join(t, c))
		awaitShared(t, 4, members...)
	}
}

// refusing fails to remove owners' nodes a few times, after it has carried that out or instead.
type refusing struct {
	ensemble
	left    atomic.Int64
	carried bool
	// looked counts how often owners' nodes were read since the first refusal.
	refused atomic.Bool
	looked  atomic.Int64
}

func (r *refusing) Get(node string) ([]byte, *zk.Stat, error) {
	if r.refused.Load() && strings.Contains(node, "/owners/") {
		r.looked.Add(1)
	}
	return r.ensemble.Get(node)
}

func (r *refusing) Delete(node string, version int32) error {
	if !strings.Contains(node, "/owners/") || r.left.Add(-1) < 0 {
		return r.ensemble.Delete(node, version)
	}
	r.refused.Store(true)
	if r.carried {
		_ = r.ensemble.Delete(node, version)
	}
	return zk.ErrConnectionClosed
}

// A connection breaks and the session goes on: what was asked may have happened or not.
func TestAPartitionWhoseReleaseFailedIsReleasedAgain(t *testing.T) {
	for _, carried := range []bool{false, true} {
		root := servertest.Unique("/refused-")
		first := open(t, root)
		refuse := &refusing{ensemble: first.conn, carried: carried}
		refuse.left.Store(2) // it hands over two
		first.conn = refuse
		a := join(t, first)
		awaitShared(t, 4, a)
		second := open(t, root)
		b := join(t, second)
		awaitShared(t, 4, a, b)
		if refuse.left.Load() > 0 {
			t.Error("no release failed")
		}
		// Each of the two once more, and the one that was refused last once more after that.
		await(t, "it looks again at what it left", func() bool { return refuse.looked.Load() >= 3 })
		for p := range 4 {
			if _, _, err := second.conn.Get(fmt.Sprint(root, "/", coord.RoleWorker, "/owners/", p)); err != nil {
				t.Errorf("carried out %t: partition %d: %v", carried, p, err)
			}
		}
	}
}

// joined is what a member was last told.
type joined struct {
	sets  <-chan []coord.Owner
	owned []coord.Owner
}

func join(t *testing.T, c *Coordinator) *joined {
	t.Helper()
	sets, err := c.Join(t.Context(), coord.RoleWorker)
	if err != nil {
		t.Fatal(err)
	}
	return &joined{sets: sets}
}

// awaitShared waits until members own all partitions, each about as many.
func awaitShared(t *testing.T, partitions int, members ...*joined) {
	t.Helper()
	await(t, fmt.Sprintf("%d members share %d partitions", len(members), partitions), func() bool {
		owned, even := 0, true
		for _, m := range members {
			select {
			case m.owned = <-m.sets:
			default:
			}
			owned += len(m.owned)
			even = even && len(m.owned) >= partitions/len(members)
		}
		return owned == partitions && even
	})
}
