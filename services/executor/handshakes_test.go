package executor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
)

// handshakeBench makes handshakes with targets at the other end of pipes. Each computes twice, for as long as computes says: before it
// sends something, and when the target has answered.
type handshakeBench struct {
	*handshakes
	computes       time.Duration
	client, server *tls.Config

	mu sync.Mutex
	// now is how many compute, most how many did at most.
	now, most int
}

func newHandshakeBench(t *testing.T, together int, computes time.Duration) *handshakeBench {
	t.Helper()
	s := httptest.NewTLSServer(nil) // for its certificate
	s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	b := &handshakeBench{handshakes: &handshakes{free: together}, computes: computes, server: s.TLS}
	b.client = &tls.Config{RootCAs: roots, ClientSessionCache: b, VerifyConnection: func(tls.ConnectionState) error { b.compute(); return nil }}
	return b
}

func (b *handshakeBench) compute() {
	b.mu.Lock()
	b.now++
	b.most = max(b.most, b.now)
	b.mu.Unlock()
	time.Sleep(b.computes)
	b.mu.Lock()
	b.now--
	b.mu.Unlock()
}

// Get implements tls.ClientSessionCache: it is asked before anything is sent.
func (b *handshakeBench) Get(string) (*tls.ClientSessionState, bool) {
	b.compute()
	return nil, false
}

// Put implements tls.ClientSessionCache.
func (b *handshakeBench) Put(string, *tls.ClientSessionState) {}

// connect makes a handshake with a target that answers after a while; never, if that is negative.
func (b *handshakeBench) connect(ctx context.Context, after time.Duration) error {
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	go func() {
		defer func() { _ = far.Close() }()
		if after >= 0 {
			server := tls.Server(slow{far, bufio.NewReader(far), after}, b.server)
			_ = server.HandshakeContext(ctx) // the client tells
			return
		}
		for buf := make([]byte, 1024); ; {
			if _, err := far.Read(buf); err != nil {
				return
			}
		}
	}()
	if err := b.begin(ctx); err != nil {
		return err
	}
	_, err := b.make(ctx, near, "example.com:443", b.client)
	return err
}

// slow is a connection of a target that answers a while after it has received something.
type slow struct {
	net.Conn
	in    *bufio.Reader
	after time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	if s.in.Buffered() == 0 {
		if _, err := s.in.Peek(1); err != nil {
			return 0, err
		}
		time.Sleep(s.after)
	}
	return s.in.Read(p)
}

func TestHandshakesComputeInTurns(t *testing.T) {
	b := newHandshakeBench(t, 2, 100*time.Millisecond)
	bubble.Test(t, func(t *testing.T) {
		from := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := b.connect(t.Context(), 0); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(from); b.most != 2 || took > 2200*time.Millisecond {
			t.Errorf("20 handshakes of 200 ms took %s, at most %d at once; want 2 at once, so some 2 s", took, b.most)
		}
	})
}

func TestHandshakeWithATargetThatIsSlowHoldsUpNobody(t *testing.T) {
	b := newHandshakeBench(t, 1, 10*time.Millisecond)
	bubble.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		defer all.Wait()
		for range 20 {
			all.Go(func() {
				if err := b.connect(t.Context(), -1); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a target that is silent: %v", err)
				}
			})
			all.Go(func() {
				if err := b.connect(t.Context(), 4*time.Second); err != nil {
					t.Errorf("a target that is slow: %v", err)
				}
			})
		}
		time.Sleep(time.Second) // they have sent what comes first, and wait
		from := time.Now()
		if err := b.connect(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if took := time.Since(from); took != 20*time.Millisecond {
			t.Errorf("it took %s beside targets that are slow", took)
		}
	})
}

func TestHandshakeThatHasBegunGoesFirst(t *testing.T) {
	b := newHandshakeBench(t, 1, time.Second)
	bubble.Test(t, func(t *testing.T) {
		from := time.Now()
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			err := b.connect(t.Context(), 200*time.Millisecond)
			if took := time.Since(from); err != nil || took != 3100*time.Millisecond {
				t.Errorf("it took %s, %v; want 3.1 s: what is sent first, a turn of another, and the rest", took, err)
			}
		})
		time.Sleep(1100 * time.Millisecond)
		for range 20 {
			all.Go(func() {
				if err := b.connect(t.Context(), 0); err != nil {
					t.Errorf("its time is limited from when it begins: %v", err)
				}
			})
		}
	})
}

func TestHandshakeThatNobodyWaitsForTakesNoTurn(t *testing.T) {
	b := newHandshakeBench(t, 1, time.Millisecond)
	bubble.Test(t, func(t *testing.T) {
		if err := b.begin(t.Context()); err != nil { // the turn is taken
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := b.connect(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("there was no turn for it: %v", err)
				}
			})
		}
		all.Wait()
		b.leave()
		if err := b.connect(t.Context(), 0); err != nil {
			t.Errorf("the turn that was left: %v", err)
		}
		if b.free != 1 {
			t.Errorf("%d turns are free, want 1", b.free)
		}
	})
}

// Neither net/http, which dials on behalf of calls that have ended, nor a host that is known takes a turn then.
func TestCallThatEndsWhileItWaitsForItsTurnLeavesNothingBehind(t *testing.T) {
	for name, known := range map[string]bool{"host met for the first time": false, "host that is known": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			d := newTransport(DefaultConfig(), clock.Clock{}, &net.Dialer{})
			for range d.handshakes.free { // others have the turns
				if err := d.handshakes.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			at := place{true, listener.Addr().String()}
			if known {
				d.learn(at)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+at.addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() {
				_, err := d.RoundTrip(req) //nolint:bodyclose // there is none
				ended <- err
			}()
			c, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a call that has no turn: %v", err)
			}
			if d.speaks(at) != known {
				t.Error("it is known otherwise than before")
			}
			if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
				t.Errorf("the connection was not closed: %d bytes, %v", n, err)
			}
		})
	}
}
