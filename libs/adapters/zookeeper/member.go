package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/coord"
)

// member is this process in a role.
type member struct {
	c    *Coordinator
	role coord.Role
	// node is this member's, session the session that it belongs to.
	node    string
	session int64
	// owned are the epochs of the partitions that it owns.
	owned map[int]int64
	told  chan []coord.Owner
	// spoke: a set was told.
	spoke bool
	// lacking is since when something that is assigned is not owned, zero if nothing is; complained: the log tells of it.
	lacking    time.Time
	complained bool
	unowned    prometheus.Gauge
	// watch tells once when members come or go; nil when there is none. (The driver keeps each until it has told.)
	watch <-chan zk.Event
}

func (m *member) at(names ...string) string {
	return m.c.at(append([]string{string(m.role)}, names...)...)
}

// tell gives the set that is owned now; one that was not read yet gives way to it.
func (m *member) tell() {
	set := make([]coord.Owner, 0, len(m.owned))
	for _, p := range slices.Sorted(maps.Keys(m.owned)) {
		set = append(set, coord.Owner{Role: m.role, Partition: p, Epoch: m.owned[p]})
	}
	select {
	case <-m.told:
	default:
	}
	m.told <- set
	m.spoke = true
}

func (m *member) run(ctx context.Context) {
	defer close(m.told)
	defer m.unowned.Set(0)
	defer m.forget()
	defer m.leave()
	told := false
	for ctx.Err() == nil {
		switch err := m.step(ctx); {
		case err != nil && ctx.Err() == nil && !told:
			// What is owned stays owned: without the ensemble nobody else is told to take it.
			m.c.o.Logger.Warn("cannot ask the coordinator", "role", m.role, "error", err)
			told = true
		case err == nil && told:
			m.c.o.Logger.Info("the coordinator answers again", "role", m.role)
			told = false
		}
		select {
		case <-ctx.Done():
		case <-m.watch:
			m.watch = nil
		case <-time.After(recheck):
		}
	}
}

// leave gives everything back at once; what cannot be reached ends with the session.
func (m *member) leave() {
	if m.node == "" || m.c.conn.SessionID() != m.session || m.c.conn.State() != zk.StateHasSession {
		return
	}
	for p := range m.owned {
		_ = m.c.conn.Delete(m.at("owners", strconv.Itoa(p)), -1)
	}
	_ = m.c.conn.Delete(m.node, -1)
}

// step makes what is owned what is assigned, as far as others have let go of it. It is taken every recheck, and at once
// when members come or go.
func (m *member) step(ctx context.Context) error {
	if m.node == "" || m.c.conn.SessionID() != m.session {
		if err := m.enter(); err != nil {
			return err
		}
	}
	members, err := m.members()
	if err != nil {
		return err
	}
	if !slices.Contains(members, path.Base(m.node)) {
		m.forget() // the session ended, and with it what was owned
		return nil
	}
	assigned, err := m.assignment(members)
	if err != nil {
		return err
	}
	if err := m.release(assigned); err != nil {
		return err
	}
	err = m.acquire(ctx, assigned)
	m.complain(assigned)
	return err
}

// complainAfter is how long something that is assigned may go without an owner before the log tells of it: the session of the
// one who had it may have to end first.
const complainAfter = 20 * time.Second

// complain tells of partitions that are assigned and not owned.
func (m *member) complain(assigned []int) {
	lack := len(assigned) - len(m.owned)
	m.unowned.Set(float64(lack))
	switch {
	case lack == 0:
		if m.complained {
			m.c.o.Logger.Info("every partition that is assigned is owned again", "role", m.role)
		}
		m.lacking, m.complained = time.Time{}, false
	case m.lacking.IsZero():
		m.lacking = time.Now()
	case !m.complained && time.Since(m.lacking) > complainAfter:
		m.c.o.Logger.Warn("partitions that are assigned cannot be owned: somebody else holds them", "role", m.role, "partitions", lack)
		m.complained = true
	}
}

// members are those of the role, in the order in which they came.
func (m *member) members() (nodes []string, err error) {
	if m.watch == nil {
		nodes, _, m.watch, err = m.c.conn.ChildrenW(m.at("members"))
	} else {
		nodes, _, err = m.c.conn.Children(m.at("members"))
	}
	return inOrder(nodes), err
}

// errSession means: the session changed in the middle of a step. The step is taken again under the new one.
var errSession = errors.New("the session ended meanwhile")

// enter makes this process a member under the present session. A request that waits for a connection is sent under whatever
// session comes next; so what a node says of its owner counts, and not the session that was there before.
func (m *member) enter() error {
	m.forget()
	if len(m.owned) > 0 {
		clear(m.owned)
		m.tell() // others may own it by now
	}
	for _, n := range []string{"members", "owners", "epochs", "assignment"} {
		if err := m.c.make(m.at(n)); err != nil {
			return err
		}
	}
	if err := m.sweep(); err != nil {
		return err
	}
	node, err := m.c.conn.CreateProtectedEphemeralSequential(m.at("members", "member-"), nil, zk.WorldACL(zk.PermAll))
	if err != nil {
		return err
	}
	_, stat, err := m.c.conn.Exists(node)
	if err != nil {
		return err
	}
	if stat.EphemeralOwner == 0 || stat.EphemeralOwner != m.c.conn.SessionID() {
		return errSession
	}
	m.node, m.session = node, stat.EphemeralOwner
	m.c.mu.Lock()
	m.c.nodes[node] = true
	m.c.mu.Unlock()
	return nil
}

// forget ends the membership here; its node ends with the session.
func (m *member) forget() {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	delete(m.c.nodes, m.node)
	m.node = ""
}

// member reports whether a node belongs to a member that runs in this process.
func (c *Coordinator) member(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node]
}

// sweep removes members of this session that nobody is: a try whose answer was lost made them. They would be given partitions for
// as long as the session lives.
func (m *member) sweep() error {
	members, _, err := m.c.conn.Children(m.at("members"))
	if err != nil {
		return err
	}
	for _, n := range members {
		node := m.at("members", n)
		if m.c.member(node) {
			continue
		}
		_, stat, err := m.c.conn.Exists(node)
		if err != nil {
			return err
		}
		if stat.EphemeralOwner != 0 && stat.EphemeralOwner == m.c.conn.SessionID() {
			if err := m.c.conn.Delete(node, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
				return err
			}
		}
	}
	return nil
}

// inOrder sorts member nodes by the numbers that ZooKeeper gave them, which stand at their ends.
func inOrder(nodes []string) []string {
	number := func(n string) string { return n[strings.LastIndexByte(n, '-')+1:] }
	return slices.SortedFunc(slices.Values(nodes), func(a, b string) int { return strings.Compare(number(a), number(b)) })
}

// assignment is what this member is to own. The first member writes it for all.
func (m *member) assignment(members []string) ([]int, error) {
	node := m.at("assignment")
	text, stat, err := m.c.conn.Get(node)
	if err != nil {
		return nil, err
	}
	standing := map[string][]int{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &standing); err != nil {
			return nil, fmt.Errorf("the assignment at %s cannot be read: %w", node, err)
		}
	}
	me := path.Base(m.node)
	if members[0] == me {
		next := balance(m.c.o.Partitions, members, standing)
		if !maps.EqualFunc(next, standing, slices.Equal) {
			text, err := json.Marshal(next)
			if err != nil {
				return nil, err
			}
			// Another version was written by one who also takes itself for the first: the next step sees.
			if _, err := m.c.conn.Set(node, text, stat.Version); err != nil && !errors.Is(err, zk.ErrBadVersion) {
				return nil, err
			}
		}
		standing = next
	}
	return standing[me], nil
}

// release lets go of what is another's now: first here, then for all to see.
func (m *member) release(assigned []int) error {
	var gone []int
	for p := range m.owned {
		if !slices.Contains(assigned, p) {
			gone = append(gone, p)
			delete(m.owned, p)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	m.tell()
	for _, p := range gone {
		if err := m.c.conn.Delete(m.at("owners", strconv.Itoa(p)), -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// acquire takes what is assigned and free. The owner's node is there before the epoch is drawn, so the one who draws later
// is the one who owns later. Both were done under the session of the membership, or nothing of it counts.
func (m *member) acquire(ctx context.Context, assigned []int) error {
	var failed error
	taken := false
	for _, p := range assigned {
		if _, ok := m.owned[p]; ok || ctx.Err() != nil {
			continue
		}
		ours, err := m.take(p)
		if err == nil && !ours {
			continue // another has not let go yet
		}
		var epoch int64
		if err == nil {
			epoch, err = m.c.epoch(m.role, p)
		}
		if err == nil && m.c.conn.SessionID() != m.session {
			err = errSession
		}
		if err != nil {
			failed = err
			break
		}
		m.owned[p], taken = epoch, true
	}
	if taken || failed == nil && len(assigned) == 0 && !m.spoke { // there may be more members than partitions
		m.tell()
	}
	return failed
}

// take creates the owner's node of a partition, and reports whether this member has it. A node that this session created under
// the name of an earlier member is removed: that member is gone, and everybody would wait for it.
func (m *member) take(partition int) (bool, error) {
	node, me := m.at("owners", strconv.Itoa(partition)), path.Base(m.node)
	_, err := m.c.conn.Create(node, []byte(me), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return false, err
	}
	holder, stat, err := m.c.conn.Get(node)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return false, nil
	case err != nil:
		return false, err
	case m.c.conn.SessionID() != m.session:
		return false, errSession
	case stat.EphemeralOwner != m.session:
		return false, nil
	case string(holder) == me:
		return true, nil
	case m.c.member(m.at("members", string(holder))):
		return false, nil
	}
	if err := m.c.conn.Delete(node, stat.Version); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return false, err
	}
	return false, nil
}
