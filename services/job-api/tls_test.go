package jobapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/certificates"
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

// issuer issues certificates into files.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newIssuer(t *testing.T, dir string) *issuer {
	t.Helper()
	i := &issuer{t: t, dir: dir}
	i.cert = i.issue("ca", "")
	return i
}

// issue writes NAME.pem and NAME.key; the first one signs all others.
func (i *issuer) issue(name, uri string) *x509.Certificate {
	i.t.Helper()
	i.n++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(i.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(i.n), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"api.internal"}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if uri != "" {
		u, err := url.Parse(uri)
		must(i.t, err)
		template.URIs = []*url.URL{u}
	}
	parent := i.cert
	if parent == nil {
		parent, i.key, template.IsCA, template.KeyUsage = template, key, true, x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), i.key)
	must(i.t, err)
	text, err := x509.MarshalECPrivateKey(key)
	must(i.t, err)
	must(i.t, os.WriteFile(i.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600))
	must(i.t, os.WriteFile(i.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	c, err := x509.ParseCertificate(der)
	must(i.t, err)
	return c
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
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
		if failed.Load() != 0 || made.Load() != 240 || shown.Load() < i.n-1 {
			t.Errorf("%d of %d requests failed; certificate %d of %d was shown last", failed.Load(), made.Load(), shown.Load(), i.n)
		}
	})
}
