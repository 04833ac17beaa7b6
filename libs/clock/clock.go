// Package clock reads the time of one machine.
//
// The machines of a platform do not agree on the time. If a service compares the time with an instant that another one wrote, it
// must read it from the Clock of its Deps, so that the simulation can give every process its own clock (loadtest/sim).
package clock

import "time"

// MaxDifference is how much two clocks may differ: all promises hold up to that. Machines that ask a time server are a thousand
// times closer.
const MaxDifference = 2 * time.Second

// Clock is the clock of a machine. The zero value, which every main uses, is this machine's own.
type Clock struct{ ahead func() time.Duration }

// Ahead returns a clock that is ahead of this machine's; by how much may change at any time.
func Ahead(by func() time.Duration) Clock { return Clock{by} }

// AheadBy returns a clock that is always ahead by d.
func AheadBy(d time.Duration) Clock { return Ahead(func() time.Duration { return d }) }

// Now returns the time on this clock.
func (c Clock) Now() time.Time { return time.Now().Add(c.Difference()) }

// Difference returns how far this clock is ahead now.
func (c Clock) Difference() time.Duration {
	if c.ahead == nil {
		return 0
	}
	return c.ahead()
}

// Since returns the time since t on this clock.
func (c Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time until t on this clock.
func (c Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
