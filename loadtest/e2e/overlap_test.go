package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/libs/run"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// takes returns the behaviour of a target that answers after a while.
func takes(long time.Duration, status int) world.Behaviour {
	return func(r *http.Request, _ ledger.Call) (int, error) { return status, run.Sleep(r.Context(), long) }
}

// firstTakes returns the behaviour of a target whose first call takes a while; the others are answered at once.
func firstTakes(long time.Duration) world.Behaviour {
	first := true
	return func(r *http.Request, _ ledger.Call) (int, error) {
		if !first {
			return http.StatusOK, nil
		}
		first = false
		return http.StatusOK, run.Sleep(r.Context(), long)
	}
}

// overlapCase is what a job of every minute does in twelve minutes, with the policy skip unless it says otherwise.
type overlapCase struct {
	name    string
	target  world.Behaviour
	members map[string]any
	// during is what happens meanwhile, from half a minute after the registration on.
	during func(w *world.World, id string)
	// called are the minutes whose occurrences were called, from 1, in this order; skipped, those that gave way to another, and to which;
	// waited, those that waited for the end of another, whether they were called or not.
	called          []int
	skipped, waited map[int]int
	// still is in what the executions were that others gave way to, if not in their first attempt.
	still string
	// cancelled are those whose executions were cancelled, where that is checked; byHand is how many of them a user cancelled.
	cancelled []int
	byHand    int
}

var timeout5m = map[string]any{"kind": "http_webhook", "url": "http://target/", "timeout": "5m"}

var overlapCases = []overlapCase{
	{
		name: "a call of two and a half minutes", target: takes(150*time.Second, http.StatusOK), members: map[string]any{"target": timeout5m},
		called: []int{1, 4, 7, 10}, skipped: map[int]int{2: 1, 3: 1, 5: 4, 6: 4, 8: 7, 9: 7, 11: 10, 12: 10},
	},
	{
		name: "a call that ends just before the next instant", target: takes(59*time.Second, http.StatusOK), members: map[string]any{"target": timeout5m},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "allow_all", target: takes(150*time.Second, http.StatusOK), members: map[string]any{"target": timeout5m, "overlap_policy": "allow_all"},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "the pause before a retry counts", target: func(_ *http.Request, c ledger.Call) (int, error) {
			if c.Attempt == 1 && c.ScheduledFor.Minute()%4 == 2 {
				return http.StatusServiceUnavailable, nil
			}
			return http.StatusOK, nil
		},
		members: map[string]any{"retry_policy": map[string]any{"base_delay": "100s", "backoff": "fixed", "jitter": 0, "max_attempts": 3}},
		called:  []int{1, 3, 4, 5, 7, 8, 9, 11, 12}, skipped: map[int]int{2: 1, 6: 5, 10: 9}, still: "the pause before attempt 2",
	},
	{
		name: "an execution that is given up ends", target: takes(time.Second, http.StatusBadRequest),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "a cancelled execution ends", target: firstTakes(4 * time.Minute), members: map[string]any{"target": timeout5m},
		during: func(w *world.World, id string) {
			time.Sleep(2 * time.Minute)
			running := job.ScheduleExecutionID(id, time.Now().Truncate(time.Minute).Add(-time.Minute))
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+running+"/cancel", nil)
		},
		called: []int{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, skipped: map[int]int{2: 1},
	},
	{
		name: "an execution that is cancelled between two attempts ends", target: func(_ *http.Request, c ledger.Call) (int, error) {
			if c.ScheduledFor.Minute() == 2 {
				return http.StatusServiceUnavailable, nil
			}
			return http.StatusOK, nil
		},
		members: map[string]any{"retry_policy": map[string]any{"base_delay": "10m", "backoff": "fixed", "jitter": 0, "max_attempts": 3}},
		during: func(w *world.World, id string) {
			time.Sleep(3 * time.Minute)
			waiting := job.ScheduleExecutionID(id, time.Now().Truncate(time.Minute).Add(-2*time.Minute))
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+waiting+"/cancel", nil)
		},
		called: []int{1, 4, 5, 6, 7, 8, 9, 10, 11, 12}, skipped: map[int]int{2: 1, 3: 1}, still: "the pause before attempt 2",
	},
	{
		name: "what somebody asked for neither waits nor holds up", target: takes(80*time.Second, http.StatusOK), members: map[string]any{"target": timeout5m},
		during: func(w *world.World, id string) {
			for range 3 { // at 1.5, 3.5 and 5.5: beside the schedule's own, which run from 1 to 2.3 and so on
				time.Sleep(time.Minute)
				w.Must(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", nil)
				time.Sleep(time.Minute)
			}
		},
		called: []int{1, 3, 5, 7, 9, 11}, skipped: map[int]int{2: 1, 4: 3, 6: 5, 8: 7, 10: 9, 12: 11},
	},
	{
		name: "an update while one is in progress", target: firstTakes(200 * time.Second), members: map[string]any{"target": timeout5m},
		during: func(w *world.World, id string) {
			time.Sleep(time.Minute)
			w.Patch(id, "target", map[string]any{"target": map[string]any{"url": "http://other/"}})
		},
		called: []int{1, 5, 6, 7, 8, 9, 10, 11, 12}, skipped: map[int]int{2: 1, 3: 1, 4: 1},
	},
	{
		name: "a pause while one is in progress", target: firstTakes(290 * time.Second), members: map[string]any{"target": timeout5m, "missed_run_policy": "skip"},
		during: func(w *world.World, id string) {
			time.Sleep(time.Minute)
			w.Pause(id)
			time.Sleep(2 * time.Minute) // 2 is missed, and 3 is not late yet
			w.Resume(id)
		},
		called: []int{1, 6, 7, 8, 9, 10, 11, 12}, skipped: map[int]int{3: 1, 4: 1, 5: 1},
	},
	{
		name: "a process that is killed", target: firstTakes(170 * time.Second), members: map[string]any{"target": timeout5m},
		during: func(w *world.World, _ string) {
			time.Sleep(time.Minute)
			w.Kill() // the call of 1 ends with it, and is made again
			w.Start()
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "downtime, fire_once", target: takes(10*time.Second, http.StatusOK), members: map[string]any{"target": timeout5m, "missed_run_policy": "fire_once"},
		during: func(w *world.World, _ string) {
			time.Sleep(2 * time.Minute)
			w.Stop()
			time.Sleep(3*time.Minute + 10*time.Second) // 3 and 4 are missed, 3 is called for them; 5 is not late yet
			w.Start()
		},
		called: []int{1, 2, 3, 6, 7, 8, 9, 10, 11, 12}, skipped: map[int]int{5: 3},
	},
}

// with returns the members of a job with an overlap policy.
func with(policy string, members map[string]any) map[string]any {
	all := map[string]any{"overlap_policy": policy, "target": timeout5m}
	maps.Copy(all, members)
	return all
}

var lineCases = []overlapCase{
	{
		name: "one waits while a call takes less than two minutes", target: takes(109*time.Second, http.StatusOK), members: with("buffer_one", nil),
		called: []int{1, 2, 3, 5, 7, 9, 11, 12}, skipped: map[int]int{4: 3, 6: 5, 8: 7, 10: 9}, waited: map[int]int{2: 1, 3: 2, 5: 3, 7: 5, 9: 7, 11: 9, 12: 11},
	},
	{
		name: "all wait while a call takes more than a minute", target: takes(80*time.Second, http.StatusOK), members: with("buffer_all", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11},
	},
	{
		name: "they are called in order once a long call ends", target: firstTakes(290 * time.Second), members: with("buffer_all", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 2, 4: 3, 5: 4},
	},
	{
		name: "the pause before a retry counts, with a line", target: func(_ *http.Request, c ledger.Call) (int, error) {
			if c.Attempt == 1 && c.ScheduledFor.Minute()%4 == 2 {
				return http.StatusServiceUnavailable, nil
			}
			return http.StatusOK, nil
		},
		members: with("buffer_one", map[string]any{"retry_policy": map[string]any{"base_delay": "100s", "backoff": "fixed", "jitter": 0, "max_attempts": 3}}),
		called:  []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 6: 5, 10: 9},
	},
	{
		name: "what is given up lets the next one go", target: takes(70*time.Second, http.StatusBadRequest), members: with("buffer_one", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12}, skipped: map[int]int{8: 7}, waited: map[int]int{2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 9: 7, 10: 9, 11: 10, 12: 11},
	},
	{
		name: "a process that is killed while some wait", target: firstTakes(170 * time.Second), members: with("buffer_all", nil),
		during: func(w *world.World, _ string) {
			time.Sleep(2 * time.Minute)
			w.Kill() // the call of 1 ends with it, and is made again
			w.Start()
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1},
	},
	{
		name: "what waits while a process is down is not missed", target: firstTakes(110 * time.Second), members: with("buffer_all", map[string]any{"missed_run_policy": "skip"}),
		during: func(w *world.World, _ string) {
			time.Sleep(2 * time.Minute) // 1 runs, and 2 waits
			w.Kill()
			time.Sleep(4*time.Minute + 40*time.Second) // 3 to 6 are missed
			w.Start()
		},
		called: []int{1, 2, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 7: 2},
	},
	{
		name: "a pause skips what waits", target: firstTakes(290 * time.Second), members: with("buffer_all", nil),
		during: func(w *world.World, id string) {
			time.Sleep(2 * time.Minute) // 2 waits
			w.Pause(id)
			time.Sleep(time.Minute)
			w.Resume(id)
		},
		called: []int{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 1, 4: 3, 5: 4},
	},
	{
		name: "what waits when a job is changed is called as it was", target: firstTakes(170 * time.Second), members: with("buffer_all", nil),
		during: func(w *world.World, id string) {
			time.Sleep(2 * time.Minute)
			w.Patch(id, "target", map[string]any{"target": map[string]any{"url": "http://other/"}})
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 2},
	},
	{
		name: "one that waits is cancelled", target: firstTakes(230 * time.Second), members: with("buffer_all", nil),
		during: func(w *world.World, id string) {
			time.Sleep(2 * time.Minute)
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+job.ScheduleExecutionID(id, time.Now().Truncate(time.Minute))+"/cancel", nil)
		},
		called: []int{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 1, 4: 3},
	},
	{
		name: "one that is cancelled between two attempts lets the next one go", target: func(_ *http.Request, c ledger.Call) (int, error) {
			if c.ScheduledFor.Minute() == 2 {
				return http.StatusServiceUnavailable, nil
			}
			return http.StatusOK, nil
		},
		members: with("buffer_all", map[string]any{"retry_policy": map[string]any{"base_delay": "10m", "backoff": "fixed", "jitter": 0, "max_attempts": 3}}),
		during: func(w *world.World, id string) {
			time.Sleep(3 * time.Minute)
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+job.ScheduleExecutionID(id, time.Now().Truncate(time.Minute).Add(-2*time.Minute))+"/cancel", nil)
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 2},
	},
}

var displacingCases = []overlapCase{
	{
		name: "each cancels the call before it, and waits for its end", target: takes(150*time.Second, http.StatusOK), members: with("cancel_other", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, waited: map[int]int{2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11},
		cancelled: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
	},
	{
		name: "each cancels the call before it, and is called at once", target: takes(150*time.Second, http.StatusOK), members: with("terminate_other", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, cancelled: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
	},
	{
		name: "what has ended is not cancelled", target: takes(59*time.Second, http.StatusOK), members: with("cancel_other", nil),
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "what is between two attempts is cancelled, and nobody waits", target: func(_ *http.Request, c ledger.Call) (int, error) {
			if c.ScheduledFor.Minute() == 2 {
				return http.StatusServiceUnavailable, nil
			}
			return http.StatusOK, nil
		},
		members: with("cancel_other", map[string]any{"retry_policy": map[string]any{"base_delay": "5m", "backoff": "fixed", "jitter": 0, "max_attempts": 3}}),
		called:  []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, cancelled: []int{1},
	},
	{
		name: "what somebody asked for is not cancelled", target: firstTakes(290 * time.Second), members: with("cancel_other", nil),
		during: func(w *world.World, id string) {
			w.Must(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", nil)
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	},
	{
		name: "one that was cancelled by hand cancels nobody", target: takes(150*time.Second, http.StatusOK), members: with("cancel_other", nil),
		during: func(w *world.World, id string) {
			time.Sleep(time.Minute) // 1 is called, and the entry of 2 written
			second := job.ScheduleExecutionID(id, time.Now().Truncate(time.Minute).Add(time.Minute))
			w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+second+"/cancel", nil)
		},
		called: []int{1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, cancelled: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, byHand: 1,
		waited: map[int]int{3: 1, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11},
	},
	{
		name: "what began with allow_all is not cancelled", target: takes(150*time.Second, http.StatusOK), members: with("allow_all", nil),
		during: func(w *world.World, id string) {
			time.Sleep(time.Minute) // 1 is called
			w.Must(http.StatusOK, http.MethodPatch, "/jobs/"+id, map[string]any{"overlap_policy": "cancel_other"}, "If-Match", "*")
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, cancelled: []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		waited: map[int]int{3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11},
	},
	{
		name: "a process that is killed while one waits for the end of the other", target: takes(150*time.Second, http.StatusOK), members: with("cancel_other", nil),
		during: func(w *world.World, _ string) {
			time.Sleep(90*time.Second + 500*time.Millisecond) // 2 has cancelled 1
			w.Kill()
			w.Start()
		},
		called: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, cancelled: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		waited: map[int]int{2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8, 10: 9, 11: 10, 12: 11},
	},
}

func TestOccurrencesTakeThePlaceOfOthersWhereTheOverlapPolicySaysSo(t *testing.T) {
	t.Parallel()
	testOverlapCases(t, displacingCases)
}

func TestOccurrencesWaitWhereTheOverlapPolicyLetsThem(t *testing.T) {
	t.Parallel()
	testOverlapCases(t, lineCases)
}

func TestOverlapPolicyDecidesAboutEachOccurrence(t *testing.T) {
	t.Parallel()
	testOverlapCases(t, overlapCases)
}

func testOverlapCases(t *testing.T, cases []overlapCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				w.Configure = calm
				w.Targets.Set("target", c.target)
				w.Targets.Set("other", takes(time.Second, http.StatusOK))
				begin := time.Now().Add(time.Minute).Truncate(time.Minute)
				world.Until(begin)
				w.Start()
				members := map[string]any{"type": "interval", "every": "1m", "start_at": begin.Add(time.Minute), "max_occurrences": 12, "overlap_policy": "skip"}
				for name, value := range c.members {
					members[name] = value
				}
				id := w.Create(world.Job("alone", "target", members))
				world.Until(begin.Add(30 * time.Second))
				if c.during != nil {
					c.during(w, id)
				}
				world.Until(begin.Add(21 * time.Minute))
				checkOverlapCase(t, w, id, begin, &c)
				checkWaits(t, w, id, begin, &c)
			})
		})
	}
}

func checkOverlapCase(t *testing.T, w *world.World, id string, begin time.Time, c *overlapCase) {
	t.Helper()
	minute := func(at string) int {
		instant, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			t.Fatal(err)
		}
		return int(instant.Sub(begin) / time.Minute)
	}
	called, skipped := []int{}, map[int]int{}
	nominal := map[string]int{}
	for _, x := range w.Executions(id) {
		if x["trigger"] == "schedule" {
			nominal[x["execution_id"].(string)] = minute(x["nominal_at"].(string))
		}
	}
	for _, c := range w.Targets.CallsOf(id) {
		if ref, err := job.ParseExecutionID(c.ExecutionID); err == nil && ref.Trigger == job.TriggerSchedule && c.Attempt == 1 {
			called = append(called, int(ref.NominalAt.Sub(begin)/time.Minute))
		}
	}
	for _, x := range w.Executions(id) {
		if x["disposition"] == "skipped_overlap" {
			skipped[nominal[x["execution_id"].(string)]] = nominal[x["gave_way_to"].(string)]
		}
	}
	called = slices.Compact(called) // an attempt that a kill cut off is made again
	if fmt.Sprint(called) != fmt.Sprint(c.called) || len(skipped)+len(c.skipped) > 0 && fmt.Sprint(skipped) != fmt.Sprint(c.skipped) {
		t.Errorf("called %v and skipped %v, want %v and %v", called, skipped, c.called, c.skipped)
	}
	for _, o := range w.Must(http.StatusOK, http.MethodGet, "/jobs/"+id+"/occurrences?limit=100", nil)["items"].([]any) {
		o := o.(map[string]any)
		to, gave := c.skipped[minute(o["nominal_at"].(string))]
		why := "Skipped: the execution of " + begin.Add(time.Duration(to)*time.Minute).Format(time.RFC3339Nano) + " was still in " + cmp.Or(c.still, "the first attempt") + ", and the overlap_policy is skip."
		if policy, ok := c.members["overlap_policy"].(string); ok {
			why = strings.Replace(why, "still in the first attempt, and the overlap_policy is skip", "waiting already, and the overlap_policy is "+policy, 1)
		}
		if gave != (o["disposition"] == "skipped_overlap") || gave && o["reason"] != why {
			t.Errorf("the account says of %s: %v", o["nominal_at"], o)
		}
	}
}

// checkWaits checks who waited for whom, and that they were called soon after these had ended.
func checkWaits(t *testing.T, w *world.World, id string, begin time.Time, c *overlapCase) {
	t.Helper()
	ended := map[string]time.Time{}
	first := map[string]ledger.Call{}
	for _, call := range w.Targets.CallsOf(id) {
		if _, known := first[call.ExecutionID]; !known {
			first[call.ExecutionID] = call
		}
		if call.EndedAt.After(ended[call.ExecutionID]) {
			ended[call.ExecutionID] = call.EndedAt
		}
	}
	waited := map[int]int{}
	for _, x := range w.Executions(id) {
		to, ok := x["gave_way_to"].(string)
		if !ok || x["disposition"] == "skipped_overlap" {
			continue
		}
		me, _ := job.ParseExecutionID(x["execution_id"].(string))
		other, _ := job.ParseExecutionID(to)
		waited[int(me.NominalAt.Sub(begin)/time.Minute)] = int(other.NominalAt.Sub(begin) / time.Minute)
		began, over := first[x["execution_id"].(string)].At, ended[to]
		if !began.IsZero() && !over.IsZero() && (began.Before(over) || began.After(over.Add(wakesWithin)) && c.during == nil) {
			t.Errorf("%s was called %s after what it waited for had ended", x["execution_id"], began.Sub(over))
		}
	}
	for me, other := range c.waited { // what an occurrence cancels may end before the occurrence has to wait for it
		call, known := first[job.ScheduleExecutionID(id, begin.Add(time.Duration(me)*time.Minute))]
		over := ended[job.ScheduleExecutionID(id, begin.Add(time.Duration(other)*time.Minute))]
		if _, waits := waited[me]; !waits && c.cancelled != nil && known && !over.IsZero() && !call.At.Before(over) {
			waited[me] = other
		}
	}
	cancelled := []int{}
	for _, x := range w.Executions(id) {
		if me, err := job.ParseExecutionID(x["execution_id"].(string)); err == nil && x["state"] == "cancelled" {
			cancelled = append(cancelled, int(me.NominalAt.Sub(begin)/time.Minute))
		}
	}
	if slices.Sort(cancelled); c.cancelled != nil && fmt.Sprint(cancelled) != fmt.Sprint(c.cancelled) {
		t.Errorf("cancelled were %v, want %v", cancelled, c.cancelled)
	}
	checkDisplaced(t, w, id, len(c.cancelled)-c.byHand)
	if len(waited)+len(c.waited) > 0 && fmt.Sprint(waited) != fmt.Sprint(c.waited) {
		t.Errorf("in line waited %v, want %v", waited, c.waited)
	}
}

// checkDisplaced checks that the account and the job's changes tell of each of n executions that another one took its place.
func checkDisplaced(t *testing.T, w *world.World, id string, n int) {
	t.Helper()
	told, changes := 0, 0
	for _, o := range w.Must(http.StatusOK, http.MethodGet, "/jobs/"+id+"/occurrences?limit=100", nil)["items"].([]any) {
		reason, _ := o.(map[string]any)["reason"].(string)
		if strings.HasPrefix(reason, "Cancelled by the overlap_policy: the execution of a later instant took its place.") {
			told++
		}
	}
	for _, x := range w.Must(http.StatusOK, http.MethodGet, "/jobs/"+id+"/changes?limit=100", nil)["items"].([]any) {
		if x := x.(map[string]any); x["operation"] == "cancelExecution" && x["by"] == "scheduler-worker" {
			changes++
		}
	}
	if told != n || changes != n {
		t.Errorf("the account tells of %d and the changes of %d that were displaced, want %d", told, changes, n)
	}
}

func TestNoMoreOccurrencesWaitThanTheDocumentSays(t *testing.T) {
	t.Parallel()
	world.Run(t, time.Minute, func(w *world.World) {
		w.Configure = calm
		w.Targets.Set("target", firstTakes(150*time.Second))
		w.Start()
		id := w.Create(world.Job("full", "target", with("buffer_all", map[string]any{"type": "interval", "every": "1s", "max_occurrences": 140})))
		time.Sleep(4 * time.Minute)
		var last time.Time
		calls := 0
		for _, c := range w.Targets.CallsOf(id) {
			if calls++; c.ScheduledFor.Before(last) {
				t.Errorf("that of %s was called after that of %s", c.ScheduledFor, last)
			}
			last = c.ScheduledFor
		}
		skipped := 0
		for _, x := range w.Executions(id) {
			if x["disposition"] == "skipped_overlap" {
				skipped++
			}
		}
		if want := 1 + job.MaxWaiting; calls != want || skipped != 140-want {
			t.Errorf("%d were called and %d skipped, want %d and %d", calls, skipped, want, 140-want)
		}
	})
}

// wakesWithin is how soon after the end of an execution the next one in line is called; one that began to wait less than a second ago, later.
const wakesWithin = 1100 * time.Millisecond
