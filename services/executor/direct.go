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

	"github.com/minutehand/minutehand/libs/clock"
)

const (
	// maxHeaderBytes bounds the header of an answer, with those of interim answers before it.
	maxHeaderBytes = 64 << 10
	// maxDirectBody bounds a request's body that is written before its answer is read: it fits the socket's buffer, so a target that
	// answers without reading it is heard.
	maxDirectBody = 32 << 10
	// idleFor is how long a connection is kept for the next call.
	idleFor = time.Minute
	// handshakeLimit bounds a TLS handshake.
	handshakeLimit = 10 * time.Second
	// headerRoom is more than most requests take without their bodies.
	headerRoom = 2 << 10
	// maxKeptBuffer is the largest buffer that is kept for the text of other requests.
	maxKeptBuffer = 8 << 10
	// maxKnown bounds the hosts that are known to speak HTTP/1.1 over TLS. Beyond it all are forgotten.
	maxKnown = 10_000
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
	tls        *tls.Config
	handshakes *handshakes
	other      http.RoundTripper
	clock      clock.Clock
	// maxIdle bounds the connections that are kept, maxIdlePerHost those to one host.
	maxIdle, maxIdlePerHost int

	mu sync.Mutex
	// idle holds the connections to each place, the one that was used last at the end; all holds them in the order in which they were
	// put there.
	idle map[place][]*conn
	all  fifo
	// known holds the places that speak HTTP/1.1 over TLS.
	known map[place]bool
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
	var text *bytes.Buffer
	_, streamed := req.Body.(*reference) // of all others the body is in memory
	if ok = ok && !streamed && req.ContentLength <= maxDirectBody; ok && d.speaks(at) {
		text = textOf(req)
	}
	if text == nil {
		resp, err := d.other.RoundTrip(req.WithContext(withCall(req.Context())))
		if err == nil && ok && at.tls && resp.ProtoMajor == 1 {
			d.learn(at)
		}
		return resp, err
	}
	defer func() { release(text) }()
	c, err := d.connection(req.Context(), at)
	if err != nil {
		return nil, err
	}
	x := &exchange{d: d, c: c, in: readers.Get().(*bufio.Reader)}
	x.in.Reset(c)
	x.stop = context.AfterFunc(req.Context(), c.interrupt)
	if err = req.Context().Err(); err == nil { // otherwise the request might go out before it is interrupted
		_, err = c.Write(text.Bytes())
	}
	release(text) // it may be long until the answer comes
	if text = nil; err == nil {
		x.resp, err = x.answer(req)
	}
	if err != nil {
		x.end(false)
		return nil, err
	}
	x.Reader, x.resp.Body = x.resp.Body, x
	return x.resp, nil
}

// textOf returns a request as it is sent; nil, before the body was read, if net/http would refuse its header.
func textOf(req *http.Request) *bytes.Buffer {
	text := requests.Get().(*bytes.Buffer)
	text.Grow(int(req.ContentLength) + headerRoom)
	if !write(text, req) {
		release(text)
		return nil
	}
	return text
}

// release keeps a buffer for other requests, unless it is large.
func release(text *bytes.Buffer) {
	if text != nil && text.Cap() <= maxKeptBuffer {
		text.Reset()
		requests.Put(text)
	}
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
	return d.known[p]
}

func (d *direct) learn(p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxKnown {
		d.known = map[place]bool{}
	}
	d.known[p] = true
}

// forget lets the next call find out again what a place speaks.
func (d *direct) forget(p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, p)
}

// connection returns a connection that was kept and is still good, or makes one. Its deadline is that of the context.
func (d *direct) connection(ctx context.Context, at place) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	deadline, limited := ctx.Deadline()
	if limited && time.Until(deadline) <= 0 { //nolint:forbidigo // deadlines of contexts are the machine's
		return nil, context.DeadlineExceeded // a connection could not be looked at any more
	}
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
		if err := d.handshakes.begin(ctx); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		if c.Conn, err = d.handshakes.make(ctx, raw, at.addr, d.tls); err != nil {
			d.forget(at)
			return nil, err
		}
	}
	return c, c.SetDeadline(deadline)
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
	for {
		resp, err := http.ReadResponse(x.in, req)
		if err != nil {
			return nil, err
		}
		if code := resp.StatusCode; code < 100 || code >= 200 || code == http.StatusSwitchingProtocols {
			x.c.left = 1 << 62
			return resp, nil
		}
	}
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
