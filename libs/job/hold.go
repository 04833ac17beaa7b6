package job

import (
	"slices"
	"strings"
)

// DispatchHold is what an operator has kept from being dispatched. Held entries stay due, and follow their missed-run policy when
// the hold is lifted.
type DispatchHold struct {
	All bool `json:"all"`
	// Labels are NAME=VALUE, or NAME for any value.
	Labels []string `json:"labels"`
}

// MaxHeldLabels bounds the labels of a hold.
const MaxHeldLabels = 100

// Holds reports whether a job with these labels is held.
func (h *DispatchHold) Holds(labels map[string]string) bool {
	return h.All || len(h.Labels) > 0 && slices.ContainsFunc(h.Labels, func(l string) bool { return HasLabel(labels, l) })
}

// HasLabel reports whether a label, given as NAME=VALUE or NAME, is among labels.
func HasLabel(labels map[string]string, label string) bool {
	name, want, exact := strings.Cut(label, "=")
	value, ok := labels[name]
	return ok && (!exact || value == want)
}
