package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/dependents"
	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// parents returns the members of a job that follows others at an end.
func parents(on string, ids ...string) map[string]any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = map[string]any{"job": id, "on": on}
	}
	members := map[string]any{"type": "after", "after": list, "cron_expr": nil}
	if len(ids) > 1 {
		members["after_mode"] = "all"
	}
	return members
}

// follower returns a job that follows others.
func follower(name, host string, members map[string]any) map[string]any {
	j := world.Job(name, host, members)
	for m, v := range j {
		if v == nil {
			delete(j, m)
		}
	}
	return j
}

// yearly returns a job that is called when somebody asks for it.
func yearly(name, host string, members map[string]any) map[string]any {
	m := map[string]any{"type": "cron", "cron_expr": "0 0 1 7 *"}
	for k, v := range members {
		m[k] = v
	}
	return world.Job(name, host, m)
}

// minutely returns a job of every minute.
func minutely(name, host string) map[string]any {
	return world.Job(name, host, map[string]any{"type": "cron", "cron_expr": "* * * * *"})
}

// trigger executes a job, and returns the execution.
func trigger(w *world.World, id string) string {
	return w.Must(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", nil)["execution_id"].(string)
}

// sources returns which executions those of a job follow, oldest first.
func sources(w *world.World, id string) (list []string) {
	for _, x := range w.Executions(id) {
		if x["trigger"] == "after" {
			list = append(list, x["source_execution_id"].(string))
		}
	}
	slices.Reverse(list)
	return list
}

// wantSources checks which executions those of a job follow.
func wantSources(w *world.World, what, id string, want ...string) {
	w.T.Helper()
	if got := sources(w, id); !slices.Equal(got, want) {
		w.T.Errorf("%s: executions follow %v, want %v", what, got, want)
	}
}

func failing(*http.Request, ledger.Call) (int, error) { return http.StatusBadRequest, nil }

func TestJobsFollowTheEndsThatTheyName(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		good, bad := w.Create(yearly("good", "good", nil)), w.Create(yearly("bad", "bad", nil))
		w.Targets.Set("bad", failing)
		ids := map[string]string{}
		for _, on := range []string{"success", "failure", "any"} {
			ids["good "+on] = w.Create(follower("good "+on, "target", parents(on, good)))
			ids["bad "+on] = w.Create(follower("bad "+on, "target", parents(on, bad)))
		}
		g, b := trigger(w, good), trigger(w, bad)
		time.Sleep(5 * time.Second)
		wantSources(w, "good, success", ids["good success"], g)
		wantSources(w, "good, failure", ids["good failure"])
		wantSources(w, "good, any", ids["good any"], g)
		wantSources(w, "bad, success", ids["bad success"])
		wantSources(w, "bad, failure", ids["bad failure"], b)
		wantSources(w, "bad, any", ids["bad any"], b)
		// What repeats an execution is an execution like any other.
		again := w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+g+"/replay", nil)["execution_id"].(string)
		w.Targets.Set("bad", func(*http.Request, ledger.Call) (int, error) { return http.StatusOK, nil })
		w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", map[string]any{"filter": map[string]any{"job_id": bad}})
		time.Sleep(5 * time.Second)
		wantSources(w, "good, any", ids["good any"], g, again)
		wantSources(w, "good, failure", ids["good failure"])
		if got := sources(w, ids["bad success"]); len(got) != 1 || !strings.Contains(got[0], "-r") {
			w.T.Errorf("what follows the success of a redrive: %v", got)
		}
		wantSources(w, "bad, failure", ids["bad failure"], b)
	})
}

func TestAPauseSkipsWhatFollowsAndACancelEndsIt(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		a := w.Create(yearly("a", "slow", nil))
		b := w.Create(follower("b", "target", parents("success", a)))
		w.Targets.Set("slow", takes(10*time.Second, http.StatusOK))
		first := trigger(w, a)
		time.Sleep(time.Second)
		w.Pause(b) // before the execution that it follows has ended
		time.Sleep(15 * time.Second)
		if x := w.Executions(b); len(x) != 1 || x[0]["state"] != "skipped" || x[0]["disposition"] != "skipped_paused" || x[0]["source_execution_id"] != first {
			w.T.Errorf("executions of a paused job: %v", x)
		}
		second := trigger(w, a)
		time.Sleep(time.Second)
		w.Resume(b)
		time.Sleep(15 * time.Second)
		wantSources(w, "resumed before the end", b, first, second)
		if s := w.Executions(b)[0]["state"]; s != "succeeded" {
			w.T.Errorf("the execution after the resume is %v", s)
		}
		cancelled := trigger(w, a)
		time.Sleep(time.Second)
		w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+cancelled+"/cancel", nil)
		time.Sleep(15 * time.Second)
		wantSources(w, "a cancelled execution", b, first, second)
		trigger(w, a)
		time.Sleep(time.Second)
		w.Cancel(b)
		time.Sleep(15 * time.Second)
		wantSources(w, "a cancelled follower", b, first, second)
	})
}

func TestTheDefinitionAtTheInstantOfWhatIsFollowedDecides(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		a := w.Create(yearly("a", "slow", nil))
		w.Targets.Set("slow", takes(10*time.Second, http.StatusOK))
		before := trigger(w, a)
		time.Sleep(time.Second)
		b := w.Create(follower("b", "old", parents("success", a))) // too late for what was asked for before
		time.Sleep(time.Second)
		old := trigger(w, a)
		time.Sleep(time.Second)
		w.Patch(b, "old", map[string]any{"target": map[string]any{"url": "http://new/"}})
		young := trigger(w, a)
		time.Sleep(20 * time.Second)
		wantSources(w, "updated meanwhile, not "+before, b, old, young)
		for host, want := range map[string]string{"old": old, "new": young} {
			var of []string
			for _, c := range w.Targets.CallsOf(b) {
				if c.Host == host {
					x := w.Must(http.StatusOK, http.MethodGet, "/executions/"+c.ExecutionID, nil)
					of = append(of, x["source_execution_id"].(string))
				}
			}
			if !slices.Equal(of, []string{want}) {
				w.T.Errorf("calls to %s follow %v, want %s", host, of, want)
			}
		}
	})
}

func TestAFanInFollowsEachInstantThatAllHaveOnce(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		var of []string
		for i := range 5 {
			host := fmt.Sprint("parent", i)
			of = append(of, w.Create(minutely(host, host))) // every minute
			w.Targets.Set(host, takes(time.Duration(i)*time.Second, http.StatusOK))
		}
		broken := true
		w.Targets.Set("parent2", func(_ *http.Request, c ledger.Call) (int, error) {
			if broken && c.ScheduledFor.Minute() == 3 {
				return http.StatusBadRequest, nil
			}
			return http.StatusOK, nil
		})
		b := w.Create(follower("b", "target", parents("success", of...)))
		chained := w.Create(follower("c", "target", parents("success", b, of[0]))) // what follows has the instant, too
		world.Until(time.Now().Truncate(5 * time.Minute).Add(5*time.Minute + 30*time.Second))
		minutes := func(id string) (list []int) {
			for _, c := range w.Targets.CallsOf(id) {
				list = append(list, c.ScheduledFor.Minute())
			}
			return list
		}
		if got, want := minutes(b), []int{0, 1, 2, 4, 5}; !slices.Equal(got, want) {
			w.T.Errorf("called for the minutes %v, want %v", got, want)
		}
		broken = false
		w.Must(http.StatusAccepted, http.MethodPost, "/dead-letters:redrive", map[string]any{"filter": map[string]any{"job_id": of[2]}})
		time.Sleep(5 * time.Second)
		if got, want := minutes(b), []int{0, 1, 2, 4, 5, 3}; !slices.Equal(got, want) {
			w.T.Errorf("called for the minutes %v after a redrive, want %v", got, want)
		}
		for _, x := range w.Executions(of[0])[:1] { // a repetition is no other instant
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+x["execution_id"].(string)+"/replay", nil)
		}
		time.Sleep(5 * time.Second)
		if got, want := minutes(b), minutes(chained); len(got) != 6 || !slices.Equal(got, want) {
			w.T.Errorf("called for the minutes %v, and what follows for %v", got, want)
		}
	})
}

func TestAChainOfTenAndAFanInOutliveEveryCrash(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		chain := []string{w.Create(minutely("first", "target"))} // every minute
		for i := range 9 {
			chain = append(chain, w.Create(follower(fmt.Sprint("link ", i), "target", parents("success", chain[i]))))
		}
		join := w.Create(follower("join", "target", parents("success", chain[2], chain[4], chain[6], chain[8], chain[9])))
		w.Targets.Set("target", takes(300*time.Millisecond, http.StatusOK))
		for i := range 20 {
			world.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Duration(i)*170*time.Millisecond))
			w.Kill()
			w.Start()
		}
		time.Sleep(2 * time.Minute)
		runs := len(w.Executions(chain[0]))
		for _, id := range append(chain[1:], join) {
			if got := len(w.Executions(id)); got != runs || got < 20 {
				w.T.Errorf("job %s has %d executions, the first of the chain %d", id, got, runs)
			}
		}
	})
}

// Two requests that come at once may close a circle between them: here a row is written as the second one would have.
func TestACircleThatARaceMadeEnds(t *testing.T) {
	t.Parallel()
	bubble(t, 5*time.Minute, func(w *world.World) {
		a := w.Create(yearly("a", "target", nil))
		b := w.Create(follower("b", "target", parents("any", a)))
		c := w.Create(follower("c", "target", parents("any", b)))
		store := w.Platform.Adapters
		row, err := store.Jobs.Get(w.T.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		row.Version++
		row.Definition.Schedule.After = append(row.Definition.Schedule.After, job.Parent{JobID: c, Named: c, On: job.OnAny})
		if err := store.Jobs.Replace(w.T.Context(), row); err != nil {
			t.Fatal(err)
		}
		if err := (dependents.Store{Jobs: store.Jobs, Settings: store.Settings}).Follow(w.T.Context(), &row, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		trigger(w, a)
		time.Sleep(5 * time.Minute)
		if n := len(w.Executions(b)) + len(w.Executions(c)); n != job.MaxChain {
			w.T.Errorf("a circle ended after %d executions, want %d", n, job.MaxChain)
		}
	})
}

func TestCirclesAreRefusedWithThePath(t *testing.T) {
	t.Parallel()
	bubble(t, time.Minute, func(w *world.World) {
		for _, size := range []int{1, 2, 3, 50} {
			ids := []string{w.Create(yearly("first", "target", nil))}
			for i := range size - 1 {
				ids = append(ids, w.Create(follower("link", "target", parents("any", ids[i]))))
			}
			patch := parents("any", ids[size-1])
			answer := w.Must(http.StatusUnprocessableEntity, http.MethodPatch, "/jobs/"+ids[0], patch, "If-Match", "*")
			text := fmt.Sprint(answer["errors"])
			for _, id := range ids {
				if !strings.Contains(text, id) {
					w.T.Errorf("a circle of %d is told as %s, without %s", size, text, id)
				}
			}
			if !strings.Contains(text, "/after/0/job") || !strings.Contains(text, ids[0]+" after "+ids[size-1]) {
				w.T.Errorf("a circle of %d is told as %s", size, text)
			}
		}
		w.Must(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", follower("x", "target", parents("any", "key:nobody")))
		w.Must(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", follower("x", "target", parents("any", "job_01M7ZJW5E6D77SAJPXRW35C2CA")))
		w.Must(http.StatusUnprocessableEntity, http.MethodPost, "/jobs", follower("x", "target", map[string]any{"type": "after", "cron_expr": nil}))
	})
}
