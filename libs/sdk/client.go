// Package sdk is a client of Minutehand's API: every operation of it, typed, with requests that are repeated safely. Package worker, below
// it, runs the tasks of a pool. Neither depends on anything but the standard library.
package sdk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 64 << 20
	// defaultAttempts is how often a request is sent unless the settings say otherwise.
	defaultAttempts = 5
	// firstPause is the pause before the first repetition, which doubles up to maxPause; half of it is random.
	firstPause = 100 * time.Millisecond
	maxPause   = 10 * time.Second
	// maxRetryAfter bounds the pause that a server may ask for.
	maxRetryAfter = time.Minute
)

// Settings say how a client reaches the API and who it is.
type Settings struct {
	// Token is an API key or a token, which is sent as a bearer credential.
	Token string
	// TokenFile is a file with it, which is read for each request, so that it may be replaced.
	TokenFile string
	// Tenant is for whom requests are made. Only a credential of the installation may choose.
	Tenant string
	// HTTP sends requests; nil means a client with the defaults of Go. Give it a TLS configuration for certificates.
	HTTP *http.Client
	// Attempts is how often a request is sent at most; 0 means 5.
	Attempts int
}

// Client makes requests. It may be used by many goroutines.
type Client struct {
	base     string
	settings Settings
}

// New returns a client of the API at a server such as http://127.0.0.1:8080.
func New(server string, s Settings) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the server must be a URL such as http://127.0.0.1:8080, not %q", server)
	}
	if s.HTTP == nil {
		s.HTTP = http.DefaultClient
	}
	if s.Attempts <= 0 {
		s.Attempts = defaultAttempts
	}
	return &Client{base: strings.TrimSuffix(server, "/") + "/api/v1", settings: s}, nil
}

// Option changes one call.
type Option func(*call)

type call struct {
	key    string
	header *http.Header
}

// IdempotencyKey gives a request a key of one's own, so that it can be repeated after a restart as well. Without it each call has a random one.
func IdempotencyKey(key string) Option { return func(c *call) { c.key = key } }

// Header stores the headers of the answer, such as the ETag of a job.
func Header(into *http.Header) Option { return func(c *call) { c.header = into } }

// Error implements error: what is wrong, with each fault and where it is.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Detail)
	for _, f := range p.Errors {
		fmt.Fprintf(&b, "\n  %s: %s", f.Pointer, f.Message)
	}
	return b.String()
}

// HasStatus reports whether an error is an answer with this HTTP status.
func HasStatus(err error, status int) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status == status
}

// request is what a method of the client asks for.
type request struct {
	method  string
	path    string
	query   url.Values
	body    any
	kind    string
	ifMatch string
	keyed   bool
	once    bool
}

// into makes a request and returns its answer.
func into[T any](ctx context.Context, c *Client, r request, options []Option) (*T, error) {
	var answer T
	if err := c.do(ctx, r, func(int) any { return &answer }, options); err != nil {
		return nil, err
	}
	return &answer, nil
}

// do makes a request, as often as it may be repeated, and decodes the answer into what target returns for its status.
//
// An answer may be lost after the server did what it was asked. So a request is repeated only if that does no harm: because it reads, because
// doing it again changes nothing, or because it carries an idempotency key.
func (c *Client) do(ctx context.Context, r request, target func(status int) any, options []Option) error {
	var o call
	for _, option := range options {
		option(&o)
	}
	if r.keyed && o.key == "" {
		o.key = rand.Text()
	}
	if r.once {
		o.key = "" // Go would take a request with one for repeatable
	}
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	// A job's key may be another job's by the time a deletion is repeated.
	once := r.once && r.ifMatch != "*" || r.method == http.MethodDelete && strings.HasPrefix(r.path, "/jobs/key:")
	for attempt := 1; ; attempt++ {
		wait, err := c.send(ctx, &r, &o, body, target)
		if err == nil || wait < 0 || once || attempt >= c.settings.Attempts || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(max(wait, pause(attempt)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// pause is the one after an attempt.
func pause(attempt int) time.Duration {
	p := min(firstPause<<min(attempt-1, 10), maxPause)
	var random [1]byte
	_, _ = rand.Read(random[:]) // it never fails
	return p/2 + p/2*time.Duration(random[0])/255
}

// send sends a request once. After an error, wait is for how long the server asks, and negative if it is for good.
func (c *Client) send(ctx context.Context, r *request, o *call, body []byte, target func(int) any) (wait time.Duration, err error) {
	address := c.base + r.path
	if q := r.query.Encode(); q != "" {
		address += "?" + q
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(body))
	if err != nil {
		return -1, err
	}
	if err := c.head(req, r, o); err != nil {
		return -1, err
	}
	resp, err := c.settings.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return refused(resp, text)
	}
	if o.header != nil {
		*o.header = resp.Header
	}
	if target == nil || len(text) == 0 {
		return 0, nil
	}
	if into := target(resp.StatusCode); into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			return -1, fmt.Errorf("decode the answer: %w", err)
		}
	}
	return 0, nil
}

// head sets the headers of a request.
func (c *Client) head(req *http.Request, r *request, o *call) error {
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	if o.key != "" {
		req.Header.Set("Idempotency-Key", o.key)
	}
	if r.ifMatch != "" {
		req.Header.Set("If-Match", r.ifMatch)
	}
	if c.settings.Tenant != "" {
		req.Header.Set("Minutehand-Tenant", c.settings.Tenant)
	}
	token := c.settings.Token
	if c.settings.TokenFile != "" {
		text, err := os.ReadFile(c.settings.TokenFile)
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// refused makes an error of an answer that is none of success.
func refused(resp *http.Response, text []byte) (wait time.Duration, err error) {
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Detail == "" {
		*p = Problem{Title: http.StatusText(resp.StatusCode), Detail: "the server answered " + resp.Status}
	}
	p.Status = resp.StatusCode
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter), p
	}
	return -1, p
}

// Do makes a request that the client has no method for, to a path below /api/v1. It is repeated, so doing it again must do no harm.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any, options ...Option) error {
	r := request{method: method, path: path, body: body, kind: "application/json"}
	return c.do(ctx, r, func(int) any { return answer }, options)
}
