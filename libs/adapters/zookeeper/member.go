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
	// node is this member's own, session the session that it belongs to.
	node    string
	session int64
	// owned holds the epochs of the partitions that it owns.
	owned map[int]int64
	// left are partitions that it does not own, but whose owner's node may be its own: a request that failed may have been carried out
	// or not, and the session lives on.
	left map[int]bool
	told chan []coord.Owner
	// spoke: a set has been sent.
	spoke bool
	// lacking is since when an assigned partition is not owned, zero if none is; complained: the log says so.
	lacking    time.Time
	complained bool
	// settled: it owns all that it should.
	settled bool
	unowned prometheus.Gauge
	// watch fires once when members come or go, rewritten when the assignment is; nil when there is none. (The driver keeps each until
	// it has fired.)
	watch, rewritten <-chan zk.Event
	// known is the last assignment in which nothing had to change: most steps find the same.
	known struct {
		members, text string
		assigned      []int
	}
}

func (m *member) at(names ...string) string {
	return m.c.at(append([]string{string(m.role)}, names...)...)
}

// tell sends the set that is owned now, in place of one that has not been read yet.
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
		pause := recheck
		switch err := m.step(ctx); {
		case err != nil && ctx.Err() == nil && !told:
			// What is owned stays owned: without the ensemble nobody else is told to take it.
			m.c.o.Logger.Warn("cannot ask the coordinator", "role", m.role, "error", err)
			told = true
		case err == nil && told:
			m.c.o.Logger.Info("the coordinator answers again", "role", m.role)
			told = false
		case err == nil && m.settled:
			pause = m.c.quiet
		}
		select {
		case <-ctx.Done():
		case <-m.watch:
			m.watch = nil
		case <-m.rewritten:
			m.rewritten = nil
		case <-time.After(pause):
		}
	}
}

// leave gives everything back at once; nodes that it cannot reach end with the session.
func (m *member) leave() {
	if m.node == "" || m.c.conn.SessionID() != m.session || m.c.conn.State() != zk.StateHasSession {
		return
	}
	for p := range m.owned {
		_ = m.c.conn.Delete(m.at("owners", strconv.Itoa(p)), -1)
	}
	for p := range m.left {
		_ = m.giveBack(p)
	}
	_ = m.c.conn.Delete(m.node, -1)
}

// step makes the owned set match the assignment, as far as others have released it. It runs every recheck until it does, then every
// quiet, and at once when members come or go, or the assignment changes.
func (m *member) step(ctx context.Context) error {
	m.settled = false
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
	m.settled = len(assigned) == len(m.owned) && len(m.left) == 0
	return err
}

// complainAfter is how long an assigned partition may have no owner before the log says so: the session of its previous owner may
// have to end first.
const complainAfter = 20 * time.Second

// complain logs partitions that are assigned but not owned.
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

// members returns the nodes of the role's members, in the order in which they joined.
func (m *member) members() (nodes []string, err error) {
	if m.watch == nil {
		nodes, _, m.watch, err = m.c.conn.ChildrenW(m.at("members"))
	} else {
		nodes, _, err = m.c.conn.Children(m.at("members"))
	}
	return inOrder(nodes), err
}

// errSession means: the session changed in the middle of a step. The step runs again under the new one.
var errSession = errors.New("the session ended meanwhile")

// enter makes this process a member under the current session. A request that waits for a connection is sent under whatever session
// comes next; so what a node says of its owner counts, not the session from before the request.
func (m *member) enter() error {
	m.forget()
	clear(m.left) // they ended with the session, or take removes them
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

// sweep removes member nodes of this session that belong to no member: a try whose answer was lost created them. They would be
// assigned partitions for as long as the session lives.
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

// inOrder sorts member nodes by the numbers at their ends, which ZooKeeper assigned.
func inOrder(nodes []string) []string {
	number := func(n string) string { return n[strings.LastIndexByte(n, '-')+1:] }
	return slices.SortedFunc(slices.Values(nodes), func(a, b string) int { return strings.Compare(number(a), number(b)) })
}

// assignment returns the partitions that this member should own. The first member writes the assignment for all.
func (m *member) assignment(members []string) ([]int, error) {
	node := m.at("assignment")
	var text []byte
	var stat *zk.Stat
	var err error
	if m.rewritten == nil {
		text, stat, m.rewritten, err = m.c.conn.GetW(node)
	} else {
		text, stat, err = m.c.conn.Get(node)
	}
	if err != nil {
		return nil, err
	}
	all := strings.Join(members, "/")
	if m.known.members == all && m.known.text == string(text) {
		return m.known.assigned, nil
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
			// Another version was written by a member that also takes itself for the first: the next step finds out.
			if _, err := m.c.conn.Set(node, text, stat.Version); err != nil && !errors.Is(err, zk.ErrBadVersion) {
				return nil, err
			}
			return next[me], nil
		}
	}
	m.known.members, m.known.text, m.known.assigned = all, string(text), standing[me]
	return standing[me], nil
}

// release releases what is now another's: first here, then visibly for all.
func (m *member) release(assigned []int) error {
	mine := make(map[int]bool, len(assigned))
	for _, p := range assigned {
		mine[p] = true
	}
	gone := false
	for p := range m.owned {
		if !mine[p] {
			delete(m.owned, p)
			m.left[p], gone = true, true
		}
	}
	if gone {
		m.tell()
	}
	for p := range m.left {
		if mine[p] {
			continue // acquire finds its own node
		}
		if err := m.giveBack(p); err != nil {
			return err
		}
		delete(m.left, p)
	}
	return nil
}

// giveBack removes the owner's node of a partition if it is this member's.
func (m *member) giveBack(partition int) error {
	node := m.at("owners", strconv.Itoa(partition))
	holder, stat, err := m.c.conn.Get(node)
	if err == nil && (stat.EphemeralOwner != m.session || string(holder) != path.Base(m.node)) {
		return nil
	}
	if err == nil {
		err = m.c.conn.Delete(node, stat.Version)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// acquire acquires what is assigned and free. The owner's node exists before the epoch is drawn, so the later draw belongs to the
// later owner. Both must have happened under the session of the membership, or nothing of it counts.
func (m *member) acquire(ctx context.Context, assigned []int) error {
	var failed error
	taken := false
	for _, p := range assigned {
		if _, ok := m.owned[p]; ok || ctx.Err() != nil {
			continue
		}
		ours, err := m.take(p)
		if err == nil && !ours {
			delete(m.left, p)
			continue // another has not released it yet
		}
		var epoch int64
		if err == nil {
			epoch, err = m.c.epoch(m.role, p)
		}
		if err == nil && m.c.conn.SessionID() != m.session {
			err = errSession
		}
		if err != nil {
			m.left[p], failed = true, err
			break
		}
		delete(m.left, p)
		m.owned[p], taken = epoch, true
	}
	if taken || failed == nil && len(assigned) == 0 && !m.spoke { // there may be more members than partitions
		m.tell()
	}
	return failed
}

// take creates the owner's node of a partition, and reports whether this member has it. It removes a node that this session created
// under the name of an earlier member: that member is gone, and everybody would wait for it.
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
