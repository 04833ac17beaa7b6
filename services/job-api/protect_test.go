package jobapi

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minutehand/minutehand/libs/settings"
)

func TestNobodyAsksBeyondLoopbackWithoutATokenUnlessSaid(t *testing.T) {
	token := strings.Repeat("x", shortestToken)
	for _, c := range []struct {
		ip, token string
		open      bool
		err       error
		localOnly bool
	}{
		{"127.0.0.1", "", false, nil, true},
		{"::1", "", false, nil, true},
		{"127.0.0.1", token, false, nil, false},
		{"127.0.0.1", token[1:], false, ErrShortToken, false},
		{"0.0.0.0", "", false, ErrOpen, false},
		{"10.0.0.1", "", false, ErrOpen, false},
		{"10.0.0.1", token[1:], true, ErrShortToken, false},
		{"10.0.0.1", "", true, nil, false},
		{"10.0.0.1", token, false, nil, false},
	} {
		cfg, s := DefaultConfig(), Protection{Insecure: c.open}
		if c.token != "" {
			s.TokenFile = settings.SecretFile(filepath.Join(t.TempDir(), "token"))
			if err := os.WriteFile(string(s.TokenFile), []byte(c.token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := s.Protect(&cfg, &net.TCPAddr{IP: net.ParseIP(c.ip)}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, c.err) || cfg.LocalHostsOnly != c.localOnly || err == nil && cfg.AuthToken != c.token {
			t.Errorf("%+v: %v, token %q, local names only: %v", c, err, cfg.AuthToken, cfg.LocalHostsOnly)
		}
	}
}

func TestKeySetOrClientAuthorityProtectsAsWell(t *testing.T) {
	open := &net.TCPAddr{IP: net.ParseIP("10.0.0.1")}
	cfg := DefaultConfig()
	s := Protection{JWTKeys: "keys.json", JWTIssuer: "i", JWTAudience: "a", JWTTenant: "t", JWTRole: "r"}
	if err := s.Protect(&cfg, open, slog.New(slog.DiscardHandler)); err != nil || cfg.open() {
		t.Errorf("a key set: %v", err)
	}
	cfg, s = DefaultConfig(), Protection{ClientCA: "ca.pem"}
	if err := s.Protect(&cfg, open, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrPlain) {
		t.Errorf("client certificates without TLS: %v", err)
	}
}
