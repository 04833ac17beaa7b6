package cassandra

import (
	"context"
	"errors"
	"net"
	"sync"
)

// dialer connects to nodes for one session, and knows which connections are open. A session that is closed while the driver makes a
// connection leaves that connection behind (seen in gocql 2.1.2), with the goroutines that read and write it; close ends these too.
type dialer struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func newDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) *dialer {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &dialer{dial: dial, open: map[net.Conn]struct{}{}}
}

// DialContext implements gocql.Dialer. After close it returns net.ErrClosed.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	bare, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	closes := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.open, bare)
	}
	var c net.Conn = &connection{bare, closes}
	if tcp, plain := bare.(*net.TCPConn); plain {
		c = &tcpConnection{tcp, closes}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.Join(net.ErrClosed, bare.Close())
	}
	d.open[bare] = struct{}{}
	return c, nil
}

// close closes the connections that are open, and those that are made from then on.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		_ = c.Close() // nobody reads or writes it any more
	}
	clear(d.open)
}

// connection calls closes when it is closed.
type connection struct {
	net.Conn
	closes func()
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.closes()
	return c.Conn.Close()
}

// tcpConnection is a connection without TLS. Its type is known, so that the buffers which the driver has gathered are written with one call of
// the system (net.Buffers).
type tcpConnection struct {
	*net.TCPConn
	closes func()
}

// Close implements net.Conn.
func (c *tcpConnection) Close() error {
	c.closes()
	return c.TCPConn.Close()
}
