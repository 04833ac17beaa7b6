package executor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// serving is a server that counts its connections, and a webhook that trusts it.
type serving struct {
	*httptest.Server
	webhook     *webhook
	connections atomic.Int64
}

// serve starts a server: with TLS and HTTP/2, with TLS and HTTP/1.1 alone, or without TLS.
func serve(t testing.TB, kind string, cfg Config, answer http.HandlerFunc) *serving {
	t.Helper()
	cfg.AllowPrivateTargets = true
	s := &serving{Server: httptest.NewUnstartedServer(answer)}
	s.Config.ConnState = func(_ net.Conn, to http.ConnState) {
		if to == http.StateNew {
			s.connections.Add(1)
		}
	}
	transport := newTransport(cfg, clock.Clock{}, &net.Dialer{Timeout: 10 * time.Second})
	s.EnableHTTP2 = kind == "HTTP/2"
	if kind == "HTTP/1.1" {
		s.Start()
	} else {
		s.StartTLS()
		trusted := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		transport.tls.RootCAs, transport.other.(*http.Transport).TLSClientConfig.RootCAs = trusted, trusted
	}
	s.webhook = newWebhook(cfg, clock.Clock{}, transport)
	t.Cleanup(s.Close)
	return s
}

func (s *serving) call(ctx context.Context, method, body string) job.Outcome {
	return s.webhook.call(ctx, &job.Fire{Target: job.Target{Method: method, URL: s.URL + "/a?b=c", Body: []byte(body)}}, job.Fence{})
}

var kinds = []string{"HTTP/1.1", "HTTP/1.1 over TLS", "HTTP/2"}

func TestCallsOfAHostShareAConnection(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var wrong atomic.Int64
			s := serve(t, kind, DefaultConfig(), func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Method != http.MethodPost || string(body) != `{"x":1}` || r.RequestURI != "/a?b=c" || r.Header.Get("Content-Type") != "application/json" {
					wrong.Add(1)
				}
				_, _ = w.Write([]byte("fine"))
			})
			for range 20 {
				if o := s.call(t.Context(), http.MethodPost, `{"x":1}`); o.Kind != job.OutcomeSucceeded || string(o.ResponseBody) != "fine" {
					t.Fatalf("%+v", o)
				}
			}
			most := map[string]int64{"HTTP/1.1": 1, "HTTP/1.1 over TLS": 2, "HTTP/2": 1}[kind] // what a host speaks is learnt with one of its own
			if n := s.connections.Load(); n > most || wrong.Load() > 0 {
				t.Errorf("20 calls took %d connections, want at most %d; %d requests were not as they should be", n, most, wrong.Load())
			}
		})
	}
}

func TestConnectionThatItsTargetClosedIsNotUsed(t *testing.T) {
	for _, kind := range kinds[:2] {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := serve(t, kind, DefaultConfig(), func(http.ResponseWriter, *http.Request) {})
			for i := range 10 {
				if o := s.call(t.Context(), http.MethodPost, "{}"); o.Kind != job.OutcomeSucceeded {
					t.Fatalf("call %d: %+v", i, o)
				}
				s.CloseClientConnections() // returns when they are closed
			}
		})
	}
}

func TestAnswersOfAnyFormAreReadAndTheirConnectionKept(t *testing.T) {
	answers := map[string]struct {
		write func(w http.ResponseWriter)
		want  string
		kept  bool
	}{
		"empty":     {func(http.ResponseWriter) {}, "", true},
		"no body":   {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }, "", true},
		"of length": {func(w http.ResponseWriter) { _, _ = w.Write([]byte("abc")) }, "abc", true},
		"in chunks, with a trailer": {func(w http.ResponseWriter) {
			w.Header().Set("Trailer", "X-End")
			_, _ = w.Write([]byte("ab"))
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write([]byte("c"))
			w.Header().Set("X-End", "1")
		}, "abc", true},
		"with hints before it": {func(w http.ResponseWriter) {
			for range 20 {
				w.WriteHeader(http.StatusEarlyHints)
			}
			_, _ = w.Write([]byte("abc"))
		}, "abc", true},
		"long":      {func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("x", 20_000)) }, strings.Repeat("x", job.MaxResponseBytes), true},
		"very long": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("x", 2<<20)) }, strings.Repeat("x", job.MaxResponseBytes), false},
		"the last":  {func(w http.ResponseWriter) { w.Header().Set("Connection", "close") }, "", false},
	}
	for _, kind := range kinds[:2] {
		for name, c := range answers {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				s := serve(t, kind, DefaultConfig(), func(w http.ResponseWriter, _ *http.Request) { c.write(w) })
				s.call(t.Context(), http.MethodPost, "")
				before := s.connections.Load()
				const calls = 5
				for range calls {
					if o := s.call(t.Context(), http.MethodPost, ""); o.Kind != job.OutcomeSucceeded || string(o.ResponseBody) != c.want {
						t.Fatalf("%s, %q, want %q", o.Kind, o.ResponseBody, c.want)
					}
				}
				if n := s.connections.Load() - before; c.kept && n > 1 || !c.kept && n < calls-1 {
					t.Errorf("%d calls took %d new connections, kept: %v", calls, n, c.kept)
				}
			})
		}
	}
}

// rawAnswers answers the requests of each connection with these bytes, one after the other, and then nothing more.
func rawAnswers(t *testing.T, secure *tls.Config, answers ...string) (addr string, connections *atomic.Int64) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	t.Cleanup(func() { _ = listener.Close() })
	connections = &atomic.Int64{}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			t.Cleanup(func() { _ = c.Close() })
			go func() {
				r := bufio.NewReader(c)
				for _, answer := range answers {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(c, answer)
				}
				_, _ = r.ReadByte()
			}()
		}
	}()
	return listener.Addr().String(), connections
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestWhatATargetSendsBesideItsAnswerIsNobodysAnswer(t *testing.T) {
	const other = "HTTP/1.1 500 Other\r\nContent-Length: 0\r\n\r\n"
	s := serve(t, "HTTP/1.1 over TLS", DefaultConfig(), func(http.ResponseWriter, *http.Request) {})
	for name, answer := range map[string]string{
		"at once":             ok + other,
		"beyond what is read": ok + strings.Repeat(" ", 5000) + other,
		// The reader's buffer ends with the answer, so what follows is left to TLS, or in the socket.
		"right behind what is read": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: " + strings.Repeat("x", 4096-len(ok)-len("A: \r\n")) + "\r\n\r\nok" + other,
	} {
		for _, secure := range []*tls.Config{nil, {Certificates: s.TLS.Certificates, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true}} {
			t.Run(fmt.Sprint(name, secure != nil), func(t *testing.T) {
				addr, connections := rawAnswers(t, secure, answer, answer)
				url := "http://" + addr
				if secure != nil {
					url = "https://" + addr
				}
				for i := range 6 {
					f := &job.Fire{Target: job.Target{Method: "POST", URL: url}}
					if o := s.webhook.call(t.Context(), f, job.Fence{}); o.StatusCode != 200 {
						t.Fatalf("call %d: %+v", i, o)
					}
				}
				if n := connections.Load(); n != 6 {
					t.Errorf("6 calls took %d connections, want one each", n)
				}
			})
		}
	}
}

func TestHostileAnswersEndWithinTheirBounds(t *testing.T) {
	for name, answer := range map[string]string{
		"a header without end":   "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 200),
		"a line without end":     "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 200_000),
		"interim answers":        strings.Repeat("HTTP/1.1 103 Hints\r\n\r\n", 10_000) + ok,
		"two lengths":            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
		"a length below nothing": "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
		"no status":              "HTTP/1.1 \r\n\r\n",
		"a chunk of no size":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := rawAnswers(t, nil, answer)
			cfg := DefaultConfig()
			cfg.AllowPrivateTargets = true
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			f := &job.Fire{Target: job.Target{Method: "POST", URL: "http://" + addr}}
			if o := newWebhook(cfg, clock.Clock{}, nil).call(ctx, f, job.Fence{}); o.Kind != job.OutcomeFailed || !o.Retryable || ctx.Err() != nil {
				t.Errorf("%+v, %v; want a failure that may be tried again, before the timeout", o, ctx.Err())
			}
		})
	}
}

func TestCallThatIsInterruptedEndsAtOnce(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			arrived, done := make(chan struct{}, 1), make(chan struct{})
			hang := false
			s := serve(t, kind, DefaultConfig(), func(_ http.ResponseWriter, r *http.Request) {
				if hang {
					_, _ = io.Copy(io.Discard, r.Body)
					arrived <- struct{}{}
					<-r.Context().Done()
				}
			})
			s.call(t.Context(), http.MethodPost, "") // what the host speaks is known
			hang = true
			ctx, cancel := context.WithCancel(t.Context())
			go func() { s.call(ctx, http.MethodPost, "{}"); close(done) }()
			<-arrived
			cancel()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Error("the call goes on")
			}
		})
	}
}

func TestCallThatMayNotBeginAnyMoreSendsNothing(t *testing.T) {
	for _, kind := range kinds[:2] {
		var calls atomic.Int64
		s := serve(t, kind, DefaultConfig(), func(http.ResponseWriter, *http.Request) { calls.Add(1) })
		s.call(t.Context(), http.MethodPost, "")
		s.call(t.Context(), http.MethodPost, "")
		made, before := calls.Load(), s.connections.Load()
		ended, end := context.WithCancel(t.Context())
		end()
		late, stop := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		for _, ctx := range []context.Context{ended, late} {
			if o := s.call(ctx, http.MethodPost, ""); o.Kind == job.OutcomeSucceeded {
				t.Errorf("%+v", o)
			}
		}
		stop()
		s.call(t.Context(), http.MethodPost, "")
		if calls.Load() != made+1 || s.connections.Load() != before {
			t.Errorf("%s: %d requests on %d new connections, want one on the connection that was kept", kind, calls.Load()-made, s.connections.Load()-before)
		}
	}
}

func TestNoMoreConnectionsAreKeptThanMay(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxIdle = 8 // of which two are for connections of net/http
	var arrived sync.WaitGroup
	together := make(chan struct{})
	s := serve(t, "HTTP/1.1", cfg, func(http.ResponseWriter, *http.Request) { arrived.Done(); <-together })
	var calls sync.WaitGroup
	arrived.Add(20)
	for range 20 {
		calls.Go(func() { s.call(t.Context(), http.MethodPost, "") })
	}
	arrived.Wait()
	close(together)
	calls.Wait()
	d := s.webhook.transport.(*direct)
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := 0
	for _, list := range d.idle {
		kept += len(list)
	}
	if kept != 6 || d.all.n != kept {
		t.Errorf("%d connections are kept, %d in their order, want 6", kept, d.all.n)
	}
}

func TestConnectionsThatAreNotUsedAreClosed(t *testing.T) {
	d := &direct{maxIdle: 10, maxIdlePerHost: 10}
	var theirs []net.Conn
	for i := range 4 {
		ours, other := net.Pipe()
		theirs = append(theirs, other)
		d.keep(&conn{Conn: ours, socket: ours, at: place{addr: fmt.Sprint(i % 2)}})
	}
	d.mu.Lock()
	d.sweep.Stop()
	for c, i := d.all.first, 0; c != nil; c, i = c.next, i+1 {
		if i < 3 {
			c.since = c.since.Add(-idleFor)
		}
	}
	d.mu.Unlock()
	d.closeOld()
	for i, other := range theirs {
		_ = other.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := other.Read(make([]byte, 1))
		if closed := errors.Is(err, io.EOF); closed != (i < 3) {
			t.Errorf("connection %d is closed: %v", i, closed)
		}
	}
	if d.all.n != 1 || d.take(place{addr: "1"}) == nil || d.take(place{addr: "0"}) != nil || d.sweep == nil {
		t.Error("not just the one that was used is left, and will be looked at again")
	}
}

func TestLargeBodyThatIsNotReadIsAnswered(t *testing.T) {
	s := serve(t, "HTTP/1.1", DefaultConfig(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	for _, bytes := range []int{maxDirectBody, maxDirectBody + 1, job.MaxPayloadBytes} {
		if o := s.call(t.Context(), http.MethodPost, strings.Repeat("x", bytes)); o.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%d bytes: %+v", bytes, o)
		}
	}
}

func TestHostThatSpeaksAnotherProtocolNowIsFoundOutAgain(t *testing.T) {
	s := serve(t, "HTTP/2", DefaultConfig(), func(http.ResponseWriter, *http.Request) {})
	s.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedProtos, "h2") {
			return nil, errors.New("HTTP/2 only")
		}
		return nil, nil
	}
	s.webhook.transport.(*direct).learn(place{true, s.Listener.Addr().String()})
	if o := s.call(t.Context(), http.MethodPost, ""); o.Kind != job.OutcomeFailed || !o.Retryable {
		t.Errorf("a host that refuses HTTP/1.1: %+v", o)
	}
	if o := s.call(t.Context(), http.MethodPost, ""); o.Kind != job.OutcomeSucceeded {
		t.Errorf("the next call: %+v", o)
	}
}
