package e2e

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

func TestCancelledExecutionIsNotInvokedAndTheScheduleGoesOn(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		id := w.Create(world.Job("j", "ok", map[string]any{"type": "cron", "cron_expr": "0 * * * *"}))
		time.Sleep(30 * time.Minute)
		next := time.Now().Truncate(time.Hour).Add(time.Hour)
		execution := fmt.Sprintf("exe_%s-s%013d", id[len("job_"):], next.UnixMilli())
		x := w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+execution+"/cancel", nil)
		if x["cancelling"] != true {
			t.Errorf("answer %v", x)
		}
		w.Crash()
		w.Start()
		time.Sleep(2 * time.Hour)
		for _, c := range w.Targets.CallsOf(id) {
			if c.ScheduledFor.Equal(next) {
				t.Errorf("called at %s for the cancelled execution", c.At)
			}
		}
		x = w.Must(http.StatusOK, http.MethodGet, "/executions/"+execution, nil)
		if x["state"] != "cancelled" || x["disposition"] != "cancelled" {
			t.Errorf("execution %v", x)
		}
		if n := len(w.Targets.CallsOf(id)); n != 2 { // at the start, and an hour after the cancelled one
			t.Errorf("%d calls, want 2", n)
		}
	})
}

func TestRunningExecutionIsInterruptedWithinASecondOfItsCancel(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		var interrupted atomic.Int64
		w.Targets.Set("slow", func(r *http.Request, _ ledger.Call) (int, error) {
			<-r.Context().Done()
			interrupted.Store(time.Now().UnixNano())
			return 0, r.Context().Err()
		})
		id := w.Create(world.Job("j", "slow", map[string]any{"type": "one_shot", "delay": "10s"}))
		time.Sleep(15 * time.Second)
		execution := w.Targets.CallsOf(id)[0].ExecutionID
		asked := time.Now()
		w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+execution+"/cancel", nil)
		time.Sleep(time.Minute)
		if took := time.Unix(0, interrupted.Load()).Sub(asked); took < 0 || took > time.Second {
			t.Errorf("interrupted after %s", took)
		}
		x := w.Must(http.StatusOK, http.MethodGet, "/executions/"+execution, nil)
		if x["state"] != "cancelled" || x["disposition"] != "fired" || len(x["attempts"].([]any)) != 1 {
			t.Errorf("execution %v", x)
		}
	})
}

func TestCancelBetweenTwoAttemptsIsTheEnd(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		w.Targets.Set("down", func(*http.Request, ledger.Call) (int, error) { return http.StatusBadGateway, nil })
		id := w.Create(world.Job("j", "down", map[string]any{"type": "one_shot", "delay": "10s"}))
		time.Sleep(12 * time.Second)
		x := w.Executions(id)[0]
		if x["state"] != "retrying" {
			t.Fatalf("execution %v", x)
		}
		path := "/executions/" + x["execution_id"].(string)
		w.Must(http.StatusAccepted, http.MethodPost, path+"/cancel", nil)
		time.Sleep(time.Hour)
		if n := len(w.Targets.CallsOf(id)); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
		if x := w.Must(http.StatusOK, http.MethodGet, path, nil); x["state"] != "cancelled" || x["disposition"] != "fired" {
			t.Errorf("execution %v", x)
		}
		wantNoDeadLetters(t, w)
	})
}

func TestDeadLettersAreRedrivenOnceAtTheirRate(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		w.Targets.Set("target", func(*http.Request, ledger.Call) (int, error) { return http.StatusNotFound, nil })
		for i := range 30 {
			w.Create(world.Job(fmt.Sprint("j", i), "target", map[string]any{"type": "one_shot", "delay": "10s"}))
		}
		other := w.Create(world.Job("other", "target", map[string]any{"type": "one_shot", "delay": "10s"}))
		time.Sleep(time.Minute)
		w.Targets.Set("target", nil)
		before := len(w.Targets.Calls())
		one := w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive",
			map[string]any{"filter": map[string]any{"job_id": other}})
		if one["redriven"] != 1.0 || one["more"] != false {
			t.Errorf("answer %v", one)
		}
		began := time.Now()
		all := w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive",
			map[string]any{"rate_per_second": 2, "limit": 20}, "Idempotency-Key", "k")
		again := w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive",
			map[string]any{"rate_per_second": 2, "limit": 20}, "Idempotency-Key", "k")
		if all["redriven"] != 20.0 || all["more"] != true || fmt.Sprint(all) != fmt.Sprint(again) {
			t.Errorf("answers %v and %v", all, again)
		}
		w.Crash()
		w.Start()
		time.Sleep(5 * time.Second)
		if n := len(w.Targets.Calls()) - before; n < 10 || n > 13 {
			t.Errorf("%d calls after %s at 2 per second", n, time.Since(began))
		}
		time.Sleep(time.Minute)
		if n := len(w.Targets.Calls()) - before; n != 21 {
			t.Errorf("%d calls, want 21", n)
		}
		x := w.Must(http.StatusOK, http.MethodGet, "/executions/"+executionOf(one, 0), nil)
		if x["state"] != "succeeded" || x["trigger"] != "redrive" {
			t.Errorf("execution %v", x)
		}
		rest := w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", map[string]any{})
		if rest["redriven"] != 10.0 || rest["more"] != false {
			t.Errorf("the rest: %v", rest)
		}
		time.Sleep(time.Minute)
	})
}

func TestOperationRedrivesAllThatWasGivenUpAcrossCrashes(t *testing.T) {
	world.Run(t, time.Minute, func(w *world.World) {
		w.Start()
		fails := func(*http.Request, ledger.Call) (int, error) { return http.StatusNotFound, nil }
		w.Targets.Set("target", fails)
		var of []string
		for i := range 30 {
			of = append(of, w.Create(world.Job(fmt.Sprint("j", i), "target", map[string]any{"type": "one_shot", "delay": "10s"})))
		}
		time.Sleep(time.Minute)
		before := len(w.Targets.Calls())
		called := func() int { // a crash may have an execution called twice
			seen := map[string]bool{}
			for _, c := range w.Targets.Calls()[before:] {
				seen[c.ExecutionID] = true
			}
			return len(seen)
		}
		w.Must(http.StatusOK, http.MethodPost, "/jobs/"+of[29]+"/cancel", nil)
		o := w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive-all", map[string]any{"rate_per_second": 2})
		path := "/operations/" + o["operation_id"].(string)
		time.Sleep(3 * time.Second)
		w.Crash()
		w.Start()
		time.Sleep(5 * time.Second)
		w.Must(http.StatusOK, http.MethodPost, path+"/pause", nil)
		time.Sleep(5 * time.Second)
		paused := called()
		time.Sleep(time.Minute)
		if n := called(); n != paused || n < 8 || n > 24 {
			t.Errorf("%d calls at the pause, and %d a minute later", paused, n)
		}
		w.Must(http.StatusOK, http.MethodPost, path+"/resume", map[string]any{"rate_per_second": 50})
		time.Sleep(10 * time.Second)
		w.Targets.Set("target", nil)
		time.Sleep(time.Minute)
		o = w.Must(http.StatusOK, http.MethodGet, path, nil)
		if n := called(); n != 29 || o["status"] != "done" || o["handed_out"] != 29.0 {
			t.Errorf("%d calls, want 29; the operation is %v", n, o)
		}
		// They failed again, and are dead letters of their own, of after the request.
		page := w.Must(http.StatusOK, http.MethodGet, "/dead-letters?limit=100", nil)
		redriven, by := 0, map[string]bool{}
		for _, item := range page["items"].([]any) {
			d := item.(map[string]any)
			if id, is := d["redriven_by"].(string); is {
				redriven++
				by[id] = true
			}
		}
		for _, item := range page["items"].([]any) {
			delete(by, item.(map[string]any)["execution_id"].(string))
		}
		if n := len(page["items"].([]any)); n != 30+29 || redriven != 29 || len(by) != 0 {
			t.Errorf("%d dead letters, %d redriven, by %d that are none", n, redriven, len(by))
		}
		// Another operation redrives what failed again, with success.
		w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive-all", map[string]any{"filter": map[string]any{"job_id": of[3]}, "rate_per_second": 50})
		time.Sleep(time.Minute)
		if n := called(); n != 30 {
			t.Errorf("%d calls, want 30", n)
		}
	})
}

func executionOf(answer map[string]any, i int) string {
	return answer["executions"].([]any)[i].(map[string]any)["execution_id"].(string)
}

func TestHeldDispatchIsKeptOverARestartAndLosesNothing(t *testing.T) {
	world.Run(t, 2*time.Minute, func(w *world.World) {
		w.Start()
		held := w.Create(world.Job("held", "a", map[string]any{
			"type": "cron", "cron_expr": "* * * * *", "labels": map[string]any{"team": "pay"}, "missed_run_policy": "backfill",
		}))
		free := w.Create(world.Job("free", "b", map[string]any{"type": "cron", "cron_expr": "* * * * *"}))
		time.Sleep(5*time.Minute + 30*time.Second)
		pay := map[string]any{"label": "team=pay"}
		if x := w.Must(http.StatusOK, http.MethodPost, "/dispatch/pause", pay); fmt.Sprint(x["paused_labels"]) != "[team=pay]" {
			t.Errorf("answer %v", x)
		}
		w.Crash()
		w.Start()
		count := func(id string) int { return len(w.Targets.CallsOf(id)) }
		before, others := count(held), count(free)
		time.Sleep(10 * time.Minute)
		if n, m := count(held)-before, count(free)-others; n != 0 || m != 10 {
			t.Errorf("while held %d calls of the held job and %d of the other, want 0 and 10", n, m)
		}
		w.Must(http.StatusOK, http.MethodPost, "/dispatch/pause", map[string]any{})
		time.Sleep(5 * time.Minute)
		if m := count(free) - others; m != 10 {
			t.Errorf("%d calls while everything is held, want none more", m-10)
		}
		w.Must(http.StatusOK, http.MethodPost, "/dispatch/resume", map[string]any{})
		time.Sleep(5 * time.Minute)
		if n := count(held) - before; n != 20 {
			t.Errorf("%d calls of the held job afterwards, want 20", n)
		}
	})
}
