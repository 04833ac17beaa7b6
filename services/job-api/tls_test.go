package jobapi_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
	jobapi "github.com/minutehand/minutehand/services/job-api"
)

// pipes is a listener in memory, as works in a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("10.0.0.1")} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- a:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// issuer issues certificates, and fails the test where it cannot.
type issuer struct {
	*certificatestest.Authority
	t   *testing.T
	dir string
}

func newIssuer(t *testing.T, dir string) *issuer {
	t.Helper()
	a, err := certificatestest.New(dir, "ca")
	must(t, err)
	return &issuer{a, t, dir}
}

func (i *issuer) issue(name, uri string) {
	i.t.Helper()
	_, err := i.Issue(name, uri, "api.internal")
	must(i.t, err)
}

func (i *issuer) file(name string) string { return filepath.Join(i.dir, name) }

// secured is an API that answers https only, on pipes.
func secured(t *testing.T, store *server, i *issuer) *pipes {
	t.Helper()
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	cfg, deps := jobapi.DefaultConfig(), store.deps
	cfg.Partitions = 4
	protection := jobapi.Protection{Certificate: i.file("server.pem"), Key: i.file("server.key"), ClientCA: i.file("ca.pem")}
	must(t, protection.Protect(&cfg, p.Addr(), slog.New(slog.DiscardHandler)))
	deps.Listener = p
	api, err := jobapi.New(cfg, deps)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- api.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
	return p
}

// client makes each request on a connection of its own, with a client's certificate ("" for none).
func (p *pipes) client(t *testing.T, i *issuer, certificate string) *http.Client {
	t.Helper()
	f := certificates.Files{Authority: i.file("ca.pem")}
	if certificate != "" {
		f.Certificate, f.Key = i.file(certificate+".pem"), i.file(certificate+".key")
	}
	c, err := certificates.NewClient(f, "", slog.New(slog.DiscardHandler))
	must(t, err)
	return &http.Client{Transport: &http.Transport{DialContext: p.dial, TLSClientConfig: c.Config(), DisableKeepAlives: true}}
}

func whoAmI(t *testing.T, c *http.Client) (status int, subject string, err error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.internal/api/v1/whoami", nil)
	must(t, err)
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	var m struct{ Subject, Role, Tenant string }
	err = json.NewDecoder(resp.Body).Decode(&m)
	_ = resp.Body.Close()
	return resp.StatusCode, m.Subject + " " + m.Role + " " + m.Tenant, err
}

func TestClientIsKnownByItsCertificate(t *testing.T) {
	store, dir := newServer(t, nil), t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		i := newIssuer(t, dir)
		i.issue("server", "")
		i.issue("ops", "minutehand:*/operator")
		i.issue("stranger", "")
		p := secured(t, store, i)
		if status, who, err := whoAmI(t, p.client(t, i, "ops")); err != nil || status != http.StatusOK || who != "certificate:ops operator default" {
			t.Errorf("%d %s, %v", status, who, err)
		}
		for _, none := range []string{"", "stranger"} {
			if status, who, err := whoAmI(t, p.client(t, i, none)); err != nil || status != http.StatusUnauthorized {
				t.Errorf("%q: %d %s, %v", none, status, who, err)
			}
		}
	})
}

func TestCertificatesAreReplacedUnderLoadWithoutAFailedRequest(t *testing.T) {
	store, dir := newServer(t, nil), t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		i := newIssuer(t, dir)
		i.issue("server", "")
		i.issue("ops", "minutehand:*/operator")
		p := secured(t, store, i)
		c := p.client(t, i, "ops")
		var shown atomic.Int64 // the newest certificate that was seen
		c.Transport.(*http.Transport).TLSClientConfig.VerifyConnection = func(s tls.ConnectionState) error {
			shown.Store(max(shown.Load(), s.PeerCertificates[0].SerialNumber.Int64()))
			return nil
		}
		var failed, made atomic.Int64
		done := make(chan struct{})
		for range 4 {
			go func() {
				for range 60 {
					if status, _, err := whoAmI(t, c); err != nil || status != http.StatusOK {
						failed.Add(1)
					}
					made.Add(1)
					time.Sleep(time.Second)
				}
				done <- struct{}{}
			}()
		}
		for range 4 {
			time.Sleep(11 * time.Second)
			i.issue("server", "")
			i.issue("ops", "minutehand:*/operator")
		}
		for range 4 {
			<-done
		}
		if failed.Load() != 0 || made.Load() != 240 || shown.Load() < i.Issued-1 {
			t.Errorf("%d of %d requests failed; certificate %d of %d was shown last", failed.Load(), made.Load(), shown.Load(), i.Issued)
		}
	})
}
