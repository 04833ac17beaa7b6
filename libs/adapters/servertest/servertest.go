// Package servertest is what the adapters' tests on real servers share: where the servers are, and a network with faults between
// them and an adapter.
package servertest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Address returns the address of a server that infra/local started: CASSANDRA, KAFKA, REDIS, ZOOKEEPER or S3.
func Address(t testing.TB, server string) string {
	t.Helper()
	port := os.Getenv(server + "_PORT")
	if port == "" {
		t.Fatalf("%s_PORT is not set; run make test-servers", server)
	}
	return "127.0.0.1:" + port
}

// Addresses returns those of several servers, which listen on consecutive ports.
func Addresses(t testing.TB, server string, n int) (list []string) {
	t.Helper()
	host, text, err := net.SplitHostPort(Address(t, server))
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		list = append(list, net.JoinHostPort(host, strconv.Itoa(first+i)))
	}
	return list
}

// Proxy sits between a driver and a server, and passes everything on until it is told otherwise.
type Proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	conns map[net.Conn]bool
	off   bool
	// delay is how long every chunk takes on its way; silence is closed when a silence ends, nil while there is none.
	delay   time.Duration
	silence chan struct{}
}

// NewProxy starts a proxy for the server at an address, for the duration of the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return newProxy(t, target, nil)
}

// NewTLSProxy starts a proxy that speaks TLS with the driver, and plain text with the server.
func NewTLSProxy(t testing.TB, target string, c *tls.Config) *Proxy {
	t.Helper()
	return newProxy(t, target, c)
}

func newProxy(t testing.TB, target string, c *tls.Config) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it lives as long as the test
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		listener = tls.NewListener(listener, c)
	}
	p := &Proxy{listener: listener, target: target, conns: map[net.Conn]bool{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Off()
	})
	return p
}

// Address returns the address on which the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Dial connects to the proxy instead of the address: for drivers that learn from a server where to connect to.
func (p *Proxy) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, p.Address())
}

// DialContext is Dial, for drivers that want it by this name.
func (p *Proxy) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return p.Dial(ctx, network, address)
}

// Slow delays every chunk by this much, from now on.
func (p *Proxy) Slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// Cut ends every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// Off ends every connection, and every new one at once.
func (p *Proxy) Off() {
	p.mu.Lock()
	p.off = true
	p.mu.Unlock()
	p.Cut()
}

// On ends Off.
func (p *Proxy) On() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = false
}

// Silence leaves connections half-open for a while: they exist, new ones too, but nothing arrives. Then they end.
func (p *Proxy) Silence(d time.Duration) {
	over := make(chan struct{})
	p.mu.Lock()
	p.silence = over
	p.mu.Unlock()
	time.Sleep(d)
	p.mu.Lock()
	p.silence = nil
	p.mu.Unlock()
	p.Cut()
	close(over)
}

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", p.target) //nolint:noctx // it is ended by the proxy
		if err != nil || !p.keep(from, to) {
			_ = from.Close()
			if err == nil {
				_ = to.Close()
			}
			continue
		}
		go p.pass(from, to)
		go p.pass(to, from)
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
	return !p.off
}

// pass copies from one connection to the other until either ends.
func (p *Proxy) pass(from io.Reader, to net.Conn) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		p.mu.Lock()
		delay, silence := p.delay, p.silence
		p.mu.Unlock()
		if silence != nil {
			<-silence
		}
		if delay > 0 {
			time.Sleep(delay)
		}
		if n > 0 && err == nil {
			_, err = to.Write(chunk[:n])
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	if c, ok := from.(net.Conn); ok {
		_ = c.Close()
	}
}

// The faults that UnderFaults makes, one after the other.
const (
	slowFor, slowBy    = 2 * time.Second, 10 * time.Millisecond
	cutsFor, cutEvery  = 3 * time.Second, 200 * time.Millisecond
	silentFor, calmFor = 8 * time.Second, time.Second
	// wellFor is how long the network is healthy again at the end, so that every driver has reconnected.
	wellFor = 6 * time.Second
	workers = 8
)

// UnderFaults calls do for 0, 1, 2 and so on, and repeats each until it succeeds, while the network is slow, cut repeatedly,
// half-open, and healthy again. It fails if a call takes longer than the limit. It returns how many calls succeeded: what they
// wrote must be there.
func UnderFaults(t *testing.T, p *Proxy, limit time.Duration, do func(ctx context.Context, i int) error) (done int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	over := make(chan struct{})
	var next, failed, longest atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				for i := int(next.Add(1)) - 1; ; {
					began := time.Now()
					err := do(ctx, i)
					took := time.Since(began)
					if took > limit {
						t.Errorf("a call took %s (%v), want at most %s", took, err, limit)
					}
					for l := longest.Load(); int64(took) > l && !longest.CompareAndSwap(l, int64(took)); l = longest.Load() {
					}
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Errorf("call %d did not succeed to the end: %v", i, err)
						return
					}
					failed.Add(1)
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	time.Sleep(calmFor)
	p.Slow(slowBy)
	time.Sleep(slowFor)
	p.Slow(0)
	for began := time.Now(); time.Since(began) < cutsFor; {
		p.Cut()
		time.Sleep(cutEvery)
	}
	p.Silence(silentFor)
	time.Sleep(wellFor)
	close(over)
	wg.Wait()
	t.Logf("%d calls succeeded, %d tries failed, the longest took %s", next.Load(), failed.Load(), time.Duration(longest.Load()))
	if failed.Load() == 0 && time.Duration(longest.Load()) < silentFor/2 {
		t.Error("no call failed or had to wait: nothing was shown")
	}
	return int(next.Load())
}

// NoLeak runs work, which closes what it opens, and fails if goroutines are left.
func NoLeak(t *testing.T, work func()) {
	t.Helper()
	before := runtime.NumGoroutine()
	work()
	const tolerated = 2 // of connections that other parts of the process keep
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		after := runtime.NumGoroutine()
		if after <= before+tolerated {
			return
		}
		if time.Now().After(deadline) {
			stacks := make([]byte, 64<<10)
			t.Errorf("%d goroutines before, %d after:\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
			return
		}
	}
}

// Unique returns a name that no other test has used on the servers.
func Unique(prefix string) string {
	return fmt.Sprintf("%s%d%d", prefix, time.Now().UnixNano(), names.Add(1))
}

var names atomic.Int64
