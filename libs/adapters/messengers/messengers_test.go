package messengers_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/minutehand/minutehand/libs/adapters/messengers"
)

func TestBrokersHaveABoundedNumberOfConnections(t *testing.T) {
	failing := false
	dial := messengers.AtMost(func(context.Context, string, string) (net.Conn, error) {
		if failing {
			return nil, net.ErrClosed
		}
		c, _ := net.Pipe()
		return c, nil
	}, 2)
	open := func() net.Conn {
		t.Helper()
		c, err := dial(t.Context(), "tcp", "a:1")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open(), open()
	if _, err := dial(t.Context(), "tcp", "a:1"); !errors.Is(err, messengers.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	for range 2 {
		_ = a.Close() // the second time it counts no more
	}
	failing = true
	if _, err := dial(t.Context(), "tcp", "a:1"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	failing = false
	a = open()
	if _, err := dial(t.Context(), "tcp", "a:1"); !errors.Is(err, messengers.ErrTooMany) {
		t.Errorf("one more again: %v", err)
	}
	_, _ = a.Close(), b.Close()
}
