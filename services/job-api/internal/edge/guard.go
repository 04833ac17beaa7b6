package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/minutehand/minutehand/libs/admin"
	"github.com/minutehand/minutehand/libs/problem"
	"github.com/minutehand/minutehand/services/job-api/internal/access"
)

// guard gives every response its Request-Id, finds out who makes the request, and turns a panic into a 500 without details.
func (e *Edge) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := e.requestID()
		w.Header().Set("Request-Id", id)
		defer func() {
			if v := recover(); v != nil {
				e.deps.Logger.Error("a request panicked", "request_id", id, "panic", v, "stack", string(debug.Stack()))
				p := problem.New(http.StatusInternalServerError, "internal", "This is a fault of ours; quote the Request-Id.")
				_ = p.Write(w)
			}
		}()
		if e.cfg.LocalHostsOnly && !localHost(r.Host) {
			p := problem.New(http.StatusForbidden, "foreign-host",
				"This API answers under localhost and addresses only; start it with --auth-token-file to use names.")
			_ = p.Write(w)
			return
		}
		if e.cfg.LocalHostsOnly && r.Method != http.MethodGet && foreign(r) {
			p := problem.New(http.StatusForbidden, "foreign-origin",
				"A page of another origin may change nothing here; start the API with --auth-token-file to let it in with a token.")
			_ = p.Write(w)
			return
		}
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		by, err := e.deps.Guard.Principal(r)
		if p := e.stranger(w, r, by, err); p != nil {
			_ = p.Write(w)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principal{}, &caller{by, id, source(r)})))
	})
}

// caller is who makes a request, under which request id, and from where.
type caller struct {
	by         access.Principal
	id, source string
}

// principal is the key of a request's caller among the values of its context.
type principal struct{}

// source returns the address from which a request came; behind a proxy it is the proxy's.
func source(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// stranger returns the answer to a request whose principal may not come in; nil if it may.
func (e *Edge) stranger(w http.ResponseWriter, r *http.Request, by access.Principal, err error) *problem.Problem {
	switch {
	case errors.Is(err, access.ErrUnknown):
		w.Header().Set("WWW-Authenticate", "Bearer")
		return problem.New(http.StatusUnauthorized, "unauthorized",
			"Send the header Authorization: Bearer, and behind it an API key or a token that is valid here.")
	case errors.Is(err, access.ErrNoTenant):
		return problem.New(http.StatusForbidden, "no-such-tenant",
			"There is no tenant of this name that you may act for; check the header "+access.TenantHeader+", or the claim of your token.")
	case err != nil:
		return e.deps.Problems.Of(err, &Request{Request: r, Parameters: map[string]string{}})
	case slices.Contains(admin.Paths(), r.URL.Path) && !by.Installation:
		return problem.New(http.StatusForbidden, "forbidden", "This concerns the whole installation; ask its operators.")
	}
	return nil
}

// foreign reports whether a page of another origin, in a browser of this machine, made the request.
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
