//go:build !soak

package attempts

import "time"

// Retention is how long an outcome is kept.
const Retention = time.Hour
