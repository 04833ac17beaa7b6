package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/v1" // semantics of encoding/json, in less time
	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
)

// Operation carries out an operation of the document. Its error is a problem, or wraps a sentinel of a port, or means that
// a server is unavailable; Problems.Of turns it into the answer.
type Operation func(ctx context.Context, r *Request) (Response, error)

// Response is an operation's answer.
type Response struct {
	Status  int
	Headers map[string]string
	// Body is encoded as JSON, unless it is a []byte, which is sent unchanged; nil for none.
	Body any
}

// answer checks a request, carries its operation out and answers.
func (e *Edge) answer(w http.ResponseWriter, r *http.Request, op *endpoint, do Operation) {
	began := e.deps.Clock.Now()
	var resp Response
	ctx, span := trace.Start(r.Context(), op.id, r.Header.Get("Traceparent"), oteltrace.SpanKindServer)
	defer span.End()
	r = r.WithContext(ctx)
	req, p := e.check(r, op)
	if req != nil {
		span.SetAttributes(attribute.String("minutehand.tenant", req.Tenant().String()))
	}
	if p == nil && e.deps.Full != nil && e.deps.Full() && takesWork(op.id) {
		p = problem.Full()
	}
	if p == nil {
		err := e.resolve(ctx, req)
		if err == nil {
			resp, err = do(ctx, req)
		}
		if err != nil {
			p = e.deps.Problems.Of(err, req)
		} else if op.id != "previewSchedule" { // most previews need no server
			e.deps.Problems.answered()
		}
	}
	status := resp.Status
	if p != nil {
		status = p.Status
		_ = p.Write(w) // the client is gone if this fails
	} else {
		write(w, resp, e.cfg.AnswerLimit)
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	e.metrics.requests.WithLabelValues(op.id, strconv.Itoa(status)).Inc()
	e.metrics.duration.WithLabelValues(op.id).Observe(e.deps.Clock.Since(began).Seconds())
}

// KeyIn returns the key of a reference that names a job by its key; ok is false if it has the job's id.
func KeyIn(reference string) (key string, ok bool) { return strings.CutPrefix(reference, "key:") }

// resolve puts a job's id in the place of its key in a request's path, so that everything that follows from the path follows from the job: a
// request that is repeated when another job has the key is another request.
func (e *Edge) resolve(ctx context.Context, r *Request) error {
	key, ok := KeyIn(r.PathValue("id"))
	if !ok {
		return nil
	}
	id, err := e.deps.JobOfKey(ctx, r.Tenant(), key)
	if err != nil {
		return fmt.Errorf("find the job of a key: %w", err)
	}
	r.SetPathValue("id", id)
	u := *r.URL
	u.Path = strings.Replace(u.Path, "key:"+key, id, 1)
	r.URL, r.Parameters["id"] = &u, id
	return nil
}

// takesWork reports whether an operation makes new work. The others are carried out on a full disk too, above all those
// that stop, pause or hold something.
func takesWork(operation string) bool {
	switch operation {
	case "createJob", "createJobs", "replaceJob", "patchJob", "resumeJob", "triggerJob", "redriveDeadLetters", "redriveAllDeadLetters", "replanJobs", "backfillJob", "replayJob", "replayExecution":
		return true
	}
	return false
}

// write sends a response. A client that does not read it holds the connection for no longer than the limit.
func write(w http.ResponseWriter, resp Response, limit time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit)) //nolint:forbidigo // a socket knows no other clock; a test's recorder none
	for name, value := range resp.Headers {
		w.Header().Set(name, value)
	}
	if resp.Body == nil {
		w.WriteHeader(resp.Status)
		return
	}
	body, ok := resp.Body.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(resp.Body); err != nil {
			panic("a response cannot be encoded: " + err.Error())
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.Status)
	_, _ = w.Write(body) // the client is gone if this fails
}

// answerUnrouted answers a request for which there is no operation.
func answerUnrouted(w http.ResponseWriter, err error) {
	p := problem.New(http.StatusNotFound, "no-such-path", "There is no such path; /openapi.json lists all of them.")
	var coded interface{ StatusCode() int }
	if errors.As(err, &coded) && coded.StatusCode() == http.StatusMethodNotAllowed {
		p = problem.New(http.StatusMethodNotAllowed, "no-such-method",
			"This path does not have the method; /openapi.json lists those it has.")
	}
	_ = p.Write(w) // the client is gone if this fails
}
