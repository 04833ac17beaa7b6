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

// Clock is by how much the clock of a machine is ahead of that of this one. The zero value, which every main uses, is
// the machine's own.
type Clock time.Duration

// Now is the time on this clock.
func (c Clock) Now() time.Time { return time.Now().Add(time.Duration(c)) }

// Since is how long ago t was on this clock.
func (c Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until is how far ahead t is on this clock.
func (c Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
