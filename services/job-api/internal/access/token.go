package access

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// maxToken bounds a token, in bytes.
	maxToken = 8 << 10
	// skew is how far the clock of the identity provider may be away.
	skew = time.Minute
	// verifiedFor is how long a token that was verified is not verified again, and maxVerified how many of them are known.
	verifiedFor, maxVerified = time.Minute, 10_000
)

// errRefused means that a credential is not accepted. Why is told to nobody.
var errRefused = errors.New("the credential is not accepted")

// TokenConfig says which tokens are accepted, and what their claims mean.
type TokenConfig struct {
	// Keys is the file or the https URL of the issuer's key set; "" accepts no tokens.
	Keys string
	// Issuer and Audience are what the claims iss and aud must have.
	Issuer, Audience string
	// TenantClaim and RoleClaim name the claims that hold a tenant's name, or "*" for the installation, and a role's.
	TenantClaim, RoleClaim string
}

// claims are those of a token that has been verified.
type claims struct {
	subject, tenant string
	role            Role
}

// tokens verifies JSON Web Tokens.
type tokens struct {
	cfg       TokenConfig
	keys      *keySet
	validator *jwt.Validator

	mu       sync.Mutex
	verified map[[sha256.Size]byte]verified
}

// verified is a token that was accepted a moment ago.
type verified struct {
	claims
	until      time.Time
	generation int
}

func newTokens(cfg TokenConfig, keys *keySet) *tokens {
	return &tokens{cfg: cfg, keys: keys, verified: map[[sha256.Size]byte]verified{}, validator: jwt.NewValidator(
		jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience), jwt.WithExpirationRequired(), jwt.WithLeeway(skew),
		jwt.WithTimeFunc(keys.clock.Now), jwt.WithIssuedAt(),
	)}
}

// verify returns the claims of a token.
func (ts *tokens) verify(ctx context.Context, token string) (claims, error) {
	if len(token) > maxToken {
		return claims{}, errRefused
	}
	name, now := sha256.Sum256([]byte(token)), ts.keys.clock.Now()
	ts.mu.Lock()
	known, ok := ts.verified[name]
	ts.mu.Unlock()
	if generation, fresh := ts.keys.now(); ok && fresh && known.generation == generation && now.Before(known.until) && known.until.Sub(now) <= verifiedFor {
		return known.claims, nil
	}
	c, expires, generation, err := ts.check(ctx, token)
	if err != nil {
		return claims{}, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for other := range ts.verified {
		if len(ts.verified) < maxVerified {
			break
		}
		delete(ts.verified, other)
	}
	until := now.Add(verifiedFor)
	if expires = expires.Add(skew); expires.Before(until) {
		until = expires
	}
	ts.verified[name] = verified{c, until, generation}
	return c, nil
}

// check verifies a token, signature first.
func (ts *tokens) check(ctx context.Context, token string) (c claims, expires time.Time, generation int, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, expires, 0, errRefused
	}
	var header struct {
		Algorithm string          `json:"alg"`
		KeyID     string          `json:"kid"`
		Type      string          `json:"typ"`
		Critical  *jsontext.Value `json:"crit"`
	}
	if !decode(parts[0], &header) || header.Critical != nil || !ofToken(header.Type) {
		return c, expires, 0, errRefused
	}
	key, generation, err := ts.keys.find(ctx, header.KeyID)
	if err != nil {
		return c, expires, 0, err
	}
	signature, err := strict().DecodeString(parts[2])
	if err != nil || header.Algorithm != key.method.Alg() || key.method.Verify(parts[0]+"."+parts[1], signature, key.key) != nil {
		return c, expires, 0, errRefused
	}
	var all map[string]any
	if !decode(parts[1], &all) {
		return c, expires, 0, errRefused
	}
	of := jwt.MapClaims(all)
	if err := ts.validator.Validate(of); err != nil {
		return c, expires, 0, errRefused
	}
	at, err := of.GetExpirationTime()
	if err != nil || at == nil {
		return c, expires, 0, errRefused
	}
	c, err = ts.mean(all)
	return c, at.Time, generation, err
}

// mean returns what the claims mean here.
func (ts *tokens) mean(all map[string]any) (c claims, err error) {
	var given bool
	c.subject, given = all["sub"].(string)
	tenant, named := all[ts.cfg.TenantClaim].(string)
	role, has := all[ts.cfg.RoleClaim].(string)
	c.tenant, c.role = tenant, ParseRole(role)
	if !given || !named || !has || c.role == NoRole || c.subject == "" || len(c.subject) > maxSubject || !printable(c.subject) {
		return claims{}, errRefused
	}
	return c, nil
}

// ofToken reports whether a type is that of a JSON Web Token, or of an access token (RFC 9068).
func ofToken(t string) bool {
	t = strings.TrimPrefix(strings.ToLower(t), "application/")
	return t == "" || t == "jwt" || t == "at+jwt"
}

// strict decodes base64url as RFC 7515 has it: without padding, and in one form only.
func strict() *base64.Encoding { return base64.RawURLEncoding.Strict() }

// decode decodes a part of a token. A member that is there twice is a fault: others might have read the other one.
func decode(part string, v any) bool {
	text, err := strict().DecodeString(part)
	return err == nil && json.Unmarshal(text, v, json.MatchCaseInsensitiveNames(false)) == nil
}
