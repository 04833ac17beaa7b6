package executor

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// rawTarget answers every request with the same bytes and leaves the connection open.
func rawTarget(t *testing.T, answer string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				r := bufio.NewReader(conn)
				for line := ""; line != "\r\n"; {
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				_, _ = conn.Write([]byte(answer))
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/"
}

func TestEveryAnswerEndsTheAttemptAsItsStatusSays(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = true
	for name, c := range map[string]struct {
		answer    string
		kind      job.OutcomeKind
		retryable bool
		status    int
	}{
		"success":             {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", job.OutcomeSucceeded, false, 200},
		"switching protocols": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", job.OutcomeFailed, false, 101},
		"a redirect":          {"HTTP/1.1 302 Found\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n", job.OutcomeFailed, false, 302},
		"a redirect nowhere":  {"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n", job.OutcomeFailed, false, 302},
		"too busy":            {"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", job.OutcomeFailed, true, 429},
		"half an answer":      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", job.OutcomeTimedOut, true, 200},
		"no HTTP":             {"SSH-2.0-x\r\n\r\n", job.OutcomeFailed, true, 0},
		"nothing":             {"", job.OutcomeTimedOut, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &job.Fire{Target: job.Target{Method: "POST", URL: rawTarget(t, c.answer), Timeout: 300 * time.Millisecond}}
			done := make(chan job.Outcome, 1)
			ctx, cancel := context.WithTimeout(t.Context(), f.Target.Timeout)
			defer cancel()
			go func() { done <- newWebhook(cfg, clock.Clock{}, nil).call(ctx, f, job.Fence{}) }()
			select {
			case o := <-done:
				if o.Kind != c.kind || o.Retryable != c.retryable || o.StatusCode != c.status {
					t.Errorf("%+v, want %s, retryable %v, status %d", o, c.kind, c.retryable, c.status)
				}
			case <-time.After(30 * time.Second):
				t.Error("the attempt did not end")
			}
		})
	}
}

// closingTarget reads every request to its end. It answers the first on each connection, and closes the connection instead
// of answering the second.
func closingTarget(t *testing.T) (url string, calls func() int64) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var n atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				for first := true; ; first = false {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					n.Add(1)
					if !first {
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/", n.Load
}

func TestAttemptCallsItsTargetOnceAlsoWhenAKeptConnectionCloses(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = true
	for _, c := range []struct {
		method, body string
		headers      map[string]string
	}{
		{"POST", `{"a":1}`, nil},
		{"POST", "", nil},
		{"PUT", `{"a":1}`, map[string]string{"X-Idempotency-Key": "k"}},
		{"DELETE", "", nil},
		{"GET", "", nil},
		{"HEAD", "", map[string]string{"x-idempotency-key": "k"}},
		{"OPTIONS", "", nil},
	} {
		t.Run(c.method+" "+c.body, func(t *testing.T) {
			t.Parallel()
			url, calls := closingTarget(t)
			h := newWebhook(cfg, clock.Clock{}, nil)
			f := &job.Fire{Target: job.Target{Method: c.method, URL: url, Headers: c.headers, Body: []byte(c.body), Timeout: 10 * time.Second}}
			const attempts = 20
			failed := 0
			for range attempts {
				if o := h.call(t.Context(), f, job.Fence{}); o.Kind != job.OutcomeSucceeded {
					failed++
				}
			}
			if n := calls(); n != attempts || failed != attempts/2 {
				t.Errorf("%d attempts made %d calls, %d of them failed; want as many calls, and half of them", attempts, n, failed)
			}
		})
	}
}

// On the wire, a request with an empty body does not show the body that keeps net/http from sending it again.
func TestRequestWithoutABodyHasNone(t *testing.T) {
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = true
	got := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Clone(context.Background()) }))
	defer server.Close()
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "POST"} {
		f := &job.Fire{Target: job.Target{Method: method, URL: server.URL, Timeout: 10 * time.Second}}
		f.ExecutionID = "exe_1"
		if o := newWebhook(cfg, clock.Clock{}, nil).call(t.Context(), f, job.Fence{}); o.Kind != job.OutcomeSucceeded {
			t.Fatalf("%+v", o)
		}
		r := <-got
		if r.ContentLength > 0 || len(r.TransferEncoding) > 0 || r.Header.Get("Content-Type") != "" || r.Header.Get("Idempotency-Key") != "exe_1" {
			t.Errorf("%s came with length %d, %v, %v", method, r.ContentLength, r.TransferEncoding, r.Header)
		}
	}
}
