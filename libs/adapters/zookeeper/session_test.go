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

// counted counts requests that read.
type counted struct {
	ensemble
	reads atomic.Int64
}

func (c *counted) Get(node string) ([]byte, *zk.Stat, error) {
	c.reads.Add(1)
	return c.ensemble.Get(node)
}

func (c *counted) Children(node string) ([]string, *zk.Stat, error) {
	c.reads.Add(1)
	return c.ensemble.Children(node)
}

// Thousands of members would keep an ensemble busy by asking whether anything has changed.
func TestAMemberThatOwnsAllItShouldAsksSeldom(t *testing.T) {
	c, err := Open(Options{
		Servers: []string{servertest.Address(t, "ZOOKEEPER")}, Root: servertest.Unique("/quiet-"), Partitions: 4, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is left to do
	asked := &counted{ensemble: c.conn}
	c.conn = asked
	sets, err := c.Join(t.Context(), coord.RoleWorker)
	if err != nil {
		t.Fatal(err)
	}
	for owned := 0; owned < 4; owned = len(<-sets) {
	}
	time.Sleep(quiet) // it may have to hear of its own writes
	before := asked.reads.Load()
	time.Sleep(4 * quiet)
	if n := asked.reads.Load() - before; n == 0 || n > 2*5 {
		t.Errorf("it asked %d times in %s, want two reads every %s", n, 4*quiet, quiet)
	}
}
