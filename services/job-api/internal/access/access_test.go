package access

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
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
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/jobstore"
	"github.com/minutehand/minutehand/libs/tenants"
)

// memory is a store of settings that works in a bubble, and counts.
type memory struct {
	mu    sync.Mutex
	rows  map[string][]byte
	reads int
}

func (m *memory) Setting(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.rows[name], nil
}

func (m *memory) SwapSetting(_ context.Context, name string, old, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Equal(m.rows[name], old) {
		return jobstore.ErrConflict
	}
	m.rows[name] = value
	return nil
}

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

func newGuard(t testing.TB, p *provider) (*Guard, *memory) {
	t.Helper()
	store := &memory{rows: map[string][]byte{}}
	d := tenants.New(store, clock.Clock{})
	for _, name := range []string{"acme", "globex"} {
		if _, err := d.Create(t.Context(), name); err != nil {
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

func TestTokenOfEachAlgorithmIsAccepted(t *testing.T) {
	p := newProvider(t)
	g, _ := newGuard(t, p)
	for id := range methods() {
		got, err := g.Principal(request(t, bearer(p.sign(id, header(id), text(good())))...))
		if err != nil || got.Subject != "jwt:jane" || got.Role != Editor || got.TenantName != "acme" || got.Tenant == 0 || got.Installation {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
	}
	all, err := g.Principal(request(t, bearer(p.sign("ec", header("ec"), with("minutehand_tenant", "*")))...))
	if err != nil || !all.Installation || all.Tenant != 0 {
		t.Errorf("of the installation: %+v, %v", all, err)
	}
}

// attacks returns tokens that must not be accepted, by what is wrong with them.
func attacks(p *provider) map[string]string {
	rsaText, _ := x509.MarshalPKIXPublicKey(p.private["rsa"].Public())
	mac := func(header string, secret []byte) string {
		signed := part(header) + "." + part(text(good()))
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(signed))
		return signed + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	whole := p.sign("ec", header("ec"), text(good()))
	parts := strings.Split(whole, ".")
	now := time.Now()
	list := map[string]string{
		"no algorithm":                     part(`{"alg":"none","typ":"JWT"}`) + "." + part(text(good())) + ".",
		"no algorithm, in capitals":        part(`{"alg":"NoNe","kid":"rsa"}`) + "." + part(text(good())) + ".",
		"no algorithm with a signature":    part(`{"alg":"none","kid":"ec"}`) + "." + parts[1] + "." + parts[2],
		"a MAC with the public key":        mac(`{"alg":"HS256","kid":"rsa"}`, rsaText),
		"a MAC with the modulus":           mac(`{"alg":"HS256","kid":"rsa"}`, p.private["rsa"].Public().(*rsa.PublicKey).N.Bytes()),
		"a MAC with nothing":               mac(`{"alg":"HS256","kid":"rsa"}`, nil),
		"another algorithm of the key":     p.sign("rsa", `{"alg":"PS256","kid":"rsa"}`, text(good())),
		"a longer hash":                    p.sign("rsa", `{"alg":"RS512","kid":"rsa"}`, text(good())),
		"another key's id":                 p.sign("rsa", `{"alg":"RS256","kid":"ec"}`, text(good())),
		"another key's id and algorithm":   p.sign("rsa", `{"alg":"ES256","kid":"ec"}`, text(good())),
		"an unknown key":                   p.sign("rsa", `{"alg":"RS256","kid":"other"}`, text(good())),
		"no key":                           p.sign("rsa", `{"alg":"RS256"}`, text(good())),
		"a key of its own":                 p.sign("rsa", `{"alg":"RS256","jwk":{"kty":"RSA"}}`, text(good())),
		"a path for a key":                 p.sign("rsa", `{"alg":"RS256","kid":"../../etc/passwd"}`, text(good())),
		"a key at a URL":                   p.sign("rsa", `{"alg":"RS256","jku":"https://evil.example/keys"}`, text(good())),
		"critical members":                 p.sign("rsa", `{"alg":"RS256","kid":"rsa","crit":["exp"]}`, text(good())),
		"an algorithm twice":               p.sign("rsa", `{"alg":"none","alg":"RS256","kid":"rsa"}`, text(good())),
		"another type":                     p.sign("rsa", `{"alg":"RS256","kid":"rsa","typ":"logout+jwt"}`, text(good())),
		"another audience":                 p.sign("ec", header("ec"), with("aud", "other")),
		"no audience":                      p.sign("ec", header("ec"), with("aud", nil)),
		"an empty list of audiences":       p.sign("ec", header("ec"), with("aud", []string{})),
		"another issuer":                   p.sign("ec", header("ec"), with("iss", "https://issuer/")),
		"no issuer":                        p.sign("ec", header("ec"), with("iss", nil)),
		"expired":                          p.sign("ec", header("ec"), with("exp", now.Add(-2*time.Minute).Unix())),
		"no end":                           p.sign("ec", header("ec"), with("exp", nil)),
		"an end in text":                   p.sign("ec", header("ec"), with("exp", "4102444800")),
		"not yet valid":                    p.sign("ec", header("ec"), with("nbf", now.Add(2*time.Minute).Unix())),
		"issued later":                     p.sign("ec", header("ec"), with("iat", now.Add(2*time.Minute).Unix())),
		"no subject":                       p.sign("ec", header("ec"), with("sub", nil)),
		"an empty subject":                 p.sign("ec", header("ec"), with("sub", "")),
		"a subject of two lines":           p.sign("ec", header("ec"), with("sub", "jane\nadmin")),
		"a long subject":                   p.sign("ec", header("ec"), with("sub", strings.Repeat("j", 300))),
		"no tenant":                        p.sign("ec", header("ec"), with("minutehand_tenant", nil)),
		"a list of tenants":                p.sign("ec", header("ec"), with("minutehand_tenant", []string{"acme"})),
		"no role":                          p.sign("ec", header("ec"), with("minutehand_role", nil)),
		"no role's name":                   p.sign("ec", header("ec"), with("minutehand_role", "none")),
		"an unknown role":                  p.sign("ec", header("ec"), with("minutehand_role", "root")),
		"a role in capitals":               p.sign("ec", header("ec"), with("minutehand_role", "ADMIN")),
		"a list of roles":                  p.sign("ec", header("ec"), with("minutehand_role", []string{"admin"})),
		"a role twice":                     p.sign("ec", header("ec"), strings.Replace(text(good()), `"minutehand_role"`, `"minutehand_role":"viewer","minutehand_role"`, 1)),
		"a tenant twice":                   p.sign("ec", header("ec"), strings.Replace(text(good()), `"minutehand_tenant"`, `"minutehand_tenant":"*","minutehand_tenant"`, 1)),
		"claims that are a list":           p.sign("ec", header("ec"), `[]`),
		"claims that are nothing":          p.sign("ec", header("ec"), ``),
		"claims that are null":             p.sign("ec", header("ec"), `null`),
		"claims and more":                  p.sign("ec", header("ec"), text(good())+`{}`),
		"no signature":                     parts[0] + "." + parts[1] + ".",
		"a signature cut short":            whole[:len(whole)-4],
		"a signature of zeros":             parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
		"another signature's text":         parts[0] + "." + parts[1] + "." + parts[2] + "=",
		"other claims":                     parts[0] + "." + part(with("minutehand_role", "admin")) + "." + parts[2],
		"another header":                   part(`{"alg":"ES256","kid":"ec"}`) + "." + parts[1] + "." + parts[2],
		"four parts":                       whole + "." + parts[2],
		"two parts":                        parts[0] + "." + parts[1],
		"encrypted":                        strings.Repeat(parts[0]+".", 4) + parts[0],
		"oversized":                        p.sign("ec", header("ec"), with("pad", strings.Repeat("x", 9000))),
		"a header with padding":            base64.URLEncoding.EncodeToString([]byte(header("ec")+" ")) + "." + parts[1] + "." + parts[2],
		"nothing":                          "",
		"dots":                             "..",
		"a token with white space":         whole[:20] + " " + whole[20:],
		"the installation's token, longer": "the-one-token-of-all-",
		"the installation's token, cut":    "the-one-token-of-al",
	}
	return list
}

func TestTokenThatIsNotWhatTheProviderIssuedIsRefused(t *testing.T) {
	p := newProvider(t)
	g, _ := newGuard(t, p)
	list := attacks(p)
	for what, token := range list {
		if got, err := g.Principal(request(t, bearer(token)...)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	for what, headers := range map[string][]string{
		"no credential": nil, "another scheme": {"Authorization", "Basic dGhlLW9uZS10b2tlbi1vZi1hbGw="}, "two credentials": append(bearer("the-one-token-of-all"), bearer("x")...),
	} {
		if got, err := g.Principal(request(t, headers...)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	if len(list) < 55 {
		t.Errorf("only %d attacks", len(list))
	}
	t.Logf("%d attacks", len(list)+3)
}

func TestTenantThatIsNotOnesOwnIsRefusedWhetherItExistsOrNot(t *testing.T) {
	p := newProvider(t)
	g, _ := newGuard(t, p)
	for what, headers := range map[string][]string{
		"another's":              append(bearer(p.sign("ec", header("ec"), text(good()))), TenantHeader, "globex"),
		"one that is not there":  append(bearer(p.sign("ec", header("ec"), text(good()))), TenantHeader, "nobody"),
		"the default one":        append(bearer(p.sign("ec", header("ec"), text(good()))), TenantHeader, "default"),
		"everything":             append(bearer(p.sign("ec", header("ec"), text(good()))), TenantHeader, "*"),
		"two":                    append(bearer(p.sign("ec", header("ec"), text(good()))), TenantHeader, "acme", TenantHeader, "globex"),
		"a claim of nobody":      bearer(p.sign("ec", header("ec"), with("minutehand_tenant", "nobody"))),
		"a claim of two words":   bearer(p.sign("ec", header("ec"), with("minutehand_tenant", "acme globex"))),
		"a claim with a slash":   bearer(p.sign("ec", header("ec"), with("minutehand_tenant", "../acme"))),
		"operators, of a nobody": append(bearer("the-one-token-of-all"), TenantHeader, "nobody"),
	} {
		if got, err := g.Principal(request(t, headers...)); !errors.Is(err, ErrNoTenant) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	got, err := g.Principal(request(t, append(bearer("the-one-token-of-all"), TenantHeader, "globex")...))
	if err != nil || got.TenantName != "globex" || !got.Chosen {
		t.Errorf("operators may choose: %+v, %v", got, err)
	}
}

func TestKeyThatTheProviderTookAwayIsRefusedWithinAMinute(t *testing.T) {
	p := newProvider(t)
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGuard(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx)
		synctest.Wait()
		old, next := p.sign("rsa", header("rsa"), text(good())), p.sign("ec", header("ec"), text(good()))
		p.publish("rsa")
		time.Sleep(readEvery)
		synctest.Wait()
		if _, err := g.Principal(request(t, bearer(old)...)); err != nil {
			t.Error(err)
		}
		p.publish("ec")
		time.Sleep(readAgain)
		if _, err := g.Principal(request(t, bearer(next)...)); err != nil {
			t.Errorf("a new key is not found: %v", err)
		}
		time.Sleep(readEvery)
		synctest.Wait()
		if got, err := g.Principal(request(t, bearer(old)...)); !errors.Is(err, ErrUnknown) {
			t.Errorf("a key that was taken away: %+v, %v", got, err)
		}
		cancel()
	})
}

func TestKeysThatCannotBeReadStandForADayAndNoLonger(t *testing.T) {
	p := newProvider(t)
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGuard(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		go g.Run(ctx)
		synctest.Wait()
		if err := os.WriteFile(p.file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		claims := good()
		claims["exp"] = time.Now().Add(72 * time.Hour).Unix()
		token := p.sign("ed", header("ed"), text(claims))
		time.Sleep(keptFor - time.Minute)
		if _, err := g.Principal(request(t, bearer(token)...)); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute)
		if got, err := g.Principal(request(t, bearer(token)...)); !errors.Is(err, ErrNoKeys) {
			t.Errorf("%+v, %v", got, err)
		}
		cancel()
	})
}

func TestFloodOfMadeUpKeyIDsReadsTheKeysOnceInTenSeconds(t *testing.T) {
	p := newProvider(t)
	var asked int
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		text, _ := os.ReadFile(p.file)
		_, _ = w.Write(text)
	}))
	defer server.Close()
	g, _ := newGuard(t, p)
	g.tokens.keys.source, g.tokens.keys.client = server.URL, server.Client()
	for i := range 1000 {
		token := p.sign("ed", fmt.Sprintf(`{"alg":"EdDSA","kid":"k%d"}`, i), text(good()))
		if _, err := g.Principal(request(t, bearer(token)...)); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("the keys were read %d times", asked)
	}
	if n := len(g.tokens.verified); n != 0 {
		t.Errorf("%d refused tokens are kept", n)
	}
}

func TestWhatIsKeptOfTokensIsBounded(t *testing.T) {
	p := newProvider(t)
	g, _ := newGuard(t, p)
	for i := range maxVerified + 100 {
		g.tokens.mu.Lock()
		g.tokens.verified[sha256.Sum256([]byte(fmt.Sprint(i)))] = verified{}
		g.tokens.mu.Unlock()
	}
	if _, err := g.Principal(request(t, bearer(p.sign("ed", header("ed"), text(good())))...)); err != nil {
		t.Fatal(err)
	}
	if n := len(g.tokens.verified); n > maxVerified {
		t.Errorf("%d tokens are kept", n)
	}
}

func TestKeySetThatIsUnsoundIsRefused(t *testing.T) {
	p := newProvider(t)
	whole, _ := os.ReadFile(p.file)
	small, _ := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // that is the point
	p.private["small"] = small
	p.private["p384"], _ = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	p.publish("small", "p384")
	unfit, _ := os.ReadFile(p.file)
	p.publish("ec", "ec")
	twice, _ := os.ReadFile(p.file)
	for what, text := range map[string]string{
		"no JSON": "{", "no keys": `{"keys":[]}`, "only unfit keys": string(unfit), "one id twice": string(twice),
		"a secret": `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"a","alg":"HS256"}]}`, "too many": `{"keys":[` + strings.Repeat(`{"kty":"x"},`, maxKeys) + `{"kty":"x"}]}`,
	} {
		if keys, err := parseKeys([]byte(text)); err == nil {
			t.Errorf("%s: %v", what, keys)
		}
	}
	if keys, err := parseKeys(whole); err != nil || len(keys) != 3 {
		t.Errorf("%v, %v", keys, err)
	}
}

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
	k, _, err := g.directory.CreateKey(t.Context(), tenants.Key{Scope: tenants.ScopeOf(1), TenantName: "acme", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}
	before := store.reads
	for i := range 1000 {
		if _, err := g.Principal(request(t, bearer(fmt.Sprint(k.ID(), "_", i))...)); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	if n := store.reads - before; n > 1 {
		t.Errorf("%d reads", n)
	}
}

func BenchmarkVerification(b *testing.B) {
	p := newProvider(b)
	g, _ := newGuard(b, p)
	_, key, err := g.directory.CreateKey(b.Context(), tenants.Key{Scope: tenants.ScopeOf(1), TenantName: "acme", Role: "viewer"})
	if err != nil {
		b.Fatal(err)
	}
	run := func(name, token string, known bool) {
		b.Run(name, func(b *testing.B) {
			r := request(b, bearer(token)...)
			for b.Loop() {
				if !known {
					clear(g.tokens.verified)
				}
				if _, err := g.Principal(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("key", key, true)
	for id := range methods() {
		token := p.sign(id, header(id), text(good()))
		run(id, token, true)
		run(id+" for the first time", token, false)
	}
}
