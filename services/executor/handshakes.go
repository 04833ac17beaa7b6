package executor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"sync"
)

// handshakes bounds the TLS handshakes that compute at the same time, to half of the processors. A handshake computes for as long as many
// calls on a connection that is kept, so those of a few thousand new connections would hold up every other call. While one waits for its
// target it counts for nothing, so a target that is slow holds up nobody.
type handshakes struct {
	mu   sync.Mutex
	free int
	// begun holds what waits to go on, first what waits to begin. What has begun goes first: its time is limited.
	begun, first []*turn
}

// turn is what waits to compute. It is granted by closing it.
type turn struct {
	granted chan struct{}
	// gone is set when nobody waits for it any more.
	gone bool
}

func newHandshakes() *handshakes { return &handshakes{free: max(runtime.GOMAXPROCS(0)/2, 1)} }

// make makes the handshake, whose turn it is, on a connection to a target, or closes it; its host is that of addr, unless the configuration
// names it.
func (h *handshakes) make(ctx context.Context, raw net.Conn, addr string, cfg *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(addr) // what was dialled has a port
	}
	turns := &inTurns{Conn: raw, h: h, in: readers.Get().(*bufio.Reader)}
	turns.in.Reset(raw)
	c := tls.Client(turns, cfg)
	err := c.HandshakeContext(ctx)
	turns.h = nil
	h.leave()
	if err != nil {
		turns.release()
		return nil, errors.Join(err, raw.Close())
	}
	return c, nil
}

// callKey is the key under which the context of a dial holds that of the call that it is for.
type callKey struct{}

// withCall returns a context for net/http, which dials with a context that has the values of a call's, but does not end with it: what waits
// for a turn would then wait for calls that nobody waits for any more.
func withCall(ctx context.Context) context.Context { return context.WithValue(ctx, callKey{}, ctx) }

// callOf returns the context of the call that a dial is for.
func callOf(dial context.Context) context.Context {
	if call, ok := dial.Value(callKey{}).(context.Context); ok {
		return call
	}
	return dial
}

// begin waits for the turn of a handshake that has not begun. This time does not count for the limit of a handshake.
func (h *handshakes) begin(ctx context.Context) error {
	h.mu.Lock()
	if h.free > 0 {
		h.free--
		h.mu.Unlock()
		return nil
	}
	t := &turn{granted: make(chan struct{})}
	h.first = append(h.first, t)
	h.mu.Unlock()
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-t.granted:
		h.pass()
	default:
		t.gone = true
	}
	return ctx.Err()
}

// goOn waits for the turn of a handshake that has begun. It does not end with a context: nobody has a turn for longer than it computes.
func (h *handshakes) goOn() {
	h.mu.Lock()
	if h.free > 0 {
		h.free--
		h.mu.Unlock()
		return
	}
	t := &turn{granted: make(chan struct{})}
	h.begun = append(h.begun, t)
	h.mu.Unlock()
	<-t.granted
}

// leave gives a turn to who waits.
func (h *handshakes) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pass()
}

func (h *handshakes) pass() {
	for _, waiting := range []*[]*turn{&h.begun, &h.first} {
		for len(*waiting) > 0 {
			t := (*waiting)[0]
			(*waiting)[0] = nil
			if *waiting = (*waiting)[1:]; !t.gone {
				close(t.granted)
				return
			}
		}
	}
	h.free++
}

// inTurns is a connection whose handshake computes in turns.
type inTurns struct {
	net.Conn
	// h is nil once the handshake is made, and in is once what it left of it is read.
	h  *handshakes
	in *bufio.Reader
}

// Read implements io.Reader. During the handshake the turn is given away while there is nothing to read.
func (c *inTurns) Read(p []byte) (int, error) {
	switch {
	case c.in == nil:
		return c.Conn.Read(p)
	case c.in.Buffered() > 0:
	case c.h == nil:
		c.release()
		return c.Conn.Read(p)
	default:
		c.h.leave()
		_, err := c.in.Peek(1)
		c.h.goOn()
		if err != nil {
			return 0, err
		}
	}
	return c.in.Read(p)
}

func (c *inTurns) release() {
	c.in.Reset(nil)
	readers.Put(c.in)
	c.in = nil
}
