package certificates_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/certificates/certificatestest"
)

// authority issues certificates, and fails the test where it cannot.
type authority struct {
	*certificatestest.Authority
	t *testing.T
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a, err := certificatestest.New(dir, name)
	must(t, err)
	return &authority{a, t}
}

func (a *authority) issue(name, host string) certificates.Files {
	a.t.Helper()
	f, err := a.Issue(name, "", host)
	must(a.t, err)
	return certificates.Files{Certificate: f.Certificate, Key: f.Key}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// shake makes a handshake over a pipe, as works in a bubble as long as it succeeds: neither end of a pipe can send an alert while the
// other is sending, too.
func shake(t *testing.T, server, client *tls.Config) (serial int64, seen string, err error) {
	t.Helper()
	a, b := net.Pipe()
	return shakeOver(t, a, b, server, client)
}

// connect makes a handshake over a socket.
func connect(t *testing.T, server, client *tls.Config) (serial int64, seen string, err error) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	b, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	must(t, err)
	a, err := l.Accept()
	must(t, err)
	return shakeOver(t, a, b, server, client)
}

// shakeOver returns the number of the server's certificate, and the name of the client's as the server saw it.
func shakeOver(t *testing.T, a, b net.Conn, server, client *tls.Config) (serial int64, seen string, err error) {
	t.Helper()
	defer func() { _ = a.Close() }()
	defer func() { _ = b.Close() }()
	s, c := tls.Server(a, server), tls.Client(b, client)
	served := make(chan error, 1)
	go func() {
		err := s.HandshakeContext(context.WithoutCancel(t.Context()))
		if err == nil {
			_, err = io.WriteString(s, "x") // the client learns here whether its certificate was accepted
		}
		if err != nil {
			_ = a.Close()
		}
		served <- err
	}()
	if err = c.HandshakeContext(t.Context()); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		_ = b.Close()
	}
	if other := <-served; err == nil {
		err = other
	}
	if err != nil {
		return 0, "", err
	}
	if chains := s.ConnectionState().VerifiedChains; len(chains) > 0 {
		seen = chains[0][0].Subject.CommonName
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), seen, nil
}

func TestPeersAreVerifiedAgainstTheirAuthorities(t *testing.T) {
	dir := t.TempDir()
	good, evil := newAuthority(t, dir, "good"), newAuthority(t, dir, "evil")
	ca := filepath.Join(dir, "good.pem")
	files := good.issue("server", "db.internal")
	files.Authority = ca
	server, err := certificates.Server(files, quiet())
	must(t, err)
	client := func(f certificates.Files, name string) *tls.Config {
		f.Authority = ca
		c, err := certificates.NewClient(f, name, quiet())
		must(t, err)
		return c.Config()
	}
	if _, seen, err := connect(t, server, client(good.issue("billing", "x"), "db.internal")); err != nil || seen != "billing" {
		t.Errorf("the server saw %q, %v", seen, err)
	}
	if _, seen, err := connect(t, server, client(certificates.Files{}, "db.internal")); err != nil || seen != "" {
		t.Errorf("without a certificate the server saw %q, %v", seen, err)
	}
	if _, seen, err := connect(t, server, client(evil.issue("mallory", "x"), "db.internal")); err == nil {
		t.Errorf("a certificate of another authority was accepted as %q", seen)
	}
	if _, _, err := connect(t, server, client(certificates.Files{}, "other.internal")); err == nil || !strings.Contains(err.Error(), "other.internal") {
		t.Errorf("a server of another name: %v", err)
	}
	fake, err := certificates.Server(evil.issue("fake", "db.internal"), quiet())
	must(t, err)
	if _, _, err := connect(t, fake, client(certificates.Files{}, "db.internal")); err == nil {
		t.Error("a server of another authority was accepted")
	}
}

func TestReplacedCertificatesAreUsedWithoutAFailedHandshake(t *testing.T) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		a := newAuthority(t, dir, "ca")
		files := a.issue("server", "db.internal")
		server, err := certificates.Server(files, quiet())
		must(t, err)
		client, err := certificates.NewClient(certificates.Files{Authority: filepath.Join(dir, "ca.pem")}, "db.internal", quiet())
		must(t, err)
		first, _, err := shake(t, server, client.Config())
		must(t, err)
		a.issue("server", "db.internal")
		if now, _, err := shake(t, server, client.Config()); err != nil || now != first {
			t.Errorf("right after: %d, %v", now, err)
		}
		time.Sleep(certificates.LookEvery)
		if now, _, err := shake(t, server, client.Config()); err != nil || now == first {
			t.Errorf("after a look: %d, %v", now, err)
		}
		must(t, os.WriteFile(files.Certificate, []byte("half wri"), 0o600)) // is being replaced
		time.Sleep(certificates.LookEvery)
		if _, _, err := shake(t, server, client.Config()); err != nil {
			t.Errorf("while a file is written: %v", err)
		}
		// Another authority: the client trusts what its file holds by then.
		b := newAuthority(t, dir, "ca")
		b.Issued = 100
		b.issue("server", "db.internal")
		time.Sleep(certificates.LookEvery)
		if now, _, err := shake(t, server, client.Config()); err != nil || now < 100 {
			t.Errorf("under the new authority: %d, %v", now, err)
		}
	})
}

func TestFilesThatAreNotWhatTheyMustBeAreNamed(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t, dir, "ca")
	files := a.issue("server", "x")
	other := a.issue("other", "x")
	for what, f := range map[string]certificates.Files{
		files.Certificate: {Certificate: files.Certificate, Key: other.Key}, "nowhere.pem": {Certificate: "nowhere.pem", Key: files.Key},
		"needs its key": {Certificate: files.Certificate}, "no certificate": {Certificate: files.Certificate, Key: files.Key, Authority: files.Key},
	} {
		if _, err := certificates.Server(f, quiet()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v, want %q", f, err, what)
		}
	}
	if _, err := certificates.Server(certificates.Files{}, quiet()); err == nil {
		t.Error("a server without a certificate")
	}
}

func TestReplacingUnderLoadFailsNoHandshake(t *testing.T) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		a := newAuthority(t, dir, "ca")
		server, err := certificates.Server(a.issue("server", "db.internal"), quiet())
		must(t, err)
		client, err := certificates.NewClient(certificates.Files{Authority: filepath.Join(dir, "ca.pem")}, "db.internal", quiet())
		must(t, err)
		var failed, made atomic.Int64
		done := make(chan struct{})
		for range 4 {
			go func() {
				for range 50 {
					if _, _, err := shake(t, server, client.Config()); err != nil {
						failed.Add(1)
					}
					made.Add(1)
					time.Sleep(time.Second)
				}
				done <- struct{}{}
			}()
		}
		for range 5 {
			time.Sleep(7 * time.Second)
			a.issue("server", "db.internal")
		}
		for range 4 {
			<-done
		}
		if failed.Load() != 0 || made.Load() != 200 {
			t.Errorf("%d of %d failed", failed.Load(), made.Load())
		}
	})
}
