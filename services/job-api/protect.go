package jobapi

import (
	"errors"
	"net"
)

// Why an API is not served.
var (
	// ErrShortToken means that the token could be guessed.
	ErrShortToken = errors.New("the token file holds fewer than 16 characters; use a long random token")
	// ErrOpen means that other machines could send requests without a token.
	ErrOpen = errors.New("the address is not a loopback address, and there is no token")
)

// shortestToken is the minimum number of characters of a token.
const shortestToken = 16

// Protect decides which requests an API on an address accepts: those that carry the token. Without a token ("") it accepts
// all: on loopback only by a local name, and beyond loopback only if open says so.
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
