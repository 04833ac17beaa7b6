package jobapi

import (
	"errors"
	"net"
)

// Why an API is not served.
var (
	// ErrShortToken means: the token could be guessed.
	ErrShortToken = errors.New("the token file holds fewer than 16 characters; use a long random token")
	// ErrOpen means: others than this machine could ask without a token.
	ErrOpen = errors.New("the address is not a loopback address, and there is no token")
)

// shortestToken is how many characters a token has at least.
const shortestToken = 16

// Protect says who may ask an API that listens on an address: requests that carry the token. Without one ("") everybody may, but
// beyond loopback only if open says so, and on loopback only by a local name.
func (c *Config) Protect(addr net.Addr, token string, open bool) error {
	tcp, ok := addr.(*net.TCPAddr)
	loopback := ok && tcp.IP.IsLoopback()
	if token != "" && len(token) < shortestToken {
		return ErrShortToken
	}
	if token == "" && !loopback && !open {
		return ErrOpen
	}
	c.AuthToken, c.LocalHostsOnly = token, token == "" && loopback
	return nil
}
