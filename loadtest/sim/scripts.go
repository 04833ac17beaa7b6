package sim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"
)

// change is something that a client does to its job.
type change struct {
	at   time.Duration
	what string
}

// script says what the client of one job does.
type script struct {
	name    string
	begin   time.Duration
	body    map[string]any
	changes []change
	// attempts is how many the job's retry policy allows, pause the shortest pause before a retry: its jitter is a quarter.
	attempts int
	pause    time.Duration
	// rival is set if another client registers a job with the same key at the same time.
	rival bool
}

// scripts makes the workload of a seed: jobs of every kind, with changes of every kind. The scripts of one list are
// registered in one request.
func scripts(d dice, began time.Time) [][]script {
	list := make([]script, jobCount)
	batch := d.roll("together") < 0.6
	for i := range list {
		n := fmt.Sprintf("j%02d", i)
		s := script{
			name: n, begin: time.Duration(d.roll("begin/%s", n)*60_000) * time.Millisecond,
			body: map[string]any{"name": n},
		}
		s.begin += time.Duration(i) * time.Millisecond // so that no two ids belong to one instant
		if together := jobCount - togetherCount; batch && i > together {
			s.begin = list[together].begin
		}
		behaviour := pick(d, []string{"ok", "ok", "ok", "flaky", "flaky", "slow", "fail", "bad", "cut", "hang", "gone"}, "behaviour/%s", n)
		aim(d, &s, behaviour)
		if i < 2 {
			s.body["labels"] = map[string]any{"held": "yes"}
		}
		s.body["missed_run_policy"] = pick(d, []string{"skip", "fire_once", "backfill"}, "missed/%s", n)
		s.body["catch_up_window"] = pick(d, []string{"10s", "1m"}, "window/%s", n)
		if d.roll("deadlines/%s", n) < 0.5 {
			s.body["owner"] = "the team of " + n
			s.body["sla"] = map[string]any{
				"start_within":  pick(d, []string{"1s", "5s", "30s"}, "start within/%s", n),
				"finish_within": pick(d, []string{"3s", "20s", "2m"}, "finish within/%s", n),
			}
		}
		if d.roll("tells/%s", n) < 0.6 {
			s.body["notify"] = owned(d, n)
		}
		s.body["precision"] = pick(d, []string{"standard", "standard", "fast", "precise"}, "precision/%s", n)
		plan(d, &s, behaviour)
		if slices.Contains(together, n) {
			maps.DeleteFunc(s.body, func(m string, _ any) bool {
				return slices.Contains([]string{"delay", "every", "jitter", "spread", "spread_within", "max_occurrences"}, m)
			})
			s.body["type"], s.body["cron_expr"], s.body["timezone"] = "cron", "*/30 * * * * *", "UTC"
		}
		if s.body["type"] != "one_shot" {
			bounds(d, &s, began)
			overlap(d, &s, behaviour)
		}
		if d.roll("named/%s", n) < 0.5 {
			s.body["key"], s.rival = "team:"+n, d.roll("rival/%s", n) < 0.5
		}
		s.changes = changes(d, &s)
		list[i] = s
	}
	if batch {
		n := jobCount - togetherCount
		return append(apart(list[:n]), list[n:])
	}
	return apart(list)
}

// owned returns whom a job tells of what.
func owned(d dice, n string) (list []any) {
	for _, who := range []string{"team", "pager"}[:1+int(2*d.roll("owners/%s", n))] {
		list = append(list, map[string]any{
			"on": pick(d, [][]string{
				{"dead_letter", "recovered"}, {"sla_missed", "recovered"}, {"dead_letter", "sla_missed", "paused_by_410", "recovered"}, {"sla_missed"},
			}, "on/%s/%s", n, who),
			"target":       map[string]any{"kind": "http_webhook", "url": "http://" + who + "." + n + "/"},
			"quiet_period": pick(d, []string{"1m", "3m", "1h"}, "quiet/%s/%s", n, who),
		})
	}
	return list
}

// aim gives a script its target, and the number of attempts at it.
func aim(d dice, s *script, behaviour string) {
	n := s.name
	timeout := "3s"
	if behaviour == "hang" {
		timeout = "1s" // a call that hangs for longer would not be done by the end, with all its attempts
	}
	s.body["target"] = map[string]any{
		"kind": "http_webhook", "url": "http://" + behaviour + ".v0." + n + "/", "timeout": timeout,
	}
	if d.roll("large/%s", n) < 0.2 {
		s.body["target"].(map[string]any)["body"] = large
	}
	s.attempts = pick(d, []int{1, 2, 4}, "attempts/%s", n)
	delay := pick(d, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}, "delay/%s", n)
	s.pause = delay * 3 / 4
	s.body["retry_policy"] = map[string]any{
		"base_delay":   delay.String(),
		"max_attempts": s.attempts, "backoff": pick(d, []string{"fixed", "exponential"}, "backoff/%s", n),
	}
}

// plan gives a script its schedule.
func plan(d dice, s *script, behaviour string) {
	n := s.name
	switch pick(d, []string{"one_shot", "interval", "interval", "cron", "cron"}, "type/%s", n) {
	case "one_shot":
		s.body["type"] = "one_shot"
		s.body["delay"] = fmt.Sprintf("%ds", int(1+d.roll("run/%s", n)*400))
	case "interval":
		s.body["type"] = "interval"
		s.body["every"] = pick(d, []string{"3s", "7s", "10s", "25s", "60s", "150s"}, "every/%s", n)
		if behaviour == "hang" && s.body["every"] == "3s" {
			s.body["every"] = "7s" // otherwise it would have more attempts than a hanging host is given calls
		}
		if d.roll("jitter/%s", n) < 0.3 {
			s.body["jitter"] = "3s"
		} else if d.roll("spread/%s", n) < 0.2 {
			s.body["spread"], s.body["spread_within"] = "auto", "5s"
		}
		if d.roll("most/%s", n) < 0.2 {
			s.body["max_occurrences"] = 12
		}
	case "cron":
		s.body["type"] = "cron"
		s.body["timezone"] = pick(d, []string{"UTC", "America/New_York", "Australia/Lord_Howe"}, "zone/%s", n)
		s.body["cron_expr"] = pick(d, []string{"*/10 * * * * *", "*/30 * * * * *", "* * * * *", "15 */2 * * * *"}, "cron/%s", n)
	}
}

// quick are the behaviours of targets whose executions take less than the time between two instants: with others, what waits for one another
// would wait for ever.
var quick = []string{"ok", "bad", "gone"}

// overlap gives some scripts a policy for executions that overlap, and some a template of their keys.
func overlap(d dice, s *script, behaviour string) {
	if d.roll("key/%s", s.name) < 0.3 {
		s.body["idempotency_key_template"] = "{job_id}." + s.name + "@{run_at}"
	}
	roll := d.roll("overlap/%s", s.name)
	if roll >= 0.6 {
		return
	}
	s.body["overlap_policy"] = "skip"
	switch {
	case roll >= 0.5:
		s.body["overlap_policy"] = pick(d, []string{"cancel_other", "cancel_other", "terminate_other"}, "displaces/%s", s.name)
	case roll >= 0.35 && slices.Contains(quick, behaviour):
		s.body["overlap_policy"] = "buffer_all"
	case roll >= 0.25:
		s.body["overlap_policy"] = "buffer_one"
	}
	if s.body["precision"] == "precise" {
		s.body["precision"] = "fast"
	}
}

// changes returns what its user does with a script's job later.
func changes(d dice, s *script) (list []change) {
	n, last := s.name, 60*time.Second
	for k := range int(d.roll("changes/%s", n) * 8) {
		last += time.Duration(pick(d, []float64{5_000, 20_000, 120_000}, "pause/%s/%d", n, k)*
			d.roll("change/%s/%d", n, k)) * time.Millisecond
		what := pick(d, []string{"update", "race", "replace", "pause", "resume", "trigger", "reschedule", "cancel", "delete"}, "what/%s/%d", n, k)
		list = append(list, change{s.begin + last, what})
		if what == "pause" {
			last += time.Duration(d.roll("paused/%s/%d", n, k)*60_000) * time.Millisecond
			list = append(list, change{s.begin + last, "resume"})
		}
	}
	return list
}

// bounds makes some schedules begin later, and some end before the run does. At least one occurrence lies between the two.
func bounds(d dice, s *script, began time.Time) {
	if d.roll("starts/%s", s.name) < 0.2 {
		s.body["start_at"] = began.Add(s.begin + time.Duration(5+d.roll("start/%s", s.name)*60)*time.Second)
	}
	if d.roll("ends/%s", s.name) < 0.2 {
		s.body["end_at"] = began.Add(s.begin + time.Duration(250+d.roll("end/%s", s.name)*300)*time.Second)
	}
}

func apart(scripts []script) (lists [][]script) {
	for _, s := range scripts {
		lists = append(lists, []script{s})
	}
	return lists
}

// hosts returns those of the definitions before a version.
func (w *world) hosts(s script, version int) (list []string) {
	target, _ := s.body["target"].(map[string]any)
	if s.ofPool() {
		list = append(list, "v0")
	} else {
		u, _ := url.Parse(target["url"].(string))
		list = append(list, u.Host)
	}
	for v := 1; v < version; v++ {
		list = append(list, w.host(s, v))
	}
	return list
}

// aimAt returns the members of a target that name a host, or a handler in the place of one.
func (s *script) aimAt(host string) map[string]any {
	if s.ofPool() {
		return map[string]any{"handler": host}
	}
	return map[string]any{"url": "http://" + host + "/"}
}

// host returns the target of the version-th definition.
func (w *world) host(s script, version int) string {
	if s.ofPool() {
		return fmt.Sprintf("v%d", version)
	}
	all := []string{"ok", "ok", "ok", "flaky", "fail", "bad", "cut"}
	if s.body["overlap_policy"] == "buffer_all" {
		all = quick
	}
	behaviour := pick(w.faults.dice, all, "behaviour/%s/%d", s.name, version)
	return fmt.Sprintf("%s.v%d.%s", behaviour, version, s.name)
}
