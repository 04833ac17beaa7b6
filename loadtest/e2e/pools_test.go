package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
)

// pooled returns a job whose executions are tasks of the pool "work".
func pooled(name, handler string, members map[string]any) map[string]any {
	body := map[string]any{
		"name": name, "target": map[string]any{"kind": "pool", "pool": "work", "handler": handler, "body": map[string]any{"of": name}, "heartbeat_timeout": "30s", "timeout": "24h"},
		"retry_policy": map[string]any{"max_attempts": 5, "backoff": "fixed", "base_delay": "1s", "jitter": 0},
	}
	for k, v := range members {
		body[k] = v
	}
	return body
}

func oneShot(in time.Duration) map[string]any {
	return map[string]any{"type": "one_shot", "run_at": time.Now().Add(in)}
}

// state returns the state of the only execution of a job.
func state(w *world.World, id string) any {
	w.T.Helper()
	list := w.Executions(id)
	if len(list) != 1 {
		w.T.Fatalf("%d executions of %s: %v", len(list), id, list)
	}
	return list[0]["state"]
}

func TestTaskIsFetchedAtItsInstantOnceAndEndsAsItsWorkerSays(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		every := w.Create(pooled("every", "a", map[string]any{"type": "cron", "cron_expr": "*/10 * * * * *", "end_at": time.Now().Add(5 * time.Minute)}))
		again := w.Create(pooled("again", "b", oneShot(65*time.Second)))
		never := w.Create(pooled("never", "c", oneShot(65*time.Second)))
		end := time.Now().Add(5 * time.Minute)
		var all sync.WaitGroup
		for n := range 3 {
			x := w.NewWorker("work", fmt.Sprint("worker-", n), "a", "b", "c")
			all.Go(func() {
				for time.Now().Before(end) {
					tasks, _ := x.Poll(2, "20s")
					for _, task := range tasks {
						status := 0
						switch task.Payload.(map[string]any)["of"] {
						case "again":
							if task.Attempt < 3 {
								status = task.Fail(true)
								break
							}
							status = task.Complete(nil)
						case "never":
							status = task.Fail(false)
						default:
							status = task.Complete(map[string]any{"rows": 7})
						}
						if status != http.StatusNoContent {
							w.T.Errorf("the end of %s was answered %d", task.ID, status)
						}
					}
				}
			})
		}
		all.Wait()
		calls := w.Targets.CallsOf(every)
		if len(calls) < 30 || len(calls) > 32 {
			w.T.Errorf("%d tasks in five minutes", len(calls))
		}
		for _, c := range calls {
			if late := c.At.Sub(c.ScheduledFor); late > 20*time.Millisecond {
				w.T.Errorf("a task for %s was handed out %s late to workers who wait", c.ScheduledFor, late)
			}
		}
		if state(w, again) != "succeeded" || len(w.Targets.CallsOf(again)) != 3 || state(w, never) != "dead" || len(w.Targets.CallsOf(never)) != 1 {
			w.T.Errorf("again is %v after %d tasks, never is %v after %d", state(w, again), len(w.Targets.CallsOf(again)), state(w, never), len(w.Targets.CallsOf(never)))
		}
		first := w.Executions(every)[0]["attempts"].([]any)[0].(map[string]any)
		if first["response_body"] != `{"rows":7}` || first["fencing_token"] == nil {
			w.T.Errorf("an attempt is shown as %v", first)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestTaskOfHoursSurvivesCrashesAndResumesFromItsLastCheckpoint(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		id := w.Create(pooled("long", "a", oneShot(time.Minute)))
		const whole = 4 * 60 // minutes of work, with a heartbeat after each
		done, attempts, repeated := 0, 0, 0
		for done < whole {
			x := w.NewWorker("work", fmt.Sprint("worker-", attempts), "a")
			tasks, _ := x.Poll(1, "20s")
			if len(tasks) == 0 {
				if attempts == 0 && w.Targets.Calls() == nil {
					continue
				}
				time.Sleep(time.Second)
				continue
			}
			task := tasks[0]
			attempts++
			at := 0
			if p, ok := task.Progress.(map[string]any); ok {
				at = int(p["minute"].(float64))
			}
			repeated += done - at
			dies := []int{50, 51, 200, 1000, 1000}[attempts-1]
			for done = at; done < whole && done != dies; {
				time.Sleep(20 * time.Second)
				if _, ok := task.Beat(nil); !ok {
					break
				}
				time.Sleep(20 * time.Second)
				if _, ok := task.Beat(nil); !ok {
					break
				}
				time.Sleep(20 * time.Second)
				done++
				if _, ok := task.Beat(map[string]any{"minute": done}); !ok {
					break
				}
			}
			if done == whole {
				if status := task.Complete(nil); status != http.StatusNoContent {
					w.T.Errorf("the end was answered %d", status)
				}
				break
			}
			died := time.Now()
			if attempts == 3 { // the whole process, and what lay in memory
				w.Kill()
				w.Start()
			}
			task.Lost()
			time.Sleep(time.Until(died.Add(36 * time.Second)))
			if status := task.Complete(nil); status != http.StatusConflict {
				w.T.Errorf("a worker that was silent for too long ends the task: %d", status)
			}
			task.Lost()
		}
		time.Sleep(time.Second)
		if attempts != 4 || repeated > 3 || state(w, id) != "succeeded" {
			w.T.Errorf("%d attempts, %d minutes of work repeated, the execution is %v", attempts, repeated, state(w, id))
		}
		var outcomes []string
		for _, a := range w.Executions(id)[0]["attempts"].([]any) {
			outcomes = append(outcomes, a.(map[string]any)["outcome"].(string))
		}
		if !slices.Contains(outcomes, "worker_lost") || outcomes[len(outcomes)-1] != "succeeded" {
			w.T.Errorf("the attempts ended as %v", outcomes)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestCancelReachesAWorkerThatPollsOrBeatsAndEndsTheLeaseOfOneThatDoesNotObey(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		obeys, ignores := w.Create(pooled("obeys", "a", oneShot(10*time.Second))), w.Create(pooled("ignores", "b", oneShot(10*time.Second)))
		x := w.NewWorker("work", "worker", "a", "b")
		tasks, _ := x.Poll(2, "20s")
		for len(tasks) < 2 {
			more, _ := x.Poll(2, "20s")
			tasks = append(tasks, more...)
		}
		byJob := map[string]*world.Task{}
		for _, task := range tasks {
			byJob[task.Payload.(map[string]any)["of"].(string)] = task
		}
		time.Sleep(5 * time.Second)
		var told time.Time
		var all sync.WaitGroup
		all.Go(func() {
			_, cancelled := x.Poll(0, "20s", tasks...)
			if told = time.Now(); len(cancelled) == 0 {
				w.T.Error("a poll that waits is not told of the cancel")
			}
		})
		time.Sleep(2300 * time.Millisecond)
		began := time.Now()
		for _, name := range []string{"obeys", "ignores"} {
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+byJob[name].Execution+"/cancel", nil)
		}
		all.Wait()
		if told.Sub(began) > time.Second {
			w.T.Errorf("a poll that waits was told after %s", told.Sub(began))
		}
		for _, task := range tasks {
			if cancelled, ok := task.Beat(nil); !cancelled || !ok {
				w.T.Errorf("a heartbeat is answered %v, %v", cancelled, ok)
			}
		}
		if status := byJob["obeys"].Fail(true); status != http.StatusNoContent {
			w.T.Errorf("the end was answered %d", status)
		}
		for range 8 {
			time.Sleep(2 * time.Second)
			byJob["ignores"].Beat(nil)
		}
		if status := byJob["ignores"].Complete(nil); status != http.StatusConflict {
			w.T.Errorf("a worker that does not obey ends its task: %d", status)
		}
		time.Sleep(10 * time.Second)
		if a, b := state(w, obeys), state(w, ignores); a != "cancelled" || b != "cancelled" {
			w.T.Errorf("the executions are %v and %v", a, b)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestTasksComeAgainAfterTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		const n = 40
		var ids []string
		for i := range n {
			ids = append(ids, w.Create(pooled(fmt.Sprint("task", i), "a", oneShot(30*time.Second))))
		}
		time.Sleep(time.Minute)
		x := w.NewWorker("work", "worker", "a")
		running, _ := x.Poll(10, "1s")
		if len(running) != 10 {
			w.T.Errorf("%d tasks were handed out", len(running))
		}
		for _, task := range running[:5] {
			if status := task.Complete(nil); status != http.StatusNoContent {
				w.T.Errorf("the end was answered %d", status)
			}
		}
		w.Crash()
		w.Start()
		for _, task := range running[5:] {
			task.Lost()
		}
		end := time.Now().Add(10 * time.Minute)
		for time.Now().Before(end) {
			tasks, _ := x.Poll(10, "20s")
			for _, task := range tasks {
				task.Complete(nil)
			}
		}
		for _, id := range ids {
			if s := state(w, id); s != "succeeded" {
				w.T.Errorf("a task is %v", s)
			}
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestTaskThatWasStoppedWhileItWaitedIsNotHandedOut(t *testing.T) {
	t.Parallel()
	bubble(t, 3*time.Minute, func(w *world.World) {
		warned := func() bool {
			j := w.Must(http.StatusCreated, http.MethodPost, "/jobs", pooled("warned", "a", map[string]any{"type": "cron", "cron_expr": "0 0 1 6 *"}))
			w.Adopt(j["job_id"].(string))
			return j["warnings"] != nil
		}
		if !warned() {
			w.T.Error("a job for a pool without workers is created without a warning")
		}
		defer func() {
			if warned() {
				w.T.Error("a job for a pool that has a worker is created with a warning")
			}
		}()
		paused, cancelled := w.Create(pooled("paused", "a", oneShot(10*time.Second))), w.Create(pooled("cancelled", "a", oneShot(10*time.Second)))
		time.Sleep(20 * time.Second)
		if p := w.Must(http.StatusOK, http.MethodGet, "/pools/work", nil); p["handlers"].([]any)[0].(map[string]any)["normal"] != 2.0 {
			w.T.Errorf("the pool is shown as %v", p)
		}
		w.Pause(paused)
		w.Cancel(cancelled)
		x := w.NewWorker("work", "worker", "a")
		for range 6 {
			if tasks, _ := x.Poll(10, "20s"); len(tasks) > 0 {
				w.T.Errorf("%d tasks were handed out", len(tasks))
			}
		}
		if a, b := state(w, paused), state(w, cancelled); a != "skipped" || b != "cancelled" {
			w.T.Errorf("the executions are %v and %v", a, b)
		}
		p := w.Must(http.StatusOK, http.MethodGet, "/pools/work", nil)
		workers := p["workers"].([]any)
		if len(p["handlers"].([]any)) != 0 || p["running"] != 0.0 || len(workers) != 1 || workers[0].(map[string]any)["name"] != "worker" {
			w.T.Errorf("the pool is shown as %v", p)
		}
		time.Sleep(4 * time.Minute)
	})
}

func TestTaskThatIsGivenBackIsHandedOutAgainWithItsProgress(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		id := w.Create(pooled("back", "a", oneShot(10*time.Second)))
		x := w.NewWorker("work", "worker", "a")
		tasks, _ := x.Poll(1, "20s")
		if len(tasks) != 1 {
			w.T.Fatalf("%d tasks", len(tasks))
		}
		time.Sleep(2 * time.Second)
		tasks[0].Beat("half")
		if status := tasks[0].Release(); status != http.StatusNoContent {
			w.T.Errorf("the release was answered %d", status)
		}
		began := time.Now()
		again, _ := x.Poll(1, "20s")
		if took := time.Since(began); took > time.Second {
			w.T.Errorf("it was handed out again after %s", took)
		}
		if len(again) != 1 || again[0].ID != tasks[0].ID || again[0].Progress != "half" || again[0].Token <= tasks[0].Token {
			w.T.Errorf("handed out again: %+v", again)
			return
		}
		if status := tasks[0].Complete(nil); status != http.StatusConflict {
			w.T.Errorf("who gave it back ends it: %d", status)
		}
		for n := range 2 { // the second time as if the answer to the first had been lost
			if status := again[0].Complete(nil); status != http.StatusNoContent {
				w.T.Errorf("the end was answered %d at the call %d", status, n+1)
			}
			time.Sleep(time.Second)
		}
		if s := state(w, id); s != "succeeded" {
			w.T.Errorf("the execution is %v", s)
		}
		time.Sleep(time.Minute)
	})
}

// What was refused while it waited is not handed out when everything else has forgotten that.
func TestTaskThatWasCancelledIsNotHandedOutHoursLater(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		cancelled, waits := w.Create(pooled("cancelled", "a", oneShot(10*time.Second))), w.Create(pooled("waits", "a", oneShot(10*time.Second)))
		time.Sleep(20 * time.Second)
		w.Cancel(cancelled)
		time.Sleep(3 * time.Hour)
		x := w.NewWorker("work", "worker", "a")
		tasks, _ := x.Poll(10, "20s")
		if len(tasks) != 1 || tasks[0].Payload.(map[string]any)["of"] != "waits" {
			w.T.Errorf("handed out: %+v", tasks)
		}
		for _, task := range tasks {
			task.Complete(nil)
		}
		time.Sleep(time.Minute)
		if a, b := state(w, cancelled), state(w, waits); a != "cancelled" || b != "succeeded" {
			w.T.Errorf("the executions are %v and %v", a, b)
		}
		if n := w.Counter("minutehand_bucket_loader_put_back_entries_total"); n > 200 {
			w.T.Errorf("the entries of tasks that wait were put back %v times in three hours", n)
		}
		time.Sleep(time.Minute)
	})
}

func TestPollThatFindsOnlyWhatMayNotBeginGoesOnLooking(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		first := w.Create(pooled("first", "a", oneShot(10*time.Second)))
		w.Create(pooled("second", "a", oneShot(11*time.Second)))
		time.Sleep(20 * time.Second)
		w.Cancel(first)
		began := time.Now()
		tasks, _ := w.NewWorker("work", "worker", "a").Poll(1, "20s")
		if len(tasks) != 1 || tasks[0].Payload.(map[string]any)["of"] != "second" || time.Since(began) > time.Second {
			w.T.Errorf("after %s handed out: %+v", time.Since(began), tasks)
		}
		for _, task := range tasks {
			task.Complete(nil)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestNoMoreTasksRunAtOnceThanThePoolAllows(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		limits := map[string]any{"max_running": 3, "handlers": []any{map[string]any{"name": "a", "max_running": 2}}, "logs_url": "https://logs.example.com/{worker}/{execution_id}"}
		if status, answer := w.Do(http.MethodPut, "/pools/work", limits); status != http.StatusOK {
			w.T.Fatalf("answered %d: %v", status, answer)
		}
		var ids []string
		for n := range 12 {
			ids = append(ids, w.Create(pooled(fmt.Sprint("job-", n), []string{"a", "b"}[n/8], oneShot(10*time.Second))))
		}
		began, end := time.Now().Add(10*time.Second), time.Now().Add(2*time.Minute)
		var mu sync.Mutex
		running, most, done := map[string]int{}, map[string]int{}, 0
		count := func(handler string, n int) {
			mu.Lock()
			defer mu.Unlock()
			running[handler] += n
			running["all"] += n
			most[handler], most["all"] = max(most[handler], running[handler]), max(most["all"], running["all"])
		}
		var all sync.WaitGroup
		for n := range 8 {
			x := w.NewWorker("work", fmt.Sprint("worker-", n), []string{"a", "b"}[n/4])
			all.Go(func() {
				for time.Now().Before(end) {
					tasks, _ := x.Poll(1, "20s")
					for _, task := range tasks {
						count(x.Handlers[0], 1)
						time.Sleep(3 * time.Second)
						count(x.Handlers[0], -1)
						if status := task.Complete(nil); status != http.StatusNoContent {
							w.T.Errorf("the end of %s was answered %d", task.ID, status)
						}
						mu.Lock()
						if done++; done == len(ids) && time.Since(began) > 20*time.Second {
							w.T.Errorf("12 tasks of 3 s took %s, three at a time", time.Since(began))
						}
						mu.Unlock()
					}
				}
			})
		}
		all.Wait()
		if most["a"] != 2 || most["all"] != 3 || done != len(ids) {
			w.T.Errorf("%d tasks were done; at once ran %v", done, most)
		}
		first := w.Executions(ids[0])[0]
		attempt := first["attempts"].([]any)[0].(map[string]any)
		worker, _ := attempt["worker"].(string)
		if worker == "" || attempt["logs_url"] != fmt.Sprintf("https://logs.example.com/%s/%s", worker, first["execution_id"]) {
			w.T.Errorf("an attempt is shown as %v", attempt)
		}
		time.Sleep(time.Minute)
	})
}
