package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// slowHost is a target that takes a second for each call, and receives two at a time.
const (
	slowHost  = "slow"
	slowTakes = time.Second
	slowAtOne = 2
)

func slowly(w *world.World) {
	w.Configure = func(c *platform.Config) {
		calm(c)
		c.Worker.Window, c.Executor.HostConcurrency = 10, slowAtOne
	}
	w.Targets.Set(slowHost, func(*http.Request, ledger.Call) (int, error) {
		time.Sleep(slowTakes)
		return http.StatusOK, nil
	})
}

// deferred returns how many fires went back to the cold store.
func deferred(w *world.World) float64 {
	w.T.Helper()
	families, err := w.Metrics.Gather()
	if err != nil {
		w.T.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "minutehand_executor_deferred_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	w.T.Fatal("there is no such metric")
	return 0
}

// An entry that waits for its target's capacity for longer than its catch-up window is not missed, and a crash meanwhile
// does not change that. Meanwhile schedules go on, and other targets are called on time.
func TestStampedeThatASlowTargetTakesMinutesForMissesNothing(t *testing.T) {
	for name, crash := range map[string]bool{"undisturbed": false, "a crash in the middle": true} {
		t.Run(name, func(t *testing.T) {
			world.Run(t, 2*time.Minute, func(w *world.World) {
				slowly(w)
				w.Start()
				const stampede, chains = 240, 4
				at := time.Now().Add(20 * time.Second)
				var once, every []string
				for i := range stampede {
					policy := []string{"skip", "fire_once", "backfill"}[i%3]
					once = append(once, w.Create(world.Job("once", slowHost, map[string]any{
						"type": "one_shot", "run_at": at, "missed_run_policy": policy, "catch_up_window": "25s",
					})))
				}
				for range chains {
					every = append(every, w.Create(world.Job("every", slowHost, map[string]any{
						"type": "interval", "every": "20s", "start_at": at, "max_occurrences": 8, "missed_run_policy": "skip", "catch_up_window": "25s",
					})))
				}
				other := w.Create(world.Job("other", "ok", map[string]any{"type": "cron", "cron_expr": "* * * * * *"}))
				world.Until(at.Add(70 * time.Second))
				if n := len(w.Targets.CallsOf(every[0])); n > 4 {
					t.Errorf("the target is not as slow as it should be: %d calls of one schedule", n)
				}
				if crash {
					w.Kill()
					w.Start()
				}
				world.Until(at.Add(4 * time.Minute))
				for i, id := range once {
					if n := len(w.Targets.CallsOf(id)); n == 0 || n > 1 && !crash {
						t.Errorf("one-shot %d was called %d times", i, n)
					}
				}
				for i, id := range every {
					instants := map[time.Time]bool{}
					for _, c := range w.Targets.CallsOf(id) {
						instants[c.ScheduledFor] = true
					}
					if len(instants) != 8 {
						t.Errorf("schedule %d was called for %d of its 8 instants", i, len(instants))
					}
				}
				late := 0
				for _, c := range w.Targets.CallsOf(other) {
					if c.At.Sub(c.ScheduledFor) > 100*time.Millisecond {
						late++
					}
				}
				if late > 0 && !crash {
					t.Errorf("another target was called late %d times", late)
				}
				if n := deferred(w); n > 30 {
					t.Errorf("%v fires were deferred", n)
				}
			})
		})
	}
}

func TestWhatWaitsForItsTargetIsNotCalledOnceItWasStopped(t *testing.T) {
	world.Run(t, 2*time.Minute, func(w *world.World) {
		slowly(w)
		w.Start()
		at := time.Now().Add(10 * time.Second)
		var ids []string
		for range 100 {
			ids = append(ids, w.Create(world.Job("once", slowHost, map[string]any{"type": "one_shot", "run_at": at})))
		}
		world.Until(at.Add(5 * time.Second))
		stopped := map[string]time.Time{}
		for i, id := range ids {
			if len(w.Targets.CallsOf(id)) > 0 {
				continue
			}
			switch i % 3 {
			case 0:
				w.Cancel(id)
			case 1:
				w.Delete(id)
			case 2:
				w.Pause(id)
			}
			stopped[id] = time.Now()
			time.Sleep(10 * time.Millisecond)
		}
		if len(stopped) < 80 {
			t.Errorf("only %d waited", len(stopped))
		}
		time.Sleep(3 * time.Minute)
		for _, c := range w.Targets.Calls() {
			if at, ok := stopped[c.JobID]; ok && c.At.After(at) {
				t.Errorf("%s was stopped at %s and called at %s", c.JobID, at, c.At)
			}
		}
	})
}

// By then a worker has taken the old definition's entry. Its fire is refused, and another entry exists for the same
// instant.
func TestUpdateRightBeforeAnInstantLeavesNothingPendingAndDelaysNothing(t *testing.T) {
	bubble(t, time.Minute, func(w *world.World) {
		at := time.Now().Add(30 * time.Second)
		once := w.Create(world.Job("once", "old", map[string]any{"type": "one_shot", "run_at": at}))
		every := w.Create(world.Job("every", "old", map[string]any{"type": "interval", "every": "10s", "start_at": at}))
		world.Until(at.Add(-time.Second))
		target := map[string]any{"url": "http://new/hook"}
		w.Patch(once, "old", map[string]any{"run_at": at.Add(10 * time.Second), "target": target})
		w.Patch(every, "old", map[string]any{"target": target})
		world.Until(at.Add(time.Minute))
		for name, id := range map[string]string{"one-shot": once, "schedule": every} {
			for _, x := range w.Executions(id) {
				if x["disposition"] != "fired" || x["state"] != "succeeded" {
					t.Errorf("an execution of the %s is left as %v", name, x)
				}
			}
			for _, c := range w.Targets.CallsOf(id) {
				if late := c.At.Sub(c.ScheduledFor); late > 50*time.Millisecond {
					t.Errorf("the %s was called %s late", name, late)
				}
			}
		}
		if j := w.Must(http.StatusOK, http.MethodGet, "/jobs/"+once, nil); j["status"] != "completed" {
			t.Errorf("the one-shot is %v", j["status"])
		}
	})
}
