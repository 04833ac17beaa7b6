package executor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

func hashOf(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

// arrived is what a target got.
type arrived struct {
	body    []byte
	whole   bool
	length  int64
	content string
}

// receiving starts a target that sends what it gets to a channel, and answers with a status. end stops it, and closes the channel.
func receiving(t *testing.T, status int) (url string, got chan arrived, end func()) {
	t.Helper()
	got = make(chan arrived, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got <- arrived{body, err == nil, r.ContentLength, r.Header.Get("Content-Type")}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s.URL, got, func() {
		s.Close()
		close(got)
	}
}

// referenced calls a target with the object that a server has at its root.
func referenced(ctx context.Context, target, object, hash string, private bool) job.Outcome {
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = private
	f := &job.Fire{Target: job.Target{Method: "POST", URL: target, BodyRef: &job.BodyRef{URL: object, SHA256: hash}}}
	f.ExecutionID = "exe_1"
	return newWebhook(cfg, clock.Clock{}, nil).call(ctx, f, job.Fence{})
}

func TestObjectIsSentInPlaceOfABody(t *testing.T) {
	for _, size := range []int{0, 1, referenceChunk - 1, referenceChunk, referenceChunk + 1, 2 * referenceChunk, 3*referenceChunk + 7, 4 << 20} {
		text := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(text)
		for _, known := range []bool{true, false} {
			objects := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/csv")
				if known {
					w.Header().Set("Content-Length", strconv.Itoa(size))
				} else {
					w.(http.Flusher).Flush()
				}
				_, _ = w.Write(text)
			}))
			url, got, _ := receiving(t, http.StatusOK)
			o := referenced(t.Context(), url, objects.URL, hashOf(text), true)
			if o.Kind != job.OutcomeSucceeded || o.RequestBytes != int64(size) {
				t.Fatalf("%d bytes: %+v", size, o)
			}
			a := <-got
			if !a.whole || !bytes.Equal(a.body, text) || a.content != "text/csv" || known && a.length != int64(size) {
				t.Errorf("of %d bytes the target got %d, %t, %s, of %d", size, len(a.body), a.whole, a.content, a.length)
			}
			objects.Close()
		}
	}
}

// Whatever happens to the object: a target never gets all of anything that is not it, and the record says what happened.
func TestTargetNeverGetsAllOfAnotherObject(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	for name, c := range map[string]struct {
		serve     func(w http.ResponseWriter)
		retryable bool
		reason    string
		called    bool
	}{
		"another one":             {func(w http.ResponseWriter) { _, _ = w.Write(append([]byte("x"), text[1:]...)) }, false, "SHA-256", true},
		"another one, of a chunk": {func(w http.ResponseWriter) { _, _ = w.Write(text[:100]) }, false, "SHA-256", true},
		"another one, of any length": {func(w http.ResponseWriter) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(append(bytes.Clone(text), 'x'))
		}, false, "SHA-256", true},
		"cut off": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			_, _ = w.Write(text[:len(text)/2])
			panic(http.ErrAbortHandler)
		}, true, "its server closed the connection", true},
		"cut off, of any length": {func(w http.ResponseWriter) {
			_, _ = w.Write(text[:len(text)-1])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, true, "its server closed the connection", true},
		"too large": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(job.MaxReferencedBytes+1))
			w.WriteHeader(http.StatusOK)
		}, false, "has more than 1073741824 bytes", false},
		"gone": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) }, false, "its server answered 410", false},
		"elsewhere": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://example.com/")
			w.WriteHeader(http.StatusFound)
		}, false, "redirect", false},
		"a part of it": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusPartialContent) }, false, "answered 206", false},
		"busy": {func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, true, "its server answered 503", false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.serve(w) }))
			defer objects.Close()
			url, got, end := receiving(t, http.StatusOK)
			o := referenced(t.Context(), url, objects.URL, hashOf(text), true)
			if o.Kind != job.OutcomeFailed || o.Retryable != c.retryable || o.PauseJob || !strings.Contains(o.Error, "the object of body_ref: ") || !strings.Contains(o.Error, c.reason) {
				t.Errorf("the call ended with %+v", o)
			}
			if name == "busy" && o.RetryAfter != 7*time.Second {
				t.Errorf("it is retried after %s", o.RetryAfter)
			}
			end()
			for a := range got {
				if a.whole || !c.called {
					t.Errorf("the target got %d bytes, and took them for all", len(a.body))
				}
			}
		})
	}
}

func TestCallWithAnObjectEndsAsItsTargetSays(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 500_000)
	objects := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	defer objects.Close()
	url, _, _ := receiving(t, http.StatusBadGateway)
	if o := referenced(t.Context(), url, objects.URL, hashOf(text), true); o.Kind != job.OutcomeFailed || !o.Retryable || o.StatusCode != http.StatusBadGateway {
		t.Errorf("a call that failed ended with %+v", o)
	}
	// One that answers before it has read the body, and one that hangs up.
	early := rawTarget(t, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	if o := referenced(t.Context(), early, objects.URL, hashOf(text), true); o.StatusCode != http.StatusRequestEntityTooLarge || o.Retryable {
		t.Errorf("a call that was answered early ended with %+v", o)
	}
	hangsUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangsUp.Close()
	if o := referenced(t.Context(), hangsUp.URL, objects.URL, hashOf(text), true); !o.Retryable || strings.Contains(o.Error, "body_ref") {
		t.Errorf("a call whose target hung up ended with %+v", o)
	}
	if o := referenced(t.Context(), url, objects.URL, hashOf(text), false); o.Retryable || !strings.Contains(o.Error, "the object of body_ref: its server's address is loopback or private") {
		t.Errorf("an object at a private address was fetched: %+v", o)
	}
}

// Where only the end of the connection tells where an object ends, a break of the network looks like that.
func TestObjectThatMayBeCutOffIsTriedAgain(t *testing.T) {
	object := rawTargetThatCloses(t, "HTTP/1.0 200 OK\r\n\r\nhalf of")
	url, _, _ := receiving(t, http.StatusOK)
	if o := referenced(t.Context(), url, object, hashOf([]byte("half of it")), true); o.Kind != job.OutcomeFailed || !o.Retryable || !strings.Contains(o.Error, "body_ref") {
		t.Errorf("the call ended with %+v", o)
	}
	if o := referenced(t.Context(), url, object, hashOf([]byte("half of")), true); o.Kind != job.OutcomeSucceeded {
		t.Errorf("a whole object ended the call with %+v", o)
	}
}

// rawTargetThatCloses answers every request with the same bytes, and closes the connection.
func rawTargetThatCloses(t *testing.T, answer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, answer)
		_ = conn.Close()
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestConnectionToAnObjectIsUsedAgain(t *testing.T) {
	text := bytes.Repeat([]byte("x"), 3*referenceChunk)
	var connections atomic.Int64
	objects := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	objects.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	objects.Start()
	defer objects.Close()
	url, _, _ := receiving(t, http.StatusOK)
	cfg := DefaultConfig()
	cfg.AllowPrivateTargets = true
	h := newWebhook(cfg, clock.Clock{}, nil)
	for range 3 {
		f := &job.Fire{Target: job.Target{Method: "POST", URL: url, BodyRef: &job.BodyRef{URL: objects.URL, SHA256: hashOf(text)}}}
		if o := h.call(t.Context(), f, job.Fence{}); o.Kind != job.OutcomeSucceeded {
			t.Fatalf("%+v", o)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("three calls made %d connections", n)
	}
}

// passed is a context whose deadline has passed, although nothing has noticed that yet.
type passed struct{ context.Context }

func (passed) Err() error { return context.DeadlineExceeded }

// stuck is an object that ends nowhere: it gives some bytes, and tells when more is awaited.
type stuck struct {
	some   io.Reader
	waited chan struct{}
	ended  <-chan struct{}
}

func (o stuck) Read(p []byte) (int, error) {
	if n, err := o.some.Read(p); err == nil {
		return n, nil
	}
	close(o.waited)
	<-o.ended
	return 0, context.Canceled
}

func (stuck) Close() error { return nil }

// late is a transport over which a call ends by its deadline: after it has waited for more of its body, or without having asked for any.
type late struct{ reads bool }

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		o := stuck{bytes.NewReader(make([]byte, 2*referenceChunk)), make(chan struct{}), r.Context().Done()}
		return &http.Response{StatusCode: http.StatusOK, Body: o, ContentLength: -1, ProtoMajor: 2, Header: http.Header{}, Request: r}, nil
	}
	if l.reads {
		go func() { _, _ = io.Copy(io.Discard, r.Body) }()
		<-r.Body.(*reference).from.(stuck).waited
	}
	return nil, context.DeadlineExceeded
}

// The record says whose fault it was. Over HTTP/2 a call ends by its deadline, whatever is read of its body at that moment.
func TestSlowObjectIsNotBlamedOnItsTarget(t *testing.T) {
	for _, reads := range []bool{true, false} {
		f := &job.Fire{Target: job.Target{Method: "POST", URL: "https://target.example/", BodyRef: &job.BodyRef{URL: "https://objects.example/", SHA256: hashOf(nil)}}}
		o := (&webhook{transport: late{reads}}).call(passed{t.Context()}, f, job.Fence{})
		if o.Kind != job.OutcomeTimedOut || strings.Contains(o.Error, "body_ref") != reads {
			t.Errorf("the object was awaited: %t, and the call ended with %+v", reads, o)
		}
	}
}
