package embed

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
)

// direct is a transport that calls a handler in the same goroutine, until it is closed.
type direct struct {
	handler http.Handler
	mu      sync.RWMutex // is held while a request is answered
	closed  bool
}

var errClosed = errors.New("the scheduler is closed")

// close lets what is being answered end, and refuses everything after it.
func (d *direct) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return nil, errClosed
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	in := r.Clone(r.Context())
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "embedded"
	w := &answer{header: http.Header{}, status: http.StatusOK}
	d.handler.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil && w.status >= http.StatusInternalServerError {
		return nil, err // nobody waits for it
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if !a.wrote {
		a.status, a.wrote = status, true
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.wrote = true
	return a.body.Write(p)
}
