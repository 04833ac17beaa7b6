package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/libs/tenants"
)

const (
	// maxSubject bounds the name of a principal, in bytes.
	maxSubject = 256
	// maxUsed bounds the keys whose use is still to be noted; others are noted the next time.
	maxUsed = 1000
	// everywhere is the tenant of a token or a certificate that stands for the installation.
	everywhere = "*"
	// certificateScheme is that of the URI by which a certificate says what it stands for: minutehand:TENANT/ROLE.
	certificateScheme = "minutehand"
)

// TenantHeader is the header by which a principal of the installation names the tenant that it acts for.
const TenantHeader = "Minutehand-Tenant"

// Why a request is not let in.
var (
	// ErrUnknown means that the request has no credential, or one that is not accepted.
	ErrUnknown = errors.New("the principal is not known")
	// ErrNoTenant means that the principal is known, and its tenant is not there, or not its own.
	ErrNoTenant = errors.New("the principal has no such tenant")
)

// Config says by what principals are known.
type Config struct {
	// Token is a bearer token of an admin of the installation; "" for none.
	Token string
	// Open lets everybody in who has no credential, as an admin of the installation.
	Open   bool
	Tokens TokenConfig
}

// Guard finds out who makes a request. It must not be copied.
type Guard struct {
	cfg       Config
	token     [sha256.Size]byte
	directory *tenants.Directory
	tokens    *tokens // nil if none are accepted
	used      chan tenants.Key
	logger    *slog.Logger
}

// New returns a guard. It fails if the configuration of tokens is not complete.
func New(cfg Config, directory *tenants.Directory, c clock.Clock, logger *slog.Logger) (*Guard, error) {
	g := &Guard{cfg: cfg, token: sha256.Sum256([]byte(cfg.Token)), directory: directory, used: make(chan tenants.Key, maxUsed), logger: logger}
	if cfg.Tokens.Keys == "" {
		return g, nil
	}
	t := cfg.Tokens
	if t.Issuer == "" || t.Audience == "" || t.TenantClaim == "" || t.RoleClaim == "" {
		return nil, errors.New("tokens need a key set, an issuer, an audience, and the names of two claims")
	}
	if u, err := url.Parse(t.Keys); strings.Contains(t.Keys, "://") && (err != nil || u.Scheme != "https") {
		return nil, errors.New("the key set must be a file or an https URL")
	}
	g.tokens = newTokens(t, newKeySet(t.Keys, c, logger))
	return g, nil
}

// Run keeps the keys of tokens up to date, and notes when API keys were used, until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	if g.tokens != nil {
		g.tokens.keys.refresh(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.tokens.keys.run(ctx)
		}()
		defer func() { <-done }()
	}
	for {
		select {
		case k := <-g.used:
			if err := g.directory.Used(ctx, &k); err != nil && ctx.Err() == nil {
				g.logger.Debug("cannot note the use of a key", "key_id", k.ID(), "error", err)
				_ = run.Sleep(ctx, time.Second)
			}
		case <-ctx.Done():
			return
		}
	}
}

// Principal returns who makes a request. It fails with ErrUnknown, ErrNoTenant, or because a server does not answer.
func (g *Guard) Principal(r *http.Request) (Principal, error) {
	p, err := g.known(r)
	if err != nil {
		return Principal{}, err
	}
	named := r.Header.Values(TenantHeader)
	switch {
	case len(named) > 1:
		return Principal{}, ErrNoTenant
	case len(named) == 1 && p.Installation:
		p.TenantName, p.Chosen = named[0], true
	case len(named) == 1 && named[0] != p.TenantName:
		return Principal{}, ErrNoTenant
	}
	if p.TenantName == "" {
		p.TenantName = tenants.DefaultName
	}
	if p.TenantName == tenants.DefaultName {
		return p, nil // it is always there
	}
	if !tenants.ValidName(p.TenantName) {
		return Principal{}, ErrNoTenant
	}
	t, err := g.directory.Tenant(r.Context(), p.TenantName)
	if errors.Is(err, tenants.ErrNotFound) || err == nil && t.Status != tenants.StatusActive {
		return Principal{}, ErrNoTenant
	}
	p.Tenant = t.Number
	return p, err
}

// known returns the principal that the credential names, with the name of its tenant.
func (g *Guard) known(r *http.Request) (Principal, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) > 1 {
		return Principal{}, ErrUnknown
	}
	if len(headers) == 0 {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			return certified(r.TLS.VerifiedChains[0][0])
		}
		if g.cfg.Open {
			return Local(), nil
		}
		return Principal{}, ErrUnknown
	}
	scheme, credential, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || credential == "" {
		if g.cfg.Open {
			return Local(), nil // a proxy may have added a credential of its own
		}
		return Principal{}, ErrUnknown
	}
	return g.bearer(r.Context(), credential)
}

// bearer returns the principal of a bearer token of any kind.
func (g *Guard) bearer(ctx context.Context, credential string) (Principal, error) {
	if got := sha256.Sum256([]byte(credential)); g.cfg.Token != "" && subtle.ConstantTimeCompare(got[:], g.token[:]) == 1 {
		return Principal{Subject: "token", Role: Admin, Installation: true}, nil
	}
	if strings.HasPrefix(credential, tenants.KeyPrefix) {
		return g.key(ctx, credential)
	}
	if g.tokens == nil {
		return Principal{}, ErrUnknown
	}
	c, err := g.tokens.verify(ctx, credential)
	switch {
	case errors.Is(err, errRefused):
		return Principal{}, ErrUnknown
	case err != nil:
		return Principal{}, err
	}
	p := Principal{Subject: "jwt:" + c.subject, Role: c.role, TenantName: c.tenant}
	if c.tenant == everywhere {
		p.Installation, p.TenantName = true, ""
	}
	return p, nil
}

// key returns the principal of an API key.
func (g *Guard) key(ctx context.Context, credential string) (Principal, error) {
	k, err := g.directory.Authenticate(ctx, credential)
	if errors.Is(err, tenants.ErrNotFound) {
		return Principal{}, ErrUnknown
	}
	if err != nil {
		return Principal{}, fmt.Errorf("read an API key: %w", err)
	}
	select {
	case g.used <- k:
	default: // the next use is noted
	}
	p := Principal{Subject: "key:" + k.ID(), Role: ParseRole(k.Role), TenantName: k.TenantName}
	p.Installation = k.Scope == tenants.Installation
	return p, nil
}

// certified returns the principal of a client's certificate, which was verified: it has one URI minutehand:TENANT/ROLE among its
// alternative names.
func certified(c *x509.Certificate) (Principal, error) {
	var p Principal
	for _, u := range c.URIs {
		if u.Scheme != certificateScheme {
			continue
		}
		tenant, role, _ := strings.Cut(u.Opaque, "/")
		if p.Role != NoRole || tenant == "" || ParseRole(role) == NoRole {
			return Principal{}, ErrUnknown
		}
		p.TenantName, p.Role = tenant, ParseRole(role)
	}
	name := c.Subject.CommonName
	if p.Role == NoRole || name == "" || len(name) > maxSubject || !printable(name) {
		return Principal{}, ErrUnknown
	}
	if p.Subject = "certificate:" + name; p.TenantName == everywhere {
		p.Installation, p.TenantName = true, ""
	}
	return p, nil
}

// printable reports whether a name can be shown and logged as it is.
func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) < 0
}
