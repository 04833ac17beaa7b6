package users

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// script says what the owner of one job does.
type script struct {
	name     string
	body     map[string]any
	behavior string
	begin    time.Duration
	changes  []change
	attempts int
	// pause is the shortest pause before a retry: a policy's jitter is a quarter.
	pause time.Duration
	// rival is set if another user registers a job with the same key at the same time.
	rival bool
}

// change is something that a user requests at a time after the start.
type change struct {
	at   time.Duration
	what string
	n    int
}

// scripts makes the jobs: schedules of every type with an end, targets of every behaviour, changes of every kind.
func scripts(cfg Config, began time.Time, t *targets) []script {
	list := make([]script, cfg.Jobs)
	for i := range list {
		d := rand.New(rand.NewPCG(cfg.Seed, uint64(i))) //nolint:gosec // what users do need not be unpredictable
		list[i] = newScript(cfg, d, fmt.Sprintf("j%03d", i), began, t)
	}
	return list
}

func pick[T any](d *rand.Rand, of ...T) T { return of[d.IntN(len(of))] }

// quiet is how long before the end changes stop.
const quiet = 5 * time.Second

func newScript(cfg Config, d *rand.Rand, name string, began time.Time, t *targets) script {
	s := script{
		name: name, attempts: pick(d, 1, 2, 3), begin: time.Duration(d.Int64N(int64(5 * time.Second))),
		behavior: pick(d, "ok", "ok", "ok", "ok", "ok", "flaky", "flaky", "slow", "fail", "bad", "hang", "gone"),
	}
	delay := pick(d, time.Second, 2*time.Second)
	s.pause = delay * 3 / 4
	s.body = map[string]any{
		"name": name, "target": map[string]any{"kind": "http_webhook", "url": t.url(s.behavior, 0, name), "timeout": "2s"},
		"retry_policy":      map[string]any{"max_attempts": s.attempts, "base_delay": delay.String(), "backoff": "fixed"},
		"missed_run_policy": "backfill", "catch_up_window": "1h", "max_backfill": 1000,
		"precision": pick(d, "standard", "standard", "fast", "precise"),
	}
	if cfg.NoPrecision {
		delete(s.body, "precision")
	}
	end := began.Add(cfg.Lasts).UTC().Format(time.RFC3339Nano)
	fixed := false // nothing changes a job that counts its occurrences
	switch pick(d, "one_shot", "interval", "interval", "cron", "cron") {
	case "one_shot":
		s.body["type"] = "one_shot"
		s.body["delay"] = fmt.Sprintf("%dms", 1000+d.Int64N((cfg.Lasts-s.begin).Milliseconds()-1000))
	case "interval":
		s.body["type"], s.body["every"] = "interval", pick(d, "1s", "2s", "3s", "7s")
		if fixed = d.IntN(4) == 0; fixed {
			s.body["max_occurrences"] = 8
		} else {
			s.body["end_at"] = end
		}
		if d.IntN(4) == 0 {
			s.body["jitter"] = "800ms"
		}
	case "cron":
		s.body["type"], s.body["end_at"] = "cron", end
		s.body["cron_expr"] = pick(d, "* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "H/10 * * * * *")
		s.body["timezone"] = pick(d, "UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
	}
	if !fixed {
		s.changes = changes(cfg, d, s.begin)
	}
	if !cfg.NoPrecision && d.IntN(3) == 0 {
		s.body["idempotency_key_template"] = "key-{run_at}"
	}
	if !cfg.NoPrecision && d.IntN(2) == 0 {
		s.body["key"], s.rival = fmt.Sprintf("%s:%d", name, began.UnixNano()), d.IntN(2) == 0
	}
	if s.body["type"] != "one_shot" && !cfg.NoPrecision && d.IntN(3) == 0 {
		s.body["overlap_policy"] = pick(d, "skip", "skip", "buffer_one", "cancel_other", "terminate_other")
		if s.behavior == "ok" { // others take longer than the time between two instants
			s.body["overlap_policy"] = pick(d, "skip", "buffer_all", "cancel_other")
		}
		if s.body["precision"] == "precise" {
			s.body["precision"] = "fast"
		}
	}
	return s
}

// changes returns up to six, one after the other; a pause is followed by a resume.
func changes(cfg Config, d *rand.Rand, begin time.Duration) (list []change) {
	room := int64(cfg.Lasts - begin - quiet)
	if room <= 0 {
		return nil
	}
	var instants []time.Duration
	for range d.IntN(5) {
		instants = append(instants, begin+time.Second+time.Duration(d.Int64N(room)))
	}
	slices.Sort(instants)
	for n, at := range instants {
		what := pick(d, "update", "race", "race", "replace", "replace", "pause", "pause", "pause", "trigger", "trigger", "reschedule", "reschedule", "end")
		if what == "end" {
			what = pick(d, "cancel", "delete")
		}
		list = append(list, change{at, what, n})
		if what == "pause" {
			list = append(list, change{at + 2*time.Second, "resume", n})
		}
	}
	return list
}
