package bubble_test

import (
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
)

// On two threads, and with the race detector, this ends the process within a tenth of a second.
func TestManyTimersMayFireAtOneInstant(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				for range 100 {
					a, b := time.NewTimer(time.Second), time.NewTimer(time.Second)
					time.Sleep(time.Second)
					select {
					case <-a.C:
					case <-b.C:
					}
				}
			})
		}
		wg.Wait()
	})
}
