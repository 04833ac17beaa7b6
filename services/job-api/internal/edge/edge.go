// Package edge is the HTTP edge of the job-api: between the network and the operations, which never see a request that
// the OpenAPI document does not allow.
//
// It promises: a request reaches its operation only if its principal is known and has the role that the document asks for,
// and only if every parameter and the body are what the document allows. A request that does not gets all of its faults at once. Every error leaves as a problem document, and
// none repeats a submitted value. No more connections are open than the configuration allows.
package edge

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
)

// Root is the path under which the document has its operations.
const Root = "/api/v1"

// Config holds the bounds of the edge, and which requests it accepts.
type Config struct {
	// TLS is the configuration of the listener; nil for plain text.
	TLS *tls.Config
	// LocalHostsOnly refuses requests whose Host is neither localhost nor an address, and changes made by pages of other
	// origins.
	LocalHostsOnly bool
	// MaxBodyBytes bounds a request's body, MaxBatchBytes that of a batch of jobs.
	MaxBodyBytes, MaxBatchBytes int64
	// MaxConnections bounds the open connections, three quarters of it those from one address. Idle connections make room.
	MaxConnections int
	// DrainLimit is how long a stop waits for requests in flight, AnswerLimit how long a client may take to read an answer.
	DrainLimit, AnswerLimit time.Duration
}

// Deps is what the edge works with.
type Deps struct {
	Document *Document
	Problems *Problems
	// Guard finds out who makes a request.
	Guard *access.Guard
	// JobOfKey returns the id of the job of a request's tenant that has a key. It is not checked whether there is such a job.
	JobOfKey func(ctx context.Context, tenant job.Tenant, key string) (jobID string, err error)
	// Full reports whether the store has no room for new work; nil means never.
	Full func() bool
	// Entropy is the source of request ids; it must be safe for concurrent use.
	Entropy io.Reader
	// Admin answers the admin paths; nil for none.
	Admin   http.Handler
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Clock   clock.Clock
}

// Edge answers the API's requests.
type Edge struct {
	cfg     Config
	deps    Deps
	metrics *metrics
	handler http.Handler
}

// New returns an edge that carries out the document's operations by the functions given, by operation id. It fails if an
// operation has no function, or a function no operation.
func New(cfg Config, deps Deps, operations map[string]Operation) (*Edge, error) {
	e := &Edge{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics)}
	routes, err := e.routes(operations)
	if err != nil {
		return nil, err
	}
	e.handler = e.guard(routes)
	return e, nil
}

// Handler returns the handler that answers requests.
func (e *Edge) Handler() http.Handler { return e.handler }

// routes binds the operations of the document to their functions.
func (e *Edge) routes(operations map[string]Operation) (http.Handler, error) {
	router := echo.New()
	router.Logger = slog.New(slog.DiscardHandler)
	router.HTTPErrorHandler = func(c *echo.Context, err error) { answerUnrouted(c.Response(), err) }
	bound := maps.Clone(operations)
	for _, op := range e.deps.Document.operations {
		do, ok := bound[op.id]
		if !ok {
			return nil, fmt.Errorf("openapi document: operation %s has no function", op.id)
		}
		delete(bound, op.id)
		router.Add(op.method, echoPath(op.path), func(c *echo.Context) error {
			r := c.Request()
			for _, p := range op.parameters {
				if p.in == "path" {
					r.SetPathValue(p.name, unescaped(r.URL, c.Param(p.name)))
				}
			}
			e.answer(c.Response(), r, op, do)
			return nil
		})
	}
	if len(bound) > 0 {
		return nil, fmt.Errorf("openapi document: %d functions have no operation", len(bound))
	}
	router.GET("/openapi.json", func(c *echo.Context) error { return c.JSONBlob(http.StatusOK, e.deps.Document.json) })
	if e.deps.Admin != nil {
		for _, path := range admin.Paths() {
			router.GET(path, func(c *echo.Context) error {
				e.deps.Admin.ServeHTTP(c.Response(), c.Request())
				return nil
			})
		}
	}
	return router, nil
}

// unescaped returns a segment of a path without escapes: a client may escape the colon of a job's key. The router decodes a path only where
// that is without doubt.
func unescaped(u *url.URL, segment string) string {
	if u.RawPath == "" {
		return segment
	}
	if text, err := url.PathUnescape(segment); err == nil {
		return text
	}
	return segment
}

// echoPath turns {name} into :name, and a literal colon into \:.
func echoPath(path string) string {
	return strings.NewReplacer(":", `\:`, "{", ":", "}", "").Replace(path)
}

// requestID returns the id under which a request is found in the log.
func (e *Edge) requestID() string {
	return ulid.MustNew(uint64(e.deps.Clock.Now().UnixMilli()), e.deps.Entropy).String()
}
