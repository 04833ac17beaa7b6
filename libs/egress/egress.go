// Package egress keeps calls to addresses that tenants choose from reaching what is behind the firewall.
//
// It promises: a guarded dialer connects to public addresses only. It judges the address that is dialled, after the name was resolved, so a name
// that changes its address in between gets around nothing; there must be no proxy.
package egress

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"code.dny.dev/ssrf"
)

// azureWireServer answers with credentials on Azure's hosts. It is a public address, so the guard's lists do not include it.
const azureWireServer = "168.63.129.16/32"

// Dialer returns a dialer that refuses addresses that are loopback, private or otherwise not public, unless they are allowed.
func Dialer(allowPrivate bool) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if !allowPrivate {
		d.Control = ssrf.New(ssrf.WithAnyPort(), ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix(azureWireServer))).Safe
	}
	return d
}

// Refused reports whether an error is a guarded dialer's refusal.
func Refused(err error) bool {
	return errors.Is(err, ssrf.ErrProhibitedIP) || errors.Is(err, ssrf.ErrProhibitedNetwork)
}
