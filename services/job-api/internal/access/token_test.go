package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
)

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
	bubble.Test(t, func(t *testing.T) {
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
	bubble.Test(t, func(t *testing.T) {
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
