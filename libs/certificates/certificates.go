// Package certificates makes TLS configurations from files, which may be replaced while they are in use.
//
// It promises: a file that was replaced is used for handshakes that begin more than [LookEvery] later; while it cannot be read, what was
// read before stands. A peer is verified against the authorities that are configured, never against none.
package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// LookEvery is the least pause between two looks at whether files have changed.
const LookEvery = 5 * time.Second

// Files names PEM files.
type Files struct {
	// Certificate is a certificate with its chain, and Key its private key; both or neither.
	Certificate, Key string
	// Authority holds the certificates that a peer's must lead to. For a client "" stands for those of the system; a server without
	// it asks clients for no certificate.
	Authority string
}

// Validate returns what is wrong with the names.
func (f Files) Validate() error {
	if (f.Certificate == "") != (f.Key == "") {
		return errors.New("a certificate needs its key, and a key its certificate")
	}
	return nil
}

// pair is what the files held when they were read.
type pair struct {
	certificate *tls.Certificate
	pool        *x509.CertPool
}

// source reads the files again when they have changed. It must not be copied.
type source struct {
	files  Files
	logger *slog.Logger

	mu       sync.Mutex
	held     pair
	stamp    string
	lookedAt time.Time
}

func newSource(f Files, logger *slog.Logger) (*source, error) {
	s := &source{files: f, logger: logger}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	var err error
	s.stamp = f.stamp()
	s.lookedAt = now()
	s.held, err = f.read()
	return s, err
}

// now reads this machine's clock: the pause between two looks is its own affair.
func now() time.Time { return time.Now() }

// stamp changes when a file does.
func (f Files) stamp() (text string) {
	for _, name := range []string{f.Certificate, f.Key, f.Authority} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			text += fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size(), " ")
		}
	}
	return text
}

func (f Files) read() (p pair, err error) {
	if f.Certificate != "" {
		c, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
		if err != nil {
			return p, fmt.Errorf("%s and %s are not a certificate and its key in PEM: %w", f.Certificate, f.Key, err)
		}
		p.certificate = &c
	}
	if f.Authority != "" {
		text, err := os.ReadFile(f.Authority)
		if err != nil {
			return p, fmt.Errorf("cannot read the authorities: %w", err)
		}
		p.pool = x509.NewCertPool()
		if !p.pool.AppendCertsFromPEM(text) {
			return p, fmt.Errorf("%s holds no certificate in PEM", f.Authority)
		}
	}
	return p, nil
}

// current returns what the files hold.
func (s *source) current() pair {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := now(); at.Sub(s.lookedAt) >= LookEvery {
		s.lookedAt = at
		if stamp := s.files.stamp(); stamp != s.stamp {
			p, err := s.files.read()
			if err != nil {
				s.logger.Warn("a certificate was replaced and cannot be read; the one before stands", "error", err)
				return s.held
			}
			s.held, s.stamp = p, stamp
			s.logger.Info("a replaced certificate is used from now on")
		}
	}
	return s.held
}

// Server returns the configuration of a server, which must have a certificate. With an authority it accepts client certificates
// that lead there, and refuses others; a client may also have none.
func Server(f Files, logger *slog.Logger) (*tls.Config, error) {
	if f.Certificate == "" {
		return nil, errors.New("a server needs a certificate and its key")
	}
	s, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		p := s.current()
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: base.NextProtos, Certificates: []tls.Certificate{*p.certificate}}
		if p.pool != nil {
			c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, p.pool
		}
		return c, nil
	}
	base.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.current().certificate, nil }
	return base, nil
}

// Client makes connections to servers whose certificates lead to the configured authorities. It must not be copied.
type Client struct {
	source *source
	name   string
}

// NewClient returns a client. name is what a server's certificate must be for; "" is the host that is dialled.
func NewClient(f Files, name string, logger *slog.Logger) (*Client, error) {
	s, err := newSource(f, logger)
	if err != nil {
		return nil, err
	}
	return &Client{s, name}, nil
}

// Config returns the configuration of the next connection. Its authorities are those of now.
func (c *Client) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: c.name, RootCAs: c.source.current().pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own := c.source.current().certificate; own != nil {
				return own, nil
			}
			return &tls.Certificate{}, nil // none
		},
	}
}

// Dial connects to a server and makes the handshake. Its error names the server.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&tls.Dialer{Config: c.Config()}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("tls to %s: %w", address, err)
	}
	return conn, nil
}

// Named holds what an operator may set of certificates for connections that speak TLS in any case.
type Named struct {
	CA          string `name:"tls-ca" env:"TLS_CA" placeholder:"FILE" help:"Authorities that the server's certificate must lead to, in PEM; empty for those of the system."`
	Certificate string `name:"tls-certificate" env:"TLS_CERTIFICATE" placeholder:"FILE" help:"Certificate to show, in PEM; empty for none."`
	Key         string `name:"tls-key" env:"TLS_KEY" placeholder:"FILE" help:"Private key of the certificate."`
	Name        string `name:"tls-name" env:"TLS_NAME" placeholder:"NAME" help:"Whom the server's certificate must be for; empty for the host of its address."`
}

// Given reports whether anything was set.
func (n *Named) Given() bool { return *n != Named{} }

// Client returns the client that it states.
func (n *Named) Client(logger *slog.Logger) (*Client, error) {
	return NewClient(Files{Certificate: n.Certificate, Key: n.Key, Authority: n.CA}, n.Name, logger)
}

// Towards holds what an operator may set of the connections to a server, for a command line.
type Towards struct {
	TLS bool `name:"tls" env:"TLS" help:"Speak TLS."`
	Named
}

// ErrPlain means that files are named for connections that do not speak TLS.
var ErrPlain = errors.New("certificates are named, and TLS is off")

// Client returns the client that it states; nil without TLS.
func (t *Towards) Client(logger *slog.Logger) (*Client, error) {
	if !t.TLS {
		if t.Given() {
			return nil, ErrPlain
		}
		return nil, nil
	}
	return t.Named.Client(logger)
}
