package sandbox

import (
	"bytes"
	"errors"
	"sync"
)

// streams keep what a program writes to its two streams, up to a limit for both.
type streams struct {
	mu       sync.Mutex
	room     int64
	out, err bytes.Buffer
	// full is called once, when the program has written more than there is room for.
	full func()
}

// stream is one of them.
type stream struct {
	of   *streams
	into *bytes.Buffer
}

var errFull = errors.New("the output is full")

// Write keeps what there is room for.
func (s stream) Write(b []byte) (int, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	n := min(int64(len(b)), s.of.room)
	s.into.Write(b[:n])
	s.of.room -= n
	if n == int64(len(b)) {
		return len(b), nil
	}
	if s.of.full != nil {
		s.of.full()
		s.of.full = nil
	}
	return int(n), errFull
}
