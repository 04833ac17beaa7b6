package jobapi

import (
	"errors"
	"net"
	"strings"
	"testing"
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
		cfg := DefaultConfig()
		err := cfg.Protect(&net.TCPAddr{IP: net.ParseIP(c.ip)}, c.token, c.open)
		if !errors.Is(err, c.err) || cfg.LocalHostsOnly != c.localOnly || err == nil && cfg.AuthToken != c.token {
			t.Errorf("%+v: %v, token %q, local names only: %v", c, err, cfg.AuthToken, cfg.LocalHostsOnly)
		}
	}
}
