//go:build !soak

package jobstore

import "time"

// HistoryTTL is how long history, dead letters, superseded definitions and ended one-shots are kept.
const HistoryTTL = 30 * 24 * time.Hour
