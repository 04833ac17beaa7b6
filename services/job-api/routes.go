package jobapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v5"
	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/dedupe"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/libs/trace"
)

// response is what an operation answers.
type response struct {
	status  int
	headers map[string]string
	body    any
}

// operationFunc carries an operation out. Its errors are problems, or sentinels of the ports, or mean that a server is
// away.
type operationFunc func(ctx context.Context, r *request) (response, error)

func (s *Service) operations() map[string]operationFunc {
	return map[string]operationFunc{
		"createJob": s.createJob, "createJobs": s.createJobs, "listJobs": s.listJobs, "getJob": s.getJob, "replaceJob": s.replaceJob,
		"patchJob": s.patchJob, "deleteJob": s.deleteJob, "pauseJob": s.pauseJob, "resumeJob": s.resumeJob,
		"cancelJob": s.cancelJob, "triggerJob": s.triggerJob, "listExecutions": s.listExecutions,
		"getExecution": s.getExecution, "cancelExecution": s.cancelExecution, "listDeadLetters": s.listDeadLetters,
		"redriveDeadLetters": s.redriveDeadLetters, "previewSchedule": s.previewSchedule,
		"getDispatch": s.getDispatch, "pauseDispatch": s.pauseDispatch, "resumeDispatch": s.resumeDispatch,
	}
}

// routes binds the operations of the document to their functions; each must have one, and each function an operation.
func (s *Service) routes() (http.Handler, error) {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.HTTPErrorHandler = func(c *echo.Context, err error) { s.answerUnrouted(c.Response(), err) }
	bound := s.operations()
	for _, op := range s.spec.operations {
		fn, ok := bound[op.id]
		if !ok {
			return nil, fmt.Errorf("openapi document: operation %s has no function", op.id)
		}
		delete(bound, op.id)
		e.Add(op.method, echoPath(op.path), func(c *echo.Context) error {
			r := c.Request()
			for _, p := range op.parameters {
				if p.in == "path" {
					r.SetPathValue(p.name, c.Param(p.name))
				}
			}
			s.serve(c.Response(), r, op, fn)
			return nil
		})
	}
	if len(bound) > 0 {
		return nil, fmt.Errorf("openapi document: %d functions have no operation", len(bound))
	}
	e.GET("/openapi.json", func(c *echo.Context) error { return c.JSONBlob(http.StatusOK, s.spec.json) })
	if s.deps.Admin != nil {
		for _, path := range admin.Paths() {
			e.GET(path, func(c *echo.Context) error {
				s.deps.Admin.ServeHTTP(c.Response(), c.Request())
				return nil
			})
		}
	}
	return s.guard(e), nil
}

// echoPath turns {name} into :name, and a colon that is meant as one into \:.
func echoPath(path string) string {
	return strings.NewReplacer(":", `\:`, "{", ":", "}", "").Replace(path)
}

// guard gives every response its Request-Id, asks for the token, and turns a panic into a 500 without details.
func (s *Service) guard(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(s.cfg.AuthToken))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := s.newID("", s.deps.Clock.Now())
		w.Header().Set("Request-Id", id)
		defer func() {
			if v := recover(); v != nil {
				s.deps.Logger.Error("a request panicked", "request_id", id, "panic", v, "stack", string(debug.Stack()))
				p := problem.New(http.StatusInternalServerError, "internal", "This is a fault of ours; quote the Request-Id.")
				_ = p.Write(w)
			}
		}()
		if s.cfg.LocalHostsOnly && !localHost(r.Host) {
			p := problem.New(http.StatusForbidden, "foreign-host",
				"This API answers under localhost and addresses only; start it with --auth-token-file to use names.")
			_ = p.Write(w)
			return
		}
		if s.cfg.LocalHostsOnly && r.Method != http.MethodGet && foreign(r) {
			p := problem.New(http.StatusForbidden, "foreign-origin",
				"A page of another origin may change nothing here; start the API with --auth-token-file to let it in with a token.")
			_ = p.Write(w)
			return
		}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(token))
		if s.cfg.AuthToken != "" && r.URL.Path != "/healthz" && r.URL.Path != "/readyz" &&
			(!strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			p := problem.New(http.StatusUnauthorized, "unauthorized", "Send the header Authorization: Bearer TOKEN.")
			_ = p.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// foreign reports whether a page of another origin made the request, in a browser of this machine.
func foreign(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(u.Host, r.Host)
}

// localHost reports whether a Host header names this machine or an address.
func localHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// serve checks a request, carries its operation out and answers.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, op *operation, fn operationFunc) {
	began := s.deps.Clock.Now()
	var resp response
	ctx, span := trace.Start(r.Context(), op.id, r.Header.Get("Traceparent"), oteltrace.SpanKindServer)
	defer span.End()
	r = r.WithContext(ctx)
	req, p := s.check(r, op)
	if p == nil && s.deps.Full != nil && s.deps.Full() && takesWork(op.id) {
		p = problem.Full()
	}
	if p == nil {
		var err error
		if resp, err = fn(ctx, req); err != nil {
			p = s.problemOf(err, req)
		} else if op.id != "previewSchedule" && s.away.CompareAndSwap(true, false) { // a preview needs no server
			s.deps.Logger.Info("requests are answered again")
		}
	}
	status := resp.status
	if p != nil {
		status = p.Status
		_ = p.Write(w) // the client is gone if this fails
	} else {
		write(w, resp, s.cfg.AnswerLimit)
	}
	span.SetAttributes(attribute.Int("http.response.status_code", status))
	s.metrics.requests.WithLabelValues(op.id, strconv.Itoa(status)).Inc()
	s.metrics.duration.WithLabelValues(op.id).Observe(s.deps.Clock.Since(began).Seconds())
}

// takesWork reports whether an operation makes work that was not there before. The others are carried out on a full disk
// too: what stops, pauses or holds something most of all.
func takesWork(operation string) bool {
	switch operation {
	case "createJob", "createJobs", "replaceJob", "patchJob", "resumeJob", "triggerJob", "redriveDeadLetters":
		return true
	}
	return false
}

// write answers. A client that does not read holds what is written for no longer than the limit.
func write(w http.ResponseWriter, resp response, limit time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit)) //nolint:forbidigo // a socket knows no other clock; a test's recorder none
	for name, value := range resp.headers {
		w.Header().Set(name, value)
	}
	if resp.body == nil {
		w.WriteHeader(resp.status)
		return
	}
	body, ok := resp.body.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(resp.body); err != nil {
			panic("a response cannot be encoded: " + err.Error())
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.status)
	_, _ = w.Write(body) // the client is gone if this fails
}

// problemOf turns an error into the answer, here and nowhere else.
func (s *Service) problemOf(err error, r *request) *problem.Problem {
	var p *problem.Problem
	switch {
	case errors.As(err, &p):
		return p
	case len(scheduleFaults(err)) > 0:
		return invalid(scheduleFaults(err)) // whether H can ever match may depend on the job's id
	case errors.Is(err, jobstore.ErrNotFound):
		return notFound()
	case errors.Is(err, jobstore.ErrConflict):
		return problem.New(http.StatusConflict, "conflict", "Other changes came between; read the job and try again.")
	}
	switch {
	case errors.Is(err, errNotHeld):
		p := problem.Unavailable(advice(r))
		p.RetryAfter = dedupe.ReplacedFor
		return p
	case r.Context().Err() != nil: // the client has gone
		return problem.Unavailable(advice(r))
	}
	if !s.away.Swap(true) {
		s.deps.Logger.Error("requests cannot be answered", "error", err)
	}
	return problem.Unavailable(advice(r))
}

// advice says what a request may have done whose answer was cut short, and how to find out.
func advice(r *request) string {
	key, err := idempotencyKey(r)
	switch {
	case r.Method == http.MethodGet:
		return "Nothing was changed; ask again."
	case strings.HasSuffix(r.URL.Path, "/schedules/preview"):
		return "Try again."
	case err == nil && key != "":
		return "It may have been carried out or not: try again with the same Idempotency-Key, and it is carried out once."
	case r.Method == http.MethodPut || r.Method == http.MethodPatch:
		return "The update may have been carried out or not: read the job, and compare its ETag before you try again."
	case r.Method == http.MethodDelete || repeatable(r.URL.Path):
		return "It may have been carried out or not: try again, twice is the same as once."
	}
	return "It may have been carried out or not: look before you try again, and send an Idempotency-Key, with which a request may be repeated."
}

// repeatable reports whether a POST to a path may be repeated without an Idempotency-Key.
func repeatable(path string) bool {
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "pause", "resume", "cancel":
		return true
	}
	return false
}

func notFound() *problem.Problem {
	return problem.New(http.StatusNotFound, "not-found", "There is nothing under this identifier.")
}

// answerUnrouted answers what no operation takes.
func (s *Service) answerUnrouted(w http.ResponseWriter, err error) {
	p := problem.New(http.StatusNotFound, "no-such-path", "There is no such path; /openapi.json lists all of them.")
	var coded interface{ StatusCode() int }
	if errors.As(err, &coded) && coded.StatusCode() == http.StatusMethodNotAllowed {
		p = problem.New(http.StatusMethodNotAllowed, "no-such-method",
			"This path does not have the method; /openapi.json lists those it has.")
	}
	_ = p.Write(w) // the client is gone if this fails
}
