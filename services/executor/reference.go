package executor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/minutehand/minutehand/libs/job"
)

// referenceChunk is how much of an object is read ahead of what is sent.
const referenceChunk = 16 << 10

// The reasons for which no more of an object is sent, besides those of its server.
var (
	errAnotherObject = errors.New("its SHA-256 is not the one that the job names")
	errCallOver      = errors.New("the call is over")
	errHugeObject    = fmt.Errorf("it has more than %d bytes", int64(job.MaxReferencedBytes))
)

// reference is the body of a call that is read from an object while it is sent. It holds the last bytes back until it is known that the whole is
// what the job names: a target never gets all of anything else.
type reference struct {
	// length is that of the object, -1 if it is not known; contentType is as its server says.
	length      int64
	contentType string

	cancel context.CancelFunc
	closed atomic.Bool
	// waits is set while more of the object is awaited.
	waits atomic.Bool
	// delimited is set if only the end of the connection tells where the object ends, which looks the same where it was cut off.
	delimited bool

	mu   sync.Mutex
	from io.ReadCloser
	hash hash.Hash
	want string
	// next may be given, ahead not yet; free is where the next chunk is read into. There are two buffers.
	next, ahead, free []byte
	// ended is set when ahead may be given, too, because the whole is what it is to be.
	ended bool
	read  int64
	// err is why no more is given: io.EOF after all of it.
	err error
}

// stream sends a request whose body is an object. What its server or the network does to the object ends the call as it would at the target, but
// says so.
func (h *webhook) stream(ctx context.Context, req *http.Request, ref *job.BodyRef, f *job.Fire) job.Outcome {
	body, failed := h.fetch(ctx, ref)
	if failed != nil {
		return *failed
	}
	req.Body, req.ContentLength = body, body.length
	if body.length == 0 { // to net/http that means an unknown length, so it is read first
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			_ = body.Close()
			return *ofReading(ctx, err)
		}
		req.Body = empty{}
	}
	if req.Header.Get("Content-Type") == "" && body.contentType != "" {
		req.Header.Set("Content-Type", body.contentType)
	}
	o := h.send(ctx, req, f)
	waits := body.waits.Load()
	_ = body.Close() // who answers before the end lets it be read no further
	read, err := body.state()
	switch {
	case o.Kind == job.OutcomeSucceeded:
	case err != nil:
		o = *ofReading(ctx, err)
	case waits && o.Kind == job.OutcomeTimedOut:
		o = *ofReading(ctx, context.DeadlineExceeded)
	}
	o.RequestBytes = read
	return o
}

// fetch asks for the object that is the body of a call. If that fails, it returns how the call ended. The call that reads it ends with ctx.
func (h *webhook) fetch(ctx context.Context, ref *job.BodyRef) (*reference, *job.Outcome) {
	ctx, cancel := context.WithCancel(ctx)
	body, failed := h.open(ctx, ref)
	if failed != nil {
		cancel()
		return nil, failed
	}
	body.cancel = cancel
	return body, nil
}

func (h *webhook) open(ctx context.Context, ref *job.BodyRef) (*reference, *job.Outcome) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ref.URL, empty{})
	if err != nil {
		return nil, &job.Outcome{Kind: job.OutcomeFailed, Error: "the request for the object of body_ref cannot be built"}
	}
	req.Header.Set("User-Agent", "Minutehand")
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return nil, ofObject(failure(ctx, err))
	}
	if resp.StatusCode != http.StatusOK {
		o := job.Outcome{}
		judge(&o, resp, h.clock.Now())
		if resp.StatusCode/100 == 2 {
			o = job.Outcome{Error: fmt.Sprintf("the target answered %d, and not with all of it", resp.StatusCode)}
		}
		o.Kind, o.PauseJob = job.OutcomeFailed, false
		_ = resp.Body.Close()
		return nil, ofObject(o)
	}
	if resp.ContentLength > job.MaxReferencedBytes {
		_ = resp.Body.Close()
		return nil, ofReading(ctx, errHugeObject)
	}
	chunk := referenceChunk
	if resp.ContentLength >= 0 {
		chunk = min(chunk, int(resp.ContentLength)+1)
	}
	return &reference{
		length: resp.ContentLength, contentType: resp.Header.Get("Content-Type"), from: resp.Body, hash: sha256.New(), want: ref.SHA256,
		delimited: resp.ContentLength < 0 && resp.ProtoMajor == 1 && len(resp.TransferEncoding) == 0,
		ahead:     make([]byte, 0, chunk), free: make([]byte, 0, chunk),
	}, nil
}

// ofObject turns how a request to a target ended into how one for an object did.
func ofObject(o job.Outcome) *job.Outcome {
	o.Error = "the object of body_ref: " + strings.ReplaceAll(o.Error, "the target", "its server")
	return &o
}

// ofReading returns how a call ended whose object could not be sent.
func ofReading(ctx context.Context, err error) *job.Outcome {
	// Where the time is over, a server may end an answer of unknown length properly.
	if ctx.Err() == nil && (errors.Is(err, errAnotherObject) || errors.Is(err, errHugeObject)) {
		return &job.Outcome{Kind: job.OutcomeFailed, Error: "the object of body_ref: " + err.Error()}
	}
	return ofObject(failure(ctx, err))
}

// Read implements io.Reader.
func (r *reference) Read(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.next) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.advance()
	}
	n = copy(p, r.next)
	r.next = r.next[n:]
	return n, nil
}

// advance reads a chunk, and lets the one before be given.
func (r *reference) advance() {
	if r.ended {
		if r.next, r.ahead = r.ahead, nil; len(r.next) == 0 {
			r.err = io.EOF
		}
		return
	}
	n, err := 0, error(nil)
	r.waits.Store(true)
	for chunk := r.free[:cap(r.free)]; n < len(chunk) && err == nil; {
		var m int
		m, err = r.from.Read(chunk[n:])
		n += m
	}
	if err == nil || errors.Is(err, io.EOF) {
		r.waits.Store(false)
	}
	chunk := r.free[:n]
	_, _ = r.hash.Write(chunk) // it never fails
	r.read += int64(n)
	switch {
	case r.read > job.MaxReferencedBytes:
		r.err = errHugeObject
	case r.closed.Load():
		r.err = errCallOver
	case err != nil && !errors.Is(err, io.EOF):
		r.err = err
	case err != nil && hex.EncodeToString(r.hash.Sum(nil)) != r.want && r.delimited:
		r.err = io.ErrUnexpectedEOF
	case err != nil && hex.EncodeToString(r.hash.Sum(nil)) != r.want:
		r.err = errAnotherObject
	default:
		if r.ended = err != nil; r.ended {
			_ = r.from.Close() // before anything is cancelled, so that its connection can be used again
		}
		r.next, r.ahead, r.free = r.ahead, chunk, r.ahead[:0]
	}
}

// Close implements io.Closer: nothing more is read. It may be called at any time, and more than once.
func (r *reference) Close() error {
	r.closed.Store(true)
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = errCallOver
	}
	return r.from.Close()
}

// state returns how much was read, and why no more can be; nil after all of it, and before.
func (r *reference) state() (read int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, errCallOver) {
		return r.read, nil
	}
	return r.read, r.err
}
