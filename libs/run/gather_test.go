package run

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/bubble"
)

// counted doubles what it is asked, which takes a second, and counts its requests.
func counted(flights, most int) (*Gatherer[string, int, int], *atomic.Int64) {
	var requests atomic.Int64
	return &Gatherer[string, int, int]{Flights: flights, Most: most, Send: func(_ context.Context, _ string, asks []int) ([]int, error) {
		requests.Add(1)
		time.Sleep(time.Second)
		answers := make([]int, len(asks))
		for i, n := range asks {
			if n < 0 {
				return nil, errors.New("asked for less than nothing")
			}
			answers[i] = 2 * n
		}
		return answers, nil
	}}, &requests
}

func TestCallsOfAMomentShareRequests(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, requests := counted(2, 40)
		var wg sync.WaitGroup
		began := time.Now()
		for n := range 100 {
			wg.Go(func() {
				if got, err := g.Do(t.Context(), "", n); err != nil || got != 2*n {
					t.Errorf("%d is answered %d (%v)", n, got, err)
				}
			})
		}
		wg.Wait()
		// Two begin at once, with as many calls as came by then.
		if n, took := requests.Load(), time.Since(began); n > 6 || took > 3*time.Second {
			t.Errorf("%d requests in %s, want at most 6 in 3 s", n, took)
		}
	})
}

func TestACallDoesNotWaitForAnotherKind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, _ := counted(1, 10)
		go g.Do(t.Context(), "slow", 1) //nolint:errcheck // only keeps its kind busy
		synctest.Wait()
		began := time.Now()
		if got, err := g.Do(t.Context(), "other", 4); err != nil || got != 8 || time.Since(began) > time.Second {
			t.Errorf("answered %d (%v) after %s", got, err, time.Since(began))
		}
	})
}

func TestAFailureIsToldToAllOfARequest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, _ := counted(1, 10)
		go g.Do(t.Context(), "", 1) //nolint:errcheck // only makes the others wait for the next request
		synctest.Wait()
		var failed atomic.Int64
		var wg sync.WaitGroup
		for _, n := range []int{-1, 2, 3} {
			wg.Go(func() {
				if _, err := g.Do(t.Context(), "", n); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		if failed.Load() != 3 {
			t.Errorf("%d of 3 failed", failed.Load())
		}
		if got, err := g.Do(t.Context(), "", 5); err != nil || got != 10 {
			t.Errorf("afterwards it answers %d (%v)", got, err)
		}
	})
}

func TestACallWaitsNoLongerThanItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, _ := counted(1, 10)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := g.Do(ctx, "", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("returned %v", err)
		}
		time.Sleep(2 * time.Second)
	})
}

func TestACallThatNobodyWaitsForIsNotMade(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, requests := counted(1, 10)
		go g.Do(t.Context(), "", 1) //nolint:errcheck // only makes the other wait
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := g.Do(ctx, "", 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("returned %v", err)
		}
		time.Sleep(3 * time.Second)
		if n := requests.Load(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	})
}

func TestAMissingAnswerFailsItsRequest(t *testing.T) {
	g := &Gatherer[string, int, int]{Flights: 1, Most: 10, Send: func(context.Context, string, []int) ([]int, error) { return nil, nil }}
	if _, err := g.Do(t.Context(), "", 1); err == nil {
		t.Error("no answer counts as one")
	}
}
