//go:build !linux

package clock

import "time"

// Nap sleeps for about that long.
func Nap(d time.Duration) { time.Sleep(d) }
