// Package zookeeper is the coordinator on ZooKeeper: members of a role, who of them owns which partition, and numbers that
// grow. schemas/zookeeper/ZNODES.md tells of the nodes.
//
// A process that loses the ensemble goes on with what it owns, for its session may live on, and there may be nobody who
// could take over. If others did take over, it learns so only when it is connected again; until then the epochs keep it
// out of the stores (hotbucket.ErrStaleEpoch). So ownership here says who should work, and epochs who may.
package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/hotbucket"
	"github.com/minutehand/minutehand/libs/run"
)

// Options say where the ensemble is.
type Options struct {
	Servers []string // host:port
	// Root is the node below which everything lies, such as /minutehand.
	Root string
	// Partitions are given out in each role.
	Partitions int
	// SessionTimeout is after how long without a word a process counts as gone; 0 means 6 s.
	SessionTimeout time.Duration
	Logger         *slog.Logger
}

// Coordinator gives out partitions and numbers. It is safe for concurrent use.
type Coordinator struct {
	o    Options
	conn *zk.Conn
}

var _ coord.Coordinator = (*Coordinator)(nil)

// recheck is how soon a member looks again at a partition that another still owns, or after an error.
const recheck = 200 * time.Millisecond

// lookAgain is how soon Check looks again whether there is a connection.
const lookAgain = 20 * time.Millisecond

// Open connects to the ensemble. It does not wait for it: every call does, up to its context's end.
func Open(o Options) (*Coordinator, error) {
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 6 * time.Second
	}
	conn, _, err := zk.Connect(o.Servers, o.SessionTimeout, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return &Coordinator{o: o, conn: conn}, nil
}

// Close ends the session. Whoever still is a member stops being one.
func (c *Coordinator) Close() error {
	c.conn.Close()
	return nil
}

// Check tells whether the ensemble answers. A connection that is being made is waited for, up to the context's end.
func (c *Coordinator) Check(ctx context.Context) error {
	for {
		s := c.conn.State()
		if s == zk.StateHasSession {
			return nil
		}
		if run.Sleep(ctx, lookAgain) != nil {
			return fmt.Errorf("zookeeper: not connected: %s", s)
		}
	}
}

// silent is for the driver, which tells of every try to connect.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (c *Coordinator) at(names ...string) string {
	return path.Join(append([]string{"/", c.o.Root}, names...)...)
}

// make creates a node that lasts, and those above it, unless it is there.
func (c *Coordinator) make(node string) error {
	for i := 1; i <= len(node); i++ {
		if i < len(node) && node[i] != '/' {
			continue
		}
		_, err := c.conn.Create(node[:i], nil, 0, zk.WorldACL(zk.PermAll))
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

// transient tells of errors that pass when the ensemble is back.
func transient(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionExpired) ||
		errors.Is(err, zk.ErrSessionMoved)
}

// StartNumber implements coord.Coordinator: the version of a node, which every write makes one greater. A write whose answer
// is lost is made again, and leaves out a number.
func (c *Coordinator) StartNumber(ctx context.Context) (int64, error) {
	node := c.at("start")
	for {
		stat, err := c.conn.Set(node, nil, -1)
		if errors.Is(err, zk.ErrNoNode) {
			err = c.make(node)
			if err == nil {
				continue
			}
		}
		if err == nil {
			return int64(stat.Version), nil
		}
		if !transient(err) || run.Sleep(ctx, recheck) != nil {
			return 0, fmt.Errorf("zookeeper: start number: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// epoch draws a partition's next epoch: greater than the last one, and no less than the time in milliseconds, so that
// epochs go on growing when the ensemble has lost its data.
func (c *Coordinator) epoch(role hotbucket.Role, partition int) (int64, error) {
	node := c.at(string(role), "epochs", strconv.Itoa(partition))
	for {
		text, stat, err := c.conn.Get(node)
		if errors.Is(err, zk.ErrNoNode) {
			if err = c.make(node); err == nil {
				continue
			}
		}
		if err != nil {
			return 0, err
		}
		last, _ := strconv.ParseInt(string(text), 10, 64)
		next := max(last+1, time.Now().UnixMilli())
		_, err = c.conn.Set(node, strconv.AppendInt(nil, next, 10), stat.Version)
		if !errors.Is(err, zk.ErrBadVersion) {
			return next, err
		}
	}
}

// Join implements coord.Coordinator.
func (c *Coordinator) Join(ctx context.Context, role hotbucket.Role) (<-chan []hotbucket.Owner, error) {
	m := &member{c: c, role: role, owned: map[int]int64{}, told: make(chan []hotbucket.Owner, 1)}
	go m.run(ctx)
	return m.told, nil
}

// member is this process in a role.
type member struct {
	c    *Coordinator
	role hotbucket.Role
	// node is this member's, session the session that it belongs to.
	node    string
	session int64
	// owned are the epochs of the partitions that it owns.
	owned map[int]int64
	told  chan []hotbucket.Owner
	// spoke: a set was told.
	spoke bool
	// watch tells once when members come or go; nil when there is none. (The driver keeps each until it has told.)
	watch <-chan zk.Event
}

func (m *member) at(names ...string) string {
	return m.c.at(append([]string{string(m.role)}, names...)...)
}

// tell gives the set that is owned now; one that was not read yet gives way to it.
func (m *member) tell() {
	set := make([]hotbucket.Owner, 0, len(m.owned))
	for _, p := range slices.Sorted(maps.Keys(m.owned)) {
		set = append(set, hotbucket.Owner{Role: m.role, Partition: p, Epoch: m.owned[p]})
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
		m.node = "" // the session ended, and with it what was owned
		return nil
	}
	assigned, err := m.assignment(members)
	if err != nil {
		return err
	}
	if err := m.release(assigned); err != nil {
		return err
	}
	return m.acquire(ctx, assigned)
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

// enter makes this process a member under the present session.
func (m *member) enter() error {
	if len(m.owned) > 0 {
		clear(m.owned)
		m.tell() // others may own it by now
	}
	for _, n := range []string{"members", "owners", "epochs", "assignment"} {
		if err := m.c.make(m.at(n)); err != nil {
			return err
		}
	}
	session := m.c.conn.SessionID()
	node, err := m.c.conn.CreateProtectedEphemeralSequential(m.at("members", "member-"), nil, zk.WorldACL(zk.PermAll))
	if err != nil {
		return err
	}
	m.node, m.session = node, session
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
// is the one who owns later.
func (m *member) acquire(ctx context.Context, assigned []int) error {
	var failed error
	taken := false
	for _, p := range assigned {
		if _, ok := m.owned[p]; ok || ctx.Err() != nil {
			continue
		}
		node := m.at("owners", strconv.Itoa(p))
		_, err := m.c.conn.Create(node, []byte(path.Base(m.node)), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		if errors.Is(err, zk.ErrNodeExists) {
			// Another has not let go yet, or it is our own and the answer was lost.
			holder, _, err := m.c.conn.Get(node)
			if err != nil || string(holder) != path.Base(m.node) {
				continue
			}
		} else if err != nil {
			failed = err
			break
		}
		epoch, err := m.c.epoch(m.role, p)
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
