package sim

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/loadtest/ledger"
)

// registerOne registers a job, and returns its id, "" if there is none. If a rival wants a job with the same key, one of the two gets it, and
// its job is the script's.
func (w *world) registerOne(s script) string {
	clients := []string{s.name}
	if s.rival {
		clients = append(clients, s.name+"-rival")
	}
	ids := make([]string, len(clients))
	var all sync.WaitGroup
	for i, name := range clients {
		all.Go(func() { ids[i] = w.create(s, name) })
	}
	all.Wait()
	for _, id := range ids {
		if id != "" {
			return id
		}
	}
	return ""
}

// create makes a client register the job of a script.
func (w *world) create(s script, client string) string {
	from := time.Now()
	answer, _ := w.request(client, http.StatusCreated, http.MethodPost, "/jobs", s.body, "Idempotency-Key", client)
	id, _ := answer["job_id"].(string)
	w.wasKeyed(s, id, answer, from)
	return id
}

// wasKeyed notes the answer to a registration with a key: a job's id, or a problem, if any.
func (w *world) wasKeyed(s script, id string, problem map[string]any, from time.Time) {
	key, ok := s.body["key"].(string)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	kind, _ := problem["type"].(string)
	w.keyed = append(w.keyed, ledger.Keyed{Key: key, JobID: id, Refused: strings.HasSuffix(kind, "/key-taken"), From: from, At: time.Now()})
}

// named returns a path in which a job may be named by its key. A deletion is not, because it frees the key, whether it is answered or not.
func (w *world) named(method, path string) string {
	of, _ := strings.CutPrefix(path, "/jobs/")
	id, rest, _ := strings.Cut(of, "/")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.keyed {
		if id != "" && k.JobID == id && method != http.MethodDelete && !w.deleted[id] && w.faults.dice.roll("by key/%s", path) < 0.5 {
			return strings.TrimSuffix("/jobs/key:"+k.Key+"/"+rest, "/")
		}
	}
	return path
}

// registerAgain registers the job of a script once more, under the key of the one that was deleted. Nobody changes it.
func (w *world) registerAgain(s script) {
	w.after(time.Millisecond, func() {}) // so that no two ids belong to one instant
	id := w.create(s, s.name+"-again")
	if id == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered(s, id)
	w.reused++
}

// readByKey reads each job that has a key by it.
func (w *world) readByKey() {
	w.byKey = map[string]string{}
	w.mu.Lock()
	keyed := w.keyed
	w.mu.Unlock()
	for _, k := range keyed {
		if k.JobID == "" || w.deleted[k.JobID] {
			continue
		}
		if answer, ok := w.request("reader", http.StatusOK, http.MethodGet, "/jobs/key:"+k.Key, nil); ok {
			w.byKey[k.Key], _ = answer["job_id"].(string)
		}
	}
}
