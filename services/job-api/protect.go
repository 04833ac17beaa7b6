package jobapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/minutehand/minutehand/libs/certificates"
	"github.com/minutehand/minutehand/libs/settings"
)

// Why an API is not served.
var (
	// ErrShortToken means that the token could be guessed.
	ErrShortToken = errors.New("the token file holds fewer than 16 characters; use a long random token")
	// ErrOpen means that other machines could send requests without a credential.
	ErrOpen = errors.New("the address is not a loopback address, and nobody needs a credential")
	// ErrPlain means that client certificates are asked for where there is no TLS.
	ErrPlain = errors.New("client certificates need TLS: give a certificate and its key, too")
)

// shortestToken is the minimum number of characters of a token.
const shortestToken = 16

// Protection holds what an operator may set of who is let in, for a command line.
type Protection struct {
	TokenFile   settings.SecretFile `name:"auth-token-file" env:"MINUTEHAND_AUTH_TOKEN_FILE" placeholder:"FILE" help:"File with the bearer token of the installation's admin."`
	JWTKeys     string              `name:"jwt-keys" env:"MINUTEHAND_JWT_KEYS" placeholder:"URL" help:"JSON Web Key Set of the identity provider whose tokens are accepted: an https URL or a file."`
	JWTIssuer   string              `name:"jwt-issuer" env:"MINUTEHAND_JWT_ISSUER" placeholder:"TEXT" help:"What the claim iss of a token must be."`
	JWTAudience string              `name:"jwt-audience" env:"MINUTEHAND_JWT_AUDIENCE" placeholder:"TEXT" help:"What the claim aud of a token must be, or hold."`
	JWTTenant   string              `name:"jwt-tenant-claim" default:"minutehand_tenant" env:"MINUTEHAND_JWT_TENANT_CLAIM" placeholder:"NAME" help:"Claim that holds the name of the tenant, or * for the installation."`
	JWTRole     string              `name:"jwt-role-claim" default:"minutehand_role" env:"MINUTEHAND_JWT_ROLE_CLAIM" placeholder:"NAME" help:"Claim that holds viewer, operator, editor or admin."`
	Certificate string              `name:"tls-certificate" env:"MINUTEHAND_TLS_CERTIFICATE" placeholder:"FILE" help:"Certificate of the API, in PEM; with it the API answers https only."`
	Key         string              `name:"tls-key" env:"MINUTEHAND_TLS_KEY" placeholder:"FILE" help:"Private key of the certificate."`
	ClientCA    string              `name:"tls-client-ca" env:"MINUTEHAND_TLS_CLIENT_CA" placeholder:"FILE" help:"Authorities of client certificates, which are accepted by their URI minutehand:TENANT/ROLE."`
	Insecure    bool                `env:"MINUTEHAND_INSECURE" help:"Listen beyond loopback without asking for a credential."`
}

// Protect decides which requests an API on an address accepts: those with a credential. If nothing is set it accepts all: on
// loopback only by a local name, and beyond loopback only if the operator says so.
func (s *Protection) Protect(c *Config, addr net.Addr, logger *slog.Logger) error {
	token, err := s.TokenFile.Read()
	if err != nil {
		return fmt.Errorf("the token file %w", err)
	}
	tcp, ok := addr.(*net.TCPAddr)
	loopback := ok && tcp.IP.IsLoopback()
	c.AuthToken = token
	if s.JWTKeys != "" {
		c.Tokens = TokenConfig{Keys: s.JWTKeys, Issuer: s.JWTIssuer, Audience: s.JWTAudience, TenantClaim: s.JWTTenant, RoleClaim: s.JWTRole}
	}
	c.ClientCertificates = s.ClientCA != ""
	switch {
	case token != "" && len(token) < shortestToken:
		return ErrShortToken
	case c.ClientCertificates && s.Certificate == "":
		return ErrPlain
	case c.open() && !loopback && !s.Insecure:
		return ErrOpen
	}
	if c.LocalHostsOnly = c.open() && loopback; s.Certificate == "" && s.Key == "" {
		return nil
	}
	c.TLS, err = certificates.Server(certificates.Files{Certificate: s.Certificate, Key: s.Key, Authority: s.ClientCA}, logger)
	return err
}

// Protected reports whether anything but the address keeps others out.
func (s *Protection) Protected() bool {
	return s.TokenFile != "" || s.JWTKeys != "" || s.ClientCA != ""
}

// open reports whether requests need no credential.
func (c *Config) open() bool {
	return c.AuthToken == "" && c.Tokens.Keys == "" && !c.ClientCertificates
}
