// Package bubble runs tests in the bubbles of testing/synctest.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// oneThread is taken by the first test of a process that runs in a bubble.
var oneThread = sync.OnceFunc(func() { runtime.GOMAXPROCS(1) })

// Test is synctest.Test, on one thread: all timers of a bubble share one context of the race detector, and two that fire on
// two threads at one instant destroy it (https://github.com/golang/go/issues/78156). A detected race is one of order, which
// takes one thread only. The setting holds until the process ends, since other tests may be in their bubbles already.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	oneThread()
	synctest.Test(t, f)
}
