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
	// Deleting are the tenants whose data is being removed, at most [MaxDeletingTenants]. Nothing of theirs is dispatched.
	Deleting []Deletion `json:"deleting,omitempty"`
	// Changes are the latest changes of the setting. Raised grows when a worker keeps a late writer out.
	Changes []ChangeRef `json:"changes,omitempty"`
	Raised  int64       `json:"raised,omitempty"`
}

// Deletion is a tenant that is being deleted, and by whom.
type Deletion struct {
	Tenant Tenant `json:"tenant"`
	By     Author `json:"by"`
}

// Deletes reports whether a tenant is being deleted.
func (h *DispatchHold) Deletes(t Tenant) bool {
	return slices.ContainsFunc(h.Deleting, func(d Deletion) bool { return d.Tenant == t })
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
	// MaxDeletingTenants bounds the tenants that are being deleted at once.
	MaxDeletingTenants = 100
)

// Holds reports whether a tenant's job with these labels is held.
func (h *DispatchHold) Holds(t Tenant, labels map[string]string) bool {
	own, ok := h.Tenants[t]
	return h.holds(labels) || ok && own.holds(labels) || h.Deletes(t)
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
