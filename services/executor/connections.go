package executor

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// take takes the connection that was used last.
func (d *direct) take(at place) *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.idle[at]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	d.drop(c, len(list)-1)
	return c
}

// drop removes a connection from those that are kept, of which it is the i-th of its place.
func (d *direct) drop(c *conn, i int) {
	list := d.idle[c.at]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = nil
	if list = list[:len(list)-1]; len(list) == 0 {
		delete(d.idle, c.at)
	} else {
		d.idle[c.at] = list
	}
	d.all.remove(c)
}

// keep keeps a connection for the next call. If there are too many, the one that was not used for longest is closed.
func (d *direct) keep(c *conn) {
	var closed *conn
	d.mu.Lock()
	if d.idle == nil {
		d.idle = map[place][]*conn{}
	}
	switch list := d.idle[c.at]; {
	case d.maxIdle <= 0 || len(list) >= d.maxIdlePerHost:
		closed = c
	default:
		if d.all.n >= d.maxIdle {
			closed = d.all.first
			d.drop(closed, 0) // the oldest of all is the oldest of its place
		}
		c.since = d.clock.Now()
		d.idle[c.at] = append(d.idle[c.at], c)
		d.all.push(c)
		if d.sweep == nil {
			d.sweep = time.AfterFunc(idleFor, d.closeOld)
		}
	}
	d.mu.Unlock()
	if closed != nil {
		_ = closed.Close() // nothing is under way on it
	}
}

// closeOld closes the connections that were not used for long.
func (d *direct) closeOld() {
	var old []*conn
	d.mu.Lock()
	for c := d.all.first; c != nil && d.clock.Since(c.since) >= idleFor; c = d.all.first {
		d.drop(c, 0)
		old = append(old, c)
	}
	if d.sweep = nil; d.all.first != nil {
		d.sweep = time.AfterFunc(idleFor-d.clock.Since(d.all.first.since), d.closeOld)
	}
	d.mu.Unlock()
	for _, c := range old {
		_ = c.Close() // nothing is under way on it
	}
}

// conn is a connection to a target.
type conn struct {
	net.Conn
	// socket is what TLS is spoken over, or the connection itself.
	socket net.Conn
	at     place
	// left is how many bytes may still be read.
	left int64
	// since is when it was kept; next and previous are its neighbours in the order of that.
	since          time.Time
	next, previous *conn
}

var errHeaderTooLong = errors.New("the answer's header is too long")

// Read implements io.Reader within the bytes that are left.
func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeaderTooLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// Close closes the socket, without a word of TLS before it, which might have to wait for the target.
func (c *conn) Close() error { return c.socket.Close() }

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// interrupt ends what is under way.
func (c *conn) interrupt() { _ = c.SetDeadline(past) } // it fails only if the connection is closed

// spent reports whether TLS has nothing left of what it read: what a target sends beyond an answer is nobody's.
func (c *conn) spent() bool {
	if !c.at.tls {
		return true // what is in the socket is seen before the next call
	}
	if c.SetReadDeadline(past) != nil {
		return false
	}
	var b [1]byte
	n, err := c.Conn.Read(b[:])
	return n == 0 && isTimeout(err)
}

// silent reports whether the target has neither closed the connection nor sent anything since it was kept.
func (c *conn) silent() bool {
	socket, ok := c.socket.(syscall.Conn)
	if !ok {
		return true // it is not one of this machine's sockets
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && silent
}

// fifo is a list of connections, the oldest first.
type fifo struct {
	first, last *conn
	n           int
}

func (l *fifo) push(c *conn) {
	if c.previous, c.next = l.last, nil; l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
	l.n++
}

func (l *fifo) remove(c *conn) {
	if c.previous != nil {
		c.previous.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.previous = c.previous
	} else {
		l.last = c.previous
	}
	c.next, c.previous = nil, nil
	l.n--
}
