package edge

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// silence is how long a connection may send nothing before it counts as idle: a connection in constant use pauses for less
// between two requests.
const silence = time.Second

// connections is a listener that bounds the open connections, in all and from one address. At the bound, the connection
// that has been idle for longest makes room; if none is idle, the new one is closed.
type connections struct {
	net.Listener
	max, perAddress int
	silence         time.Duration

	mu        sync.Mutex
	open      map[*connection]bool
	byAddress map[string]int
}

// connection is one of the open connections.
type connection struct {
	net.Conn
	of      *connections
	address string
	state   http.ConnState
	since   time.Time
	once    sync.Once
}

// idle reports whether it has waited for its first or its next request for some time.
func (o *connection) idle(now time.Time) bool {
	return (o.state == http.StateIdle || o.state == http.StateNew) && now.Sub(o.since) >= o.of.silence
}

func newConnections(l net.Listener, most int) *connections {
	return &connections{
		Listener: l, silence: silence, max: most, perAddress: max(most*3/4, 1), open: map[*connection]bool{}, byAddress: map[string]int{},
	}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if one := c.admit(conn); one != nil {
			return one, nil
		}
		_ = conn.Close() // it was never used
	}
}

// admit keeps a new connection, in place of another if necessary; it returns nil if there is no room.
func (c *connections) admit(conn net.Conn) net.Conn {
	address := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	now := time.Now() //nolint:forbidigo // only their order counts
	one := &connection{Conn: conn, of: c, address: address, state: http.StateNew, since: now}
	for {
		c.mu.Lock()
		crowded := c.byAddress[address] >= c.perAddress
		if !crowded && len(c.open) < c.max {
			c.open[one] = true
			c.byAddress[address]++
			c.mu.Unlock()
			return one
		}
		var oldest *connection
		for other := range c.open {
			if other.idle(now) && (!crowded || other.address == address) && (oldest == nil || other.since.Before(oldest.since)) {
				oldest = other
			}
		}
		c.mu.Unlock()
		if oldest == nil {
			return nil
		}
		_ = oldest.Close() // it was idle
	}
}

// Close implements net.Conn.
func (o *connection) Close() error {
	o.once.Do(func() {
		o.of.mu.Lock()
		defer o.of.mu.Unlock()
		delete(o.of.open, o)
		if o.of.byAddress[o.address]--; o.of.byAddress[o.address] == 0 {
			delete(o.of.byAddress, o.address)
		}
	})
	return o.Conn.Close()
}

// changed is the server's hook.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	one, ok := conn.(*connection)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one.state, one.since = state, time.Now() //nolint:forbidigo // only their order counts
}
