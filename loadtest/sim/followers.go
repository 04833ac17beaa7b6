package sim

import (
	"fmt"
	"net/http"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// together are two scripts whose jobs have the same instants, so that another may follow both.
var together = []string{"j02", "j03"}

// followerScripts are jobs that follow others, by the names of these. Each comes later than those.
var followerScripts = []struct {
	name    string
	parents []string
	all     bool
}{
	{"f0", []string{"j00"}, false},
	{"f1", []string{"f0"}, false},
	{"f2", together, true},
	{"f3", []string{"j04", "f1", "f2"}, false},
	{"f4", []string{"j02", "f2"}, true},
}

// followed is what is known of jobs that follow others: those that were answered, nil if nobody asks for any, and the jobs by the names of their
// scripts.
type followed struct {
	followers []ledger.Follower
	idOf      map[string]string
}

// playFollowers is the client of jobs that follow others.
func (w *world) playFollowers() {
	d := w.faults.dice
	for i, f := range followerScripts {
		s := script{name: f.name, begin: time.Duration(70+5*i+int(20*d.roll("begin/%s", f.name))) * time.Second, body: map[string]any{"name": f.name, "type": "after"}}
		aim(d, &s, pick(d, []string{"ok", "ok", "flaky", "slow", "bad"}, "behaviour/%s", f.name))
		s.body["after_mode"] = "any"
		if f.all {
			s.body["after_mode"] = "all"
		}
		if d.roll("changes/%s", f.name) < 0.3 {
			s.changes = followerChanges(d, &s)
		}
		w.background.Go(func() { w.playFollower(s, f.parents) })
	}
}

// followerChanges returns what the user of a job that follows others does with it.
func followerChanges(d dice, s *script) (list []change) {
	at := s.begin
	for k := range 3 {
		at += time.Duration(10+60*d.roll("change/%s/%d", s.name, k)) * time.Second
		what := pick(d, []string{"pause", "trigger", "update", "replace", "delete"}, "what/%s/%d", s.name, k)
		list = append(list, change{at, what})
		if what == "pause" {
			at += time.Duration(20*d.roll("paused/%s/%d", s.name, k)) * time.Second
			list = append(list, change{at, "resume"})
		}
	}
	return list
}

func (w *world) playFollower(s script, parents []string) {
	var ids []string
	for _, name := range parents {
		id := ""
		for ; id == "" && w.base.Err() == nil; w.after(time.Second, func() {}) {
			w.mu.Lock()
			id = w.idOf[name]
			w.mu.Unlock()
			if time.Since(w.began) > faultsFor {
				return // it was not registered, or follows one that was not
			}
		}
		ids = append(ids, id)
	}
	if wait := time.Until(w.began.Add(s.begin)); wait > 0 {
		w.after(wait, func() {})
	}
	var after []any
	for _, id := range ids {
		after = append(after, map[string]any{"job": id, "on": pick(w.faults.dice, []string{"any", "success", "any", "failure"}, "on/%s", s.name)})
	}
	s.body["after"] = after
	answer, ok := w.request(s.name, http.StatusCreated, http.MethodPost, "/jobs", s.body, "Idempotency-Key", s.name)
	id, _ := answer["job_id"].(string)
	if !ok || id == "" {
		return // a parent is deleted by now
	}
	w.mu.Lock()
	w.answered(s, id)
	w.followers = append(w.followers, ledger.Follower{JobID: id, AckedAt: time.Now()})
	w.mu.Unlock()
	w.tell("client", id, fmt.Sprintf("registered %s after %v", s.name, ids))
	w.follow(s, id)
}
