// Package zookeeper is the coordinator on ZooKeeper: the members of a role, which partitions each of them owns, and numbers that
// grow. schemas/zookeeper/ZNODES.md describes the nodes.
//
// A process that loses the ensemble goes on with what it owns, because its session may live on, and there may be nobody who could
// take over. If others did take over, it learns so only when it is connected again; until then the epochs keep it out of the stores
// (hotbucket.ErrStaleEpoch). So ownership here says who should work, and epochs who may.
package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/coord"
	"github.com/minutehand/minutehand/libs/reason"
	"github.com/minutehand/minutehand/libs/run"
)

// Options say where the ensemble is.
type Options struct {
	Servers []string // host:port
	// Root is the node below which all others lie, such as /minutehand.
	Root string
	// Partitions is the number of partitions given out in each role.
	Partitions int
	// SessionTimeout is how long a process may be silent before it counts as gone; 0 means 6 s.
	SessionTimeout time.Duration
	// TLS makes the connections; nil for plain text. The ensemble knows a process by its certificate.
	TLS     *certificates.Client
	Logger  *slog.Logger
	Metrics prometheus.Registerer // nil for none
}

// ensemble is the part of the driver's connection that is used.
type ensemble interface {
	Create(path string, data []byte, flags int32, acl []zk.ACL) (string, error)
	CreateProtectedEphemeralSequential(path string, data []byte, acl []zk.ACL) (string, error)
	Get(path string) ([]byte, *zk.Stat, error)
	GetW(path string) ([]byte, *zk.Stat, <-chan zk.Event, error)
	Exists(path string) (bool, *zk.Stat, error)
	Set(path string, data []byte, version int32) (*zk.Stat, error)
	Delete(path string, version int32) error
	Children(path string) ([]string, *zk.Stat, error)
	ChildrenW(path string) ([]string, *zk.Stat, <-chan zk.Event, error)
	SessionID() int64
	State() zk.State
	Close()
}

// Coordinator gives out partitions and numbers. It is safe for concurrent use.
type Coordinator struct {
	o       Options
	why     *reason.Keeper
	conn    ensemble
	unowned *prometheus.GaugeVec

	// quiet is quietly, except in tests.
	quiet time.Duration

	mu sync.Mutex
	// nodes holds the paths of the nodes of this process's memberships.
	nodes map[string]bool
}

var _ coord.Coordinator = (*Coordinator)(nil)

// recheck is how soon a member looks again at a partition that another still owns, or after an error.
const recheck = 200 * time.Millisecond

// quietly is how soon a member that owns all that it should looks again. Before that the ensemble tells it what changes.
const quietly = time.Second

// lookAgain is how soon Check looks again whether there is a connection.
const lookAgain = 20 * time.Millisecond

// Open connects to the ensemble. It does not wait for it: every call does, up to its context's end.
func Open(o Options) (*Coordinator, error) {
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 6 * time.Second
	}
	why := &reason.Keeper{Server: "zookeeper", Logger: o.Logger}
	conn, _, err := zk.Connect(o.Servers, o.SessionTimeout, zk.WithLogInfo(false), zk.WithLogger(silent{}), zk.WithDialer(dialer(o.TLS, why)))
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	c := &Coordinator{
		o: o, why: why, conn: named{conn}, nodes: map[string]bool{}, quiet: quietly,
		unowned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "minutehand_coordinator_unowned_partitions",
			Help: "Partitions that are assigned to this process, and not owned by it yet.",
		}, []string{"role"}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(c.unowned)
	}
	return c, nil
}

// dialer returns what makes the driver's connections, and keeps why one failed.
func dialer(client *certificates.Client, why *reason.Keeper) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		dial := (&net.Dialer{}).DialContext
		if client != nil {
			dial = client.Dial
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			why.Failed("", err)
			return nil, err
		}
		return &heard{conn, address, why}, nil
	}
}

// heard is a connection that keeps why the server refused it: with TLS 1.3 that comes with the first answer.
type heard struct {
	net.Conn
	address string
	why     *reason.Keeper
}

// Read implements net.Conn.
func (h *heard) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" {
		h.why.Failed(h.address, err)
	}
	return n, err
}

// Close ends the session, and with it all memberships.
func (c *Coordinator) Close() error {
	c.conn.Close()
	return nil
}

// Check reports whether the ensemble answers. It waits for a connection that is being made, up to the context's end.
func (c *Coordinator) Check(ctx context.Context) error {
	for {
		s := c.conn.State()
		if s == zk.StateHasSession {
			return nil
		}
		if run.Sleep(ctx, lookAgain) != nil {
			return c.why.Explain(fmt.Errorf("zookeeper: not connected: %s", s))
		}
	}
}

// silent is for the driver, which logs every try to connect.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (c *Coordinator) at(names ...string) string {
	return path.Join(append([]string{"/", c.o.Root}, names...)...)
}

// make creates a persistent node, and those above it, unless it exists.
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

// transient reports whether an error passes when the ensemble is back.
func transient(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionExpired) ||
		errors.Is(err, zk.ErrSessionMoved)
}

// StartNumber implements coord.Coordinator: the version of a node, which every write raises by one. A write whose answer is lost is
// repeated, which skips a number.
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
			return 0, fmt.Errorf("start number: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// epoch draws a partition's next epoch: greater than the last one, and no less than the time in milliseconds, so that epochs go on
// growing when the ensemble has lost its data.
func (c *Coordinator) epoch(role coord.Role, partition int) (int64, error) {
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
func (c *Coordinator) Join(ctx context.Context, role coord.Role) (<-chan []coord.Owner, error) {
	m := &member{c: c, role: role, owned: map[int]int64{}, left: map[int]bool{}, told: make(chan []coord.Owner, 1), unowned: c.unowned.WithLabelValues(string(role))}
	go m.run(ctx)
	return m.told, nil
}
