package job

import (
	"errors"
	"fmt"
	"strconv"
)

// Tenant is the number by which stores, entries, fires and events name a tenant. It is given out once and never again; its name,
// by which clients know it, is in the directory (libs/tenants).
type Tenant uint32

// DefaultTenant is the tenant of an installation that has no others. It exists always.
const DefaultTenant Tenant = 0

// defaultText is what stands for the default tenant in stores, from before there were others.
const defaultText = "default"

// String returns the form in which stores keep the number: "default", or eight hexadecimal digits.
func (t Tenant) String() string {
	if t == DefaultTenant {
		return defaultText
	}
	return fmt.Sprintf("%08x", uint32(t))
}

// ParseTenant returns the tenant that String has written. Nothing at all stands for the default tenant.
func ParseTenant(text string) (Tenant, error) {
	if text == "" || text == defaultText {
		return DefaultTenant, nil
	}
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || len(text) != 8 || n == 0 {
		return 0, errors.New("not a tenant's number")
	}
	return Tenant(n), nil
}
