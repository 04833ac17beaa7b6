package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/job"
	"github.com/minutehand/minutehand/loadtest/e2e/world"
	"github.com/minutehand/minutehand/loadtest/ledger"
)

// deadlineCase is what a job of every minute does in twelve minutes, which is to begin within five seconds and to succeed within thirty.
type deadlineCase struct {
	name    string
	target  world.Behaviour
	members map[string]any
	// during is what happens meanwhile, from half a minute after the registration on.
	during func(w *world.World, id string)
	// told are the incidents: the deadline, the cause, the first and the last minute that missed it, from 1, and whether it has ended.
	told []string
}

// inMinutes returns the behaviour of a target that takes long in the occurrences of some minutes of the twelve.
func inMinutes(begin *time.Time, from, to int, other world.Behaviour) world.Behaviour {
	return func(r *http.Request, c ledger.Call) (int, error) {
		if n := int(c.ScheduledFor.Sub(*begin) / time.Minute); n < from || n > to {
			return http.StatusOK, nil
		}
		return other(r, c)
	}
}

func fails(*http.Request, ledger.Call) (int, error) { return http.StatusServiceUnavailable, nil }

func deadlineCases(begin *time.Time) []deadlineCase {
	down := func(for5 time.Duration) func(w *world.World, _ string) {
		return func(w *world.World, _ string) {
			time.Sleep(2 * time.Minute)
			w.Kill()
			time.Sleep(for5)
			w.Start()
		}
	}
	return []deadlineCase{
		{name: "all is well", target: takes(time.Second, http.StatusOK)},
		{
			name: "a target that takes forty seconds", target: inMinutes(begin, 3, 5, takes(40*time.Second, http.StatusOK)), members: map[string]any{"target": timeout5m},
			told: []string{"finish_within calling 3-5 closed"},
		},
		{
			name: "a target that fails once is called again in time", target: func(_ *http.Request, c ledger.Call) (int, error) {
				if c.Attempt == 1 {
					return http.StatusServiceUnavailable, nil
				}
				return http.StatusOK, nil
			},
			members: map[string]any{"retry_policy": map[string]any{"base_delay": "5s", "jitter": 0}},
		},
		{
			name: "a target that fails, and is called again a minute later", target: inMinutes(begin, 3, 4, func(_ *http.Request, c ledger.Call) (int, error) {
				if c.Attempt == 1 {
					return http.StatusServiceUnavailable, nil
				}
				return http.StatusOK, nil
			}),
			members: map[string]any{"retry_policy": map[string]any{"base_delay": "1m", "backoff": "fixed", "jitter": 0}},
			told:    []string{"finish_within retrying 3-4 closed"},
		},
		{
			name: "it is given up, to the end", target: inMinutes(begin, 8, 12, fails), members: map[string]any{"retry_policy": map[string]any{"max_attempts": 1}},
			told: []string{"finish_within failed 8-12 closed"},
		},
		{
			name: "a process that is down for five minutes", target: takes(time.Second, http.StatusOK), during: down(5 * time.Minute),
			told: []string{"finish_within missed 3-7 closed", "start_within missed 3-7 closed"}, members: map[string]any{"missed_run_policy": "skip"},
		},
		{
			name: "dispatch is held", target: takes(time.Second, http.StatusOK), during: func(w *world.World, _ string) {
				w.Must(http.StatusOK, http.MethodPost, "/dispatch/pause", map[string]any{})
				time.Sleep(3 * time.Minute)
				w.Must(http.StatusOK, http.MethodPost, "/dispatch/resume", map[string]any{})
			},
			told: []string{"finish_within held 1-3 closed", "start_within held 1-3 closed"}, members: map[string]any{"catch_up_window": "10m"},
		},
		{
			name: "what a pause skips has no deadline", target: takes(time.Second, http.StatusOK), during: func(w *world.World, id string) {
				w.Pause(id)
				time.Sleep(3 * time.Minute)
				w.Resume(id)
			},
		},
		{
			name: "what gives way has no deadline", target: takes(90*time.Second, http.StatusOK),
			members: map[string]any{"overlap_policy": "skip", "target": timeout5m, "sla": map[string]any{"start_within": "5s", "finish_within": "100s"}},
		},
		{
			name: "what waits for others has", target: firstTakes(170 * time.Second),
			members: map[string]any{"overlap_policy": "buffer_all", "target": timeout5m, "sla": map[string]any{"start_within": "5s"}},
			told:    []string{"start_within waits 2-3 closed"},
		},
		{
			name: "an execution that is cancelled has none", target: inMinutes(begin, 2, 2, takes(4*time.Minute, http.StatusOK)),
			members: map[string]any{"target": timeout5m, "sla": map[string]any{"finish_within": "50s"}},
			during: func(w *world.World, id string) {
				world.Until(begin.Add(2*time.Minute + 10*time.Second))
				w.Must(http.StatusAccepted, http.MethodPost, "/executions/"+job.ScheduleExecutionID(id, begin.Add(2*time.Minute))+"/cancel", nil)
			},
		},
		{
			name: "what somebody asked for has none", target: func(_ *http.Request, c ledger.Call) (int, error) {
				if strings.Contains(c.ExecutionID, "-m") {
					return http.StatusBadRequest, nil
				}
				return http.StatusOK, nil
			},
			during: func(w *world.World, id string) {
				w.Must(http.StatusAccepted, http.MethodPost, "/jobs/"+id+"/trigger", nil)
			},
		},
		{
			name: "an update takes the deadlines away", target: inMinutes(begin, 1, 12, fails), members: map[string]any{"retry_policy": map[string]any{"max_attempts": 1}},
			during: func(w *world.World, id string) {
				world.Until(begin.Add(4*time.Minute + 50*time.Second))
				w.Must(http.StatusOK, http.MethodPatch, "/jobs/"+id, map[string]any{"sla": nil}, "If-Match", "*")
			},
			told: []string{"finish_within failed 1-4 closed"},
		},
	}
}

func TestWatchdogTellsWhichDeadlinesAJobMisses(t *testing.T) {
	t.Parallel()
	var begin time.Time
	for n, c := range deadlineCases(&begin) {
		t.Run(c.name, func(t *testing.T) {
			world.Run(t, time.Minute, func(w *world.World) {
				begin = time.Now().Add(time.Minute).Truncate(time.Hour).Add(time.Hour)
				c := deadlineCases(&begin)[n]
				w.Configure = calm
				w.Targets.Set("target", c.target)
				world.Until(begin)
				w.Start()
				members := map[string]any{
					"type": "interval", "every": "1m", "start_at": begin.Add(time.Minute), "max_occurrences": 12,
					"sla": map[string]any{"start_within": "5s", "finish_within": "30s"},
				}
				maps.Copy(members, c.members)
				id := w.Create(world.Job("watched", "target", members))
				world.Until(begin.Add(30 * time.Second))
				if c.during != nil {
					c.during(w, id)
				}
				world.Until(begin.Add(20 * time.Minute))
				told := []string{}
				for _, x := range w.Must(http.StatusOK, http.MethodGet, "/incidents", nil)["items"].([]any) {
					i := x.(map[string]any)
					minute := func(name string) int {
						at, err := time.Parse(time.RFC3339Nano, i[name].(string))
						if err != nil {
							t.Fatal(err)
						}
						return int(at.Sub(begin) / time.Minute)
					}
					told = append(told, fmt.Sprintf("%s %s %d-%d %s", i["deadline"], i["cause"], minute("first_at"), minute("last_at"), i["status"]))
				}
				slices.Sort(told)
				if fmt.Sprint(told) != fmt.Sprint(c.told) {
					t.Errorf("told %v, want %v", told, c.told)
				}
			})
		})
	}
}
