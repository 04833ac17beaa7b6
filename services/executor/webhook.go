package executor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/egress"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/trace"
)

// maxDrain is how much of an answer is read beyond the part that is kept, so that the connection can be reused.
const maxDrain = 64 << 10

// tlsSessions is how many hosts' TLS sessions are kept, to be resumed by their next connections.
const tlsSessions = 1024

// webhook calls HTTP targets. It uses the transport directly: a client would follow redirects, or fail on those whose
// location cannot be parsed, and all redirects are permanent failures here.
type webhook struct {
	transport http.RoundTripper
	clock     clock.Clock
}

func newWebhook(cfg Config, c clock.Clock, transport http.RoundTripper) *webhook {
	if transport == nil {
		transport = newTransport(cfg, c, egress.Dialer(cfg.AllowPrivateTargets))
	}
	return &webhook{transport: transport, clock: c}
}

// newTransport returns what calls targets over connections of a dialer. There is no proxy: the guard judges the address that is dialled.
func newTransport(cfg Config, c clock.Clock, dialer *net.Dialer) *direct {
	sessions := tls.NewLRUClientSessionCache(tlsSessions)
	both := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: sessions, NextProtos: []string{"h2", "http/1.1"}}
	first := both.Clone()
	first.NextProtos = []string{"http/1.1"}
	h := newHandshakes()
	theirs := max(cfg.MaxIdle/4, 1) // connections of HTTP/2 are few, those of HTTP/1.1 are of hosts that are met for the first time
	// What it returns is a *tls.Conn: net/http asks that for the protocol.
	dialTLS := func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := h.begin(callOf(ctx)); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		return h.make(ctx, raw, addr, both)
	}
	return &direct{
		dial: dialer.DialContext, tls: first, handshakes: h, clock: c, maxIdle: cfg.MaxIdle - theirs, maxIdlePerHost: cfg.HostConcurrency,
		other: &http.Transport{
			DialContext: dialer.DialContext, DialTLSContext: dialTLS, TLSClientConfig: both, ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConns: theirs,
			MaxIdleConnsPerHost: cfg.HostConcurrency, IdleConnTimeout: idleFor,
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
	}
}

// call makes one request, which ends with ctx, and returns how it ended. It never returns an error, because everything that
// can happen is an outcome.
func (h *webhook) call(ctx context.Context, f *job.Fire, fence job.Fence) job.Outcome {
	req, err := request(ctx, f, fence, h.clock.Now())
	if err != nil {
		return job.Outcome{Kind: job.OutcomeFailed, Error: "the target's request cannot be built"}
	}
	if ref := f.Target.BodyRef; ref != nil {
		return h.stream(ctx, req, ref, f)
	}
	return h.send(ctx, req, f)
}

// send sends a request, and returns how the call ended.
func (h *webhook) send(ctx context.Context, req *http.Request, f *job.Fire) job.Outcome {
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return failure(ctx, err)
	}
	defer resp.Body.Close()
	o := job.Outcome{StatusCode: resp.StatusCode}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// The transport has handed the connection over: the context no longer interrupts a read.
		judge(&o, resp, h.clock.Now())
		return o
	}
	answer := answers.Get().(*[job.MaxResponseBytes + 1]byte)
	defer answers.Put(answer)
	n, err := readInto(answer[:], resp.Body)
	if n > job.MaxResponseBytes {
		n, o.ResponseTruncated = job.MaxResponseBytes, true
		// Best effort: an error here costs the connection, not the outcome.
		drained, _ := io.CopyN(io.Discard, resp.Body, maxDrain)
		o.ResponseBytes = max(resp.ContentLength, job.MaxResponseBytes+1+drained)
	} else {
		o.ResponseBytes = int64(n)
	}
	o.ResponseBody = bytes.Clone(answer[:n])
	if err != nil {
		failed := failure(ctx, err)
		o.Kind, o.Retryable, o.Error = failed.Kind, true, failed.Error
		return o
	}
	judge(&o, resp, h.clock.Now())
	if f.Elsewhere() != nil {
		o.PauseJob = false // what is gone is not the job's target
	}
	return o
}

// answers are buffers for the part of an answer that is kept, and a byte to see that there is more.
var answers = sync.Pool{New: func() any { return new([job.MaxResponseBytes + 1]byte) }}

// readInto reads until buf is full or r ends.
func readInto(buf []byte, r io.Reader) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// judge turns a complete answer into an outcome. 2xx is a success; 408, 425, 429 and 5xx are retryable; everything else is
// permanent, including a redirect.
func judge(o *job.Outcome, resp *http.Response, now time.Time) {
	code := resp.StatusCode
	switch {
	case code >= 200 && code < 300:
		o.Kind = job.OutcomeSucceeded
		return
	case code >= 300 && code < 400:
		o.Error = fmt.Sprintf("the target answered with a redirect (%d); redirects are not followed, set the final URL", code)
	default:
		o.Error = "the target answered " + strconv.Itoa(code)
	}
	o.Kind = job.OutcomeFailed
	switch {
	case code == 408 || code == 425 || code == 429 || code >= 500:
		o.Retryable = true
		o.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), now)
	case code == http.StatusGone:
		o.PauseJob = true
	}
}

func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 && seconds < 1<<30 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now).Truncate(time.Millisecond)
	}
	return 0
}

// failure classifies a transport error without repeating the URL, which may hold a secret.
func failure(ctx context.Context, err error) job.Outcome {
	o := job.Outcome{Kind: job.OutcomeFailed, Retryable: true}
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || isTimeout(err):
		o.Kind, o.Error = job.OutcomeTimedOut, "the target did not answer within the timeout"
	case egress.Refused(err):
		o.Retryable = false
		o.Error = "the target's address is loopback or private, which this executor does not call (allow_private_targets)"
	case errors.As(err, &dns):
		o.Error = "the target's host name could not be resolved"
	case errors.As(err, &certificate):
		o.Error = "the target's certificate could not be verified"
	case errors.Is(err, syscall.ECONNREFUSED):
		o.Error = "the target refused the connection"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		o.Error = "the target closed the connection before it answered completely"
	default:
		o.Error = "the connection to the target failed"
	}
	return o
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func request(ctx context.Context, f *job.Fire, fence job.Fence, now time.Time) (*http.Request, error) {
	var body io.Reader
	switch {
	case len(f.Target.Body) > 0:
		body = bytes.NewReader(f.Target.Body)
	case idempotent(f.Target.Method):
		body = empty{} // see empty
	}
	req, err := http.NewRequestWithContext(ctx, f.Target.Method, f.Target.URL, body)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err
		}
		return nil, err
	}
	req.Header = make(http.Header, len(f.Target.Headers)+ownHeaders)
	values := make([]string, 0, len(f.Target.Headers)+ownHeaders)
	// set is Header.Set with all values in one allocation; name is in its canonical form.
	set := func(name, value string) {
		values = append(values, value)
		req.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range f.Target.Headers {
		if name = http.CanonicalHeaderKey(name); name == "X-Idempotency-Key" {
			name = strings.ToLower(name) // as below
		}
		set(name, value)
	}
	if len(f.Target.Body) > 0 && req.Header.Get("Content-Type") == "" {
		set("Content-Type", "application/json")
	}
	if req.Header.Get("User-Agent") == "" {
		set("User-Agent", "Minutehand")
	}
	// Lower case means the same to a target, but keeps net/http from treating the request as one that it may send again by
	// itself. One attempt would otherwise call its target more than once, even after a cancel was acknowledged.
	set("idempotency-key", f.Target.IdempotencyKey(&f.Entry))
	set("Webhook-Id", f.ExecutionID)
	set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	set("Traceparent", traceparent(ctx, f))
	set("Minutehand-Job-Id", f.JobID)
	set("Minutehand-Scheduled-For", f.ToldInstant().Format("2006-01-02T15:04:05.000Z07:00"))
	set("Minutehand-Attempt", strconv.Itoa(f.Attempt))
	set("Minutehand-Fencing-Token", fence.String())
	if f.Note != nil && f.Note.Hops > 0 {
		set("Minutehand-Hops", strconv.Itoa(f.Note.Hops))
	}
	return req, nil
}

// idempotent reports whether net/http would send a request with this method and no body again by itself.
func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// empty is a body with nothing in it. net/http does not resend a request that has a body and no way to get another; on the
// wire it looks like a request without one.
type empty struct{}

func (empty) Read([]byte) (int, error) { return 0, io.EOF }
func (empty) Close() error             { return nil }

// ownHeaders is how many headers a webhook has besides its target's own.
const ownHeaders = 11

// traceparent returns the one of the call's span, or a substitute where no spans are made.
func traceparent(ctx context.Context, f *job.Fire) string {
	if trace.On() {
		if of := trace.Of(ctx); of != "" {
			return of
		}
	}
	return trace.OfAttempt(f.Trace, f.ExecutionID, f.Attempt)
}
