// Package e2e tests the promises of the whole platform: in bubbles of fake time, and with the real binary.
package e2e

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// bubble runs a scenario on a started world and checks the invariants at its end.
func bubble(t *testing.T, settle time.Duration, scenario func(w *world.World)) {
	t.Helper()
	world.Run(t, settle, func(w *world.World) {
		w.Configure = calm
		w.Start()
		scenario(w)
	})
}

// calm polls less often, so that fake days cost less; hints keep everything on time.
func calm(c *platform.Config) { c.Worker.PollInterval = 1900 * time.Millisecond }

func TestJobFiresOnTimeAndIsOnRecord(t *testing.T) {
	bubble(t, time.Minute, func(w *world.World) {
		at := time.Now().Add(90 * time.Second)
		once := w.Create(world.Job("once", "ok", map[string]any{"type": "one_shot", "run_at": at}))
		every := w.Create(world.Job("every", "ok", map[string]any{"type": "cron", "cron_expr": "*/10 * * * * *"}))
		time.Sleep(5*time.Minute - time.Second)
		calls := w.Targets.CallsOf(once)
		if len(calls) != 1 || !calls[0].At.Equal(at) {
			t.Errorf("one_shot for %s was called %v", at, calls)
		}
		if n := len(w.Targets.CallsOf(every)); n != 30 {
			t.Errorf("a job of every ten seconds was called %d times in five minutes, want 30", n)
		}
		x := w.Executions(once)
		if len(x) != 1 || x[0]["state"] != "succeeded" || x[0]["lateness_ms"] != 0.0 {
			t.Errorf("executions: %v", x)
		}
		if n := len(w.Executions(every)); n != 30 {
			t.Errorf("%d executions on record", n)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestCronFiresOnceADayOverAChangeOfTheClocks(t *testing.T) {
	t.Parallel()
	// A bubble begins on 2000-01-01: New York changes on 2 April, London on 26 March.
	for zone, change := range map[string]time.Time{
		"America/New_York": time.Date(2000, 4, 2, 0, 0, 0, 0, time.UTC),
		"Europe/London":    time.Date(2000, 3, 26, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(zone, func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				// New York leaves out 07:00 to 08:00 UTC of its night, London 01:00 to 02:00; a day later the hour is before.
				start := change.Add(5 * time.Hour)
				if zone == "Europe/London" {
					start = change.Add(-time.Hour)
				}
				world.Until(start.Add(-time.Hour)) // nothing runs yet, so this costs nothing
				w.Configure = calm
				w.Start()
				expr := "30 2 * * *"
				if zone == "Europe/London" {
					expr = "30 1 * * *"
				}
				id := w.Create(world.Job("daily", "ok", map[string]any{
					"type": "cron", "cron_expr": expr, "timezone": zone, "start_at": start,
				}))
				world.Until(start.Add(4 * time.Hour)) // the night of the change
				w.Stop()
				world.Until(start.Add(24 * time.Hour))
				w.Start()
				world.Until(start.Add(27 * time.Hour)) // and the one after it
				loc, err := time.LoadLocation(zone)
				if err != nil {
					t.Fatal(err)
				}
				days := map[int]int{}
				for _, c := range w.Targets.CallsOf(id) {
					days[c.At.In(loc).Day()]++
				}
				if len(days) != 2 {
					t.Errorf("fired on %d days of two: %v", len(days), days)
				}
				for day, n := range days {
					if n != 1 {
						t.Errorf("fired %d times on day %d", n, day)
					}
				}
			})
		})
	}
}

func TestTargetThatIsDownForAnHourIsRetriedAndThenReached(t *testing.T) {
	bubble(t, 3*time.Hour, func(w *world.World) {
		up := time.Now().Add(time.Hour)
		w.Targets.Set("down", func(*http.Request, ledger.Call) (int, error) {
			if time.Now().Before(up) {
				return 0, errors.New("connection refused")
			}
			return http.StatusOK, nil
		})
		id := w.Create(world.Job("patient", "down", map[string]any{
			"type": "one_shot", "delay": "10s",
			"retry_policy": map[string]any{"max_attempts": 20, "base_delay": "1m", "max_delay": "10m", "window": "6h"},
		}))
		given := w.Create(world.Job("impatient", "down", map[string]any{
			"type": "one_shot", "delay": "10s",
			"retry_policy": map[string]any{"max_attempts": 3, "base_delay": "1s", "jitter": 0},
		}))
		time.Sleep(4 * time.Hour)
		x := w.Executions(id)
		if len(x) != 1 || x[0]["state"] != "succeeded" {
			t.Errorf("patient job: %v", x)
		}
		if n := len(w.Targets.CallsOf(given)); n != 3 {
			t.Errorf("impatient job was called %d times, want 3", n)
		}
		if x := w.Executions(given); len(x) != 1 || x[0]["state"] != "dead" {
			t.Errorf("impatient job: %v", x)
		}
		letters := w.Must(http.StatusOK, http.MethodGet, "/dead-letters", nil)
		if items, _ := letters["items"].([]any); len(items) != 1 {
			t.Errorf("dead letters: %v", letters)
		}
	})
}

func TestMissedRunsFollowTheirPolicyAfterDowntime(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy  string
		members map[string]any
		calls   int // at the first ten minutes after the downtime
	}{
		{"skip", nil, 0},
		{"fire_once", nil, 1},
		{"backfill", map[string]any{"max_backfill": 5}, 5},
		{"backfill", nil, 12},
	} {
		t.Run(test.policy, func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				w.Configure = calm
				w.Start()
				members := map[string]any{"type": "interval", "every": "10m", "missed_run_policy": test.policy}
				for k, v := range test.members {
					members[k] = v
				}
				id := w.Create(world.Job("missed", "ok", members))
				created := time.Now()
				time.Sleep(25 * time.Minute) // fires at 10 and 20
				w.Stop()
				world.Until(created.Add(145 * time.Minute)) // missed 30 … 140: twelve of them
				before := len(w.Targets.CallsOf(id))
				w.Start()
				time.Sleep(4 * time.Minute)
				if n := len(w.Targets.CallsOf(id)) - before; n != test.calls {
					t.Errorf("%d missed occurrences were fired, want %d", n, test.calls)
				}
				time.Sleep(30 * time.Minute)
				if n := len(w.Targets.CallsOf(id)) - before - test.calls; n != 3 {
					t.Errorf("%d occurrences were fired in the half hour after, want 3", n)
				}
			})
		})
	}
}

func TestPausedJobIsQuietAndResumesByItsPolicy(t *testing.T) {
	bubble(t, time.Minute, func(w *world.World) {
		skip := w.Create(world.Job("skip", "ok", map[string]any{
			"type": "interval", "every": "1m", "missed_run_policy": "skip",
		}))
		all := w.Create(world.Job("all", "ok", map[string]any{
			"type": "interval", "every": "1m", "missed_run_policy": "backfill",
		}))
		time.Sleep(90 * time.Second)
		w.Pause(skip)
		w.Pause(all)
		time.Sleep(10 * time.Minute)
		for _, id := range []string{skip, all} {
			if n := len(w.Targets.CallsOf(id)); n != 2 {
				t.Errorf("%d calls before the resume, want 2", n)
			}
		}
		w.Resume(skip)
		w.Resume(all)
		time.Sleep(10 * time.Minute)
		if n := len(w.Targets.CallsOf(skip)); n < 12 || n > 13 {
			t.Errorf("skip: %d calls, want those of the last ten minutes", n)
		}
		if n := len(w.Targets.CallsOf(all)); n != 22 {
			t.Errorf("backfill: %d calls, want every minute's", n)
		}
	})
}

func TestHangingTargetIsTimedOutAndDeferredWithoutHarmToOthers(t *testing.T) {
	t.Parallel()
	a := world.Run(t, 20*time.Minute, func(w *world.World) {
		w.Configure = func(c *platform.Config) {
			calm(c)
			c.Executor.HostConcurrency, c.Executor.HostWaiting = 4, 10
		}
		w.Targets.Set("hangs", world.Hang)
		w.Start()
		for range 40 {
			w.Create(world.Job("hangs", "hangs", map[string]any{
				"type": "one_shot", "delay": "10s", "retry_policy": map[string]any{"max_attempts": 1},
			}))
		}
		healthy := w.Create(world.Job("healthy", "ok", map[string]any{"type": "interval", "every": "1s"}))
		time.Sleep(30 * time.Minute)
		for _, c := range w.Targets.CallsOf(healthy) {
			if late := c.At.Sub(c.ScheduledFor); late > 100*time.Millisecond {
				t.Fatalf("the healthy target was called %s late", late)
			}
		}
	})
	if n := len(a.DeadLetters); n != 40 {
		t.Errorf("%d of 40 hanging calls were given up", n)
	}
}

func TestFireThatKillsItsExecutorEnds(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = calm
		w.Targets.Set("poison", world.Hang)
		w.Start()
		id := w.Create(world.Job("poison", "poison", map[string]any{
			"type": "one_shot", "delay": "10s", "target": map[string]any{
				"kind": "http_webhook", "url": "http://poison/", "timeout": "5m",
			}, "retry_policy": map[string]any{"max_attempts": 1},
		}))
		for range 6 {
			time.Sleep(time.Minute) // the call begins, and its process dies
			w.Kill()
			w.Start()
		}
		time.Sleep(6 * time.Minute)
		x := w.Executions(id)
		if len(x) != 1 || x[0]["state"] != "dead" {
			t.Errorf("executions: %v", x)
		}
		if n := len(w.Targets.CallsOf(id)); n > 4 {
			// Three counted deaths, and the first of all, which may go uncounted.
			t.Errorf("the poisonous fire was called %d times, want 4 at most", n)
		}
	})
}

func TestNothingThatWasStoppedBeginsAfterTheAnswer(t *testing.T) {
	// Each stop is acknowledged at a random instant from 90 s before to 1 s after an occurrence of its job.
	world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = calm
		w.Targets.Set("new", nil)
		w.Start()
		random := rand.New(rand.NewPCG(1, 2))
		base := time.Now().Add(3 * time.Minute)
		var group sync.WaitGroup
		for i := range 400 {
			id := w.Create(world.Job("stop", "old", map[string]any{
				"type": "interval", "every": "5m", "start_at": base, "missed_run_policy": "skip",
			}))
			before := 90 * time.Second
			if i%8 >= 4 {
				before = 2500 * time.Millisecond // half of them where a worker has taken the entry already
			}
			at := base.Add(-before + time.Duration(random.Int64N(int64(before+time.Second))))
			group.Go(func() {
				world.Until(at)
				switch i % 4 {
				case 0:
					w.Cancel(id)
				case 1:
					w.Delete(id)
				case 2:
					w.Pause(id)
					time.Sleep(time.Duration(i%60) * 10 * time.Second)
					w.Resume(id)
				case 3:
					w.Patch(id, "old", map[string]any{"target": map[string]any{"url": "http://new/hook"}})
				}
			})
		}
		group.Wait()
		time.Sleep(20 * time.Minute)
	})
}

func TestEveryAcknowledgedJobFiresAfterThePowerIsLost(t *testing.T) {
	t.Parallel()
	world.Run(t, 2*time.Minute, func(w *world.World) {
		w.Configure = calm
		w.Start()
		for i := range 20 {
			w.Create(world.Job("cron", "ok", map[string]any{"type": "cron", "cron_expr": "*/7 * * * * *"}))
			w.Create(world.Job("once", "ok", map[string]any{"type": "one_shot", "delay": "95s"}))
			w.Create(world.Job("late", "ok", map[string]any{
				"type": "interval", "every": "40s", "missed_run_policy": []string{"skip", "fire_once", "backfill"}[i%3],
			}))
			time.Sleep(1300 * time.Millisecond)
			w.Crash()
			if i%5 == 4 {
				time.Sleep(3 * time.Minute)
			}
			w.Start()
		}
		time.Sleep(12 * time.Minute)
	})
}
