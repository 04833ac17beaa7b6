//go:build soak

package attempts

import "time"

// Retention is how long an outcome is kept, shortened for make soak.
const Retention = 5 * time.Minute
