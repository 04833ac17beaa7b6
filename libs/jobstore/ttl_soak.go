//go:build soak

package jobstore

import "time"

// HistoryTTL is how long history, dead letters, superseded definitions and ended one-shots are kept, shortened for make soak.
const HistoryTTL = 10 * time.Minute
