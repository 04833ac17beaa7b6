package executor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxHeaderBytes bounds the header of an answer, maxInterim how many interim answers may come before it.
	maxHeaderBytes, maxInterim = 64 << 10, 5
	// maxDirectBody bounds a request's body that is written before its answer is read: it fits the socket's buffer, so a target that
	// answers without reading it is heard.
	maxDirectBody = 32 << 10
	// idleFor is how long a connection is kept for the next call.
	idleFor = time.Minute
	// handshakeLimit bounds a TLS handshake.
	handshakeLimit = 10 * time.Second
	// maxOldHosts bounds the hosts that are known to speak HTTP/1.1 over TLS. Beyond it they are learnt anew.
	maxOldHosts = 10_000
)

// direct makes calls over HTTP/1.1 in the goroutine that makes the call: it writes the request, and reads the answer with the parser of
// net/http. A connection of net/http has two goroutines of its own, and what is handed between them costs as much as the call (decision
// 44). HTTP/2, hosts of which it is not known whether they speak it, and large bodies are left to net/http.
//
// A request is written once. A connection that was kept is looked at first: one that its target has closed, or on which it has sent
// something unasked, is not used. So nothing has to be sent again.
type direct struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// tls offers HTTP/1.1 only.
	tls   *tls.Config
	other http.RoundTripper
	// maxIdle bounds the connections that are kept, maxIdlePerHost those to one host.
	maxIdle, maxIdlePerHost int

	mu sync.Mutex
	// idle holds the connections to each place, the one that was used last at the end; all holds them in the order in which they were
	// put there.
	idle map[place][]*conn
	all  fifo
	// old holds the places that speak HTTP/1.1 over TLS.
	old map[place]bool
	// sweep is set while there are connections that may have to be closed.
	sweep *time.Timer
}

// place is where a connection leads.
type place struct {
	tls  bool
	addr string
}

// placeOf returns where a URL leads; ok is false where that takes more than its text.
func placeOf(u *url.URL) (p place, ok bool) {
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if p.tls = true; port == "" {
			port = "443"
		}
	default:
		return p, false
	}
	host := u.Hostname()
	p.addr = net.JoinHostPort(host, port)
	return p, host != "" && !strings.ContainsFunc(host, func(r rune) bool { return r >= 0x80 || r == '%' })
}

// RoundTrip implements http.RoundTripper. The answer's body must be closed.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	at, ok := placeOf(req.URL)
	text := requests.Get().(*bytes.Buffer)
	defer requests.Put(text)
	text.Reset()
	if !ok || req.ContentLength > maxDirectBody || !d.speaks(at) || !write(text, req) {
		resp, err := d.other.RoundTrip(req)
		if err == nil && ok && at.tls && resp.ProtoMajor == 1 {
			d.learn(at)
		}
		return resp, err
	}
	c, err := d.connection(req.Context(), at)
	if err != nil {
		return nil, err
	}
	x := &exchange{d: d, c: c, in: readers.Get().(*bufio.Reader)}
	x.in.Reset(c)
	x.stop = context.AfterFunc(req.Context(), c.interrupt)
	if _, err = c.Write(text.Bytes()); err == nil {
		x.resp, err = x.answer(req)
	}
	if err != nil {
		x.end(false)
		return nil, err
	}
	x.Reader, x.resp.Body = x.resp.Body, x
	return x.resp, nil
}

// write writes a request as http.Request.Write does. It returns false, before it has read the body, for a header that net/http would refuse.
func write(text *bytes.Buffer, req *http.Request) bool {
	text.WriteString(req.Method)
	text.WriteByte(' ')
	text.WriteString(req.URL.RequestURI())
	text.WriteString(" HTTP/1.1\r\nHost: ")
	text.WriteString(req.URL.Host)
	text.WriteString("\r\n")
	for name, values := range req.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue // these are the client's own
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
			text.WriteString(name)
			text.WriteString(": ")
			text.WriteString(value)
			text.WriteString("\r\n")
		}
	}
	switch {
	case req.ContentLength > 0:
		fmt.Fprintf(text, "Content-Length: %d\r\n", req.ContentLength)
	case req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch:
		text.WriteString("Content-Length: 0\r\n")
	}
	text.WriteString("\r\n")
	if req.Body != nil {
		_, _ = text.ReadFrom(req.Body) // it is in memory
	}
	return true
}

// requests are buffers for the text of a request, readers those for what is read of an answer.
var (
	requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	readers  = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
)

// speaks reports whether a place is known to speak HTTP/1.1: one without TLS, and one that was met.
func (d *direct) speaks(p place) bool {
	if !p.tls {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.old[p]
}

func (d *direct) learn(p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.old == nil || len(d.old) >= maxOldHosts {
		d.old = map[place]bool{}
	}
	d.old[p] = true
}

// forget lets the next call find out again what a place speaks.
func (d *direct) forget(p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.old, p)
}

// connection returns a connection that was kept and is still good, or makes one. Its deadline is that of the context.
func (d *direct) connection(ctx context.Context, at place) (*conn, error) {
	deadline, _ := ctx.Deadline()
	for c := d.take(at); c != nil; c = d.take(at) {
		if c.SetDeadline(deadline) == nil && c.silent() {
			c.left = maxHeaderBytes
			return c, nil
		}
		_ = c.Close() // it is of no use any more
	}
	raw, err := d.dial(ctx, "tcp", at.addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, socket: raw, at: at, left: maxHeaderBytes}
	if at.tls {
		if c.Conn, err = d.handshake(ctx, raw, at); err != nil {
			d.forget(at)
			return nil, errors.Join(err, raw.Close())
		}
	}
	return c, c.SetDeadline(deadline)
}

func (d *direct) handshake(ctx context.Context, raw net.Conn, at place) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	cfg := d.tls.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(at.addr) // placeOf joined it
	c := tls.Client(raw, cfg)
	return c, c.HandshakeContext(ctx)
}

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
		c.since = time.Now()
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
	for c := d.all.first; c != nil && time.Since(c.since) >= idleFor; c = d.all.first {
		d.drop(c, 0)
		old = append(old, c)
	}
	if d.sweep = nil; d.all.first != nil {
		d.sweep = time.AfterFunc(idleFor-time.Since(d.all.first.since), d.closeOld)
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

// exchange is a request under way, and the body of its answer.
type exchange struct {
	io.Reader
	d    *direct
	c    *conn
	in   *bufio.Reader
	stop func() bool
	resp *http.Response
	// ended is set when the body was read to its end.
	ended bool
}

// answer reads the header of the answer, and passes over interim ones.
func (x *exchange) answer(req *http.Request) (*http.Response, error) {
	for range maxInterim + 1 {
		resp, err := http.ReadResponse(x.in, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			x.c.left = 1 << 62
			return resp, nil
		}
	}
	return nil, errors.New("too many interim answers")
}

// Read implements io.Reader.
func (x *exchange) Read(p []byte) (n int, err error) {
	n, err = x.Reader.Read(p)
	x.ended = x.ended || errors.Is(err, io.EOF)
	return n, err
}

// Close implements io.Closer: a connection whose answer was read to its end is kept.
func (x *exchange) Close() error {
	if x.in != nil {
		x.end(x.ended && !x.resp.Close && x.resp.StatusCode >= 200 && x.in.Buffered() == 0)
	}
	return nil
}

func (x *exchange) end(reuse bool) {
	reuse = x.stop() && reuse && x.c.spent()
	x.in.Reset(nil)
	readers.Put(x.in)
	if x.in = nil; reuse {
		x.d.keep(x.c)
		return
	}
	_ = x.c.Close() // whatever it says, the answer stands
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
