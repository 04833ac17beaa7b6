package pools_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/pools"
)

// While the store is away, a process uses the limits that it read last, and polls do not wait for the store.
func TestLimitsAreKnownWhileTheStoreIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := &away{values: map[string][]byte{pools.SettingOf(3): []byte(`{"pools":{"work":{"max_running":2}}}`)}}
		known, p := pools.Known{Store: store, Clock: clock.Clock{}}, pools.Pool{Tenant: 3, Name: "work"}
		store.err = errors.New("connection refused")
		if _, err := known.Of(t.Context(), p); err == nil {
			t.Error("nothing is known, and that is no error")
		}
		store.err = nil
		for range 3 {
			s, err := known.Of(t.Context(), p)
			if err != nil || s.MaxRunning == nil || *s.MaxRunning != 2 || store.reads != 2 {
				t.Fatalf("%+v, %v after %d reads", s, err, store.reads)
			}
			other, err := known.Of(t.Context(), pools.Pool{Tenant: 3, Name: "other"})
			if err != nil || !other.Empty() {
				t.Errorf("of another pool %+v is known", other)
			}
		}
		// Who gives up while it reads keeps the others from nothing.
		store.values[pools.SettingOf(3)], store.takes = []byte(`{"pools":{"work":{"max_running":5}}}`), time.Second
		time.Sleep(pools.KnownFor)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if s, err := known.Of(ctx, p); err != nil || *s.MaxRunning != 5 {
			t.Errorf("after a change %+v is known, %v", s, err)
		}
		store.err, store.takes = errors.New("connection refused"), time.Hour
		time.Sleep(pools.KnownFor)
		go func() { _, _ = known.Of(t.Context(), p) }() // it reads, and is stuck
		time.Sleep(time.Second)
		began := time.Now()
		if s, err := known.Of(t.Context(), p); err != nil || s.MaxRunning == nil || *s.MaxRunning != 5 || time.Since(began) > 0 {
			t.Errorf("after %s %+v is known, %v", time.Since(began), s, err)
		}
		time.Sleep(time.Hour)
	})
}

// away is a store of settings that may be away, or slow.
type away struct {
	values map[string][]byte
	err    error
	takes  time.Duration
	reads  int
}

func (a *away) Setting(ctx context.Context, name string) ([]byte, error) {
	a.reads++
	select {
	case <-time.After(a.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return a.values[name], a.err
}
