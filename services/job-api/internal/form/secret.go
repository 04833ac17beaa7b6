package form

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/minutehand/minutehand/services/job-api/internal/edge"
)

// mask replaces, in answers, the value of a header that looks like a secret.
const mask = "********"

// secretHeader matches the names of headers whose values are not shown again.
var secretHeader = regexp.MustCompile(`(?i)auth|cookie|credential|key|pass|secret|session|signature|token`)

// masked returns a target's headers as answers show them.
func masked(headers map[string]string) map[string]string {
	var shown map[string]string
	for name := range headers {
		if !secretHeader.MatchString(name) {
			continue
		}
		if shown == nil {
			shown = maps.Clone(headers)
		}
		shown[name] = mask
	}
	if shown == nil {
		return headers
	}
	return shown
}

// unmask replaces masks by the current values: a client may send back what it was shown.
func (l *faultList) unmask(at string, headers, standing map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if headers[name] != mask || !secretHeader.MatchString(name) {
			continue
		}
		found := false
		for former, value := range standing {
			if strings.EqualFold(former, name) {
				headers[name], found = value, true
			}
		}
		l.add(found, at+edge.Pointer([]string{name}), "masked",
			"This is what answers show in place of a secret, and no such header stands here; send the value itself.")
	}
}
