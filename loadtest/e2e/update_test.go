package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/occurrence"
	"github.com/minutehand/minutehand/libs/schedule"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
	platform "github.com/minutehand/minutehand/services/all-in-one"
)

// An update a second before an instant that both definitions have: the old one's entry is taken already.

func TestUpdateRightBeforeASharedInstantHandsOverToTheNewSchedule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from, to string
		calls    int // of the new target, in the two hours from the shared instant on
	}{
		"from hours to minutes": {"0 * * * *", "* * * * *", 121},
		"from minutes to hours": {"* * * * *", "0 * * * *", 3},
	} {
		t.Run(name, func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				w.Start()
				id := w.Create(world.Job("j", "old", map[string]any{"type": "cron", "cron_expr": c.from}))
				time.Sleep(59*time.Minute + 59*time.Second)
				w.Patch(id, "old", map[string]any{
					"cron_expr": c.to, "target": map[string]any{"kind": "http_webhook", "url": "http://new/"},
				})
				time.Sleep(2*time.Hour + 30*time.Second)
				if n := callsOf(w, id, "new"); n != c.calls {
					t.Errorf("the new target was called %d times, want %d", n, c.calls)
				}
			})
		})
	}
}

func callsOf(w *world.World, id, host string) (n int) {
	for _, c := range w.Targets.CallsOf(id) {
		if c.Host == host {
			n++
		}
	}
	return n
}

func TestRetriesAfterAnUpdateFollowTheDefinitionThatWasInvoked(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		w.Targets.Set("new", func(*http.Request, ledger.Call) (int, error) { return http.StatusInternalServerError, nil })
		var ids []string
		for i := range 30 {
			ids = append(ids, w.Create(world.Job(fmt.Sprint("j", i), "old", map[string]any{
				"type": "cron", "cron_expr": "0 1-23 * * *", "retry_policy": map[string]any{"max_attempts": 5, "base_delay": "10s"},
			})))
		}
		time.Sleep(59*time.Minute + 59*time.Second)
		for _, id := range ids {
			w.Patch(id, "old", map[string]any{
				"retry_policy": map[string]any{"max_attempts": 1},
				"target":       map[string]any{"kind": "http_webhook", "url": "http://new/"},
			})
		}
		time.Sleep(30 * time.Minute)
		for _, id := range ids {
			if old, calls := callsOf(w, id, "old"), callsOf(w, id, "new"); old != 0 || calls != 1 {
				t.Errorf("%d calls of the old target and %d of the new one, want 0 and 1", old, calls)
			}
		}
	})
}

func TestUpdateThatNeverCameToBeLeavesNothing(t *testing.T) {
	t.Run("of two at once", func(t *testing.T) {
		world.Run(t, time.Minute, func(w *world.World) {
			w.Start()
			var ids []string
			for range 100 {
				ids = append(ids, w.Create(world.Job("j", "ok", map[string]any{"type": "cron", "cron_expr": "*/10 * * * *"})))
			}
			time.Sleep(5 * time.Minute)
			for _, id := range ids {
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() { w.Do(http.MethodPatch, "/jobs/"+id, map[string]any{"name": "b"}, "If-Match", "*") })
				}
				wg.Wait()
			}
			time.Sleep(12 * time.Minute)
			wantNoDeadLetters(t, w)
		})
	})
	t.Run("cut short and repeated", func(t *testing.T) {
		world.Run(t, time.Minute, func(w *world.World) {
			w.Start()
			id := w.Create(world.Job("j", "ok", map[string]any{"type": "cron", "cron_expr": "*/10 * * * *"}))
			time.Sleep(5 * time.Minute)
			leaveHalfAnUpdate(t, w, id)
			time.Sleep(time.Second)
			w.Patch(id, "x", map[string]any{"name": "again"})
			time.Sleep(12 * time.Minute)
			wantNoDeadLetters(t, w)
		})
	})
}

// leaveHalfAnUpdate leaves behind the state of an update that dies between its entry and the job's row.
func leaveHalfAnUpdate(t *testing.T, w *world.World, id string) {
	t.Helper()
	stores := w.Platform.Adapters
	row, err := stores.Jobs.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	now := job.Instant(time.Now())
	d := row.Definition
	d.ID = job.NextDefinitionID(d.ID, job.DefinitionPrefix+ulid.MustNew(uint64(now.UnixMilli()), ulid.DefaultEntropy()).String())
	d.EffectiveAt = now
	plan, err := schedule.Compile(d.Schedule, id)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := (&occurrence.Series{JobID: id, Def: &d, Plan: plan}).First(bucket.Partition(id, world.Partitions), now)
	if err := stores.Jobs.PutDefinition(t.Context(), id, row.Definition); err != nil {
		t.Fatal(err)
	}
	if err := stores.Pending.Put(t.Context(), []job.Entry{e}); err != nil {
		t.Fatal(err)
	}
}

func wantNoDeadLetters(t *testing.T, w *world.World) {
	t.Helper()
	letters, _ := w.Must(http.StatusOK, http.MethodGet, "/dead-letters", nil)["items"].([]any)
	if len(letters) > 0 {
		t.Errorf("%d dead letters, the first %v", len(letters), letters[0])
	}
}

func TestPauseOfADeferredOccurrenceSkipsOnlyWhatWasNotFired(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = func(c *platform.Config) { c.Executor.HostConcurrency = 1 }
		w.Start()
		w.Targets.Set("slow", func(*http.Request, ledger.Call) (int, error) {
			time.Sleep(12 * time.Second)
			return http.StatusOK, nil
		})
		id := w.Create(world.Job("j", "slow", map[string]any{"type": "cron", "cron_expr": "*/10 * * * * *"}))
		time.Sleep(17*time.Minute + 3*time.Second)
		w.Pause(id)
		time.Sleep(20 * time.Minute)
		if !slices.ContainsFunc(w.Executions(id), func(x map[string]any) bool { return x["state"] == "skipped" }) {
			t.Error("nothing was skipped: this run shows nothing")
		}
	})
}

// A worker has read the next two seconds ahead when a pause comes, and uses the previous definition until it looks again.
func TestPauseAndResumeAtOnceSkipNothing(t *testing.T) {
	const seconds = 30
	for _, between := range []time.Duration{0, 10 * time.Millisecond, 900 * time.Millisecond, 2500 * time.Millisecond, 5 * time.Second} {
		t.Run(between.String(), func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				w.Start()
				var ids []string
				for _, policy := range []string{"skip", "fire_once", "backfill"} {
					for range 4 {
						ids = append(ids, w.Create(world.Job("j", "ok", map[string]any{
							"type": "interval", "every": "1s", "missed_run_policy": policy,
						})))
						time.Sleep(270 * time.Millisecond)
					}
				}
				time.Sleep(10 * time.Second)
				began := time.Now()
				for _, id := range ids {
					w.Pause(id)
				}
				time.Sleep(between)
				for _, id := range ids {
					w.Resume(id)
				}
				time.Sleep(seconds * time.Second)
				for _, id := range ids {
					calls := w.Targets.CallsOf(id)
					n := 0
					for _, c := range calls {
						if c.At.After(began) {
							n++
						}
					}
					if want := seconds + int(between/time.Second); n < want || n > want+1 {
						t.Errorf("%s: called %d times since the pause, want %d", id, n, want)
					}
				}
			})
		})
	}
}
