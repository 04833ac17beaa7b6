// Package access finds out who makes a request, and what they may do: by a JWT of an identity provider, an API key, a client's
// certificate, or the one token of an installation that has nothing else.
//
// It promises: a principal is what a verified credential says, and nothing else. The algorithm of a token comes from the key that
// verifies it. A refusal tells nothing but that the credential was not accepted. Credentials are neither logged nor kept in memory in
// the form in which they were sent, and what is kept is bounded.
package access

import (
	"slices"

	"github.com/minutehand/minutehand/libs/job"
)

// Role is what a principal may do; each role may do all that the ones before it may.
type Role int

// The roles. NoRole may do nothing.
const (
	NoRole Role = iota
	// Viewer reads.
	Viewer
	// Operator also stops, resumes and starts what is there.
	Operator
	// Editor also creates, changes and deletes jobs.
	Editor
	// Admin also makes and revokes keys; that of the installation also makes and deletes tenants.
	Admin
)

func names() []string { return []string{"none", "viewer", "operator", "editor", "admin"} }

// String returns the role's name.
func (r Role) String() string { return names()[r] }

// ParseRole returns the role with a name; NoRole if there is none.
func ParseRole(name string) Role { return Role(max(slices.Index(names(), name), 0)) }

// Principal is who makes a request.
type Principal struct {
	// Subject names the principal among those of its kind: a key's id, the sub of a token, a certificate's name.
	Subject string
	Role    Role
	// Installation is set for a principal of the whole installation, which acts for any tenant.
	Installation bool
	// Tenant is the one that the principal acts for, and TenantName its name.
	Tenant     job.Tenant
	TenantName string
	// Chosen is set if a principal of the installation has named the tenant that it acts for.
	Chosen bool
}

// Local is the principal where nothing is configured: everybody who reaches the API.
func Local() Principal { return Principal{Subject: "local", Role: Admin, Installation: true} }
