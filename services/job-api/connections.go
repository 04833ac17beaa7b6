package api

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// connections is a listener that keeps no more connections open than it may, in all and from one address. Where there are as many,
// the one that has been idle for longest makes room; where none is idle, the new one is closed.
type connections struct {
	net.Listener
	max, perAddress int

	mu        sync.Mutex
	open      map[*connection]bool
	byAddress map[string]int
}

// connection is one of them. An idle one has sent nothing yet, or waits for its next request.
type connection struct {
	net.Conn
	of      *connections
	address string
	idle    bool
	since   time.Time
	once    sync.Once
}

func newConnections(l net.Listener, most int) *connections {
	return &connections{
		Listener: l, max: most, perAddress: max(most*3/4, 1), open: map[*connection]bool{}, byAddress: map[string]int{},
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

// admit keeps a new connection, in the place of another where that is needed; nil if there is no room.
func (c *connections) admit(conn net.Conn) net.Conn {
	address := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	one := &connection{Conn: conn, of: c, address: address, idle: true, since: time.Now()} //nolint:forbidigo // only their order counts
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
			if other.idle && (!crowded || other.address == address) && (oldest == nil || other.since.Before(oldest.since)) {
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
	one.idle, one.since = state == http.StateIdle || state == http.StateNew, time.Now() //nolint:forbidigo // only their order counts
}
