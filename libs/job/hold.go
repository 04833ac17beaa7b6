package job

import (
	"slices"
	"strings"
)

// DispatchHold is what operators have kept from being dispatched. Held entries stay due, and follow their missed-run policy when
// the hold is lifted.
type DispatchHold struct {
	// Hold is that of the whole installation.
	Hold
	// Tenants are the holds of single tenants, at most [MaxHoldingTenants].
	Tenants map[Tenant]Hold `json:"tenants,omitempty"`
}

// Hold is what one operator has kept from being dispatched.
type Hold struct {
	All bool `json:"all"`
	// Labels are NAME=VALUE, or NAME for any value; at most [MaxHeldLabels].
	Labels []string `json:"labels"`
}

const (
	// MaxHeldLabels bounds the labels of a hold.
	MaxHeldLabels = 100
	// MaxHoldingTenants bounds the tenants that hold something at once.
	MaxHoldingTenants = 1000
)

// Holds reports whether a tenant's job with these labels is held.
func (h *DispatchHold) Holds(t Tenant, labels map[string]string) bool {
	own, ok := h.Tenants[t]
	return h.holds(labels) || ok && own.holds(labels)
}

func (h *Hold) holds(labels map[string]string) bool {
	return h.All || len(h.Labels) > 0 && slices.ContainsFunc(h.Labels, func(l string) bool { return HasLabel(labels, l) })
}

// HasLabel reports whether a label, given as NAME=VALUE or NAME, is among labels.
func HasLabel(labels map[string]string, label string) bool {
	name, want, exact := strings.Cut(label, "=")
	value, ok := labels[name]
	return ok && (!exact || value == want)
}
