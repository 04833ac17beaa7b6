// Package clock tells the time of one machine.
//
// The machines of a platform do not agree on the time. Whatever a service compares with an instant that another one
// wrote, it must read from the Clock of its Deps, so that the simulation can give every process a clock of its own
// (loadtest/sim).
package clock

import "time"

// MaxDifference is by how much two clocks may differ: what is promised holds up to that. Machines that ask a time server
// are a thousand times closer.
const MaxDifference = 2 * time.Second

// Clock is that of a machine. The zero value, which every main uses, is this machine's own.
type Clock struct{ ahead func() time.Duration }

// Ahead is a clock that is ahead of this machine's: by how much may change at any time.
func Ahead(by func() time.Duration) Clock { return Clock{by} }

// AheadBy is a clock that always is ahead by so much.
func AheadBy(d time.Duration) Clock { return Ahead(func() time.Duration { return d }) }

// Now is the time on this clock.
func (c Clock) Now() time.Time { return time.Now().Add(c.Difference()) }

// Difference is by how much this clock is ahead now.
func (c Clock) Difference() time.Duration {
	if c.ahead == nil {
		return 0
	}
	return c.ahead()
}

// Since is how long ago t was on this clock.
func (c Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until is how far ahead t is on this clock.
func (c Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
