package clock

import (
	"errors"
	"syscall"
	"time"
)

// Nap sleeps in a thread of its own instead of a timer of the Go scheduler, for about that long or until a signal comes. A timer fires
// on the full milliseconds that its thread waits for the network, half of one late on average; a thread is woken within a tenth.
func Nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	if err := syscall.Nanosleep(&t, nil); err != nil && !errors.Is(err, syscall.EINTR) {
		time.Sleep(d)
	}
}
