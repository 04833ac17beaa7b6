package access

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/tenants"
	"github.com/minutehand/minutehand/libs/tenants/tenantstest"
)

// provider is an identity provider with a key of each kind.
type provider struct {
	t       testing.TB
	file    string
	private map[string]crypto.Signer
}

func newProvider(t testing.TB) *provider {
	t.Helper()
	p := &provider{t: t, file: filepath.Join(t.TempDir(), "keys.json"), private: map[string]crypto.Signer{}}
	p.private["rsa"], _ = rsa.GenerateKey(rand.Reader, 2048)
	p.private["ec"], _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, p.private["ed"], _ = ed25519.GenerateKey(rand.Reader)
	p.publish("rsa", "ec", "ed")
	return p
}

// publish writes a key set with the keys of these ids.
func (p *provider) publish(ids ...string) {
	p.t.Helper()
	var set jwkset.JWKSMarshal
	for _, id := range ids {
		k, err := jwkset.NewJWKFromKey(p.private[id].Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: id, USE: jwkset.UseSig}})
		if err != nil {
			p.t.Fatal(err)
		}
		set.Keys = append(set.Keys, k.Marshal())
	}
	text, err := json.Marshal(set)
	if err == nil {
		err = os.WriteFile(p.file, text, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func methods() map[string]jwt.SigningMethod {
	return map[string]jwt.SigningMethod{"rsa": jwt.SigningMethodRS256, "ec": jwt.SigningMethodES256, "ed": jwt.SigningMethodEdDSA}
}

func good() map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": "https://issuer", "aud": "minutehand", "sub": "jane", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"minutehand_tenant": "acme", "minutehand_role": "editor",
	}
}

// sign makes a token with a header and claims given as JSON, whatever they are.
func (p *provider) sign(id, header, claims string) string {
	p.t.Helper()
	text := part(header) + "." + part(claims)
	sig, err := methods()[id].Sign(text, p.private[id])
	if err != nil {
		p.t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func part(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func header(id string) string {
	return fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, methods()[id].Alg(), id)
}

func text(claims map[string]any) string {
	b, _ := json.Marshal(claims)
	return string(b)
}

func with(name string, value any) string {
	c := good()
	if c[name] = value; value == nil {
		delete(c, name)
	}
	return text(c)
}

func newGuard(t testing.TB, p *provider) (*Guard, *tenantstest.Memory) {
	t.Helper()
	store := &tenantstest.Memory{}
	d := tenantstest.Directory(store)
	for _, name := range []string{"acme", "globex"} {
		if _, err := d.Create(t.Context(), name, tenants.Edit{}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := New(Config{Token: "the-one-token-of-all", Tokens: TokenConfig{
		Keys: p.file, Issuer: "https://issuer", Audience: "minutehand", TenantClaim: "minutehand_tenant", RoleClaim: "minutehand_role",
	}}, d, clock.Clock{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return g, store
}

func request(t testing.TB, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

func TestCertificateSaysWhoItStandsFor(t *testing.T) {
	p := newProvider(t)
	g, _ := newGuard(t, p)
	certificate := func(name string, uris ...string) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		for _, u := range uris {
			parsed, err := url.Parse(u)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, parsed)
		}
		return c
	}
	for _, c := range []struct {
		certificate *x509.Certificate
		want        string
	}{
		{certificate("billing", "minutehand:acme/operator", "spiffe://x/y"), "certificate:billing operator acme false"},
		{certificate("ops", "minutehand:*/admin"), "certificate:ops admin default true"},
		{certificate("billing"), ""},
		{certificate("billing", "minutehand:acme/root"), ""},
		{certificate("billing", "minutehand:acme"), ""},
		{certificate("billing", "minutehand://acme/admin"), ""},
		{certificate("billing", "minutehand:acme/viewer", "minutehand:globex/admin"), ""},
		{certificate("", "minutehand:acme/viewer"), ""},
		{certificate("a\nb", "minutehand:acme/viewer"), ""},
		{certificate("x", "minutehand:/viewer"), ""},
	} {
		r := request(t)
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c.certificate}}}
		got, err := g.Principal(r)
		if text := fmt.Sprint(got.Subject, " ", got.Role, " ", got.TenantName, " ", got.Installation); c.want != "" && text != c.want || c.want == "" && !errors.Is(err, ErrUnknown) {
			t.Errorf("%v: %s, %v", c.certificate.URIs, text, err)
		}
	}
	r := request(t)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate("billing", "minutehand:acme/admin")}}
	if got, err := g.Principal(r); !errors.Is(err, ErrUnknown) {
		t.Errorf("a certificate that was not verified: %+v, %v", got, err)
	}
}

func TestFloodOfWrongKeysReadsEachRowOnce(t *testing.T) {
	g, store := newGuard(t, newProvider(t))
	k, _, err := g.directory.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(1), TenantName: "acme", Role: "viewer"}, tenants.Edit{})
	if err != nil {
		t.Fatal(err)
	}
	before := store.Reads.Load()
	for i := range 1000 {
		if _, err := g.Principal(request(t, bearer(fmt.Sprint(k.ID(), "_", i))...)); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	if n := store.Reads.Load() - before; n > 1 {
		t.Errorf("%d reads", n)
	}
}
