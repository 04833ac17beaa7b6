package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/minutehand/minutehand/libs/problem"
)

// guard gives every response its Request-Id, requires the token, and turns a panic into a 500 without details.
func (e *Edge) guard(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(e.cfg.AuthToken))
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
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(token))
		if e.cfg.AuthToken != "" && r.URL.Path != "/healthz" && r.URL.Path != "/readyz" &&
			(!strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			p := problem.New(http.StatusUnauthorized, "unauthorized", "Send the header Authorization: Bearer TOKEN.")
			_ = p.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
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
